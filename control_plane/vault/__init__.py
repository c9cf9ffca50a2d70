"""Secrets at rest (AES-256-GCM under a key-encryption key) and on the way to gateways (HPKE to the fleet's public key).

The one package of the control plane that may import `contracts.sealing`. Knows no table: callers give bytes and the
place that a secret belongs to, which is bound in, so that a ciphertext moved to another row does not open.
"""

from control_plane.vault.keys import KeyFileError, read_keys
from control_plane.vault.vault import CannotDecrypt, Vault

__all__ = ["CannotDecrypt", "KeyFileError", "Vault", "read_keys"]
