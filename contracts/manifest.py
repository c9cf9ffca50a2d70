"""The signed list of chunks that makes a set of chunks a snapshot.

The control plane signs with Ed25519; gateways pin the public key and take a manifest only if it is signed by that key and
not older than what they hold, also when they read it back from disk. Keys are raw 32 bytes.
"""

import hashlib
from collections.abc import Iterable

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from contracts import codec
from contracts.secret import Secret

_CONTEXT = b"glottis manifest v1\0"


class ManifestRefused(ValueError):
    """A manifest that must not be acted on. `reason`: `unsigned`, `foreign_key`, `older_revision` or `undecodable`."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"manifest refused: {reason}: {detail}")
        self.reason = reason


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Which chunks make up which revision. `chunks`: SHA-256 of each encoded chunk, hexadecimal."""

    SCHEMA = 1

    schema: int = 1
    revision: int
    created_at_ms: int
    chunks: tuple[str, ...]


class SignedManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What is published: the encoded manifest, the signing key's id, and the signature over context and body."""

    body: bytes
    key_id: str
    signature: bytes


def chunk_name(chunk: bytes) -> str:
    """Return the name of an encoded chunk: its SHA-256, hexadecimal."""
    return hashlib.sha256(chunk).hexdigest()


def key_id_of(public_key: bytes) -> str:
    """Return the id of a signing key: the first 16 hexadecimal digits of its SHA-256."""
    return hashlib.sha256(public_key).hexdigest()[:16]


def public_key_of(private_key: Secret) -> bytes:
    """Return the raw 32-byte public key of a raw 32-byte Ed25519 private key."""
    return Ed25519PrivateKey.from_private_bytes(private_key.reveal()).public_key().public_bytes_raw()


def signed(revision: int, created_at_ms: int, chunks: Iterable[bytes], private_key: Secret) -> bytes:
    """Return the published bytes of the manifest over these encoded chunks."""
    return signed_over(revision, created_at_ms, (chunk_name(chunk) for chunk in chunks), private_key)


def signed_over(revision: int, created_at_ms: int, names: Iterable[str], private_key: Secret) -> bytes:
    """Return the published bytes of the manifest over chunks whose names are known: `chunk_name` of each."""
    body = codec.encode(Manifest(revision=revision, created_at_ms=created_at_ms, chunks=tuple(names)))
    signer = Ed25519PrivateKey.from_private_bytes(private_key.reveal())
    key_id = key_id_of(signer.public_key().public_bytes_raw())
    return codec.encode(SignedManifest(body=body, key_id=key_id, signature=signer.sign(_CONTEXT + body)))


def opened(data: bytes, public_keys: Iterable[bytes], minimum_revision: int = 0) -> Manifest:
    """Return the manifest that the bytes hold, checked.

    Raises ManifestRefused if it is not signed by one of the keys, is older than `minimum_revision`, or is not a manifest.
    """
    try:
        envelope = codec.decode(data, SignedManifest)
    except codec.Undecodable as error:
        raise ManifestRefused("undecodable", "the envelope is not a signed manifest") from error
    for public_key in public_keys:
        if key_id_of(public_key) == envelope.key_id:
            break
    else:
        raise ManifestRefused("foreign_key", f"signed by key {envelope.key_id}, which this pod does not pin")
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(envelope.signature, _CONTEXT + envelope.body)
    except InvalidSignature as error:
        raise ManifestRefused("unsigned", f"the signature by key {envelope.key_id} does not match") from error
    try:
        manifest = codec.decode(envelope.body, Manifest)
    except codec.Undecodable as error:
        raise ManifestRefused("undecodable", "the signed body is not a manifest that this release knows") from error
    if manifest.revision < minimum_revision:
        raise ManifestRefused("older_revision", f"revision {manifest.revision}, this pod holds {minimum_revision}")
    return manifest
