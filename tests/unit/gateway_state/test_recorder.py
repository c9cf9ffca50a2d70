"""The recorder: an exchange's usage, spans, metrics and line; nothing that must not be there."""

from __future__ import annotations

import json
from typing import Any

import pytest
from structlog.testing import capture_logs

from contracts.events import Attribution, Outcome, Span, SpanEvent, UsageEvent
from contracts.exchanges import span_event
from contracts.secret import Secret
from contracts.snapshot import Account, Issuer
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.recorder import Recorder
from gateway.telemetry.trace import context_of, is_sampled
from policy.providers.registry import PROFILES
from policy.refusal import TABLE, Refusal, close_of, http_answer, in_band_error
from policy.route import Caller, Route
from policy.usage import Settled, SettledContext, Tally
from tests.kit.tallies import delta_of, final_of

REQUEST_ID = "0192f3a0-1234-7abc-8def-0123456789ab"
TRACEPARENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
SPEECH = next(endpoint for endpoint in PROFILES["cartesia"].endpoints if endpoint.id == "tts.bytes")
CALLER = Caller(
    workspace="w1",
    principal="u-alice",
    kind="user",
    name="Alice",
    teams=("voice",),
    issuer=Issuer(id="i", workspace="w1", issuer="https://idp.test", audiences=("glottis",)),
    token_id="t1",
    parent_token_id=None,
    issued_at=0.0,
    expires_at=0.0,
)
TO = Attribution(
    workspace="w1",
    principal="u-alice",
    principal_kind="user",
    team="voice",
    account="a-eu",
    provider="cartesia",
    model="sonic-3",
    operation="tts",
    endpoint="tts.bytes",
)
ACCOUNT = Account(id="a-eu", workspace="w1", name="cartesia-eu", provider="cartesia", origin="https://api.cartesia.test")
ROUTE = Route(CALLER, SPEECH, ACCOUNT, "sonic-3", TO, b"/tts/bytes", b"", metadata=(("call", "17"),))


class Kept:
    """A sink that keeps."""

    def __init__(self) -> None:
        self.usage: list[UsageEvent] = []
        self.spans: list[SpanEvent] = []

    def offer_delta(self, tally: Tally, now_ms: int, /) -> bool:
        self.usage.append(delta_of(tally, now_ms))
        return True

    def offer_final(self, tally: Tally, outcome: Outcome, now_ms: int, totals: dict[str, int], /) -> bool:
        self.usage.append(final_of(tally, outcome, now_ms, is_owed=bool(totals)))
        return True

    def offer_spans(self, workspace: str, encoded: bytes, /) -> bool:
        event = span_event(encoded)
        assert event.workspace == workspace
        self.spans.append(event)
        return True


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def metrics() -> Metrics:
    metrics = Metrics()
    metrics.know_reasons({"model_not_granted"})
    return metrics


@pytest.fixture
def recorder(kept: Kept, metrics: Metrics) -> Recorder:
    return Recorder(kept, "pod-1", metrics, lambda _: Secret(b"k" * 32), lambda _: 1.0)


def completed(**changes: Any) -> Settled:
    tally = Tally(REQUEST_ID, TO, "pod-1")
    tally.add("characters", 11)
    fields: dict[str, Any] = dict(
        request_id=REQUEST_ID,
        started_at=100.0,
        method="POST",
        caller=CALLER,
        endpoint=SPEECH,
        route=ROUTE,
        tally=tally,
        traceparent=TRACEPARENT,
        status=200,
        upstream_status=200,
        credential_asked_at=100.001,
        credential_opened_at=100.002,
        dial_started_at=100.002,
        dialled_at=100.022,
        sent_at=100.023,
        request_ended_at=100.023,
        first_byte_at=100.123,
        first_audio_at=100.143,
        ended_at=100.5,
        bytes_from_client=60,
        bytes_to_client=3500,
        characters=11,
        transcript="Hello world",
    )
    return Settled(**(fields | changes))


def by_name(event: SpanEvent) -> dict[str, Span]:
    return {span.name: span for span in event.spans}


def test_an_exchange_has_three_spans_under_the_callers(recorder: Recorder, kept: Kept) -> None:
    recorder.settle(completed())

    [event] = kept.spans
    inbound, credential, outbound = event.spans
    assert (event.id, event.workspace, event.trace_id) == (REQUEST_ID, "w1", "4bf92f3577b34da6a3ce929d0e0e4736")
    assert (inbound.name, inbound.kind, inbound.parent_id) == ("POST /tts/bytes", "server", "00f067aa0ba902b7")
    assert (credential.name, credential.kind, credential.parent_id) == ("glottis.credential", "internal", inbound.span_id)
    assert (outbound.name, outbound.kind, outbound.parent_id) == ("POST /tts/bytes", "client", inbound.span_id)
    assert len({span.span_id for span in event.spans}) == 3


