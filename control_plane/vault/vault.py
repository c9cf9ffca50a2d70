"""Closing and opening secrets for the database, and sealing them for publication.

A ciphertext is `version (1) | key id (8) | nonce (12) | AES-256-GCM`, its place bound in as associated data. Key ids are
the first 8 bytes of the key's SHA-256, so that a row says which key-encryption key it needs and a new key can take over
row by row (`glottis rewrap`).
"""

import hashlib
from collections.abc import Callable

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from contracts import sealing
from contracts.secret import Secret
from contracts.snapshot import Sealed

_VERSION = b"\x01"
_KEY_ID_BYTES = 8
_NONCE_BYTES = 12


class CannotDecrypt(ValueError):
    """A stored secret that cannot be opened; the text says which key it needs, never what it holds."""


class Vault:
    """Key-encryption keys and the fleet's public key. random_bytes: n -> n random bytes."""

    def __init__(
        self, key_encryption_keys: tuple[Secret, ...], fleet_public_key: bytes, random_bytes: Callable[[int], bytes]
    ) -> None:
        self._keys = {_key_id(key): key for key in key_encryption_keys}
        self._current = _key_id(key_encryption_keys[0])
        self._fleet_public_key = fleet_public_key
        self.random_bytes = random_bytes
        self.fleet_key_id = sealing.fleet_key_id(fleet_public_key)

    def encrypted(self, secret: Secret, *place: str) -> bytes:
        """Return the secret closed with the current key. place: table, workspace, row and column that it belongs to."""
        nonce = self.random_bytes(_NONCE_BYTES)
        closed = AESGCM(self._keys[self._current].reveal()).encrypt(nonce, secret.reveal(), _place(place))
        return _VERSION + self._current + nonce + closed

    def decrypted(self, data: bytes, *place: str) -> Secret:
        """Return the secret. Raises CannotDecrypt if its key is not here, or it belongs to another place, or is damaged."""
        if data[:1] != _VERSION:
            raise CannotDecrypt("the stored secret has a form that this release does not know")
        key_id = data[1 : 1 + _KEY_ID_BYTES]
        key = self._keys.get(key_id)
        if key is None:
            have = ", ".join(sorted(known.hex() for known in self._keys))
            raise CannotDecrypt(f"the stored secret needs key-encryption key {key_id.hex()}, have {have}")
        nonce = data[1 + _KEY_ID_BYTES : 1 + _KEY_ID_BYTES + _NONCE_BYTES]
        try:
            return Secret(AESGCM(key.reveal()).decrypt(nonce, data[1 + _KEY_ID_BYTES + _NONCE_BYTES :], _place(place)))
        except InvalidTag as error:
            raise CannotDecrypt("the stored secret is damaged or was moved from another row") from error

    def is_current(self, data: bytes) -> bool:
        """Tell whether the ciphertext was closed with the current key."""
        return data[:1] == _VERSION and data[1 : 1 + _KEY_ID_BYTES] == self._current

    def sealed_credential(self, secret: Secret, workspace: str, account: str, version: int, origin: str) -> Sealed:
        """Return an account's credential sealed to the gateways, for this version and origin only."""
        purpose = sealing.credential_purpose(workspace, account, version, origin)
        return sealing.sealed(secret, version, self._fleet_public_key, purpose)

    def sealed_workspace_key(self, secret: Secret, workspace: str, name: str, version: int) -> Sealed:
        """Return one of a workspace's own keys sealed to the gateways."""
        purpose = sealing.workspace_key_purpose(workspace, name, version)
        return sealing.sealed(secret, version, self._fleet_public_key, purpose)

    def sealed_export_headers(self, secret: Secret, workspace: str, target: str, version: int, endpoint: str) -> Sealed:
        """Return an export target's secret headers sealed to whoever opens for the fleet, for this endpoint only."""
        purpose = sealing.export_headers_purpose(workspace, target, version, endpoint)
        return sealing.sealed(secret, version, self._fleet_public_key, purpose)


def _key_id(key: Secret) -> bytes:
    return hashlib.sha256(key.reveal()).digest()[:_KEY_ID_BYTES]


def _place(parts: tuple[str, ...]) -> bytes:
    return b"".join(len(part.encode()).to_bytes(4, "big") + part.encode() for part in parts)
