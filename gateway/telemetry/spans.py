"""The spans of an exchange: inbound, credential resolution, outbound call or WebSocket session.

Pure: a `Settled` in, a `SpanEvent` out. Names and attributes follow OpenTelemetry's semantic conventions (HTTP, GenAI)
where they fit; ours begin with `glottis.`. docs/telemetry.md lists them all; a change here changes it. No attribute ever
holds a text, a token or a credential. Read next: `gateway.telemetry.recorder`.
"""

from typing import TypeAlias

from contracts.events import Span, SpanEvent
from contracts.snapshot import Account
from gateway.telemetry.trace import TraceContext, span_number
from policy.route import Caller
from policy.usage import Settled, SettledContext

Attributes: TypeAlias = dict[str, str | int | float | bool]

_CREDENTIAL, _OUTBOUND, _CONTEXT = 1, 2, 16
"""what tells the spans of one exchange apart; the inbound one is 0"""
_GEN_AI_OPERATIONS = {"tts": "text_to_speech", "stt": "speech_to_text"}
_FAILED = frozenset({"upstream_fault", "provider_error"})
_COMMON_LIMIT = 4096


class SpanMaker:
    """Makes the spans of one pod's exchanges.

    What the spans of a caller's exchanges have in common is kept: building it anew each time would cost more than all the
    rest. Keyed by identity, and the objects are kept with it, so that an identity is not given to another meanwhile.
    """

    def __init__(self, pod: str) -> None:
        self._pod = pod
        self._common: dict[tuple[int, int, str, str, str], tuple[Caller, Account, Attributes]] = {}

    def spans_of(self, settled: Settled, trace: TraceContext, transcript_hash: str) -> SpanEvent:
        """Return the span event of an exchange; transcript_hash: keyed, hexadecimal, empty if there is none."""
        request_id, route = settled.request_id, settled.route
        first_id = span_number(request_id)
        inbound_id = f"{first_id:016x}"
        path = settled.endpoint.path if settled.endpoint is not None else ""
        name = f"{settled.method} {path}" if path else settled.method
        began, ended = int(settled.started_at * 1e9), int(settled.ended_at * 1e9)
        has_failed = settled.outcome in _FAILED
        inbound = Span(
            span_id=inbound_id,
            parent_id=trace.parent_id,
            name=name,
            kind="server",
            start_ns=began,
            end_ns=ended,
            is_error=has_failed or settled.status >= 500,
            attributes=self._inbound(settled, transcript_hash),
        )
        spans: tuple[Span, ...] = (inbound,)
        if settled.credential_asked_at and route is not None:
            opened = settled.credential_opened_at
            spans += (
                Span(
                    span_id=f"{first_id ^ _CREDENTIAL:016x}",
                    parent_id=inbound_id,
                    name="glottis.credential",
                    start_ns=int(settled.credential_asked_at * 1e9),
                    end_ns=int(opened * 1e9) if opened else ended,
                    is_error=settled.fault_phase == "credential" or settled.reason == "credential_unavailable",
                    attributes={"glottis.account.id": route.account.id, "glottis.account.name": route.account.name},
                ),
            )
        sent = settled.dial_started_at or settled.sent_at
        if sent and route is not None:
            spans += (
                Span(
                    span_id=f"{first_id ^ _OUTBOUND:016x}",
                    parent_id=inbound_id,
                    name=f"websocket {path}" if settled.is_websocket else name,
                    kind="client",
                    start_ns=int(sent * 1e9),
                    end_ns=ended,
                    is_error=has_failed or settled.upstream_status >= 400,
                    attributes=_outbound(settled, route.account.origin),
                ),
            )
        return SpanEvent(
            id=request_id,
            workspace=settled.caller.workspace if settled.caller is not None else "",
            pod=self._pod,
            trace_id=trace.trace_id,
            trace_state=trace.state,
            spans=spans,
        )

    def _inbound(self, settled: Settled, transcript_hash: str) -> Attributes:
        attributes: Attributes = {
            "http.request.method": settled.method,
            "http.response.status_code": settled.status,
            "glottis.exchange": settled.request_id,
            "glottis.outcome": settled.outcome,
            "glottis.bytes_from_client": settled.bytes_from_client,
            "glottis.bytes_to_client": settled.bytes_to_client,
        }
        attributes |= self._who_and_what(settled)
        if settled.peer:
            attributes["client.address"] = settled.peer
        if settled.reason:
            attributes["glottis.reason"] = settled.reason
        if settled.outcome != "completed":
            attributes["error.type"] = settled.reason or settled.outcome
        if settled.voice:
            attributes["glottis.voice"] = settled.voice
        if settled.characters:
            attributes["glottis.characters"] = settled.characters
        if transcript_hash:
            attributes["glottis.transcript.hmac"] = transcript_hash
        if asked := settled.request_ended_at:
            if settled.first_byte_at:
                attributes["glottis.first_byte_seconds"] = round(settled.first_byte_at - asked, 6)
            if settled.first_audio_at:
                attributes["glottis.first_audio_seconds"] = round(settled.first_audio_at - asked, 6)
        if settled.largest_audio_gap:
            attributes["glottis.largest_audio_gap_seconds"] = round(settled.largest_audio_gap, 6)
        if settled.is_websocket:
            attributes["glottis.messages_from_client"] = settled.messages_from_client
            attributes["glottis.messages_to_client"] = settled.messages_to_client
            attributes["glottis.contexts"] = settled.contexts
            _add(attributes, "glottis.contexts_refused", settled.contexts_refused)
            _add(attributes, "glottis.close_code", settled.close_code)
        if settled.closed_by:
            attributes["glottis.closed_by"] = settled.closed_by
        if settled.route is not None:
            for name, value in settled.route.metadata:
                attributes["glottis.metadata." + name] = value
        if settled.tally is not None:
            for unit, quantity in settled.tally.totals.items():
                attributes["glottis.usage." + unit] = quantity
        return attributes

    def _who_and_what(self, settled: Settled) -> Attributes:
        """Return the attributes that follow from caller, endpoint and route."""
        caller, route, endpoint = settled.caller, settled.route, settled.endpoint
        if caller is None or route is None or endpoint is None:
            return _who_and_what(settled)
        key = (id(caller), id(route.account), endpoint.id, route.model, route.attribution.team)
        known = self._common.get(key)
        if known is None:
            if len(self._common) >= _COMMON_LIMIT:
                self._common.clear()
            known = self._common[key] = (caller, route.account, _who_and_what(settled))
        return known[2]