def test_the_inbound_span_says_who_what_and_how_long(recorder: Recorder, kept: Kept) -> None:
    recorder.settle(completed())

    attributes = kept.spans[0].spans[0].attributes
    assert attributes["http.request.method"] == "POST"
    assert attributes["http.route"] == "/tts/bytes"
    assert attributes["http.response.status_code"] == 200
    assert attributes["gen_ai.provider.name"] == "cartesia"
    assert attributes["gen_ai.request.model"] == "sonic-3"
    assert attributes["glottis.principal.id"] == "u-alice"
    assert attributes["glottis.team.id"] == "voice"
    assert attributes["glottis.account.name"] == "cartesia-eu"
    assert attributes["glottis.metadata.call"] == "17"
    assert attributes["glottis.first_byte_seconds"] == 0.1
    assert attributes["glottis.first_audio_seconds"] == 0.12
    assert attributes["glottis.characters"] == 11
    assert attributes["glottis.transcript.hmac"] == "95c0e3b76dc3ad9d5178810438c04277cf925294cd0f9101b40eef99fc6ca34b"


def test_the_text_itself_is_nowhere(recorder: Recorder, kept: Kept) -> None:
    with capture_logs() as lines:
        recorder.settle(completed(transcript="a secret sentence"))

    assert "secret sentence" not in repr((kept.usage, kept.spans, lines))


def test_one_line_an_exchange(recorder: Recorder) -> None:
    with capture_logs() as lines:
        recorder.settle(completed())

    assert lines == [
        {
            "event": "exchange settled",
            "log_level": "info",
            "request_id": REQUEST_ID,
            "outcome": "completed",
            "status": 200,
            "method": "POST",
            "duration_ms": 500.0,
            "bytes_in": 60,
            "bytes_out": 3500,
            "endpoint": "tts.bytes",
            "workspace": "w1",
            "principal": "u-alice",
            "account": "cartesia-eu",
            "model": "sonic-3",
            "team": "voice",
            "characters": 11,
            "ttfb_ms": 100.0,
            "ttfa_ms": 120.0,
            "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
        }
    ]


def test_usage_ends_with_the_exchange(recorder: Recorder, kept: Kept, metrics: Metrics) -> None:
    settled = completed()
    assert settled.tally is not None
    recorder.admit(settled.tally, 100_000)

    recorder.settle(settled)

    assert [(event.id, event.outcome) for event in kept.usage] == [(REQUEST_ID + ":0", None), (REQUEST_ID + ":1", "completed")]
    assert metrics.registry.get_sample_value("glottis_gateway_usage_total", {"provider": "cartesia", "unit": "characters"}) == 11


def test_a_refusal_has_its_reason_in_line_metric_and_span(recorder: Recorder, kept: Kept, metrics: Metrics) -> None:
    refused = completed(
        outcome="refused", reason="model_not_granted", status=403, route=None, tally=None, dial_started_at=0.0, sent_at=0.0
    )
    with capture_logs() as lines:
        recorder.settle(refused)

    [inbound] = kept.spans[0].spans
    assert inbound.attributes["glottis.reason"] == "model_not_granted"
    assert lines[0]["reason"] == "model_not_granted"
    assert metrics.registry.get_sample_value("glottis_gateway_refusals_total", {"reason": "model_not_granted"}) == 1
    assert kept.usage == []


def test_a_reason_outside_the_table_is_no_label(recorder: Recorder, metrics: Metrics) -> None:
    recorder.settle(completed(outcome="refused", reason="/etc/passwd", tally=None))

    assert metrics.registry.get_sample_value("glottis_gateway_refusals_total", {"reason": "other"}) == 1


def test_added_latency_leaves_dialling_out(recorder: Recorder, metrics: Metrics) -> None:
    recorder.settle(completed())

    added = metrics.registry.get_sample_value(
        "glottis_gateway_added_latency_seconds_sum", {"provider": "cartesia", "operation": "tts"}
    )
    assert added == pytest.approx(0.003)


def test_the_largest_gap_in_an_exchanges_audio_is_observed(recorder: Recorder, metrics: Metrics) -> None:
    spoken = completed()
    spoken.largest_audio_gap = 0.4
    recorder.settle(spoken)

    labels = {"provider": "cartesia", "operation": "tts"}
    assert metrics.registry.get_sample_value("glottis_gateway_largest_audio_gap_seconds_sum", labels) == 0.4
    assert metrics.registry.get_sample_value("glottis_gateway_largest_audio_gap_seconds_count", labels) == 1


def test_a_histogram_counts_into_every_bucket_above(recorder: Recorder, metrics: Metrics) -> None:
    recorder.settle(completed())

    labels = {"provider": "cartesia", "operation": "tts"}
    name = "glottis_gateway_time_to_first_audio_seconds"
    assert metrics.registry.get_sample_value(name + "_bucket", labels | {"le": "0.1"}) == 0
    assert metrics.registry.get_sample_value(name + "_bucket", labels | {"le": "0.15"}) == 1
    assert metrics.registry.get_sample_value(name + "_bucket", labels | {"le": "+Inf"}) == 1
    assert metrics.registry.get_sample_value(name + "_count", labels) == 1


