"""From messages to events to rows of ClickHouse's tables; what no table could take is given back with a reason.

Pure: no I/O, no clock. The columns here and in `migrations/clickhouse` are the same list. Read next: `store`.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar

from contracts import codec
from contracts.events import Span, SpanEvent, UsageEvent, encoded_events, usage_event
from contracts.exchanges import span_event
from control_plane.aggregator.pricing import PriceIndex
from control_plane.aggregator.slots import slot_of

Row = list[Any]  # Any: a row holds whatever its columns do
Touched = frozenset[tuple[str, datetime]]
"""(workspace, slot) pairs whose rollups must be recomputed"""

USAGE_COLUMNS = (
    "workspace", "slot", "id", "key", "seq", "is_final", "at", "pod", "principal", "principal_kind", "principal_name", "team",
    "team_name", "token", "account", "account_name", "provider", "model", "operation", "endpoint", "units", "totals",
    "provider_units", "outcome", "metadata", "costs", "currencies", "price_revision",
)  # fmt: skip

SPAN_COLUMNS = (
    "workspace", "hour", "trace_id", "span_id", "parent_id", "request_id", "trace_state", "name", "kind", "start",
    "duration_ns", "is_error", "pod", "attributes",
)  # fmt: skip

LARGEST_QUANTITY = 10**10
"""of one unit in one event: 115 days of milliseconds. Beyond it is a fault, and would overflow sums of money."""
OLDEST = timedelta(days=365)
"""older events are not counted any more: their slot's other events may be gone (retention is 760 days)"""
NEWEST = timedelta(days=1)
"""how far ahead of our clock a pod's may be"""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


E = TypeVar("E", UsageEvent, SpanEvent)


@dataclass(frozen=True)
class Part(Generic[E]):
    """One event of a message, or what came in its place. place: in the message, from 0; reason: empty if usable."""

    place: int
    payload: bytes
    event: E | None
    reason: str = ""


def usage_parts(message: bytes, now_ms: int) -> list[Part[UsageEvent]]:
    """Return what a message carries, each event judged alone: a bad one does not cost the others."""
    return _parts(message, usage_event, lambda event: _is_countable_usage(event, now_ms))


def span_parts(message: bytes, now_ms: int) -> list[Part[SpanEvent]]:
    """Return what a message carries, each event judged alone."""
    return _parts(message, span_event, lambda event: _is_countable_span_event(event, now_ms))


def usage_row(event: UsageEvent, prices: PriceIndex) -> Row:
    """Return the event, priced, in the order of USAGE_COLUMNS."""
    to = event.to
    priced = prices.priced(to, event.units, event.at_ms)
    return [
        to.workspace, slot_of(event.at_ms), event.id, event.key, event.seq, event.is_final,
        _EPOCH + timedelta(milliseconds=event.at_ms), event.pod, to.principal, to.principal_kind, to.principal_name, to.team,
        to.team_name, to.token, to.account, to.account_name, to.provider, to.model, to.operation, to.endpoint, event.units,
        event.totals, event.provider_units, event.outcome or "", event.metadata, priced.costs, priced.currencies,
        priced.revision,
    ]  # fmt: skip


def span_rows(event: SpanEvent) -> Iterable[Row]:
    """Yield a row for each span, in the order of SPAN_COLUMNS."""
    return [_span_row(event, span) for span in event.spans]


@dataclass(frozen=True)
class UsageRows:
    """Rows to insert, and what their insertion touches."""

    rows: list[Row]
    touched: Touched


def usage_rows(events: Iterable[UsageEvent], prices: PriceIndex) -> UsageRows:
    """Return the rows of a batch."""
    rows = [usage_row(event, prices) for event in events]
    return UsageRows(rows, frozenset((row[0], row[1]) for row in rows))


def _span_row(event: SpanEvent, span: Span) -> Row:
    start_seconds = span.start_ns // 1_000_000_000
    hour = datetime.fromtimestamp(start_seconds - start_seconds % 3600, UTC)
    return [
        event.workspace, hour, event.trace_id, span.span_id, span.parent_id, event.id, event.trace_state, span.name, span.kind,
        span.start_ns, max(0, span.end_ns - span.start_ns), span.is_error, event.pod,
        {name: _attribute(value) for name, value in span.attributes.items()},
    ]  # fmt: skip


def _attribute(value: str | int | float | bool) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _parts(message: bytes, decoded: Callable[[bytes], E], is_countable: Callable[[E], bool]) -> list[Part[E]]:
    return [_part(place, payload, decoded, is_countable) for place, payload in enumerate(_payloads(message))]


def _payloads(message: bytes) -> list[bytes]:
    try:
        return [bytes(payload) for payload in encoded_events(message)]
    except codec.Undecodable:
        return [message]


def _part(place: int, payload: bytes, decoded: Callable[[bytes], E], is_countable: Callable[[E], bool]) -> Part[E]:
    try:
        event = decoded(payload)
    except codec.UnsupportedSchema:
        return Part(place, payload, None, "unsupported_schema")
    except codec.Undecodable:
        return Part(place, payload, None, "undecodable")
    return Part(place, payload, event) if is_countable(event) else Part(place, payload, None, "out_of_range")


def _is_countable_usage(event: UsageEvent, now_ms: int) -> bool:
    quantities = [*event.units.values(), *event.totals.values(), *event.provider_units.values()]
    return (
        bool(event.id)
        and 0 <= event.seq < 2**32
        and _is_countable_time(event.at_ms, now_ms)
        and all(abs(quantity) <= LARGEST_QUANTITY for quantity in quantities)
    )


def _is_countable_span_event(event: SpanEvent, now_ms: int) -> bool:
    return all(_is_countable_time(span.start_ns // 1_000_000, now_ms) and span.end_ns < 2**63 for span in event.spans)


def _is_countable_time(at_ms: int, now_ms: int) -> bool:
    return now_ms - OLDEST / timedelta(milliseconds=1) <= at_ms <= now_ms + NEWEST / timedelta(milliseconds=1)
