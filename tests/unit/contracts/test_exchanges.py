"""Records of exchanges and contexts, unfolded into spans; what is none is told as such."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from contracts import codec
from contracts.events import Span, SpanEvent
from contracts.exchanges import Attributes, ContextRecord, ExchangeRecord, span_event, span_events
from tests.kit.usage import batch_of

GOLDEN = Path(__file__).parents[2] / "golden" / "contracts"
ENCODED = {
    name: bytes.fromhex((GOLDEN / f"{name}.hex").read_text()) for name in ("exchange-record", "context-record", "span-event")
}
EXCHANGE = codec.decode(ENCODED["exchange-record"], ExchangeRecord)
CONTEXT = codec.decode(ENCODED["context-record"], ContextRecord)
EVENT = codec.decode(ENCODED["span-event"], SpanEvent)
WHO: Attributes = {
    "http.route": "/tts/bytes",
    "gen_ai.provider.name": "cartesia",
    "gen_ai.operation.name": "text_to_speech",
    "gen_ai.request.model": "sonic-3",
    "glottis.operation": "tts",
    "glottis.endpoint": "tts.bytes",
    "glottis.workspace": "acme",
    "glottis.principal.id": "u-1",
    "glottis.principal.kind": "user",
    "glottis.principal.name": "Ada",
    "glottis.token.id": "jti-1",
    "glottis.account.id": "a-cartesia",
    "glottis.account.name": "cartesia-eu",
    "glottis.team.id": "t-voice",
    "glottis.team.name": "Voice",
}


def changed(**changes: Any) -> SpanEvent:
    return span_event(codec.encode(msgspec.structs.replace(EXCHANGE, **changes)))


def test_an_exchange_unfolds_into_its_three_spans() -> None:
    event = span_event(codec.encode(EXCHANGE))

    assert event == SpanEvent(
        id="0192f3a0-1234-7abc-8def-0123456789ab",
        workspace="acme",
        pod="gateway-0",
        trace_id="0af7651916cd43dd8448eb211c80319c",
        trace_state="a=b",
        spans=(
            Span(
                span_id="8def0123456789ab",
                parent_id="00f067aa0ba902b7",
                name="POST /tts/bytes",
                kind="server",
                start_ns=1764453600000000000,
                end_ns=1764453600500000000,
                attributes=WHO
                | {
                    "http.request.method": "POST",
                    "http.response.status_code": 101,
                    "client.address": "192.0.2.7",
                    "error.type": "principal_revoked",
                    "glottis.exchange": "0192f3a0-1234-7abc-8def-0123456789ab",
                    "glottis.outcome": "ended",
                    "glottis.reason": "principal_revoked",
                    "glottis.bytes_from_client": 1,
                    "glottis.bytes_to_client": 2,
                    "glottis.messages_from_client": 3,
                    "glottis.messages_to_client": 4,
                    "glottis.contexts": 5,
                    "glottis.contexts_refused": 6,
                    "glottis.closed_by": "gateway",
                    "glottis.close_code": 1008,
                    "glottis.voice": "v-1",
                    "glottis.characters": 7,
                    "glottis.transcript.hmac": "ab" * 32,
                    "glottis.first_byte_seconds": 0.0625,
                    "glottis.first_audio_seconds": 0.125,
                    "glottis.largest_audio_gap_seconds": 0.125,
                    "glottis.metadata.call": "42",
                    "glottis.usage.characters": 7,
                    "glottis.usage.requests": 1,
                },
            ),
            Span(
                span_id="8def0123456789aa",
                parent_id="8def0123456789ab",
                name="glottis.credential",
                start_ns=1764453600062500000,
                end_ns=1764453600125000000,
                attributes={"glottis.account.id": "a-cartesia", "glottis.account.name": "cartesia-eu"},
            ),
            Span(
                span_id="8def0123456789a9",
                parent_id="8def0123456789ab",
                name="websocket /tts/bytes",
                kind="client",
                start_ns=1764453600187500000,
                end_ns=1764453600500000000,
                attributes={
                    "http.request.method": "POST",
                    "http.response.status_code": 101,
                    "server.address": "api.cartesia.ai",
                    "glottis.anything_sent": True,
                    "glottis.connection_reused": False,
                    "glottis.dial_seconds": 0.0625,
                    "glottis.fault_phase": "send",
                    "glottis.provider_request_id": "r-1",
                },
            ),
        ),
    )


def test_a_context_unfolds_into_one_span_under_its_session() -> None:
    event = span_event(codec.encode(CONTEXT))

    assert (event.id, event.workspace) == ("0192f3a0-1234-7abc-8def-0123456789ab.3", "acme")
    assert event.spans == (
        Span(
            span_id="8def0123456789b8",
            parent_id="8def0123456789a9",
            name="context",
            kind="client",
            start_ns=1764453600000000000,
            end_ns=1764453600500000000,
            is_error=True,
            attributes={
                "gen_ai.provider.name": "cartesia",
                "gen_ai.request.model": "sonic-3",
                "glottis.exchange": "0192f3a0-1234-7abc-8def-0123456789ab.3",
                "glottis.session": "0192f3a0-1234-7abc-8def-0123456789ab",
                "glottis.workspace": "acme",
                "glottis.principal.id": "u-1",
                "glottis.account.id": "a-cartesia",
                "glottis.team.id": "t-voice",
                "glottis.operation": "tts",
                "glottis.endpoint": "tts.bytes",
                "glottis.outcome": "provider_error",
                "glottis.reason": "voice_not_found",
                "glottis.voice": "v-1",
                "glottis.characters": 7,
                "glottis.transcript.hmac": "ab" * 32,
                "glottis.first_audio_seconds": 0.25,
                "glottis.largest_audio_gap_seconds": 0.125,
            },
        ),
    )


def test_a_message_may_hold_records_and_events() -> None:
    message = batch_of([codec.encode(EXCHANGE), codec.encode(EVENT), codec.encode(CONTEXT)])

    assert [event.id for event in span_events(message)] == [
        "0192f3a0-1234-7abc-8def-0123456789ab",
        "e-1",
        "0192f3a0-1234-7abc-8def-0123456789ab.3",
    ]


@pytest.mark.parametrize("name", ENCODED)
def test_a_message_of_one_is_read(name: str) -> None:
    assert len(span_events(ENCODED[name])) == 1


def test_an_exchange_that_was_not_sent_has_one_span() -> None:
    assert len(changed(credential_asked_at=0.0, dial_started_at=0.0, sent_at=0.0).spans) == 1


@pytest.mark.parametrize(
    "changes",
    [{"id": "x"}, {"id": ""}, {"started_at": float("inf")}, {"ended_at": float("nan")}, {"status": "200"}, {"outcome": "x"}],
)
def test_a_record_with_impossible_values_is_undecodable(changes: dict[str, Any]) -> None:
    with pytest.raises(codec.Undecodable):
        changed(**changes)


@pytest.mark.parametrize("encoded", [b"", b"\x90", b"\x91\x01", b"\xdc", b"\xdc\x00\x01\x03", b"\xdd\x00\x00\x00\x00", b"\x80"])
def test_what_is_neither_record_nor_event_is_undecodable(encoded: bytes) -> None:
    with pytest.raises(codec.Undecodable):
        span_event(encoded)


def test_a_record_of_a_newer_schema_is_told_apart() -> None:
    with pytest.raises(codec.UnsupportedSchema):
        changed(schema=2)


def test_fields_that_a_newer_release_adds_are_passed_over() -> None:
    fields = msgspec.msgpack.decode(codec.encode(EXCHANGE))

    assert span_event(msgspec.msgpack.encode([*fields, "new"])) == span_event(codec.encode(EXCHANGE))


def test_every_field_of_an_exchange_has_its_place() -> None:
    fields = msgspec.msgpack.decode(codec.encode(EXCHANGE))

    assert len(fields) == len(ExchangeRecord.__struct_fields__) + 1