def context_span(context: SettledContext, pod: str, trace: TraceContext, transcript_hash: str) -> SpanEvent:
    """Return the span event of one context on a multiplexed socket: one client span under the session's outbound span."""
    session, key, to = context.session, context.tally.key, context.tally.to
    number, session_span = int(key.rpartition(".")[2]), span_number(session.request_id)
    attributes: Attributes = {
        "glottis.exchange": key,
        "glottis.session": session.request_id,
        "glottis.workspace": to.workspace,
        "glottis.principal.id": to.principal,
        "glottis.account.id": to.account,
        "glottis.operation": to.operation,
        "glottis.endpoint": to.endpoint,
        "glottis.outcome": context.outcome,
        "glottis.characters": context.characters,
        "gen_ai.provider.name": to.provider,
    }
    _add(attributes, "glottis.reason", context.reason)
    _add(attributes, "glottis.team.id", to.team)
    _add(attributes, "gen_ai.request.model", context.model or to.model)
    _add(attributes, "glottis.voice", context.voice)
    _add(attributes, "glottis.transcript.hmac", transcript_hash)
    if context.first_audio_at:
        attributes["glottis.first_audio_seconds"] = round(context.first_audio_at - context.started_at, 6)
    _add(attributes, "glottis.largest_audio_gap_seconds", round(context.largest_audio_gap, 6))
    return SpanEvent(
        id=key,
        workspace=to.workspace,
        pod=pod,
        trace_id=trace.trace_id,
        trace_state=trace.state,
        spans=(
            Span(
                span_id=f"{session_span ^ (_CONTEXT + number):016x}",
                parent_id=f"{session_span ^ _OUTBOUND:016x}",
                name="context",
                kind="client",
                start_ns=int(context.started_at * 1e9),
                end_ns=int(context.ended_at * 1e9),
                is_error=context.outcome in _FAILED,
                attributes=attributes,
            ),
        ),
    )


def _who_and_what(settled: Settled) -> Attributes:
    attributes: Attributes = {}
    if (endpoint := settled.endpoint) is not None:
        attributes["http.route"] = endpoint.path
        attributes["gen_ai.provider.name"] = endpoint.provider
        attributes["glottis.operation"] = endpoint.operation
        attributes["glottis.endpoint"] = endpoint.id
        _add(attributes, "gen_ai.operation.name", _GEN_AI_OPERATIONS.get(endpoint.operation, ""))
    if (caller := settled.caller) is not None:
        attributes["glottis.workspace"] = caller.workspace
        attributes["glottis.principal.id"] = caller.principal
        attributes["glottis.principal.kind"] = caller.kind
        _add(attributes, "glottis.principal.name", caller.name)
        _add(attributes, "glottis.token.id", caller.token_id)
    if (route := settled.route) is not None:
        attributes["glottis.account.id"] = route.account.id
        attributes["glottis.account.name"] = route.account.name
        _add(attributes, "gen_ai.request.model", route.model)
        _add(attributes, "glottis.team.id", route.attribution.team)
        _add(attributes, "glottis.team.name", route.attribution.team_name)
    return attributes


def _outbound(settled: Settled, origin: str) -> Attributes:
    attributes: Attributes = {
        "http.request.method": settled.method,
        "server.address": origin.partition("://")[2],
        "glottis.anything_sent": settled.anything_sent,
        "glottis.connection_reused": not settled.dial_started_at,
    }
    if settled.upstream_status:
        attributes["http.response.status_code"] = settled.upstream_status
    if settled.upstream_request_id:
        attributes["glottis.provider_request_id"] = settled.upstream_request_id
    if settled.fault_phase:
        attributes["glottis.fault_phase"] = settled.fault_phase
    if settled.dialled_at:
        attributes["glottis.dial_seconds"] = round(settled.dialled_at - settled.dial_started_at, 6)
    return attributes


def _add(attributes: Attributes, name: str, value: str | float) -> None:
    if value:
        attributes[name] = value
