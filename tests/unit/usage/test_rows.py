"""From messages to rows."""

from datetime import UTC, datetime
from decimal import Decimal

import msgspec
import pytest
from msgspec.structs import replace

from contracts import codec
from contracts.events import Span, SpanEvent
from contracts.exchanges import ExchangeRecord, Who
from contracts.prices import PriceBook
from control_plane.aggregator import rows
from control_plane.aggregator.pricing import PriceIndex
from control_plane.aggregator.slots import slot_of
from gateway.telemetry.usage import UsageRecords
from tests.kit.usage import DAY_MS, batch_of, price, usage_event

AT_MS = 1_795_946_523_456  # 2026-11-29 10:02:03.456 UTC
PRICES = PriceIndex(PriceBook(revision=9, prices=(price("characters", "0.5"),)))


def reasons(message: bytes) -> list[str]:
    """Why each event of a message cannot be counted; empty: it can."""
    return [part.reason for part in rows.usage_parts(message, AT_MS)]


def test_a_row_holds_every_field_of_its_event_under_its_columns_name() -> None:
    event = usage_event("r1", 3, at_ms=AT_MS, units={"characters": 3, "requests": 1}, metadata={"call": "7"})
    row = dict(zip(rows.USAGE_COLUMNS, rows.usage_row(event, PRICES), strict=True))
    assert row == {
        "workspace": "acme",
        "slot": datetime(2026, 11, 29, 10, 0, tzinfo=UTC),
        "id": "r1:3",
        "key": "r1",
        "seq": 3,
        "is_final": True,
        "at": datetime(2026, 11, 29, 10, 2, 3, 456000, tzinfo=UTC),
        "pod": "pod-1",
        "principal": "ann",
        "principal_kind": "user",
        "principal_name": "Ann",
        "team": "voice",
        "team_name": "Voice",
        "token": "",
        "account": "kokoro-local",
        "account_name": "Kokoro here",
        "provider": "kokoro",
        "model": "kokoro-82m",
        "operation": "tts",
        "endpoint": "tts.bytes",
        "units": {"characters": 3, "requests": 1},
        "totals": {},
        "provider_units": {},
        "outcome": "completed",
        "metadata": {"call": "7"},
        "costs": {"characters": Decimal("1.5"), "requests": Decimal(0)},
        "currencies": {"characters": "USD", "requests": "USD"},
        "price_revision": 9,
    }


def test_a_batch_touches_each_slot_of_each_workspace_once() -> None:
    events = [usage_event("r1", at_ms=AT_MS), usage_event("r2", at_ms=AT_MS + 1), usage_event("r3", at_ms=AT_MS + 300_000)]
    touched = rows.usage_rows(events, PRICES).touched
    assert touched == {
        ("acme", datetime(2026, 11, 29, 10, 0, tzinfo=UTC)),
        ("acme", datetime(2026, 11, 29, 10, 5, tzinfo=UTC)),
    }


def test_a_slot_is_the_five_minutes_that_a_time_lies_in() -> None:
    assert slot_of(1_795_946_699_999) == datetime(2026, 11, 29, 10, 0, tzinfo=UTC)
    assert slot_of(1_795_946_700_000) == datetime(2026, 11, 29, 10, 5, tzinfo=UTC)


@pytest.mark.parametrize("message", [b"", b"\xc1", b"\x00", b"\xdd\xff\xff\xff\xff", b"{}", b"\xdd\x00\x00"])
def test_bytes_that_are_no_event_are_one_undecodable_part(message: bytes) -> None:
    assert reasons(message) == ["undecodable"]


def test_each_event_of_a_message_is_judged_alone() -> None:
    good = codec.encode(usage_event("r1", at_ms=AT_MS))
    newer = msgspec.msgpack.encode(msgspec.msgpack.decode(good) | {"schema": 2})
    assert reasons(batch_of([good, msgspec.msgpack.encode({"no": "event"}), newer, good])) == [
        "",
        "undecodable",
        "unsupported_schema",
        "",
    ]


def test_records_and_events_of_one_message_are_the_same_to_it() -> None:
    event = usage_event("r1", at_ms=AT_MS)
    message = batch_of([codec.encode(event), UsageRecords().of_event(event)])

    assert [part.event for part in rows.usage_parts(message, AT_MS)] == [event, event]


@pytest.mark.parametrize(
    "changes",
    [
        {"at_ms": AT_MS - 366 * DAY_MS},
        {"at_ms": AT_MS + 2 * DAY_MS},
        {"at_ms": -1},
        {"units": {"characters": 10**10 + 1}},
        {"totals": {"characters": -(10**10) - 1}},
        {"provider_units": {"seconds": 2**63 - 1}},
    ],
)
def test_an_event_that_would_break_sums_is_out_of_range(changes: dict[str, object]) -> None:
    assert reasons(codec.encode(usage_event("r1", **{"at_ms": AT_MS, **changes}))) == ["out_of_range"]  # type: ignore[arg-type]


def test_the_attributes_of_a_span_are_kept_as_text() -> None:
    start = AT_MS * 1_000_000 + 7
    span = Span(span_id="0a", name="s", start_ns=start, end_ns=start + 5, attributes={"a": "x", "b": 1, "c": 0.5, "d": True})
    event = SpanEvent(id="r1", workspace="acme", pod="pod-1", trace_id="ff", spans=(span,))
    (row,) = rows.span_rows(event)
    named = dict(zip(rows.SPAN_COLUMNS, row, strict=True))
    assert named["attributes"] == {"a": "x", "b": "1", "c": "0.5", "d": "true"}
    assert (named["hour"], named["start"], named["duration_ns"]) == (datetime(2026, 11, 29, 10, tzinfo=UTC), start, 5)
    assert (named["request_id"], named["trace_id"], named["span_id"]) == ("r1", "ff", "0a")


def test_a_gateways_record_becomes_a_row_for_each_of_its_spans() -> None:
    record = ExchangeRecord(
        id="0192f3a0-1234-7abc-8def-0123456789ab",
        pod="pod-1",
        trace_id="0af7651916cd43dd8448eb211c80319c",
        parent_id="",
        trace_state="",
        who=Who(workspace="acme", endpoint="tts.bytes", path="/tts/bytes", account="a1"),
        method="POST",
        is_websocket=False,
        started_at=AT_MS / 1000,
        ended_at=AT_MS / 1000 + 1,
        outcome="completed",
        reason="",
        fault_phase="",
        anything_sent=True,
        status=200,
        upstream_status=200,
        upstream_request_id="",
        peer="",
        credential_asked_at=0.0,
        credential_opened_at=0.0,
        dial_started_at=0.0,
        dialled_at=0.0,
        sent_at=AT_MS / 1000,
        request_ended_at=0.0,
        first_byte_at=0.0,
        first_audio_at=0.0,
        largest_audio_gap=0.0,
        bytes_from_client=0,
        bytes_to_client=0,
        messages_from_client=0,
        messages_to_client=0,
        contexts=0,
        contexts_refused=0,
        voice="",
        characters=0,
        transcript_hash="",
        closed_by="",
        close_code=0,
        metadata={},
        usage={},
    )

    good, bad = rows.span_parts(batch_of([codec.encode(record), codec.encode(replace(record, id="no id"))]), AT_MS)

    assert good.event is not None
    assert [(row[0], row[7], row[8]) for row in rows.span_rows(good.event)] == [
        ("acme", "POST /tts/bytes", "server"),
        ("acme", "POST /tts/bytes", "client"),
    ]
    assert (bad.event, bad.reason) == (None, "undecodable")
