"""Answers to `POST /access-token`: tokens of our own, in the shape that Cartesia's SDKs expect.

The provider's own answer would open its API past the gateway, so the path is answered here. A minted token is bounded by
its parent in everything: time, operations, accounts, models, origins; revoking either kills it, and it cannot mint. It is
signed with the workspace's key, which only gateways hold. Clock and ids are arguments. Read next: `policy.authenticate`.
"""

import json
from typing import Any

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_private_key

from contracts import claims as contract
from contracts.secret import Secret
from contracts.snapshot import Issuer
from policy.index import Index
from policy.keyring import Key, KeyRing, strict_object
from policy.refusal import Refusal
from policy.route import Route

LONGEST_SECONDS = 3600
"""Cartesia docs, access tokens"""

GRANTS: dict[str, str] = {"tts": "tts", "stt": "stt", "agent": "agents"}
"""what a request may ask for -> operation class"""


def access_token(
    route: Route, body: bytes, key: Secret, index: Index, keys: KeyRing, token_id: str, now: float
) -> bytes | Refusal:
    """Return the JSON body `{"token": …}` of the answer. body: as received, may be empty. key: the workspace's signing key
    (PKCS8 DER). token_id: a fresh `jti`. now: Unix seconds."""
    caller = route.caller
    if caller.record is None:
        return Refusal("principal_unknown")  # a token of ours names a principal's record, and there is none
    asked = strict_object(body) if body.strip() else {}
    if asked is None:
        return Refusal("body_not_json")
    seconds = asked.get("expires_in", LONGEST_SECONDS)
    if isinstance(seconds, bool) or not isinstance(seconds, int) or not 0 < seconds <= LONGEST_SECONDS:
        return Refusal("judged_value_invalid", f"expires_in is 1 to {LONGEST_SECONDS} seconds")
    operations = _operations(asked.get("grants"), caller.operations)
    if isinstance(operations, Refusal):
        return operations
    signer = _signer(route, key, index, keys)
    if isinstance(signer, Refusal):
        return signer
    issuer, algorithm, kid, private = signer
    minted = contract.CallerClaims(
        iss=issuer.issuer,
        aud=issuer.audiences[0],
        sub=caller.principal,
        jti=token_id,
        iat=int(now),
        exp=int(min(now + seconds, caller.expires_at)),
        workspace=caller.workspace,
        kind="access",
        team=caller.cost_team,
        accounts=(route.account.id,) if route.pin is not None else caller.accounts,
        models=caller.models,
        operations=operations,
        origins=caller.origins,
        parent=caller.token_id,
        is_single_use=caller.is_single_use,
        glottis_metadata=dict(caller.metadata) or None,
    )
    headers: dict[str, Any] = {"typ": contract.TYP} | ({"kid": kid} if kid is not None else {})
    token = jwt.encode(msgspec.to_builtins(minted), private, algorithm=algorithm, headers=headers)
    return json.dumps({"token": token}).encode("ascii")


def _operations(grants: object, parents: tuple[str, ...] | None) -> tuple[str, ...] | Refusal:
    """Return what was asked for and the parent may do; a request that names no grants asks for all of them."""
    if grants is None:
        grants = dict.fromkeys(GRANTS, True)
    if not isinstance(grants, dict) or not all(isinstance(wanted, bool) for wanted in grants.values()):
        return Refusal("judged_value_invalid", "grants is an object of true and false")
    asked = [operation for name, operation in GRANTS.items() if grants.get(name) is True]
    allowed = tuple(operation for operation in asked if parents is None or operation in parents)
    return allowed or Refusal("operation_not_granted", ", ".join(asked) or "none was asked for")


def _signer(
    route: Route, key: Secret, index: Index, keys: KeyRing
) -> tuple[Issuer, str, str | None, EllipticCurvePrivateKey | Ed25519PrivateKey] | Refusal:
    """Return the workspace's access token issuer, with the algorithm and kid of the public key that it lists for `key`."""
    private = load_der_private_key(key.reveal(), None)
    if not isinstance(private, EllipticCurvePrivateKey | Ed25519PrivateKey):
        return Refusal("minting_unavailable")
    wanted = private.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    for issuer in index.issuers.values():
        if issuer.workspace != route.caller.workspace or issuer.kind != "access_token" or not issuer.audiences:
            continue
        for listed in keys.all_of(issuer):
            if listed.public_bytes() == wanted:
                algorithm = _algorithm(listed, issuer)
                if algorithm is not None:
                    return issuer, algorithm, listed.kid, private
    return Refusal("minting_unavailable")


def _algorithm(key: Key, issuer: Issuer) -> str | None:
    return next((name for name in issuer.algorithms if name in key.algorithms), None)
