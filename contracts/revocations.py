"""Revocations and session commands: the changes that must not wait for a snapshot.

Each is one key of the revocations bucket, published in the transaction's wake ahead of the snapshot, and checked by pods
on every request and on every open session within 1 s of the commit. Expired ones are removed by the publisher. Each is
signed like a manifest (ADR 0091): whoever can write to the bus can neither revoke nor end anything.
"""

from collections.abc import Iterable
from typing import Literal, TypeAlias

import msgspec

from contracts import codec, signing
from contracts.secret import Secret
from contracts.subjects import revocation_key

RevokedKind: TypeAlias = Literal["token", "principal"]


class Revocation(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What is no longer valid. `target`: a token's `jti` (its children by `parent` as well), or a principal's id.

    An account or issuer that is disabled or deleted is not in the next snapshot: that needs no revocation.

    `before_ms`: only tokens issued (`iat`) before this time are meant; None means all.
    """

    SCHEMA = 1

    schema: int = 1
    workspace: str
    kind: RevokedKind
    target: str
    at_ms: int
    before_ms: int | None = None
    expires_ms: int | None = None
    """when no token that it can hit is valid any more; None: never"""


class EndSession(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """An admin ends one open session: the exchange's request id, and the sentence that the client's close reason carries."""

    SCHEMA = 1

    schema: int = 1
    workspace: str
    exchange: str
    at_ms: int
    expires_ms: int


Command: TypeAlias = Revocation | EndSession

_SESSION = "session"
"""takes the place of a kind in the keys of session commands"""
_CONTEXTS = {Revocation: b"glottis revocation v1\0", EndSession: b"glottis end-session v1\0"}


class CommandRefused(signing.SignatureRefused):
    """A command that must not be acted on. `reason`: as of the class above, or `misplaced`: it stands under another's key."""

    what = "revocation"


def key_of(command: Command) -> str:
    """Return the key that a command stands under in the revocations bucket."""
    if isinstance(command, EndSession):
        return revocation_key(command.workspace, _SESSION, command.exchange)
    return revocation_key(command.workspace, command.kind, command.target)


def signed(command: Command, private_key: Secret) -> bytes:
    """Return the published bytes of a command. private_key: the manifest's.

    The command's own fields stand beside the envelope's, for pods from before there were signatures, which read those
    alone; a pod that checks signatures reads nothing but the signed body.
    """
    envelope = signing.signed_body(codec.encode(command), _CONTEXTS[type(command)], private_key)
    return codec.encode_fields({**msgspec.structs.asdict(command), **msgspec.structs.asdict(envelope)})


def unsigned(key: str, body: bytes) -> Command:
    """Return the command that encoded bytes hold, whose signature somebody else checks. Raises codec.Undecodable."""
    return codec.decode(body, _shape_under(key))


def _shape_under(key: str) -> type[Command]:
    return EndSession if key.split(".", 2)[1:2] == [_SESSION] else Revocation


def opened(key: str, data: bytes, public_keys: Iterable[bytes]) -> Command:
    """Return the command that stands under a key of the bucket, checked. Raises CommandRefused."""
    body = signing.opened(data, _CONTEXTS[_shape_under(key)], public_keys, CommandRefused)
    try:
        command = unsigned(key, body)
    except codec.Undecodable as error:
        raise CommandRefused("undecodable", "the signed body is not one that this release knows") from error
    if key_of(command) != key:
        raise CommandRefused("misplaced", "it stands under a key that is not its own")
    return command
