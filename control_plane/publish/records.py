"""Rows to the records of `contracts.snapshot` and `contracts.prices`. Pure; sealed secrets pass through unopened."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from contracts import codec
from contracts.claims import AUDIENCE
from contracts.exports import ExportTarget
from contracts.prices import Price
from contracts.revocations import Revocation, key_of
from contracts.snapshot import Account, Credential, Grant, Issuer, Model, Principal, Sealed, Team, Workspace

Row = Mapping[str, Any]  # Any: a row's values are typed by its table


LONGEST_TOKEN = timedelta(days=366)
"""how long a token lives at most: after that, a revocation by time can hit nothing"""

CLOCK_ALLOWANCE = timedelta(seconds=60)
"""how long after a token's expiry its revocation is kept: a pod's clock may be behind, and issuers allow a leeway"""


def workspace_record(row: Row, keys: Sequence[Row]) -> Workspace:
    """Return a workspace. keys: its rows of `workspace_keys`."""
    sealed = {key["name"]: Sealed(key_id=key["sealed_for"], version=key["version"], ciphertext=key["sealed"]) for key in keys}
    return Workspace(
        id=row["workspace"],
        name=row["name"],
        default_accounts=row["default_accounts"],
        transcript_key=sealed.get("transcript_key"),
        access_token_key=sealed.get("access_token_key"),
        span_sampling=row["span_sampling"],
    )


def own_issuers(row: Row, keys: Sequence[Row], public_url: str) -> tuple[Issuer, ...]:
    """Return the issuers of a workspace's own tokens: the control plane's, and the one of `/access-token` answers."""
    workspace = row["workspace"]
    issuer = f"{public_url}/w/{workspace}"
    issuers = [
        Issuer(
            id=f"glottis-{workspace}",
            workspace=workspace,
            issuer=issuer,
            audiences=(AUDIENCE,),
            kind="glottis",
            jwks_uri=f"{public_url}/.well-known/jwks.json",
            algorithms=("ES256",),
        )
    ]
    for key in keys:
        if key["name"] == "access_token_key":
            issuers.append(
                Issuer(
                    id=f"access-token-{workspace}",
                    workspace=workspace,
                    issuer=f"{issuer}/access-token",
                    audiences=(AUDIENCE,),
                    kind="access_token",
                    jwks=key["public"].encode(),
                    algorithms=("ES256",),
                )
            )
    return tuple(issuers)


def issuer_record(row: Row) -> Issuer:
    """Return a registered OIDC issuer."""
    return Issuer(
        id=row["id"],
        workspace=row["workspace"],
        issuer=row["issuer"],
        audiences=tuple(row["audiences"]),
        jwks_uri=row["jwks_uri"],
        jwks=row["jwks"],
        algorithms=tuple(row["algorithms"]),
        subject_claim=row["subject_claim"],
        email_claim=row["email_claim"],
        groups_claim=row["groups_claim"],
        group_teams=row["group_teams"],
        admits_unregistered=row["admits_unregistered"],
        expiry=row["expiry"],
        leeway_seconds=row["leeway_seconds"],
    )


def team_record(row: Row) -> Team:
    """Return a team."""
    return Team(
        id=row["id"],
        workspace=row["workspace"],
        name=row["name"],
        default_accounts=row["default_accounts"],
        allowed_voices=None if row["allowed_voices"] is None else tuple(row["allowed_voices"]),
    )


def principal_record(row: Row, teams: Sequence[str]) -> Principal:
    """Return a principal. teams: ids in the order of its memberships."""
    return Principal(
        id=row["id"],
        workspace=row["workspace"],
        kind=row["kind"],
        name=row["name"],
        teams=tuple(teams),
        issuer_id=row["issuer_id"],
        subject=row["subject"],
        is_disabled=row["is_disabled"],
    )


def account_record(row: Row, credentials: Sequence[Row]) -> Account:
    """Return an account. credentials: its rows of `credentials`, the active one first."""
    return Account(
        id=row["id"],
        workspace=row["workspace"],
        name=row["name"],
        provider=row["provider"],
        origin=row["origin"],
        credentials=tuple(
            Credential(
                slot=credential["slot"],
                sealed=Sealed(key_id=credential["sealed_for"], version=credential["version"], ciphertext=credential["sealed"]),
            )
            for credential in credentials
        ),
        credential_scheme=row["credential_scheme"],
        priority=row["priority"],
        ca_pem=row["ca_pem"],
        tls_server_name=row["tls_server_name"],
        allowed_voices=None if row["allowed_voices"] is None else tuple(row["allowed_voices"]),
        forwards_trace_headers=row["forwards_trace_headers"],
        region=row["region"],
        is_disabled=row["is_disabled"],
    )


def model_record(row: Row, subjects: Sequence[str]) -> Model:
    """Return a model. subjects: what it is narrowed to, if it is."""
    return Model(
        id=row["id"],
        workspace=row["workspace"],
        account=row["account_id"],
        name=row["name"],
        type=row["type"],
        priority=row["priority"],
        only=tuple(subjects) if row["is_narrowed"] else None,
    )


def grant_record(row: Row) -> Grant:
    """Return a grant."""
    return Grant(
        id=row["id"],
        workspace=row["workspace"],
        account=row["account_id"],
        subject=row["subject"],
        role=row["role"],
        operations=tuple(row["operations"]),
    )


def price_entry(row: Row) -> Price:
    """Return an entry of the price book."""
    return Price(
        workspace=row["workspace"],
        provider=row["provider"],
        account=row["account_id"] or "",
        model=row["model"],
        unit=row["unit"],
        price=format(row["price"], "f"),
        currency=row["currency"],
        effective_ms=row["effective_ms"],
    )


def export_target_record(row: Row) -> ExportTarget:
    """Return an export target."""
    sealed = None
    if row["sealed"] is not None:
        sealed = Sealed(key_id=row["sealed_for"], version=row["secret_version"], ciphertext=row["sealed"])
    return ExportTarget(
        id=row["id"],
        workspace=row["workspace"],
        name=row["name"],
        endpoint=row["endpoint"],
        protocol=row["protocol"],
        compression=row["compression"],
        headers=row["headers"],
        sealed_headers=sealed,
        ca_pem=row["ca_pem"],
        resource_attributes=row["resource_attributes"],
        timeout_seconds=row["timeout_seconds"],
        is_disabled=row["is_disabled"],
    )


def revocation_entry(row: Row) -> tuple[str, bytes]:
    """Return key and encoded value, to be signed, of the revocation of a token's row."""
    revocation = Revocation(
        workspace=row["workspace"],
        kind="token",
        target=row["id"],
        at_ms=_ms(row["revoked_at"]),
        expires_ms=_ms(row["expires_at"] + CLOCK_ALLOWANCE),
    )
    return key_of(revocation), codec.encode(revocation)


def principal_revocation_entry(row: Row) -> tuple[str, bytes]:
    """Return key and encoded value, to be signed, of the revocation of what a principal's row says was issued before."""
    at_ms = _ms(row["tokens_revoked_at"])
    revocation = Revocation(
        workspace=row["workspace"],
        kind="principal",
        target=row["id"],
        at_ms=at_ms,
        before_ms=at_ms,
        expires_ms=_ms(row["tokens_revoked_at"] + LONGEST_TOKEN),
    )
    return key_of(revocation), codec.encode(revocation)


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
