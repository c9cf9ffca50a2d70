"""The keys and passwords of one installation, made on the first run, one file each under `<data-dir>/keys`.

Every file is text, mode 0600 in a folder of mode 0700. Keys are raw 32 bytes in base64, a line each, the current one
first, so that a rotation adds a line; `contracts.manifest` and `contracts.sealing` say what they are for. All files are
made together or not at all: one that is missing later was lost, and is never quietly replaced, because what it
protects would be lost with it. Read `stack.py` next for who gets which.
"""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import nkeys
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from contracts.secret import Secret
from contracts.subjects import ROLES
from glottis.errors import SetupError

_KEY_BYTES: Final = 32
_PASSWORD_BYTES: Final = 24


@dataclass(frozen=True, slots=True)
class Keys:
    """Where each key is. Whoever needs one gets its file's path; `read` is for our own use."""

    folder: Path

    @property
    def kek(self) -> Path:
        """Encrypts credentials at rest (AES-256-GCM). Control plane only."""
        return self.folder / "kek.key"

    @property
    def manifest_private(self) -> Path:
        """Signs snapshots (Ed25519). Control plane only."""
        return self.folder / "manifest.key"

    @property
    def manifest_public(self) -> Path:
        """What gateways pin."""
        return self.folder / "manifest.pub"

    @property
    def fleet_private(self) -> Path:
        """Opens what is sealed to the gateways (X25519, for HPKE). Gateways only."""
        return self.folder / "fleet.key"

    @property
    def fleet_public(self) -> Path:
        """What the control plane seals to."""
        return self.folder / "fleet.pub"

    @property
    def owner_secret(self) -> Path:
        """Claims the first owner's place, once."""
        return self.folder / "owner.secret"

    @property
    def kokoro(self) -> Path:
        """What Kokoro asks of its callers: the credential of the Kokoro provider account."""
        return self.folder / "kokoro.key"

    @property
    def clickhouse(self) -> Path:
        return self.folder / "clickhouse.password"

    @property
    def postgres_superuser(self) -> Path:
        return self.folder / "postgres-superuser.password"

    @property
    def postgres_owner(self) -> Path:
        return self.folder / "postgres-owner.password"

    @property
    def postgres_application(self) -> Path:
        return self.folder / "postgres-application.password"

    def nats_seed(self, role: str) -> Path:
        """The nkey seed of a role's NATS user; roles: `contracts.subjects.ROLES`."""
        return self.folder / f"nats-{role}.seed"


def read(path: Path) -> Secret:
    """Return what a file holds, without the line's end. Raises SetupError if it cannot be read."""
    try:
        return Secret(path.read_bytes().strip())
    except OSError as fault:
        raise SetupError(f"Cannot read {path}: {fault.strerror}.", "Run as the user that made the data folder.") from fault


def nats_public_key(seed: Secret) -> str:
    """Return the public nkey of a seed, as the server's configuration names it."""
    public_key: bytes = nkeys.from_seed(seed.reveal()).public_key
    return public_key.decode()


def ensure_keys(data_folder: Path, random_bytes: Callable[[int], bytes] = os.urandom) -> Keys:
    """Return the installation's keys, made now if there are none.

    random_bytes: a source of key material. Raises SetupError if the folder cannot be written, or if a file is missing
    that was there before.
    """
    keys = Keys(data_folder / "keys")
    if not keys.folder.exists():
        _make(keys, random_bytes)
        return keys
    missing = [path.name for path in _contents(keys, random_bytes) if not path.exists()]
    if missing:
        raise SetupError(
            f"{keys.folder} lacks {', '.join(missing)}.",
            "Restore the folder from a backup; without it what it protects cannot be opened. "
            "To begin anew, name another --data-dir.",
        )
    return keys


def _contents(keys: Keys, random_bytes: Callable[[int], bytes]) -> Mapping[Path, bytes]:
    manifest = Ed25519PrivateKey.from_private_bytes(random_bytes(_KEY_BYTES))
    fleet = X25519PrivateKey.from_private_bytes(random_bytes(_KEY_BYTES))
    contents = {
        keys.kek: base64.b64encode(random_bytes(_KEY_BYTES)),
        keys.manifest_private: base64.b64encode(manifest.private_bytes_raw()),
        keys.manifest_public: base64.b64encode(manifest.public_key().public_bytes_raw()),
        keys.fleet_private: base64.b64encode(fleet.private_bytes_raw()),
        keys.fleet_public: base64.b64encode(fleet.public_key().public_bytes_raw()),
    }
    for path in (
        keys.owner_secret,
        keys.kokoro,
        keys.clickhouse,
        keys.postgres_superuser,
        keys.postgres_owner,
        keys.postgres_application,
    ):
        contents[path] = base64.urlsafe_b64encode(random_bytes(_PASSWORD_BYTES))
    for role in ROLES:
        contents[keys.nats_seed(role)] = nkeys.encode_seed(random_bytes(_KEY_BYTES), nkeys.PREFIX_BYTE_USER)
    return contents


def _make(keys: Keys, random_bytes: Callable[[int], bytes]) -> None:
    # Beside, synced, then renamed: a first run that is killed or finds the disk full leaves no half set of keys.
    unfinished = keys.folder.with_suffix(".unfinished")
    try:
        if unfinished.exists():
            shutil.rmtree(unfinished)
        unfinished.mkdir(mode=0o700)
        for path, content in _contents(keys, random_bytes).items():
            write_private(unfinished / path.name, content + b"\n")
        unfinished.rename(keys.folder)
    except OSError as fault:
        raise SetupError(
            f"Cannot write {keys.folder}: {fault.strerror}.", "Free space there or name another --data-dir."
        ) from fault


def write_private(path: Path, content: bytes) -> None:
    """Write a new file that only its owner may read, safely on disk when this returns; replaces an existing one."""
    beside = path.with_name(path.name + ".unfinished")
    beside.unlink(missing_ok=True)
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.rename(path)
