"""What a gateway tells of an exchange or of a context, in one flat record, and the spans that it unfolds into.

A gateway's core pays for each byte and each name that it writes, so the record is an array without names; what many
exchanges have in common (`Who`) is one element, encoded once and copied. Readers unfold a record into the `SpanEvent` that
stands for it. Names and attributes of spans follow OpenTelemetry's semantic conventions (HTTP, GenAI) where they fit; ours
begin with `glottis.`. docs/telemetry.md lists them all; a change here changes it. No field ever holds a text, a token or a
credential. Fields are only ever added at the end. Read next: `contracts.events`.
"""

from typing import TypeAlias

import msgspec

from contracts import codec
from contracts.events import Outcome, Span, SpanEvent, encoded_events

Attributes: TypeAlias = dict[str, str | int | float | bool]

_CREDENTIAL, _OUTBOUND, _CONTEXT = 1, 2, 16
"""what tells the spans of one exchange apart; the inbound one is 0"""
_GEN_AI_OPERATIONS = {"tts": "text_to_speech", "stt": "speech_to_text"}
_FAILED = frozenset({"upstream_fault", "provider_error"})


class Who(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Who called what. Empty: not known, because the exchange ended before."""

    workspace: str = ""
    principal: str = ""
    principal_kind: str = ""
    principal_name: str = ""
    token: str = ""
    provider: str = ""
    operation: str = ""
    endpoint: str = ""
    """the profile's endpoint id"""
    path: str = ""
    """the endpoint's path"""
    account: str = ""
    account_name: str = ""
    origin: str = ""
    """the account's"""
    model: str = ""
    team: str = ""
    team_name: str = ""


class ExchangeRecord(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag=1):
    """One exchange, from its admission to its end. Times are Unix seconds, 0.0 means never."""

    SCHEMA = 1

    schema: int = 1
    id: str
    """the exchange's request id"""
    pod: str
    trace_id: str
    parent_id: str
    trace_state: str
    who: Who
    method: str
    is_websocket: bool
    started_at: float
    ended_at: float
    outcome: Outcome
    reason: str
    fault_phase: str
    anything_sent: bool
    status: int
    upstream_status: int
    upstream_request_id: str
    peer: str
    credential_asked_at: float
    credential_opened_at: float
    dial_started_at: float
    dialled_at: float
    sent_at: float
    request_ended_at: float
    first_byte_at: float
    first_audio_at: float
    largest_audio_gap: float
    bytes_from_client: int
    bytes_to_client: int
    messages_from_client: int
    messages_to_client: int
    contexts: int
    contexts_refused: int
    voice: str
    characters: int
    transcript_hash: str
    """keyed, hexadecimal; empty: there is none"""
    closed_by: str
    close_code: int
    metadata: dict[str, str]
    usage: dict[str, int]


class ContextRecord(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag=2):
    """One context of a multiplexed socket. Times are Unix seconds, 0.0 means never."""

    SCHEMA = 1

    schema: int = 1
    session: str
    """the request id of its session"""
    number: int
    """its own, from 1"""
    pod: str
    trace_id: str
    trace_state: str
    who: Who
    started_at: float
    ended_at: float
    outcome: Outcome
    reason: str
    first_audio_at: float
    largest_audio_gap: float
    model: str
    """what it asked for; empty: `who` says"""
    voice: str
    characters: int
    transcript_hash: str


def span_event(encoded: bytes | memoryview) -> SpanEvent:
    """Return the span event that one element of a message is, or unfolds into.

    Raises codec.UnsupportedSchema, codec.Undecodable.
    """
    if not codec.is_row(encoded):
        return codec.decode(encoded, SpanEvent)
    record: ExchangeRecord | ContextRecord = codec.decode(encoded, ExchangeRecord | ContextRecord)  # type: ignore[arg-type]
    try:
        return spans_of(record) if isinstance(record, ExchangeRecord) else context_span(record)
    except (ValueError, OverflowError) as error:  # an id that is none, a time that is no number
        raise codec.Undecodable("not a record of an exchange") from error


def span_events(message: bytes) -> tuple[SpanEvent, ...]:
    """Return the span events that a message carries. Raises codec.Undecodable, codec.UnsupportedSchema."""
    return tuple(map(span_event, encoded_events(message)))


def spans_of(record: ExchangeRecord) -> SpanEvent:
    """Return the spans of an exchange: inbound, credential resolution, outbound call or WebSocket session."""
    who = record.who
    first_id = _span_number(record.id)
    inbound_id = f"{first_id:016x}"
    name = f"{record.method} {who.path}" if who.path else record.method
    began, ended = _nanoseconds(record.started_at), _nanoseconds(record.ended_at)
    has_failed = record.outcome in _FAILED
    inbound = Span(
        span_id=inbound_id,
        parent_id=record.parent_id,
        name=name,
        kind="server",
        start_ns=began,
        end_ns=ended,
        is_error=has_failed or record.status >= 500,
        attributes=_inbound(record),
    )
    spans: tuple[Span, ...] = (inbound,)
    if record.credential_asked_at and who.account:
        opened = record.credential_opened_at
        spans += (
            Span(
                span_id=f"{first_id ^ _CREDENTIAL:016x}",
                parent_id=inbound_id,
                name="glottis.credential",
                start_ns=_nanoseconds(record.credential_asked_at),
                end_ns=_nanoseconds(opened) if opened else ended,
                is_error=record.fault_phase == "credential" or record.reason == "credential_unavailable",
                attributes={"glottis.account.id": who.account, "glottis.account.name": who.account_name},
            ),
        )
    sent = record.dial_started_at or record.sent_at
    if sent and who.account:
        spans += (
            Span(
                span_id=f"{first_id ^ _OUTBOUND:016x}",
                parent_id=inbound_id,
                name=f"websocket {who.path}" if record.is_websocket else name,
                kind="client",
                start_ns=_nanoseconds(sent),
                end_ns=ended,
                is_error=has_failed or record.upstream_status >= 400,
                attributes=_outbound(record),
            ),
        )
    return SpanEvent(
        id=record.id,
        workspace=who.workspace,
        pod=record.pod,
        trace_id=record.trace_id,
        trace_state=record.trace_state,
        spans=spans,
    )


def context_span(record: ContextRecord) -> SpanEvent:
    """Return the span of one context: a client span under its session's outbound span."""
    who, session_span = record.who, _span_number(record.session)
    key = f"{record.session}.{record.number}"
    attributes: Attributes = {
        "glottis.exchange": key,
        "glottis.session": record.session,
        "glottis.workspace": who.workspace,
        "glottis.principal.id": who.principal,
        "glottis.account.id": who.account,
        "glottis.operation": who.operation,
        "glottis.endpoint": who.endpoint,
        "glottis.outcome": record.outcome,
        "glottis.characters": record.characters,
        "gen_ai.provider.name": who.provider,
    }
    _add(attributes, "glottis.reason", record.reason)
    _add(attributes, "glottis.team.id", who.team)
    _add(attributes, "gen_ai.request.model", record.model or who.model)
    _add(attributes, "glottis.voice", record.voice)
    _add(attributes, "glottis.transcript.hmac", record.transcript_hash)
    if record.first_audio_at:
        attributes["glottis.first_audio_seconds"] = round(record.first_audio_at - record.started_at, 6)
    _add(attributes, "glottis.largest_audio_gap_seconds", round(record.largest_audio_gap, 6))
    span = Span(
        span_id=f"{session_span ^ (_CONTEXT + record.number):016x}",
        parent_id=f"{session_span ^ _OUTBOUND:016x}",
        name="context",
        kind="client",
        start_ns=_nanoseconds(record.started_at),
        end_ns=_nanoseconds(record.ended_at),
        is_error=record.outcome in _FAILED,
        attributes=attributes,
    )
    return SpanEvent(
        id=key,
        workspace=who.workspace,
        pod=record.pod,
        trace_id=record.trace_id,
        trace_state=record.trace_state,
        spans=(span,),
    )


def _inbound(record: ExchangeRecord) -> Attributes:
    attributes: Attributes = {
        "http.request.method": record.method,
        "http.response.status_code": record.status,
        "glottis.exchange": record.id,
        "glottis.outcome": record.outcome,
        "glottis.bytes_from_client": record.bytes_from_client,
        "glottis.bytes_to_client": record.bytes_to_client,
    }
    _add_who(attributes, record.who)
    _add(attributes, "client.address", record.peer)
    _add(attributes, "glottis.reason", record.reason)
    if record.outcome != "completed":
        attributes["error.type"] = record.reason or record.outcome
    _add(attributes, "glottis.voice", record.voice)
    _add(attributes, "glottis.characters", record.characters)
    _add(attributes, "glottis.transcript.hmac", record.transcript_hash)
    if asked := record.request_ended_at:
        if record.first_byte_at:
            attributes["glottis.first_byte_seconds"] = round(record.first_byte_at - asked, 6)
        if record.first_audio_at:
            attributes["glottis.first_audio_seconds"] = round(record.first_audio_at - asked, 6)
    _add(attributes, "glottis.largest_audio_gap_seconds", round(record.largest_audio_gap, 6))
    if record.is_websocket:
        attributes["glottis.messages_from_client"] = record.messages_from_client
        attributes["glottis.messages_to_client"] = record.messages_to_client
        attributes["glottis.contexts"] = record.contexts
        _add(attributes, "glottis.contexts_refused", record.contexts_refused)
        _add(attributes, "glottis.close_code", record.close_code)
    _add(attributes, "glottis.closed_by", record.closed_by)
    for name, value in record.metadata.items():
        attributes["glottis.metadata." + name] = value
    for unit, quantity in record.usage.items():
        attributes["glottis.usage." + unit] = quantity
    return attributes


def _add_who(attributes: Attributes, who: Who) -> None:
    if who.endpoint:
        attributes["http.route"] = who.path
        attributes["gen_ai.provider.name"] = who.provider
        attributes["glottis.operation"] = who.operation
        attributes["glottis.endpoint"] = who.endpoint
        _add(attributes, "gen_ai.operation.name", _GEN_AI_OPERATIONS.get(who.operation, ""))
    if who.principal:
        attributes["glottis.workspace"] = who.workspace
        attributes["glottis.principal.id"] = who.principal
        attributes["glottis.principal.kind"] = who.principal_kind
        _add(attributes, "glottis.principal.name", who.principal_name)
        _add(attributes, "glottis.token.id", who.token)
    if who.account:
        attributes["glottis.account.id"] = who.account
        attributes["glottis.account.name"] = who.account_name
        _add(attributes, "gen_ai.request.model", who.model)
        _add(attributes, "glottis.team.id", who.team)
        _add(attributes, "glottis.team.name", who.team_name)


def _outbound(record: ExchangeRecord) -> Attributes:
    attributes: Attributes = {
        "http.request.method": record.method,
        "server.address": record.who.origin.partition("://")[2],
        "glottis.anything_sent": record.anything_sent,
        "glottis.connection_reused": not record.dial_started_at,
    }
    _add(attributes, "http.response.status_code", record.upstream_status)
    _add(attributes, "glottis.provider_request_id", record.upstream_request_id)
    _add(attributes, "glottis.fault_phase", record.fault_phase)
    if record.dialled_at:
        attributes["glottis.dial_seconds"] = round(record.dialled_at - record.dial_started_at, 6)
    return attributes


def _add(attributes: Attributes, name: str, value: str | float) -> None:
    if value:
        attributes[name] = value


def _nanoseconds(seconds: float) -> int:
    whole = int(seconds)  # apart, because a product of this size would lose the last digits
    return whole * 1_000_000_000 + int((seconds - whole) * 1e9)


def _span_number(request_id: str) -> int:
    """Return the id of an exchange's first span as a number: the random half of its id. Others change its last bits."""
    return int(request_id[19:23] + request_id[24:36], 16)
