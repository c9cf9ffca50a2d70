"""The spans of an exchange: inbound, credential resolution, outbound call or WebSocket session.

Pure: a `Settled` in, a `SpanEvent` out. Names and attributes follow OpenTelemetry's semantic conventions (HTTP, GenAI)
where they fit; ours begin with `glottis.`. docs/telemetry.md lists them all; a change here changes it. No attribute ever
holds a text, a token or a credential. Read next: `gateway.telemetry.recorder`.
"""

from typing import TypeAlias

from contracts.events import Span, SpanEvent
from gateway.telemetry.trace import TraceContext, span_id
from policy.usage import Settled, SettledContext

Attributes: TypeAlias = dict[str, str | int | float | bool]

_INBOUND, _CREDENTIAL, _OUTBOUND, _CONTEXT = 0, 1, 2, 16
_GEN_AI_OPERATIONS = {"tts": "text_to_speech", "stt": "speech_to_text"}
_FAILED = frozenset({"upstream_fault", "provider_error"})


def spans_of(settled: Settled, pod: str, trace: TraceContext, transcript_hash: str) -> SpanEvent:
    """Return the span event of an exchange; transcript_hash: keyed, hexadecimal, empty if there is none."""
    request_id = settled.request_id
    inbound_id = span_id(request_id, _INBOUND)
    path = settled.endpoint.path if settled.endpoint is not None else ""
    spans = [
        Span(
            span_id=inbound_id,
            parent_id=trace.parent_id,
            name=f"{settled.method} {path}" if path else settled.method,
            kind="server",
            start_ns=_ns(settled.started_at),
            end_ns=_ns(settled.ended_at),
            is_error=settled.status >= 500 or settled.outcome in _FAILED,
            attributes=_inbound(settled, transcript_hash),
        )
    ]
    route = settled.route
    if settled.credential_asked_at and route is not None:
        spans.append(
            Span(
                span_id=span_id(request_id, _CREDENTIAL),
                parent_id=inbound_id,
                name="glottis.credential",
                start_ns=_ns(settled.credential_asked_at),
                end_ns=_ns(settled.credential_opened_at or settled.ended_at),
                is_error=settled.fault_phase == "credential",
                attributes={"glottis.account.id": route.account.id, "glottis.account.name": route.account.name},
            )
        )
    began = settled.dial_started_at or settled.sent_at
    if began and route is not None:
        spans.append(
            Span(
                span_id=span_id(request_id, _OUTBOUND),
                parent_id=inbound_id,
                name=f"websocket {path}" if settled.is_websocket else f"{settled.method} {path}",
                kind="client",
                start_ns=_ns(began),
                end_ns=_ns(settled.ended_at),
                is_error=settled.outcome in _FAILED or settled.upstream_status >= 400,
                attributes=_outbound(settled, route.account.origin),
            )
        )
    return SpanEvent(
        id=request_id,
        workspace=settled.caller.workspace if settled.caller is not None else "",
        pod=pod,
        trace_id=trace.trace_id,
        trace_state=trace.state,
        spans=tuple(spans),
    )


def context_span(context: SettledContext, pod: str, trace: TraceContext, transcript_hash: str) -> SpanEvent:
    """Return the span event of one context on a multiplexed socket: one client span under the session's outbound span."""
    session, key, to = context.session, context.tally.key, context.tally.to
    number = int(key.rpartition(".")[2])
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
    _add_seconds(attributes, "glottis.first_audio_seconds", context.started_at, context.first_audio_at)
    _add(attributes, "glottis.largest_audio_gap_seconds", round(context.largest_audio_gap, 6))
    return SpanEvent(
        id=key,
        workspace=to.workspace,
        pod=pod,
        trace_id=trace.trace_id,
        trace_state=trace.state,
        spans=(
            Span(
                span_id=span_id(session.request_id, _CONTEXT + number),
                parent_id=span_id(session.request_id, _OUTBOUND),
                name="context",
                kind="client",
                start_ns=_ns(context.started_at),
                end_ns=_ns(context.ended_at),
                is_error=context.outcome in _FAILED,
                attributes=attributes,
            ),
        ),
    )


def _inbound(settled: Settled, transcript_hash: str) -> Attributes:
    attributes: Attributes = {
        "http.request.method": settled.method,
        "http.response.status_code": settled.status,
        "glottis.exchange": settled.request_id,
        "glottis.outcome": settled.outcome,
        "glottis.bytes_from_client": settled.bytes_from_client,
        "glottis.bytes_to_client": settled.bytes_to_client,
    }
    _add(attributes, "client.address", settled.peer)
    _add(attributes, "glottis.reason", settled.reason)
    if settled.outcome != "completed":
        attributes["error.type"] = settled.reason or settled.outcome
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
        for name, value in route.metadata:
            attributes["glottis.metadata." + name] = value
    _add(attributes, "glottis.voice", settled.voice)
    _add(attributes, "glottis.characters", settled.characters)
    _add(attributes, "glottis.transcript.hmac", transcript_hash)
    _add_seconds(attributes, "glottis.first_byte_seconds", settled.request_ended_at, settled.first_byte_at)
    _add_seconds(attributes, "glottis.first_audio_seconds", settled.request_ended_at, settled.first_audio_at)
    _add(attributes, "glottis.largest_audio_gap_seconds", round(settled.largest_audio_gap, 6))
    if settled.is_websocket:
        attributes["glottis.messages_from_client"] = settled.messages_from_client
        attributes["glottis.messages_to_client"] = settled.messages_to_client
        attributes["glottis.contexts"] = settled.contexts
        _add(attributes, "glottis.contexts_refused", settled.contexts_refused)
        _add(attributes, "glottis.close_code", settled.close_code)
    _add(attributes, "glottis.closed_by", settled.closed_by)
    if settled.tally is not None:
        for unit, quantity in settled.tally.totals.items():
            attributes["glottis.usage." + unit] = quantity
    return attributes


def _outbound(settled: Settled, origin: str) -> Attributes:
    attributes: Attributes = {
        "http.request.method": settled.method,
        "server.address": origin.partition("://")[2],
        "glottis.anything_sent": settled.anything_sent,
        "glottis.connection_reused": not settled.dial_started_at,
    }
    _add(attributes, "http.response.status_code", settled.upstream_status)
    _add(attributes, "glottis.provider_request_id", settled.upstream_request_id)
    _add(attributes, "glottis.fault_phase", settled.fault_phase)
    _add_seconds(attributes, "glottis.dial_seconds", settled.dial_started_at, settled.dialled_at)
    return attributes


def _add(attributes: Attributes, name: str, value: str | float) -> None:
    if value:
        attributes[name] = value


def _add_seconds(attributes: Attributes, name: str, begin: float, end: float) -> None:
    if begin and end:
        attributes[name] = round(max(end - begin, 0.0), 6)


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
