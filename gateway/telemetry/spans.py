"""The record that an exchange or a context leaves for its spans: encoded here, unfolded by who reads the stream.

Pure: a `Settled` in, bytes out. It costs a few microseconds of every exchange, so nothing is built that a reader can build
(`contracts.exchanges`). No field ever holds a text, a token or a credential. Read next: `gateway.telemetry.recorder`.
"""

from typing import Final, TypeAlias, cast

import msgspec

from contracts import codec
from contracts.events import Attribution
from contracts.exchanges import Who
from contracts.snapshot import Account
from gateway.telemetry.trace import TraceContext
from policy.providers.profile import Endpoint
from policy.route import Caller
from policy.usage import Settled, SettledContext

_KNOWN_LIMIT: Final = 4096
_EXCHANGE: Final = 1
_CONTEXT: Final = 2
_SCHEMA: Final = 1
"""tags and schema of `contracts.exchanges.ExchangeRecord` and `ContextRecord`, whose fields are written here in their order"""

_Known: TypeAlias = tuple[object, object, Who]


class SpanRecords:
    """Makes the records of one pod's exchanges and contexts.

    The encoded `Who` of a caller's exchanges is kept. Keyed by identity, and the objects are kept with it, so that an
    identity is not given to another meanwhile.
    """

    def __init__(self, pod: str) -> None:
        self._pod = pod
        self._known: dict[tuple[int, int, str, str, str], _Known] = {}
        self._known_of_contexts: dict[int, tuple[Attribution, Who]] = {}

    def of_exchange(self, settled: Settled, trace: TraceContext, transcript_hash: str) -> bytes:
        """Return an exchange's record; transcript_hash: keyed, hexadecimal, empty if there is none."""
        route, tally = settled.route, settled.tally
        return codec.encode_row(
            [
                _EXCHANGE,
                _SCHEMA,
                settled.request_id,
                self._pod,
                trace.trace_id,
                trace.parent_id,
                trace.state,
                self._who(settled),
                settled.method,
                settled.is_websocket,
                settled.started_at,
                settled.ended_at,
                settled.outcome,
                settled.reason,
                settled.fault_phase,
                settled.anything_sent,
                settled.status,
                settled.upstream_status,
                settled.upstream_request_id,
                settled.peer,
                settled.credential_asked_at,
                settled.credential_opened_at,
                settled.dial_started_at,
                settled.dialled_at,
                settled.sent_at,
                settled.request_ended_at,
                settled.first_byte_at,
                settled.first_audio_at,
                settled.largest_audio_gap,
                settled.bytes_from_client,
                settled.bytes_to_client,
                settled.messages_from_client,
                settled.messages_to_client,
                settled.contexts,
                settled.contexts_refused,
                settled.voice,
                settled.characters,
                transcript_hash,
                settled.closed_by,
                settled.close_code,
                {} if route is None or not route.metadata else dict(route.metadata),
                {} if tally is None else tally.totals,
            ]
        )

    def of_context(self, context: SettledContext, trace: TraceContext, transcript_hash: str) -> bytes:
        """Return a context's record; transcript_hash: as above."""
        tally = context.tally
        return codec.encode_row(
            [
                _CONTEXT,
                _SCHEMA,
                context.session.request_id,
                int(tally.key[len(context.session.request_id) + 1 :]),
                self._pod,
                trace.trace_id,
                trace.state,
                self._who_of_context(tally.to),
                context.started_at,
                context.ended_at,
                context.outcome,
                context.reason,
                context.first_audio_at,
                context.largest_audio_gap,
                context.model,
                context.voice,
                context.characters,
                transcript_hash,
            ]
        )

    def _who(self, settled: Settled) -> Who:
        caller, route, endpoint = settled.caller, settled.route, settled.endpoint
        if caller is None or route is None or endpoint is None:
            return _who(caller, endpoint, None if route is None else route.account, None if route is None else route.attribution)
        to = route.attribution
        key = (id(caller), id(route.account), endpoint.id, route.model, to.team)
        known = self._known.get(key)
        if known is None:
            known = self._keep(key, (caller, route.account, _spliced(_who(caller, endpoint, route.account, to, route.model))))
        return known[2]

    def _who_of_context(self, to: Attribution) -> Who:
        known = self._known_of_contexts.get(id(to))
        if known is None:
            who = Who(
                workspace=to.workspace,
                principal=to.principal,
                provider=to.provider,
                operation=to.operation,
                endpoint=to.endpoint,
                account=to.account,
                model=to.model,
                team=to.team,
            )
            if len(self._known_of_contexts) >= _KNOWN_LIMIT:
                self._known_of_contexts.clear()
            known = self._known_of_contexts[id(to)] = (to, _spliced(who))
        return known[1]

    def _keep(self, key: tuple[int, int, str, str, str], known: _Known) -> _Known:
        if len(self._known) >= _KNOWN_LIMIT:
            self._known.clear()
        self._known[key] = known
        return known


def _who(
    caller: Caller | None, endpoint: Endpoint | None, account: Account | None, to: Attribution | None, model: str = ""
) -> Who:
    return Who(
        workspace=caller.workspace if caller else "",
        principal=caller.principal if caller else "",
        principal_kind=caller.kind if caller else "",
        principal_name=caller.name if caller else "",
        token=caller.token_id if caller else "",
        provider=endpoint.provider if endpoint else "",
        operation=endpoint.operation if endpoint else "",
        endpoint=endpoint.id if endpoint else "",
        path=endpoint.path if endpoint else "",
        account=account.id if account else "",
        account_name=account.name if account else "",
        origin=account.origin if account else "",
        model=model,
        team=to.team if to else "",
        team_name=to.team_name if to else "",
    )


def _spliced(who: Who) -> Who:
    """Return what is encoded as this is, at the cost of a copy."""
    return cast(Who, msgspec.Raw(codec.encode(who)))
