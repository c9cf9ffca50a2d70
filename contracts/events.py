"""What gateways tell about exchanges: usage (what it cost) and spans (what happened).

Usage events are **deltas**: adding up the `units` of all events of one `key`, each `id` counted once, gives the usage of
an exchange (or of one context on a multiplexed socket). `id` is `<key>:<seq>`, so that any number of deliveries of an
event is one. No field ever holds a caller's text, token or credential. Units are integers in their unit's own measure.

A message on the bus carries one event or an array of them (`usage_events`): gateways publish arrays, because a message costs
more than ten times what an event in it costs. They write an event as a `UsageRecord`, an array without names; readers take
both. Read `contracts.exchanges` next, the same for spans.
"""

from typing import Literal, TypeAlias

import msgspec

from contracts import codec
from contracts.snapshot import PrincipalKind

Unit: TypeAlias = Literal["characters", "audio_in_ms", "audio_out_ms", "requests", "unmeasured"]
UNITS: tuple[str, ...] = ("characters", "audio_in_ms", "audio_out_ms", "requests", "unmeasured")
"""`unmeasured`: 1 where audio went by whose length cannot be told; it has no price, so that it shows"""

Outcome: TypeAlias = Literal[
    "completed",
    "refused",
    "upstream_fault",
    "provider_error",
    "client_gone",
    "cancelled",
    "drained",
    "ended",
    "gateway_lost",
]
"""`ended`: we ended a live session (revocation, expiry, an admin); `gateway_lost`: settled by a successor of a dead pod"""


class Attribution(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Who and what an event is counted for. Names are copies for reading; ids are what rollups group by."""

    workspace: str
    principal: str
    principal_kind: PrincipalKind
    principal_name: str = ""
    team: str = ""
    """the team that the cost goes to: the token's, else the one whose grant admitted, else the principal's first"""
    team_name: str = ""
    token: str = ""
    """the caller token's `jti`; empty if it has none"""
    account: str
    account_name: str = ""
    provider: str
    model: str = ""
    """empty: an operation without a model"""
    operation: str
    endpoint: str
    """the profile's endpoint id, for example `tts.bytes`"""


class UsageEvent(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One delta of usage."""

    SCHEMA = 1

    schema: int = 1
    id: str
    key: str
    """the exchange's request id, or `<request id>.<n>` for the nth context of a multiplexed socket, from 1"""
    seq: int
    """from 0, per key"""
    is_final: bool = False
    at_ms: int
    """when it was measured, Unix milliseconds; decides the price and the rollup's hour"""
    pod: str
    to: Attribution
    units: dict[str, int] = {}
    """added since the event before: unit -> quantity"""
    totals: dict[str, int] = {}
    """on the final event: unit -> quantity over the whole key"""
    provider_units: dict[str, int] = {}
    """what the provider said itself, beside ours"""
    outcome: Outcome | None = None
    """on the final event"""
    metadata: dict[str, str] = {}


class AttributionRow(Attribution, frozen=True, array_like=True, kw_only=True):
    """An attribution without names. Fields are only ever added at the end."""


class UsageRecord(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag=3):
    """What a gateway writes of a usage event: the same without names. Fields are only ever added at the end."""

    SCHEMA = 1

    schema: int = 1
    key: str
    seq: int
    at_ms: int
    pod: str
    to: AttributionRow
    units: dict[str, int] | None
    """None: what is in `totals`"""
    metadata: dict[str, str]
    outcome: Outcome | None = None
    totals: dict[str, int] = {}
    provider_units: dict[str, int] = {}


class Span(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One OpenTelemetry span. Ids are lower-case hexadecimal; times are Unix nanoseconds."""

    span_id: str
    parent_id: str = ""
    name: str
    kind: Literal["internal", "server", "client"] = "internal"
    start_ns: int
    end_ns: int
    is_error: bool = False
    attributes: dict[str, str | int | float | bool] = {}


class SpanEvent(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The spans of one exchange, published at settle."""

    SCHEMA = 1

    schema: int = 1
    id: str
    """the exchange's request id"""
    workspace: str
    """empty for an exchange that was refused before its principal was known"""
    pod: str
    trace_id: str
    trace_state: str = ""
    spans: tuple[Span, ...]


class PodStatus(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a pod says of itself every few seconds, so that the control plane can show which pod runs what."""

    SCHEMA = 1

    schema: int = 1
    pod: str
    version: str
    revision: int
    at_ms: int
    open_sessions: int = 0
    open_exchanges: int = 0
    is_draining: bool = False
    spool_bytes: int = 0


class LiveSession(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One open WebSocket session, as its pod sees it now."""

    exchange: str
    """its request id: what an admin ends it by"""
    workspace: str
    principal: str
    principal_name: str = ""
    team: str = ""
    account: str
    account_name: str = ""
    provider: str
    model: str = ""
    """that it was opened for, or that it first spoke with; empty: it has not spoken yet"""
    endpoint: str
    since_ms: int
    """Unix milliseconds"""
    contexts: int = 0
    """live now"""
    characters: int = 0
    """sent so far"""
    audio_in_ms: int = 0
    """heard so far, where that can be measured"""


class SessionsHeard(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What became of a pod's sessions: those that are new or changed, or were not told for a while, and those that ended."""

    SCHEMA = 1

    schema: int = 1
    pod: str
    sessions: tuple[LiveSession, ...] = ()
    ended: tuple[str, ...] = ()


SESSION_HEARTBEAT_SECONDS = 15.0
"""an open session is told at least so often; one that was not heard of for three times as long is gone with its pod"""


BATCH_HEAD_BYTES = 5


def batch_head(events: int) -> bytes:
    """Return what a message of so many events begins with: the events' bytes follow."""
    return b"\xdd" + events.to_bytes(4, "big")  # array 32 of MessagePack


def usage_event(encoded: bytes | memoryview) -> UsageEvent:
    """Return the usage event that one element of a message is, or that the record there says.

    Raises codec.UnsupportedSchema, codec.Undecodable.
    """
    if not codec.is_row(encoded):
        return codec.decode(encoded, UsageEvent)
    record = codec.decode(encoded, UsageRecord)
    units = record.units
    if units is None:
        units = {unit: quantity for unit, quantity in record.totals.items() if quantity}
    return UsageEvent(
        id=f"{record.key}:{record.seq}",
        key=record.key,
        seq=record.seq,
        is_final=record.outcome is not None,
        at_ms=record.at_ms,
        pod=record.pod,
        to=Attribution(**msgspec.structs.asdict(record.to)),
        units=units,
        totals=record.totals,
        provider_units=record.provider_units,
        outcome=record.outcome,
        metadata=record.metadata,
    )


def usage_events(message: bytes) -> tuple[UsageEvent, ...]:
    """Return the usage events that a message carries. Raises codec.Undecodable, codec.UnsupportedSchema."""
    return tuple(map(usage_event, encoded_events(message)))


def encoded_events(message: bytes) -> tuple[bytes | memoryview, ...]:
    """Return the events of a message, each still encoded, so that a reader can judge them one by one.

    Raises codec.Undecodable if the message is neither an event nor an array of them.
    """
    if message[:1] != b"\xdd":
        return (message,)
    return tuple(memoryview(event) for event in codec.decode(message, tuple[msgspec.Raw, ...]))
