"""Our spans as opentelemetry-sdk's, as its exporters take them. Pure."""

from collections.abc import Iterator, Mapping

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from contracts.events import Span, SpanEvent

SERVICE_NAME = "glottis-gateway"
_SCOPE = InstrumentationScope("glottis")
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_KINDS = {"internal": SpanKind.INTERNAL, "server": SpanKind.SERVER, "client": SpanKind.CLIENT}


def is_readable(event: SpanEvent) -> bool:
    """Tell whether the ids of an event are those of OpenTelemetry: hexadecimal, 32 digits a trace and 16 a span."""
    try:
        _number(event.trace_id, 32)
        for span in event.spans:
            _number(span.span_id, 16)
            if span.parent_id:
                _number(span.parent_id, 16)
    except ValueError:
        return False
    return True


def readable_spans(event: SpanEvent, resource_attributes: Mapping[str, str]) -> Iterator[ReadableSpan]:
    """Yield the spans of an event. resource_attributes: the target's, which win over ours.

    Only for an event that `is_readable`.
    """
    resource = Resource(
        {
            "service.name": SERVICE_NAME,
            "service.instance.id": event.pod,
            "glottis.workspace": event.workspace,
            **resource_attributes,
        }
    )
    trace_id = _number(event.trace_id, 32)
    state = TraceState.from_header([event.trace_state]) if event.trace_state else TraceState()
    for span in event.spans:
        yield _readable(span, trace_id, state, resource)


def _readable(span: Span, trace_id: int, state: TraceState, resource: Resource) -> ReadableSpan:
    context = SpanContext(trace_id, _number(span.span_id, 16), is_remote=False, trace_flags=_SAMPLED, trace_state=state)
    parent = SpanContext(trace_id, _number(span.parent_id, 16), is_remote=True) if span.parent_id else None
    return ReadableSpan(
        name=span.name,
        context=context,
        parent=parent,
        resource=resource,
        attributes=span.attributes,
        kind=_KINDS[span.kind],
        status=Status(StatusCode.ERROR if span.is_error else StatusCode.UNSET),
        start_time=span.start_ns,
        end_time=span.end_ns,
        instrumentation_scope=_SCOPE,
    )


def _number(text: str, digits: int) -> int:
    if len(text) != digits:
        raise ValueError(f"an id has {len(text)} digits, not {digits}")
    return int(text, 16)
