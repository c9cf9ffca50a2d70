"""Secrets sealed to the gateway fleet: HPKE (RFC 9180), X25519, HKDF-SHA256, AES-256-GCM.

The control plane seals with the fleet's public key; pods open with the private one. What the secret is for (workspace,
account, version **and origin**) is bound in as HPKE's `info`, so that a sealed credential moved to another account or
origin does not open. Three modules may import this one: `control_plane.vault`, `gateway.state.credentials`,
`control_plane.exporter.credentials` (checked by import-linter).
"""

import hashlib

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from contracts.secret import Secret
from contracts.snapshot import Sealed

_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)


class CannotOpen(ValueError):
    """A sealed secret that this pod cannot open; the text says which key it was sealed for, never what it holds."""


def fleet_key_id(public_key: bytes) -> str:
    """Return the id of a fleet key: the first 16 hexadecimal digits of the SHA-256 of its raw 32 public bytes."""
    return hashlib.sha256(public_key).hexdigest()[:16]


def fleet_public_key(private_key: Secret) -> bytes:
    """Return the raw 32-byte X25519 public key of a raw 32-byte private one."""
    return X25519PrivateKey.from_private_bytes(private_key.reveal()).public_key().public_bytes_raw()


def credential_purpose(workspace: str, account: str, version: int, origin: str) -> bytes:
    """Return the context that binds a provider credential to its account, version and origin."""
    return _purpose("provider credential", workspace, account, str(version), origin)


def workspace_key_purpose(workspace: str, name: str, version: int) -> bytes:
    """Return the context that binds a workspace's own key (`transcript_key`, `access_token_key`)."""
    return _purpose("workspace key", workspace, name, str(version))


def export_headers_purpose(workspace: str, target: str, version: int, endpoint: str) -> bytes:
    """Return the context that binds an export target's secret headers to the target, version and endpoint."""
    return _purpose("export headers", workspace, target, str(version), endpoint)


def sealed(secret: Secret, version: int, public_key: bytes, purpose: bytes) -> Sealed:
    """Return the secret sealed to the fleet's public key, openable for this purpose only."""
    ciphertext = _SUITE.encrypt(secret.reveal(), X25519PublicKey.from_public_bytes(public_key), purpose)
    return Sealed(key_id=fleet_key_id(public_key), version=version, ciphertext=ciphertext)


def opened(box: Sealed, private_keys: dict[str, Secret], purpose: bytes) -> Secret:
    """Return the secret. private_keys: key id -> raw private key. Raises CannotOpen."""
    private_key = private_keys.get(box.key_id)
    if private_key is None:
        have = ", ".join(sorted(private_keys)) or "none"
        raise CannotOpen(f"version {box.version} is sealed for key {box.key_id}, have {have}")
    try:
        return Secret(_SUITE.decrypt(box.ciphertext, X25519PrivateKey.from_private_bytes(private_key.reveal()), purpose))
    except (InvalidTag, ValueError) as error:
        raise CannotOpen(f"version {box.version} was sealed for another purpose, or is damaged") from error


def _purpose(*parts: str) -> bytes:
    return b"".join(len(part.encode()).to_bytes(2, "big") + part.encode() for part in ("glottis", *parts))
