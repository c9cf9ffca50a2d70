"""The token issuer's key pairs: made, rotated, read; the private halves encrypted by the vault.

ES256. The newest key that is not retired signs; retired ones stay in the key set until no token of theirs can be valid.
Their home is one table of the deployment; every workspace's issuer (`<public url>/w/<workspace>`) shares the key set.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import jwt
import jwt.algorithms
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from sqlalchemy import delete, insert, select, text, update

from contracts.secret import Secret
from control_plane.kit.database import Database
from control_plane.tables import signing_keys
from control_plane.vault import Vault

ALGORITHM = "ES256"
LONGEST_LIFETIME = timedelta(days=366)
_ADVISORY_LOCK = 0x676C6F74_6B657973  # "glotkeys"


@dataclass(frozen=True)
class KeySet:
    """current: id of the key that signs; private: its key; public: key id -> JWK of every key that is still good."""

    current: str
    private: Secret
    public: Mapping[str, Mapping[str, Any]]  # Any: a JWK's members

    def jwks(self) -> dict[str, Any]:
        """Return the key set as published (RFC 7517 §5)."""
        return {"keys": list(self.public.values())}

    def signed(self, claims: dict[str, Any], typ: str) -> str:
        """Return the claims as a JWT."""
        key = serialization.load_pem_private_key(self.private.reveal(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return jwt.encode(claims, key, ALGORITHM, headers={"kid": self.current, "typ": typ})

    def verified(self, token: str, audience: str, typ: str, now: float) -> dict[str, Any] | None:
        """Return the claims if one of our keys signed them for this audience and they have not expired, else None."""
        try:
            head = jwt.get_unverified_header(token)
            jwk = self.public.get(head.get("kid", ""))
            if jwk is None or head.get("typ") != typ or head.get("alg") != ALGORITHM:
                return None
            key = jwt.algorithms.ECAlgorithm(jwt.algorithms.ECAlgorithm.SHA256).from_jwk(dict(jwk))
            claims: dict[str, Any] = jwt.decode(
                token,
                key,  # type: ignore[arg-type]  # a public JWK gives a public key
                algorithms=[ALGORITHM],
                options={"verify_exp": False, "verify_aud": False, "verify_iat": False, "verify_nbf": False},
            )
        except (jwt.PyJWTError, ValueError, TypeError):
            return None
        expiry = claims.get("exp")
        return claims if claims.get("aud") == audience and isinstance(expiry, int) and expiry > now else None


NO_KEYS = KeySet("", Secret(b""), {})
"""before the database was asked"""


async def ensured_keys(database: Database, vault: Vault, now: datetime) -> KeySet:
    """Return the key set, with a first key made if there is none."""
    async with database.system() as connection:
        await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _ADVISORY_LOCK})
        found = (await connection.execute(select(signing_keys.c.id).where(signing_keys.c.retired_at.is_(None)))).first()
        if found is None:
            await connection.execute(insert(signing_keys).values(**_new_key(vault, now)))
    return await read_keys(database, vault, now)


async def rotated_keys(database: Database, vault: Vault, now: datetime) -> KeySet:
    """Return the key set with a new key that signs from now on; keys too old to have a valid token are deleted."""
    async with database.system() as connection:
        await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _ADVISORY_LOCK})
        await connection.execute(update(signing_keys).where(signing_keys.c.retired_at.is_(None)).values(retired_at=now))
        await connection.execute(insert(signing_keys).values(**_new_key(vault, now)))
        await connection.execute(delete(signing_keys).where(signing_keys.c.retired_at < now - LONGEST_LIFETIME))
    return await read_keys(database, vault, now)


async def read_keys(database: Database, vault: Vault, now: datetime) -> KeySet:
    """Return the key set as the database has it."""
    async with database.system() as connection:
        rows = list((await connection.execute(select(signing_keys).order_by(signing_keys.c.created_at.desc()))).mappings())
    current = next((row for row in rows if row["retired_at"] is None), None)
    if current is None:
        return NO_KEYS
    private = vault.decrypted(current["private"], *place(current["id"]))
    good = [row for row in rows if row["retired_at"] is None or row["retired_at"] > now - LONGEST_LIFETIME]
    return KeySet(current["id"], private, {row["id"]: json.loads(row["public"]) for row in good})


def place(key_id: str) -> tuple[str, ...]:
    """Return the place that a stored private key is bound to."""
    return ("signing_keys", key_id)


def new_key_pair(key_id: str) -> tuple[ec.EllipticCurvePrivateKey, dict[str, Any]]:
    """Return a new ES256 key pair: the private key, and the public JWK with its id."""
    private = ec.generate_private_key(ec.SECP256R1())
    jwk = jwt.algorithms.ECAlgorithm.to_jwk(private.public_key(), as_dict=True)
    return private, {**jwk, "kid": key_id, "use": "sig", "alg": ALGORITHM}


def _new_key(vault: Vault, now: datetime) -> dict[str, Any]:
    key_id = f"g{vault.random_bytes(8).hex()}"
    private, jwk = new_key_pair(key_id)
    pem = private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return {
        "id": key_id,
        "algorithm": ALGORITHM,
        "private": vault.encrypted(Secret(pem), *place(key_id)),
        "public": json.dumps(jwk, sort_keys=True),
        "created_at": now,
    }
