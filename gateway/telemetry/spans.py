"""The record that an exchange or a context leaves for its spans: encoded here, unfolded by who reads the stream.

Pure: a `Settled` in, bytes out. It costs a few microseconds of every exchange, so nothing is built that a reader can build
(`contracts.exchanges`). No field ever holds a text, a token or a credential. Read next: `gateway.telemetry.recorder`.
"""

from typing import Final, TypeAlias, cast

import msgspec

from contracts import codec
from contracts.events import Attribution
from contracts.exchanges import ContextRecord, ExchangeRecord, Who
from contracts.snapshot import Account
from gateway.telemetry.trace import TraceContext
from policy.providers.profile import Endpoint
from policy.route import Caller
from policy.usage import Settled, SettledContext

_KNOWN_LIMIT: Final = 4096

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
        return codec.encode(
            ExchangeRecord(
                id=settled.request_id,
                pod=self._pod,
                trace_id=trace.trace_id,
                parent_id=trace.parent_id,
                trace_state=trace.state,
                who=self._who(settled),
                method=settled.method,
                is_websocket=settled.is_websocket,
                started_at=settled.started_at,
                ended_at=settled.ended_at,
                outcome=settled.outcome,
                reason=settled.reason,
                fault_phase=settled.fault_phase,
                anything_sent=settled.anything_sent,
                status=settled.status,
                upstream_status=settled.upstream_status,
                upstream_request_id=settled.upstream_request_id,
                peer=settled.peer,
                credential_asked_at=settled.credential_asked_at,
                credential_opened_at=settled.credential_opened_at,
                dial_started_at=settled.dial_started_at,
                dialled_at=settled.dialled_at,
                sent_at=settled.sent_at,
                request_ended_at=settled.request_ended_at,
                first_byte_at=settled.first_byte_at,
                first_audio_at=settled.first_audio_at,
                largest_audio_gap=settled.largest_audio_gap,
                bytes_from_client=settled.bytes_from_client,
                bytes_to_client=settled.bytes_to_client,
                messages_from_client=settled.messages_from_client,
                messages_to_client=settled.messages_to_client,
                contexts=settled.contexts,
                contexts_refused=settled.contexts_refused,
                voice=settled.voice,
                characters=settled.characters,
                transcript_hash=transcript_hash,
                closed_by=settled.closed_by,
                close_code=settled.close_code,
                metadata={} if route is None or not route.metadata else dict(route.metadata),
                usage={} if tally is None else dict(tally.totals),
            )
        )

    def of_context(self, context: SettledContext, trace: TraceContext, transcript_hash: str) -> bytes:
        """Return a context's record; transcript_hash: as above."""
        tally = context.tally
        return codec.encode(
            ContextRecord(
                session=context.session.request_id,
                number=int(tally.key.rpartition(".")[2]),
                pod=self._pod,
                trace_id=trace.trace_id,
                trace_state=trace.state,
                who=self._who_of_context(tally.to),
                started_at=context.started_at,
                ended_at=context.ended_at,
                outcome=context.outcome,
                reason=context.reason,
                first_audio_at=context.first_audio_at,
                largest_audio_gap=context.largest_audio_gap,
                model=context.model,
                voice=context.voice,
                characters=context.characters,
                transcript_hash=transcript_hash,
            )
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
