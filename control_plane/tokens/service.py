"""Minting, rotating, revoking and recognising our own tokens.

Of a token only a digest is stored. A revocation is committed with its outbox row and reaches gateways ahead of the
snapshot. Read next: `contracts.claims` (what gateways read) and `contracts.revocations`.
"""

import hashlib
import hmac
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import jwt
import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from contracts import claims, codec
from contracts.revocations import EndSession, key_of
from control_plane.kit import rows
from control_plane.kit.database import Database
from control_plane.kit.problems import Problem, invalid, not_found
from control_plane.kit.rows import Row
from control_plane.kit.unit import Actor, Unit, Units, wake_publisher
from control_plane.publish.records import principal_revocation_entry, revocation_entry
from control_plane.tables import tokens
from control_plane.tokens import queries, signing
from control_plane.tokens.signing import KeySet
from control_plane.vault import Vault
from policy.authenticate import TOKEN_LIMIT

API_AUDIENCE = "glottis-api"
API_TYP = "glottis-api+jwt"
_SESSION_COMMAND_LIFETIME = timedelta(minutes=10)
_LIFETIMES = {"personal": timedelta(days=90), "service_account": timedelta(days=365), "browser": timedelta(minutes=10)}
_LONGEST_BROWSER_LIFETIME = timedelta(hours=1)
_NAMED_MODELS = 20


def issuer_of(public_url: str, workspace: str) -> str:
    """Return the `iss` of a workspace's tokens; (issuer, audience) belongs to exactly one workspace."""
    return f"{public_url}/w/{workspace}"


@dataclass
class TokenIssuer:
    """Signs and recognises tokens. `keys` is read again when a token shows a key id that is not known here."""

    database: Database
    vault: Vault
    public_url: str
    keys: KeySet

    async def rotate(self, now: datetime) -> None:
        """Sign with a new key from now on; tokens of the old one stay good."""
        self.keys = await signing.rotated_keys(self.database, self.vault, now)

    async def authenticated(self, token: str, now: datetime) -> tuple[str, Actor]:
        """Return the workspace and actor of an API token. Raises Problem unauthenticated; it never says why."""
        refused = Problem("unauthenticated", headers={"WWW-Authenticate": 'Bearer error="invalid_token"'})
        if len(token) > 4096 or not token.isascii():
            raise refused
        found = self.keys.verified(token, API_AUDIENCE, API_TYP, now.timestamp())
        if found is None and signing_key_id(token) not in self.keys.public:
            # Another replica may have rotated. Only a well-formed head gets here, and the query is one indexed read.
            self.keys = await signing.read_keys(self.database, self.vault, now)
            found = self.keys.verified(token, API_AUDIENCE, API_TYP, now.timestamp())
        if found is None or found.get("iss") != issuer_of(self.public_url, str(found.get("workspace"))):
            raise refused
        async with self.database.transaction(found["workspace"]) as connection:
            row = await queries.with_principal(connection, str(found.get("jti")))
        if (
            row is None
            or not hmac.compare_digest(row["digest"], _digest(token))
            or row["revoked_at"] is not None
            or row["principal_is_disabled"]
        ):
            raise refused
        scopes = None if row["scopes"] is None else frozenset(row["scopes"])
        return found["workspace"], Actor(
            row["principal_id"], row["principal_name"], row["principal_role"], scopes, token_id=row["id"]
        )

    async def mint(self, unit: Unit, values: Mapping[str, Any], lifetime: timedelta | None) -> tuple[Row, str]:
        """Return the token's row and its text. values: columns of `tokens`: principal_id, kind, audience, narrowing, …

        Raises Problem invalid_request for a lifetime that the kind does not allow.
        """
        if not self.keys.current:
            raise Problem("database_unavailable", headers={"Retry-After": "1"})
        kind = values["kind"]
        lifetime = lifetime or _LIFETIMES[kind]
        if kind == "browser" and lifetime > _LONGEST_BROWSER_LIFETIME:
            raise invalid("expires_in_seconds", "A browser token lives an hour at most.")
        issued = int(unit.now.timestamp())
        expires = issued + int(lifetime.total_seconds())
        row: Row = {
            "team_id": None,
            "account_ids": None,
            "models": None,
            "operations": None,
            "origins": None,
            "scopes": None,
            "is_single_use": False,
            "metadata": None,
            "replaces": None,
            "name": "",
            **values,
            "workspace": unit.workspace,
            "id": unit.new_id(),
            "created_by": unit.actor.id,
            "created_at": unit.now,
            "expires_at": datetime.fromtimestamp(expires, UTC),
            "revoke_at": None,
            "revoked_at": None,
        }
        iss = issuer_of(self.public_url, unit.workspace)
        if row["audience"] == API_AUDIENCE:
            payload: dict[str, Any] = {
                "iss": iss,
                "aud": API_AUDIENCE,
                "sub": row["principal_id"],
                "jti": row["id"],
                "iat": issued,
                "exp": expires,
                "workspace": unit.workspace,
            }
            text = self.keys.signed(payload, API_TYP)
        else:
            caller = claims.CallerClaims(
                iss=iss,
                aud=claims.AUDIENCE,
                sub=row["principal_id"],
                jti=row["id"],
                iat=issued,
                exp=expires,
                workspace=unit.workspace,
                kind=kind,
                team=row["team_id"],
                accounts=_tuple(row["account_ids"]),
                models=_tuple(row["models"]),
                operations=_tuple(row["operations"]),
                origins=_tuple(row["origins"]),
                parent=(unit.actor.token_id or None) if kind == "browser" else None,
                is_single_use=row["is_single_use"],
                glottis_metadata=row["metadata"],
            )
            text = self.keys.signed(msgspec.to_builtins(caller), claims.TYP)
        if len(text) > TOKEN_LIMIT:
            raise invalid("metadata", "Gateways take no token that is so long: name fewer accounts, models or annotations.")
        await rows.insert_rows(unit.connection, tokens, [{**row, "digest": _digest(text)}])
        unit.record("create", "token", row["id"], row["name"] or row["id"], None, described(row))
        return row, text

    async def rotated(self, unit: Unit, row: Row, overlap: timedelta, lifetime: timedelta | None) -> tuple[Row, str]:
        """Return a new token like the old one, which is revoked when the overlap is over."""
        if row["revoked_at"] is not None:
            raise Problem("conflict", "That token is revoked; mint a new one.")
        kept = (
            "principal_id", "kind", "audience", "name", "team_id", "account_ids", "models", "operations", "origins", "scopes",
            "is_single_use", "metadata",
        )  # fmt: skip
        whole = row["expires_at"] - row["created_at"]
        made, text = await self.mint(unit, {**{name: row[name] for name in kept}, "replaces": row["id"]}, lifetime or whole)
        if overlap:
            await queries.schedule(unit.connection, row["id"], unit.now + overlap)
            unit.record("rotate", "token", row["id"], row["name"] or row["id"], None, {"replaced_by": made["id"]})
        else:
            await revoke(unit, [row["id"]])
        return made, text


