"""Who is calling: from the token presented to a `Caller`, at `now`.

Signature first and once (then from the key ring's memory); times, principal and teams anew at each call. Only issuers of
the snapshot are ever looked at: an unregistered `iss` asks for no keys. Headers of a token choose a key among the issuer's
own and nothing else: `jwk`, `jku`, `x5u` and `x5c` are not read. Read next: `policy.resolve`.
"""

import base64
import binascii
import hashlib
import re
from dataclasses import replace
from typing import Any

import msgspec

from contracts import claims as contract
from contracts.snapshot import Issuer, Principal
from policy.index import Index
from policy.keyring import ALGORITHMS, Verified, strict_object
from policy.refusal import Refusal
from policy.route import Caller, NeedKeys
from policy.scan import Scan, metadata_in
from policy.world import World

TOKEN_LIMIT = 8192
"""bytes; larger ones do not fit the header limits of the servers around us either"""

_TOKEN = re.compile(rb"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\Z")
_OIDC_TYPES = ("jwt", "at+jwt", "application/jwt", "application/at+jwt")
"""RFC 7519 §5.1, RFC 9068 §2.1; in lower case"""

_LEEWAY_LIMIT = 60
_TIME_LIMIT = 2**53
_NAME_LIMIT = 255
_GROUPS_LIMIT = 1000


def principal_id_of(issuer_id: str, subject: str) -> str:
    """Return the id of a principal that has no record: stable, and fit for keys of the bus, unlike subjects."""
    return "oidc-" + hashlib.sha256(f"{issuer_id}\0{subject}".encode("utf-8", "surrogatepass")).hexdigest()[:32]


def authenticate(scan: Scan, world: World, now: float) -> Caller | NeedKeys | Refusal:
    """Return the caller that the head's token stands for; NeedKeys if only a fresh key set can tell. now: Unix seconds."""
    token = scan.token
    if token is None:
        return Refusal("token_missing")
    if len(token) > TOKEN_LIMIT:
        return Refusal("token_too_long")
    digest = scan.digest
    if digest is None:
        digest = scan.digest = hashlib.sha256(token).digest()
    known = world.keys.verified(digest)
    index = world.index
    if known is not None:
        issuer = index.issuers.get(known.issuer.id)
        if issuer is not known.issuer:
            if issuer == known.issuer and issuer is not None:
                known.issuer = issuer
            else:
                world.keys.drop(digest)
                known = None
    if known is None:
        fresh = _verify(token, world)
        if not isinstance(fresh, Verified):
            return fresh
        world.keys.remember(digest, fresh)
        known = fresh
    caller = known.caller
    if now >= known.until:
        return Refusal("token_expired")
    if now < known.since:
        return Refusal("token_not_yet_valid")
    principal = _principal_of(caller, index)
    if isinstance(principal, Refusal):
        return principal
    if principal is not caller.record or not caller.principal:
        caller = known.caller = _as(caller, principal)
    return caller


def still(caller: Caller, index: Index, now: float) -> Caller | Refusal:
    """Return the caller as the index knows it now, for a session whose token was verified when it opened.

    The issuer's settings count as they are now; the signature is not asked for again. now: Unix seconds.
    """
    issuer = index.issuers.get(caller.issuer.id)
    if issuer is None or issuer.workspace != caller.workspace:
        return Refusal("issuer_unknown")
    is_same = issuer is caller.issuer or issuer == caller.issuer
    if not is_same:
        caller = replace(caller, issuer=issuer)
    if _session_is_over(caller, now):
        return Refusal("token_expired")
    principal = _principal_of(caller, index)
    if isinstance(principal, Refusal):
        return principal
    return caller if is_same and principal is caller.record else _as(caller, principal)


def _leeway(issuer: Issuer) -> int:
    """Return the seconds of clock difference that are forgiven: never more than 60, whatever is configured."""
    return max(0, min(issuer.leeway_seconds, _LEEWAY_LIMIT))


