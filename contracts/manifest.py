"""The signed list of chunks that makes a set of chunks a snapshot.

The control plane signs it (`contracts.signing`); gateways take a manifest only if a pinned key signed it and it is not older
than what they hold, also when they read it back from disk.
"""

import hashlib
from collections.abc import Iterable

import msgspec

from contracts import codec, signing
from contracts.secret import Secret

_CONTEXT = b"glottis manifest v1\0"


class ManifestRefused(signing.SignatureRefused):
    """A manifest that must not be acted on. `reason`: as of the class above, or `older_revision`."""

    what = "manifest"


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Which chunks make up which revision. `chunks`: SHA-256 of each encoded chunk, hexadecimal."""

    SCHEMA = 1

    schema: int = 1
    revision: int
    created_at_ms: int
    chunks: tuple[str, ...]


def chunk_name(chunk: bytes) -> str:
    """Return the name of an encoded chunk: its SHA-256, hexadecimal."""
    return hashlib.sha256(chunk).hexdigest()


def signed(revision: int, created_at_ms: int, chunks: Iterable[bytes], private_key: Secret) -> bytes:
    """Return the published bytes of the manifest over these encoded chunks."""
    return signed_over(revision, created_at_ms, (chunk_name(chunk) for chunk in chunks), private_key)


def signed_over(revision: int, created_at_ms: int, names: Iterable[str], private_key: Secret) -> bytes:
    """Return the published bytes of the manifest over chunks whose names are known: `chunk_name` of each."""
    body = codec.encode(Manifest(revision=revision, created_at_ms=created_at_ms, chunks=tuple(names)))
    return signing.signed(body, _CONTEXT, private_key)


def opened(data: bytes, public_keys: Iterable[bytes], minimum_revision: int = 0) -> Manifest:
    """Return the manifest that the bytes hold, checked.

    Raises ManifestRefused if it is not signed by one of the keys, is older than `minimum_revision`, or is not a manifest.
    """
    body = signing.opened(data, _CONTEXT, public_keys, ManifestRefused)
    try:
        manifest = codec.decode(body, Manifest)
    except codec.Undecodable as error:
        raise ManifestRefused("undecodable", "the signed body is not a manifest that this release knows") from error
    if manifest.revision < minimum_revision:
        raise ManifestRefused("older_revision", f"revision {manifest.revision}, this pod holds {minimum_revision}")
    return manifest