def test_a_clock_that_was_set_back_does_not_break_a_histogram(recorder: Recorder, metrics: Metrics) -> None:
    recorder.settle(completed(ended_at=99.0))

    total = metrics.registry.get_sample_value(
        "glottis_gateway_exchange_seconds_sum", {"provider": "cartesia", "operation": "tts"}
    )
    assert total == 0


def test_spans_are_sampled_and_usage_never_is(kept: Kept, metrics: Metrics) -> None:
    recorder = Recorder(kept, "pod-1", metrics, lambda _: None, lambda _: 0.0)

    recorder.settle(completed())

    assert kept.spans == []
    assert len(kept.usage) == 1


def test_a_flood_of_strangers_makes_few_spans(recorder: Recorder, kept: Kept) -> None:
    for _ in range(100):
        recorder.settle(completed(caller=None, route=None, tally=None, outcome="refused", reason="token_missing"))

    assert len(kept.spans) == 10


def test_a_context_has_its_own_usage_and_a_span_under_the_session(recorder: Recorder, kept: Kept, metrics: Metrics) -> None:
    session = completed(is_websocket=True, tally=None)
    tally = Tally(REQUEST_ID + ".3", TO, "pod-1")
    tally.add("characters", 5)

    context = SettledContext(session, tally, started_at=101.0)
    context.first_audio_at, context.ended_at, context.characters = 101.2, 102.0, 5
    recorder.settle_context(context)
    recorder.settle(session)

    assert [event.key for event in kept.usage] == [REQUEST_ID + ".3"]
    [span] = kept.spans[0].spans
    assert kept.spans[0].id == REQUEST_ID + ".3"
    assert span.parent_id == by_name(kept.spans[1])["websocket /tts/bytes"].span_id
    assert span.attributes["glottis.first_audio_seconds"] == 0.2
    assert (
        metrics.registry.get_sample_value("glottis_gateway_contexts_total", {"provider": "cartesia", "outcome": "completed"}) == 1
    )


def test_a_fault_of_ours_is_logged_and_does_not_reach_the_exchange(kept: Kept, metrics: Metrics) -> None:
    def fails(_: str) -> float:
        raise RuntimeError("a fault of ours")

    recorder = Recorder(kept, "pod-1", metrics, lambda _: None, fails)
    with capture_logs() as lines:
        recorder.settle(completed())

    assert lines[0]["event"] == "exchange not recorded"
    assert metrics.registry.get_sample_value("glottis_gateway_loop_faults_total", {"loop": "recorder"}) == 1


@pytest.mark.parametrize(
    "header",
    [
        None,
        b"",
        b"00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        b"00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        b"ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        b"00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
    ],
)
def test_a_trace_begins_here_without_a_valid_traceparent(header: bytes | None) -> None:
    assert context_of(header, b"a=b", REQUEST_ID).trace_id == "0192f3a012347abc8def0123456789ab"
    assert context_of(header, b"a=b", REQUEST_ID).parent_id == ""


def test_a_newer_version_of_traceparent_is_read() -> None:
    context = context_of(b"01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more", b"a=b", REQUEST_ID)

    assert (context.trace_id, context.state) == ("4bf92f3577b34da6a3ce929d0e0e4736", "a=b")


def test_a_share_of_traces_is_sampled() -> None:
    ids = [f"{'0' * 18}{number:014x}" for number in range(0, 1 << 56, 1 << 46)]

    assert sum(is_sampled(trace_id, 0.25) for trace_id in ids) == 256


@pytest.mark.parametrize("reason", TABLE)
def test_a_refusal_has_the_same_reason_in_answer_log_metric_and_span(kept: Kept, reason: str) -> None:
    metrics, lines = Metrics(), []
    metrics.know_reasons(TABLE)
    recorder = Recorder(
        kept, "pod-1", metrics, lambda _: None, lambda _: 1.0, lambda event, fields: lines.append((event, fields["reason"]))
    )
    tally = Tally(REQUEST_ID + ".1", TO, "pod-1")
    session = completed(outcome="refused", reason=reason, tally=None)
    message = SettledContext(session, tally, 100.0)
    message.outcome, message.reason, message.ended_at = "refused", reason, 100.0

    recorder.settle(session)
    recorder.settle_context(message)

    refusal = Refusal(reason)
    told = {
        json.loads(http_answer(refusal, SPEECH, "2026-08-14", REQUEST_ID)[3])["error_code"],
        json.loads(http_answer(refusal, None, "", REQUEST_ID)[3])["error"]["reason"],
        json.loads(in_band_error(refusal, "2026-08-14", "c1", REQUEST_ID))["error_code"],
        close_of(refusal)[1].decode(),
    }
    assert told == {reason}
    assert lines == [("exchange settled", reason), ("message refused", reason)]
    assert metrics.registry.get_sample_value("glottis_gateway_refusals_total", {"reason": reason}) == 2
    inbound, context = (event.spans[0] for event in kept.spans)
    assert (inbound.attributes["glottis.reason"], context.attributes["glottis.reason"]) == (reason, reason)
    assert kept.usage == []
