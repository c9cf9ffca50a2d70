"""Takes note of what happened: usage and spans to the sink, metrics, one log line an exchange.

Its methods are called on the event loop in the middle of exchanges, so they neither wait nor raise: what cannot be kept is
counted. The transcript is hashed here and goes no further. Read next: `gateway.telemetry.spool`, the sink of a pod.
"""

from collections.abc import Callable
from typing import Final

import structlog

from contracts.events import Outcome
from contracts.secret import Secret
from gateway.telemetry.counting import Count
from gateway.telemetry.hashing import KeyedHash
from gateway.telemetry.lines import Fields
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.spans import SpanRecords
from gateway.telemetry.spool import Sink
from gateway.telemetry.trace import TraceContext, context_of, is_sampled
from policy.usage import Settled, SettledContext, Tally

_log = structlog.get_logger("gateway.exchange")

_ANONYMOUS_SPANS_A_SECOND: Final = 10
"""spans of exchanges that were refused before their workspace was known: a flood must not fill the spool"""


def _milliseconds(seconds: float) -> float:
    """Return milliseconds with one decimal; `round` takes several times as long, thrice an exchange."""
    return int(seconds * 10_000 + 0.5) / 10


def _trace_of(settled: Settled) -> TraceContext:
    """Return an exchange's trace context; it is kept there, because a session's contexts all ask for it."""
    known = settled.trace
    if isinstance(known, TraceContext):
        return known
    settled.trace = trace = context_of(settled.traceparent, settled.tracestate, settled.request_id)
    return trace


def _log_line(event: str, fields: Fields) -> None:
    _log.info(event, **fields)