async def revoke(unit: Unit, ids: Iterable[str]) -> list[Row]:
    """Revoke tokens: gateways refuse them, and what was derived from them, within a second of the commit."""
    revoked = await queries.mark_revoked(unit.connection, ids, unit.now)
    await queries.announce(unit.connection, unit.workspace, map(revocation_entry, revoked))
    for row in revoked:
        unit.record("revoke", "token", row["id"], row["name"] or row["id"], {"revoked": False}, {"revoked": True})
    if revoked:
        await wake_publisher(unit.connection)
    return revoked


async def revoke_all_of(unit: Unit, principal_id: str) -> list[Row]:
    """Revoke every good token of a principal: ours by their ids, those of an identity provider by their time."""
    principal = await queries.mark_all_revoked(unit.connection, principal_id, unit.now)
    await queries.announce(unit.connection, unit.workspace, [principal_revocation_entry(principal)])
    unit.record("revoke", principal["kind"], principal_id, principal["name"], None, {"tokens": "revoked"})
    await wake_publisher(unit.connection)
    return await revoke(unit, await queries.of_principal(unit.connection, principal_id, unit.now))


async def end_session(unit: Unit, exchange: str) -> None:
    """Have the gateway that holds this exchange's open session end it."""
    command = EndSession(
        workspace=unit.workspace,
        exchange=exchange,
        at_ms=_ms(unit.now),
        expires_ms=_ms(unit.now + _SESSION_COMMAND_LIFETIME),
    )
    await queries.announce(unit.connection, unit.workspace, [(key_of(command), codec.encode(command))])
    await wake_publisher(unit.connection)
    unit.record("end_session", "session", exchange, exchange)


async def revoke_due(units: Units) -> int:
    """Revoke the tokens whose overlap is over, in every workspace; return how many."""
    now = datetime.fromtimestamp(units.clock(), UTC)
    async with units.database.publisher() as connection:
        found = await queries.due(connection, now)
    by_workspace: dict[str, list[str]] = {}
    for workspace, token in found:
        by_workspace.setdefault(workspace, []).append(token)
    for workspace, ids in by_workspace.items():
        async with units.change(workspace, Actor("system", "rotation", "owner"), units.new_id()) as unit:
            await revoke(unit, ids)
    return len(found)


async def token_row(unit_or_connection: Any, reference: str) -> Row:  # Any: an AsyncConnection
    """Return the token's row. Raises Problem not_found."""
    row = await queries.with_principal(unit_or_connection, reference)
    if row is None:
        raise not_found("token", reference)
    return row


def described(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the audit log keeps of a token."""
    names = ("principal_id", "kind", "audience", "team_id", "account_ids", "models", "operations", "origins", "scopes")
    kept = {name: row[name] for name in names if row[name] is not None}
    return {**kept, "expires_at": row["expires_at"].isoformat()}


def signing_key_id(token: str) -> str | None:
    """Return the key id that a token's head names, unchecked; None if it has no readable head."""
    try:
        head = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError):
        return None
    kid = head.get("kid")
    return kid if isinstance(kid, str) and kid.startswith("g") and len(kid) == 17 else None


async def check_models(connection: AsyncConnection, names: Iterable[str], account_ids: Sequence[str] | None) -> None:
    """Refuse a narrowing to a model that none of the accounts (None: of the workspace's) has: such a token admits nothing.

    Raises Problem invalid_request, which names the models that there are.
    """
    known = await queries.model_names(connection, account_ids)
    for name in names:
        if name not in known:
            where = "this workspace" if account_ids is None else "those accounts"
            there_are = ", ".join(sorted(known)[:_NAMED_MODELS]) + (", …" if len(known) > _NAMED_MODELS else "")
            raise invalid("models", f"There is no model {name!r} in {where}; there is {there_are or 'none'}.")


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def _tuple(values: list[str] | None) -> tuple[str, ...] | None:
    return None if values is None else tuple(values)
