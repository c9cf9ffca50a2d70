"""Takes note of what happened: usage and spans to the sink, metrics, one log line an exchange.

Its methods are called on the event loop in the middle of exchanges, so they neither wait nor raise: what cannot be kept is
counted. The transcript is hashed here and goes no further. Read next: `gateway.telemetry.spool`, the sink of a pod.
"""

import hashlib
import hmac
from collections.abc import Callable
from typing import Any

import structlog

from contracts.events import UsageEvent
from contracts.secret import Secret
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.spans import context_span, spans_of
from gateway.telemetry.spool import Sink
from gateway.telemetry.trace import context_of, is_sampled
from policy.usage import Settled, SettledContext, Tally

_log = structlog.get_logger("gateway.exchange")

_ANONYMOUS_SPANS_A_SECOND = 10
"""spans of exchanges that were refused before their workspace was known: a flood must not fill the spool"""


class Recorder:
    """The pod's recorder.

    transcript_key: workspace -> the key of its transcript hashes, None where it has none.
    sampling: workspace -> the share of exchanges whose spans are kept.
    """

    def __init__(
        self,
        sink: Sink,
        pod: str,
        metrics: Metrics,
        transcript_key: Callable[[str], Secret | None],
        sampling: Callable[[str], float],
    ) -> None:
        self._sink = sink
        self._pod = pod
        self._metrics = metrics
        self._transcript_key = transcript_key
        self._sampling = sampling
        self._anonymous_second = 0
        self._anonymous_spans = 0
        self._children: dict[tuple[object, ...], Any] = {}  # Any: children of counters and of histograms

    def admit(self, tally: Tally, now_ms: int) -> None:
        """Write down what was added to the tally, before the bytes that cost it leave."""
        event = tally.delta(now_ms)
        if event is not None:
            self._sink.offer_usage(event)

    def usage(self, event: UsageEvent) -> None:
        """Keep a usage event, and count it if it is final."""
        self._sink.offer_usage(event)
        if event.is_final:
            for unit, quantity in event.totals.items():
                self._child(self._metrics.usage, event.to.provider, unit).inc(quantity)

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
            self.usage(settled.tally.final(settled.outcome, int(settled.ended_at * 1000), is_owed=settled.is_owed))
        workspace = settled.caller.workspace if settled.caller is not None else ""
        trace = context_of(settled.traceparent, settled.tracestate, settled.request_id)
        transcript_hash = self._hash(workspace, settled.transcript)
        if self._is_sampled(workspace, trace.trace_id, settled.ended_at):
            self._sink.offer_spans(spans_of(settled, self._pod, trace, transcript_hash))
        self._measure(settled)
        self._tell(settled, trace.trace_id)

    def _settle_context(self, context: SettledContext) -> None:
        tally, session = context.tally, context.session
        self.usage(tally.final(context.outcome, int(context.ended_at * 1000), is_owed=context.is_owed))
        trace = context_of(session.traceparent, session.tracestate, session.request_id)
        workspace, provider = tally.to.workspace, tally.to.provider
        if self._is_sampled(workspace, trace.trace_id, context.ended_at):
            transcript_hash = self._hash(workspace, context.transcript)
            self._sink.offer_spans(context_span(context, self._pod, trace, transcript_hash))
        metrics = self._metrics
        self._child(metrics.contexts, provider, context.outcome).inc()
        if context.first_audio_at:
            waited = max(context.first_audio_at - context.started_at, 0.0)
            self._child(metrics.first_audio_seconds, provider, tally.to.operation).observe(waited)
        if context.largest_audio_gap:
            self._child(metrics.audio_gap_seconds, provider).observe(context.largest_audio_gap)

    def _hash(self, workspace: str, transcript: str) -> str:
        if not transcript or not workspace:
            return ""
        key = self._transcript_key(workspace)
        if key is None:
            return ""
        return hmac.digest(key.reveal(), transcript.encode(errors="surrogatepass"), hashlib.sha256).hex()

    def _is_sampled(self, workspace: str, trace_id: str, now: float) -> bool:
        if workspace:
            return is_sampled(trace_id, self._sampling(workspace))
        second = int(now)
        if second != self._anonymous_second:
            self._anonymous_second, self._anonymous_spans = second, 0
        self._anonymous_spans += 1
        return self._anonymous_spans <= _ANONYMOUS_SPANS_A_SECOND

    def _child(self, metric: Any, *labels: str) -> Any:  # Any: a counter's child or a histogram's, as the caller knows
        # prometheus_client finds a child under a lock, after converting its labels; there are few, so they are kept here.
        key = (metric, *labels)
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = metric.labels(*labels)
        return child

    def _measure(self, settled: Settled) -> None:
        metrics = self._metrics
        endpoint = settled.endpoint
        provider, operation = ("none", "none") if endpoint is None else (endpoint.provider, endpoint.operation)
        self._child(metrics.exchanges, provider, operation, settled.outcome).inc()
        self._child(metrics.exchange_seconds, provider, operation).observe(settled.ended_at - settled.started_at)
        if settled.outcome == "refused":
            self._child(metrics.refusals, metrics.reason(settled.reason)).inc()
        if settled.fault_phase:
            self._child(metrics.upstream_faults, settled.fault_phase).inc()
        if settled.sent_at:
            dialling = settled.dialled_at - settled.dial_started_at if settled.dialled_at else 0.0
            added = max(settled.sent_at - settled.started_at - dialling, 0.0)
            self._child(metrics.added_seconds, operation).observe(added)
        if settled.dialled_at:
            self._child(metrics.dial_seconds, provider).observe(settled.dialled_at - settled.dial_started_at)
        asked = settled.request_ended_at
        if asked and settled.first_byte_at:
            self._child(metrics.first_byte_seconds, provider, operation).observe(max(settled.first_byte_at - asked, 0.0))
        if asked and settled.first_audio_at:
            self._child(metrics.first_audio_seconds, provider, operation).observe(max(settled.first_audio_at - asked, 0.0))
        if settled.largest_audio_gap:
            self._child(metrics.audio_gap_seconds, provider).observe(settled.largest_audio_gap)

    def _tell(self, settled: Settled, trace_id: str) -> None:
        fields: dict[str, str | int | float | bool] = {
            "request_id": settled.request_id,
            "outcome": settled.outcome,
            "status": settled.status,
            "method": settled.method,
            "duration_ms": round((settled.ended_at - settled.started_at) * 1000, 1),
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
            fields["ttfb_ms"] = round((settled.first_byte_at - asked) * 1000, 1)
        if asked and settled.first_audio_at:
            fields["ttfa_ms"] = round((settled.first_audio_at - asked) * 1000, 1)
        if settled.is_websocket:
            fields["messages_in"] = settled.messages_from_client
            fields["messages_out"] = settled.messages_to_client
            fields["contexts"] = settled.contexts
            fields["close_code"] = settled.close_code
        if settled.closed_by:
            fields["closed_by"] = settled.closed_by
        if settled.traceparent:
            fields["trace_id"] = trace_id
        _log.info("exchange settled", **fields)