def _session_is_over(caller: Caller, now: float) -> bool:
    """Tell whether the token's expiry ends an open session, as the issuer's setting says."""
    setting = caller.issuer.expiry
    if setting == "finish-session":
        return False
    _, _, grace = setting.partition("grace:")
    # Anything but `grace:<seconds>` is `hard`: an unknown setting can only be stricter than what was meant.
    seconds = int(grace) if grace.isascii() and grace.isdigit() and len(grace) < 10 else 0
    return now >= caller.expires_at + _leeway(caller.issuer) + seconds


def _principal_of(caller: Caller, index: Index) -> Principal | Refusal | None:
    """Return the record of the caller's principal; None for a subject that is admitted without one."""
    issuer = caller.issuer
    if issuer.kind == "oidc":
        principal = index.subjects.get((issuer.id, caller.subject))
        if principal is None:
            return None if issuer.admits_unregistered else Refusal("principal_unknown")
    else:
        principal = index.principals.get((caller.workspace, caller.subject))
        if principal is None:
            return Refusal("principal_unknown")
    return Refusal("principal_disabled") if principal.is_disabled else principal


def _as(caller: Caller, principal: Principal | None) -> Caller:
    """Return the caller with what the principal's record says now."""
    mapped = caller.issuer.group_teams
    teams = dict.fromkeys(mapped[group] for group in caller.groups if group in mapped)
    if principal is None:
        return replace(caller, principal=principal_id_of(caller.issuer.id, caller.subject), teams=tuple(teams), record=None)
    return replace(
        caller,
        record=principal,
        principal=principal.id,
        kind=principal.kind,
        name=principal.name,
        teams=tuple(dict.fromkeys((*principal.teams, *teams))),
    )


def _verify(token: bytes, world: World) -> Verified | NeedKeys | Refusal:
    """Return what the token's signature proves. Its times and principal are not looked at here."""
    parts = _TOKEN.match(token)
    if parts is None:
        return Refusal("token_malformed")
    decoded = [_base64url(part) for part in parts.groups()]
    header = strict_object(decoded[0]) if decoded[0] is not None else None
    payload = decoded[1]
    claims = strict_object(payload) if payload is not None else None
    signature = decoded[2]
    if header is None or payload is None or claims is None or signature is None:
        return Refusal("token_malformed")
    issuer = _issuer_of(claims, world.index)
    if issuer is None:
        return Refusal("issuer_unknown")
    if "crit" in header or "b64" in header:  # RFC 7515 §4.1.11: no extension is understood here
        return Refusal("token_malformed")
    typ = header.get("typ")
    if issuer.kind == "oidc":
        if typ is not None and not (isinstance(typ, str) and typ.lower() in _OIDC_TYPES):
            return Refusal("token_type_refused")
    elif typ != contract.TYP:
        return Refusal("token_type_refused")
    algorithm = header.get("alg")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS or algorithm not in issuer.algorithms:
        return Refusal("algorithm_refused")
    kid = header.get("kid")
    if kid is not None and not isinstance(kid, str):
        return Refusal("token_malformed")
    keys = world.keys.candidates(issuer, kid)
    signed = token[: parts.end(2)]
    for key in keys:
        if key.has_signed(algorithm, signed, signature):
            break
    else:
        # A named key that is known and did not sign is the end; in every other case a newer key set may hold the signer.
        is_static = issuer.jwks_uri is None and issuer.jwks is not None
        if not is_static and not any(key.kid is not None and key.kid == kid for key in keys):
            return NeedKeys(issuer, kid)
        return Refusal("signature_invalid" if keys else "key_unknown")
    caller = _caller_of(claims, payload, issuer, signed)
    if caller is None:
        return Refusal("claims_invalid")
    not_before = max(_time(claims.get("nbf")) or 0.0, _time(claims.get("iat")) or 0.0)
    leeway = _leeway(issuer)
    return Verified(key, issuer, caller, not_before - leeway, caller.expires_at + leeway)


def _base64url(part: bytes) -> bytes | None:
    """Return the bytes of an unpadded base64url text; None if it is not the one canonical spelling (RFC 4648 §3.5)."""
    try:
        decoded = base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4))
    except (binascii.Error, ValueError):
        return None
    return decoded if base64.urlsafe_b64encode(decoded).rstrip(b"=") == part else None