class Recorder:
    """The pod's recorder.

    transcript_key: workspace -> the key of its transcript hashes, None where it has none.
    sampling: workspace -> the share of exchanges whose spans are kept.
    log: writes the line of an exchange: its event and its fields.
    """

    def __init__(
        self,
        sink: Sink,
        pod: str,
        metrics: Metrics,
        transcript_key: Callable[[str], Secret | None],
        sampling: Callable[[str], float],
        log: Callable[[str, Fields], None] | None = None,
    ) -> None:
        self._sink = sink
        self._spans = SpanRecords(pod)
        self._metrics = metrics
        self._transcript_key = transcript_key
        self._hashes: dict[str, tuple[Secret, KeyedHash]] = {}
        self._sampling = sampling
        self._log = log or _log_line
        self._usage: dict[str, dict[str, Count]] = {}
        """what is owed, by provider and unit"""
        self._anonymous_second = 0
        self._anonymous_spans = 0

    def admit(self, tally: Tally, now_ms: int) -> None:
        """Write down what was added to the tally, before the bytes that cost it leave."""
        self._sink.offer_delta(tally, now_ms)

    def settle(self, settled: Settled) -> None:
        """End an exchange: its usage, its spans, metrics, one log line. To be called once."""
        try:
            self._settle(settled)
        except Exception:  # the edge of one request: an exchange that ended well must not fail in its bookkeeping
            _log.exception("exchange not recorded", request_id=settled.request_id)
            self._metrics.loop_faults.labels("recorder").inc()

    def settle_context(self, context: SettledContext) -> None:
        """End one context of a multiplexed socket: its usage, its span, its metrics. To be called once."""
        try:
            self._settle_context(context)
        except Exception:  # as above
            _log.exception("context not recorded", key=context.tally.key)
            self._metrics.loop_faults.labels("recorder").inc()

    def _settle(self, settled: Settled) -> None:
        if settled.tally is not None:
            self._close(settled.tally, settled.outcome, settled.ended_at, settled.is_owed)
        workspace = settled.caller.workspace if settled.caller is not None else ""
        trace = _trace_of(settled)
        transcript_hash = self._hash(workspace, settled.transcript)
        if self._is_sampled(workspace, trace.trace_id, settled.ended_at):
            self._sink.offer_spans(workspace, self._spans.of_exchange(settled, trace, transcript_hash))
        self._measure(settled)
        self._tell(settled, trace.trace_id)

    def _settle_context(self, context: SettledContext) -> None:
        tally, session = context.tally, context.session
        if context.outcome != "refused":
            self._close(tally, context.outcome, context.ended_at, context.is_owed)
        trace = _trace_of(session)
        workspace, provider = tally.to.workspace, tally.to.provider
        if self._is_sampled(workspace, trace.trace_id, context.ended_at):
            transcript_hash = self._hash(workspace, context.transcript)
            self._sink.offer_spans(workspace, self._spans.of_context(context, trace, transcript_hash))
        metrics, kind = self._metrics, (provider, tally.to.operation)
        metrics.contexts.add((provider, context.outcome))
        if context.outcome == "refused":
            metrics.refusals.add((metrics.reason(context.reason),))
            fields: Fields = {
                "request_id": session.request_id,
                "reason": context.reason,
                "workspace": workspace,
                "principal": tally.to.principal,
                "account": tally.to.account_name,
            }
            self._log("message refused", fields)
        if context.first_audio_at:
            metrics.first_audio_seconds.observe(context.first_audio_at - context.started_at, kind)
        if context.largest_audio_gap:
            metrics.audio_gap_seconds.observe(context.largest_audio_gap, kind)

    def _close(self, tally: Tally, outcome: Outcome, ended_at: float, is_owed: bool | None) -> None:
        """Keep a tally's last usage event, and count what is owed."""
        totals = tally.owed(outcome, is_owed)
        self._sink.offer_final(tally, outcome, int(ended_at * 1000), totals)
        provider = tally.to.provider
        counts = self._usage.get(provider)
        if counts is None:
            counts = self._usage[provider] = {}
        for unit, quantity in totals.items():
            count = counts.get(unit)
            if count is None:
                count = counts[unit] = self._metrics.usage.of((provider, unit))
            count.value += quantity

    def _hash(self, workspace: str, transcript: str) -> str:
        if not transcript or not workspace:
            return ""
        key = self._transcript_key(workspace)
        if key is None:
            return ""
        known = self._hashes.get(workspace)
        if known is None or known[0] is not key:
            known = self._hashes[workspace] = (key, KeyedHash(key.reveal()))
        return known[1].of(transcript.encode(errors="surrogatepass"))

    def _is_sampled(self, workspace: str, trace_id: str, now: float) -> bool:
        if workspace:
            return is_sampled(trace_id, self._sampling(workspace))
        second = int(now)
        if second != self._anonymous_second:
            self._anonymous_second, self._anonymous_spans = second, 0
        self._anonymous_spans += 1
        return self._anonymous_spans <= _ANONYMOUS_SPANS_A_SECOND

    def _measure(self, settled: Settled) -> None:
        metrics = self._metrics
        endpoint = settled.endpoint
        kind = ("none", "none") if endpoint is None else (endpoint.provider, endpoint.operation)
        metrics.exchanges.add((*kind, settled.outcome))
        metrics.exchange_seconds.observe(settled.ended_at - settled.started_at, kind)
        if settled.outcome == "refused":
            metrics.refusals.add((metrics.reason(settled.reason),))
        if settled.fault_phase:
            metrics.upstream_faults.add((settled.fault_phase,))
        dialling = settled.dialled_at - settled.dial_started_at if settled.dialled_at else 0.0
        if dialling:
            metrics.dial_seconds.observe(dialling, kind)
        if settled.sent_at:
            metrics.added_seconds.observe(settled.sent_at - settled.started_at - dialling, kind)
        if asked := settled.request_ended_at:
            if settled.first_byte_at:
                metrics.first_byte_seconds.observe(settled.first_byte_at - asked, kind)
            if settled.first_audio_at:
                metrics.first_audio_seconds.observe(settled.first_audio_at - asked, kind)
        if settled.largest_audio_gap:
            metrics.audio_gap_seconds.observe(settled.largest_audio_gap, kind)

    def _tell(self, settled: Settled, trace_id: str) -> None:
        fields: Fields = {
            "request_id": settled.request_id,
            "outcome": settled.outcome,
            "status": settled.status,
            "method": settled.method,
            "duration_ms": _milliseconds(settled.ended_at - settled.started_at),
            "bytes_in": settled.bytes_from_client,
            "bytes_out": settled.bytes_to_client,
        }
        if settled.endpoint is not None:
            fields["endpoint"] = settled.endpoint.id
        if (caller := settled.caller) is not None:
            fields["workspace"] = caller.workspace
            fields["principal"] = caller.principal
        if (route := settled.route) is not None:
            fields["account"] = route.account.name
            fields["model"] = route.model
            if route.attribution.team:
                fields["team"] = route.attribution.team
        if settled.reason:
            fields["reason"] = settled.reason
        if settled.fault_phase:
            fields["fault_phase"] = settled.fault_phase
            fields["anything_sent"] = settled.anything_sent
        if settled.upstream_status and settled.upstream_status != settled.status:
            fields["upstream_status"] = settled.upstream_status
        if settled.characters:
            fields["characters"] = settled.characters
        asked = settled.request_ended_at
        if asked and settled.first_byte_at:
            fields["ttfb_ms"] = _milliseconds(settled.first_byte_at - asked)
        if asked and settled.first_audio_at:
            fields["ttfa_ms"] = _milliseconds(settled.first_audio_at - asked)
        if settled.is_websocket:
            fields["messages_in"] = settled.messages_from_client
            fields["messages_out"] = settled.messages_to_client
            fields["contexts"] = settled.contexts
            fields["close_code"] = settled.close_code
        if settled.closed_by:
            fields["closed_by"] = settled.closed_by
        if settled.traceparent:
            fields["trace_id"] = trace_id
        self._log("exchange settled", fields)
