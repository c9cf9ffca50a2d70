"""Revocations and session commands: the changes that must not wait for a snapshot.

Each is one key of the revocations bucket, published in the transaction's wake ahead of the snapshot, and checked by pods
on every request and on every open session within 1 s of the commit. Expired ones are removed by the publisher.
"""

from typing import Literal, TypeAlias

import msgspec

RevokedKind: TypeAlias = Literal["token", "principal", "account", "issuer"]


class Revocation(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What is no longer valid. `target`: a token's `jti` (its children by `parent` as well), a principal's or account's id.

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
