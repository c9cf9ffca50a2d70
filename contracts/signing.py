"""What the control plane signs for gateways, and how they know it: an envelope with Ed25519 over a named context.

The context says what is signed, so that a signature over one kind of thing is none over another. Gateways pin public keys;
everything that is not signed by one of them is refused with a reason that metrics can count. Keys are raw 32 bytes.
Used by `contracts.manifest` and `contracts.revocations`.
"""

import hashlib
from collections.abc import Iterable

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from contracts import codec
from contracts.secret import Secret


class SignatureRefused(ValueError):
    """Bytes that must not be acted on. `reason`: `unsigned`, `foreign_key` or `undecodable`; subclasses know more."""

    what = "message"

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{self.what} refused: {reason}: {detail}")
        self.reason = reason


class SignedBody(msgspec.Struct, frozen=True, kw_only=True):
    """What is published: the encoded body, the signing key's id, and the signature over context and body."""

    body: bytes
    key_id: str
    signature: bytes


def key_id_of(public_key: bytes) -> str:
    """Return the id of a signing key: the first 16 hexadecimal digits of its SHA-256."""
    return hashlib.sha256(public_key).hexdigest()[:16]


def public_key_of(private_key: Secret) -> bytes:
    """Return the raw 32-byte public key of a raw 32-byte Ed25519 private key."""
    return Ed25519PrivateKey.from_private_bytes(private_key.reveal()).public_key().public_bytes_raw()


def signed_body(body: bytes, context: bytes, private_key: Secret) -> SignedBody:
    """Return the envelope of a body. context: constant of the kind, ends with a zero byte."""
    signer = Ed25519PrivateKey.from_private_bytes(private_key.reveal())
    key_id = key_id_of(signer.public_key().public_bytes_raw())
    return SignedBody(body=body, key_id=key_id, signature=signer.sign(context + body))


def signed(body: bytes, context: bytes, private_key: Secret) -> bytes:
    """Return the published bytes of a body. context: as above."""
    return codec.encode(signed_body(body, context, private_key))


def opened(
    data: bytes, context: bytes, public_keys: Iterable[bytes], refused: type[SignatureRefused] = SignatureRefused
) -> bytes:
    """Return the body that the bytes hold, its signature checked. Raises `refused`."""
    try:
        envelope = codec.decode(data, SignedBody)
    except codec.Undecodable as error:
        raise refused("undecodable", f"the envelope is not a signed {refused.what}") from error
    for public_key in public_keys:
        if key_id_of(public_key) == envelope.key_id:
            break
    else:
        raise refused("foreign_key", f"signed by key {envelope.key_id}, which this pod does not pin")
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(envelope.signature, context + envelope.body)
    except InvalidSignature as error:
        raise refused("unsigned", f"the signature by key {envelope.key_id} does not match") from error
    return envelope.body
