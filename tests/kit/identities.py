"""Issuers that sign real tokens, and a small workspace to decide about.

Keys are made once a test run. `voice_workspace` is the workspace of most tests: two Cartesia accounts and a Kokoro one,
two teams, a few principals; tests change it with `dataclass`-like keyword arguments and assert literals.
"""

import base64
import hashlib
import json
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from contracts import claims
from contracts.snapshot import Account, Grant, Issuer, Model, Principal, Snapshot, Team, Workspace

NOW = 1_800_000_000.0
"""Unix seconds: the present of every policy test"""

IDP = "https://idp.test"
OWN = "https://glottis.test"


def b64(data: bytes) -> str:
    """Return unpadded base64url text."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def b64_json(value: Any) -> str:
    """Return unpadded base64url text of compact JSON."""
    return b64(json.dumps(value, separators=(",", ":")).encode())


@dataclass
class SigningKey:
    """A private key that signs JWTs with one algorithm."""

    algorithm: str
    kid: str | None
    private: Any
    jwk: dict[str, Any] = field(default_factory=dict)

    def signature(self, signed: bytes) -> bytes:
        """Return the JWS signature over the bytes."""
        if isinstance(self.private, rsa.RSAPrivateKey):
            if self.algorithm.startswith("PS"):
                return self.private.sign(signed, padding.PSS(padding.MGF1(hashes.SHA256()), 32), hashes.SHA256())
            return self.private.sign(signed, padding.PKCS1v15(), hashes.SHA256())
        if isinstance(self.private, ec.EllipticCurvePrivateKey):
            digest = {"P-256": hashes.SHA256(), "P-384": hashes.SHA384(), "P-521": hashes.SHA512()}[self.jwk["crv"]]
            r, s = decode_dss_signature(self.private.sign(signed, ec.ECDSA(digest)))
            size = (self.private.curve.key_size + 7) // 8
            return r.to_bytes(size, "big") + s.to_bytes(size, "big")
        signature: bytes = self.private.sign(signed)
        return signature

    def token(self, payload: dict[str, Any] | str, **header: Any) -> str:
        """Return a compact JWS. payload: claims, or raw JSON text. header: members to add; None leaves one out."""
        members: dict[str, Any] = {"alg": self.algorithm, "typ": "JWT"}
        if self.kid is not None:
            members["kid"] = self.kid
        members |= header
        members = {name: value for name, value in members.items() if value is not None}
        body = b64(payload.encode()) if isinstance(payload, str) else b64_json(payload)
        signed = f"{b64_json(members)}.{body}"
        return f"{signed}.{b64(self.signature(signed.encode()))}"


def _uint(number: int, size: int | None = None) -> str:
    return b64(number.to_bytes(size or (number.bit_length() + 7) // 8, "big"))


@cache
def signing_key(algorithm: str = "ES256", kid: str | None = "k1", seed: int = 0) -> SigningKey:
    """Return a signing key, the same for the same arguments during one run. seed: tells keys apart."""
    if algorithm[:2] in ("RS", "PS"):
        private_rsa = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        numbers = private_rsa.public_key().public_numbers()
        jwk = {"kty": "RSA", "n": _uint(numbers.n), "e": _uint(numbers.e)}
        private: Any = private_rsa
    elif algorithm.startswith("ES"):
        curve, name = {
            "ES256": (ec.SECP256R1(), "P-256"),
            "ES384": (ec.SECP384R1(), "P-384"),
            "ES512": (ec.SECP521R1(), "P-521"),
        }[algorithm]
        private = ec.generate_private_key(curve)
        point = private.public_key().public_numbers()
        size = (curve.key_size + 7) // 8
        jwk = {"kty": "EC", "crv": name, "x": _uint(point.x, size), "y": _uint(point.y, size)}
    else:
        private = ed25519.Ed25519PrivateKey.from_private_bytes(hashlib.sha256(f"{kid}{seed}".encode()).digest())
        jwk = {"kty": "OKP", "crv": "Ed25519", "x": b64(private.public_key().public_bytes_raw())}
    if kid is not None:
        jwk["kid"] = kid
    return SigningKey(algorithm, kid, private, jwk)


def jwks(*keys: SigningKey) -> bytes:
    """Return a JWKS document with the public keys."""
    return json.dumps({"keys": [key.jwk for key in keys]}).encode()


def idp_token(key: SigningKey | None = None, *, header: dict[str, Any] | None = None, **changes: Any) -> str:
    """Return a token of the test IdP for alice; a claim that is given as None is left out."""
    payload: dict[str, Any] = {"iss": IDP, "aud": "glottis", "sub": "alice", "exp": NOW + 600, "iat": NOW - 60, "jti": "t1"}
    payload |= changes
    return (key or signing_key()).token({name: value for name, value in payload.items() if value is not None}, **(header or {}))


def own_token(key: SigningKey | None = None, *, header: dict[str, Any] | None = None, **changes: Any) -> str:
    """Return a token of our own issuer for the service account `agent`; a claim that is given as None is left out."""
    payload: dict[str, Any] = {
        "iss": OWN,
        "aud": claims.AUDIENCE,
        "sub": "agent",
        "jti": "own1",
        "iat": int(NOW) - 60,
        "exp": int(NOW) + 600,
        "workspace": "w1",
        "kind": "service_account",
    }
    payload |= changes
    return (key or signing_key("EdDSA", "own")).token(
        {name: value for name, value in payload.items() if value is not None}, **({"typ": claims.TYP} | (header or {}))
    )


def voice_workspace(**changes: Any) -> Snapshot:
    """Return the test workspace. changes: fields of the snapshot to replace; a name with `plus_` before it is added to."""
    fields: dict[str, Any] = {
        "workspaces": (Workspace(id="w1", name="Voice"), Workspace(id="w2", name="Other")),
        "issuers": (
            Issuer(id="i-idp", workspace="w1", issuer=IDP, audiences=("glottis",), jwks=jwks(signing_key())),
            Issuer(
                id="i-own",
                workspace="w1",
                issuer=OWN,
                audiences=(claims.AUDIENCE,),
                kind="glottis",
                jwks=jwks(signing_key("EdDSA", "own")),
            ),
        ),
        "teams": (Team(id="voice", workspace="w1", name="Voice team"), Team(id="lab", workspace="w1", name="Lab")),
        "principals": (
            Principal(
                id="u-alice", workspace="w1", kind="user", name="Alice", teams=("voice",), issuer_id="i-idp", subject="alice"
            ),
            Principal(id="u-bob", workspace="w1", kind="user", name="Bob", issuer_id="i-idp", subject="bob"),
            Principal(id="agent", workspace="w1", kind="service_account", name="Agent", teams=("lab",)),
        ),
        "accounts": (
            Account(id="a-eu", workspace="w1", name="cartesia-eu", provider="cartesia", origin="https://api.cartesia.test"),
            Account(id="a-us", workspace="w1", name="cartesia-us", provider="cartesia", origin="https://us.cartesia.test"),
            Account(id="a-kk", workspace="w1", name="kokoro", provider="kokoro", origin="https://kokoro.test"),
        ),
        "models": (
            Model(id="m1", workspace="w1", account="a-eu", name="sonic-3", type="text-to-speech"),
            Model(id="m2", workspace="w1", account="a-eu", name="ink-whisper", type="speech-to-text"),
            Model(id="m3", workspace="w1", account="a-us", name="sonic-turbo", type="text-to-speech"),
            Model(id="m4", workspace="w1", account="a-kk", name="kokoro-82m", type="text-to-speech"),
        ),
        "grants": (
            Grant(id="g1", workspace="w1", account="a-eu", subject="team:voice"),
            Grant(id="g2", workspace="w1", account="a-kk", subject="team:voice"),
            Grant(id="g3", workspace="w1", account="a-us", subject="service_account:agent"),
        ),
    }
    for name, value in changes.items():
        if name.startswith("plus_"):
            fields[name[5:]] = (*fields[name[5:]], *value)
        else:
            fields[name] = value
    return Snapshot(revision=1, created_at_ms=0, **fields)
