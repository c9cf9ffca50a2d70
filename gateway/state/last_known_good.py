"""The configuration on local disk, for a start while the bus is away: signed as it came, checked again when read.

Folder: `manifest` (the signed bytes), `chunks/<sha-256>`, `revocations` and `confirmed` (its modification time says when
the configuration was last known to be the newest). Credentials in it stay sealed. Every call blocks: the feed makes them in
a thread. Read next: `gateway.state.feed`.
"""

import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import msgspec

from contracts import codec, manifest
from contracts.revocations import Revocation


class _Revocations(msgspec.Struct, frozen=True):
    all: tuple[Revocation, ...]


class LastKnownGood:
    """The folder. Writing is atomic: a kill leaves the old state or the new one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._chunks = folder / "chunks"

    def prepare(self) -> None:
        """Make the folder. Raises OSError."""
        self._chunks.mkdir(parents=True, exist_ok=True, mode=0o700)

    def read_manifest(self) -> bytes | None:
        """Return the signed manifest, unchecked; None if there is none."""
        return _read(self._folder / "manifest")

    def read_chunk(self, name: str) -> bytes | None:
        """Return a chunk whose content has the name that it is kept under; None if there is none, or a damaged one."""
        data = _read(self._chunks / name)
        return data if data is not None and manifest.chunk_name(data) == name else None

    def read_revocations(self) -> tuple[Revocation, ...] | None:
        """Return the revocations that were in force; None if they were never known."""
        data = _read(self._folder / "revocations")
        if data is None:
            return None
        try:
            return codec.decode(data, _Revocations).all
        except codec.Undecodable:
            return None

    def confirmed_at(self) -> float:
        """Return when the configuration was last known to be the newest, Unix seconds; 0.0: never."""
        times = [0.0]
        for name in ("manifest", "confirmed"):  # what was just written was the newest as well
            try:
                times.append((self._folder / name).stat().st_mtime)
            except OSError:
                continue
        return max(times)

    def write(self, signed: bytes, names: Collection[str], chunks: Mapping[str, bytes]) -> None:
        """Keep a manifest, which names `names`, with the chunks among them that are not kept yet; drop all others.

        Raises OSError.
        """
        kept = {path.name for path in self._chunks.iterdir()}
        for name in chunks.keys() & set(names) - kept:
            _write(self._chunks / name, chunks[name])
        _write(self._folder / "manifest", signed)
        for name in kept.difference(names):
            (self._chunks / name).unlink(missing_ok=True)

    def write_revocations(self, revocations: Iterable[Revocation]) -> None:
        """Keep the revocations in force. Raises OSError."""
        _write(self._folder / "revocations", codec.encode(_Revocations(tuple(revocations))))

    def confirm(self, at: float) -> None:
        """Note when the configuration was the newest. Raises OSError."""
        path = self._folder / "confirmed"
        path.touch(mode=0o600)
        os.utime(path, (at, at))


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _write(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)
    temporary.replace(path)
