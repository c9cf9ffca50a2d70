"""A record that is written field by field is the shape that its readers know."""

from typing import Any, get_type_hints

import msgspec

from contracts import codec
from contracts.events import Attribution
from contracts.exchanges import ContextRecord, ExchangeRecord
from gateway.telemetry.spans import SpanRecords
from gateway.telemetry.trace import TraceContext
from policy.usage import Settled, SettledContext, Tally

TO = Attribution(
    workspace="w1", principal="ada", principal_kind="user", account="a1", provider="cartesia", operation="tts", endpoint="tts"
)
TRACE = TraceContext("a trace", "a parent", "a state")
REQUEST_ID = "01926f4c-1d2a-7e3b-9c4d-5e6f7a8b9c0d"


def filled(thing: Any, fields: dict[str, Any]) -> None:
    """Give every attribute of the same name as a field a value that no other has."""
    for number, (name, kind) in enumerate(fields.items(), 1000):
        if kind in (str, int, float) and hasattr(thing, name):
            setattr(thing, name, kind(number))


def test_every_field_of_an_exchange_stands_where_its_shape_has_it() -> None:
    settled = Settled(REQUEST_ID, 1.0, "POST")
    filled(settled, get_type_hints(ExchangeRecord))
    settled.is_websocket = settled.anything_sent = True
    settled.outcome, settled.fault_phase, settled.closed_by = "drained", "dial", "client"  # type: ignore[assignment]
    settled.tally = tally = Tally(REQUEST_ID, TO, "pod-1")

    encoded = SpanRecords("pod-1").of_exchange(settled, TRACE, "a hash")

    record = codec.decode(encoded, ExchangeRecord)
    ours = {name: getattr(settled, name) for name in ExchangeRecord.__struct_fields__ if hasattr(settled, name)}
    assert {name: getattr(record, name) for name in ours} == ours
    assert len(ours) == 31
    assert (record.pod, record.transcript_hash, record.metadata) == ("pod-1", "a hash", {})
    assert (record.trace_id, record.parent_id, record.trace_state) == ("a trace", "a parent", "a state")
    assert (record.schema, record.id, record.usage) == (1, settled.request_id, tally.totals)
    assert len(msgspec.msgpack.decode(encoded)) == 1 + len(ExchangeRecord.__struct_fields__)


def test_every_field_of_a_context_stands_where_its_shape_has_it() -> None:
    context = SettledContext(Settled(REQUEST_ID, 1.0, "GET"), Tally(f"{REQUEST_ID}.12", TO, "pod-1"), 1.0)
    fields = get_type_hints(ContextRecord)
    del fields["session"]
    filled(context, fields)
    context.outcome = "drained"

    encoded = SpanRecords("pod-1").of_context(context, TRACE, "a hash")

    record = codec.decode(encoded, ContextRecord)
    ours = {name: getattr(context, name) for name in fields if hasattr(context, name)}
    assert {name: getattr(record, name) for name in ours} == ours
    assert len(ours) == 9
    assert (record.session, record.number, record.pod, record.transcript_hash) == (REQUEST_ID, 12, "pod-1", "a hash")
    assert (record.trace_id, record.trace_state, record.who.principal) == ("a trace", "a state", "ada")
    assert len(msgspec.msgpack.decode(encoded)) == 1 + len(ContextRecord.__struct_fields__)