def _issuer_of(claims: dict[str, Any], index: Index) -> Issuer | None:
    """Return the one issuer record that (iss, aud) names; None if there is none, or audiences name several."""
    iss, aud = claims.get("iss"), claims.get("aud")
    registered = index.audiences.get(iss) if isinstance(iss, str) else None
    if registered is None:
        return None
    audiences = aud if isinstance(aud, list) else [aud]
    found = {id(record): record for name in audiences if isinstance(name, str) and (record := registered.get(name)) is not None}
    return next(iter(found.values())) if len(found) == 1 else None


def _time(value: object) -> float | None:
    """Return a NumericDate (RFC 7519 §2) in seconds; None if it is absent or no time."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _TIME_LIMIT:
        return None
    return float(value)


def _caller_of(claims: dict[str, Any], payload: bytes, issuer: Issuer, signed: bytes) -> Caller | None:
    """Return the caller that verified claims describe, yet without its principal; None if a claim is not as it must be."""
    expires_at = _time(claims.get("exp"))
    if expires_at is None:
        return None
    for optional in ("nbf", "iat"):
        if optional in claims and _time(claims[optional]) is None:
            return None
    token_id = claims.get("jti")
    if token_id is None:
        token_id = hashlib.sha256(signed).hexdigest()[:32]
    if not isinstance(token_id, str) or not 0 < len(token_id) <= _NAME_LIMIT:
        return None
    issued_at = _time(claims.get("iat")) or 0.0
    metadata = metadata_in(claims.get(contract.METADATA_CLAIM, {}))
    if metadata is None:
        return None
    if issuer.kind == "oidc":
        subject = _claim(claims, issuer.subject_claim)
        if not isinstance(subject, str) or not 0 < len(subject) <= _NAME_LIMIT:
            return None
        email = _claim(claims, issuer.email_claim) if issuer.email_claim else None
        return Caller(
            workspace=issuer.workspace,
            principal="",
            kind="user",
            name=email if isinstance(email, str) and 0 < len(email) <= _NAME_LIMIT else subject,
            teams=(),
            issuer=issuer,
            token_id=token_id,
            parent_token_id=None,
            issued_at=issued_at,
            expires_at=expires_at,
            subject=subject,
            groups=_groups(claims, issuer),
            metadata=metadata,
        )
    try:
        ours = msgspec.json.decode(payload, type=contract.CallerClaims)
    except msgspec.MsgspecError:
        return None
    # The issuer's kind and the token's must agree: an access token signed by a pod's key opens no more than that.
    if ours.workspace != issuer.workspace or (ours.kind == "access") != (issuer.kind == "access_token"):
        return None
    if ours.kind == "access" and ours.parent is None:
        return None
    return Caller(
        workspace=issuer.workspace,
        principal="",
        kind="service_account" if ours.kind == "service_account" else "user",
        name="",
        teams=(),
        issuer=issuer,
        token_id=token_id,
        parent_token_id=ours.parent,
        issued_at=issued_at,
        expires_at=expires_at,
        subject=ours.sub,
        cost_team=ours.team,
        accounts=ours.accounts,
        models=ours.models,
        operations=ours.operations,
        origins=None if ours.origins is None else tuple(origin.lower() for origin in ours.origins),
        is_single_use=ours.is_single_use,
        metadata=metadata,
    )


def _claim(claims: dict[str, Any], name: str) -> object:
    """Return a claim by its name, or by the path that a dotted name spells (`realm_access.roles`)."""
    if name in claims:
        return claims[name]
    value: object = claims
    for step in name.split("."):
        if not isinstance(value, dict) or step not in value:
            return None
        value = value[step]
    return value


def _groups(claims: dict[str, Any], issuer: Issuer) -> tuple[str, ...]:
    """Return the groups that the token names and that map to a team: others mean nothing here."""
    if issuer.groups_claim is None:
        return ()
    named = _claim(claims, issuer.groups_claim)
    if isinstance(named, str):
        named = [named]
    if not isinstance(named, list) or len(named) > _GROUPS_LIMIT:
        return ()
    return tuple(dict.fromkeys(group for group in named if isinstance(group, str) and group in issuer.group_teams))
