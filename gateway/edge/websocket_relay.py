"""One WebSocket session on two transports: dial before accept, then bytes both ways as the session says.

Policy and framing are `policy.session`'s; here are sockets, backpressure, timers and the order of ends. A read that passes
as it came costs one call into the session and one write. Everything ends in `_finish`, once. Read before:
`gateway.edge.websocket_handshake`; next: `policy.session`.
"""

import asyncio
import os
from collections.abc import Callable
from typing import Final, TypeAlias, cast

import structlog

from contracts.events import LiveSession, Outcome
from contracts.secret import Secret
from gateway.edge.answers import own_answer
from gateway.edge.context import EdgeContext, Lease, lease_of
from gateway.edge.masking import Masker
from gateway.edge.websocket_handshake import Answer, HandshakeReader, asked_key, leads_elsewhere, refusal_head, switching_head
from gateway.liveness import Watch
from gateway.upstream.faults import UpstreamFault
from policy import session as does
from policy.decide import Admit, NeedKeys, decide, judge_message, without_key
from policy.facts import Facts, RequestHead
from policy.providers import registry
from policy.refusal import TABLE, Refusal
from policy.rewrite import request_head
from policy.route import Route
from policy.scan import cartesia_version
from policy.session import ADMIT, FORWARD, SETTLE, Session, SessionLimits
from policy.usage import ClosedBy, Settled
from policy.world import World

_log = structlog.get_logger("gateway.edge")

_EARLY_BYTES: Final = 64 * 1024
"""what a client may send before its 101; it has to wait with more"""
_ANSWER_SECONDS = 10.0
"""how long a provider may take to answer the handshake; SDKs give up after ten as well"""
_ANY_SIZE: Final = 2**63
"""the length that no frame can have (RFC 6455 §5.2)"""
_TICK_SECONDS: Final = 1.0
_TICKS_A_LOOK: Final = 2
_CLOSE_SECONDS: Final = 5.0
"""how long what was written may take to leave after the end, before it is thrown away"""


def take_over(transport: asyncio.Transport, head: RequestHead, early: bytes, context: EdgeContext) -> asyncio.Protocol:
    """Begin a session with a client whose handshake's head is whole; return the protocol that its transport gets.

    early: what came after the head in the same reads.
    """
    relay = Relay(transport, head, early, context)
    relay.start()
    return relay


_Write: TypeAlias = Callable[[bytes], None]


def _discard(data: bytes) -> None:
    """Take the place of a transport's write once nothing more may be written."""


class Relay(asyncio.Protocol):
    """A session and its client's side. See `gateway.edge.context.OpenExchange` for what the pod asks of it."""

    __slots__ = (
        "_client_watch",
        "_client_write",
        "_clock",
        "_context",
        "_early",
        "_head",
        "_is_client_full",
        "_is_client_lost",
        "_is_over",
        "_is_redialling",
        "_is_upstream_full",
        "_is_waiting",
        "_key",
        "_lease",
        "_opening",
        "_seen",
        "_session",
        "_settled",
        "_ticks",
        "_timer",
        "_to_client",
        "_to_upstream",
        "_transport",
        "_turn",
        "_upstream",
        "_upstream_watch",
        "_upstream_write",
        "request_id",
    )

    def __init__(self, transport: asyncio.Transport, head: RequestHead, early: bytes, context: EdgeContext) -> None:
        self.request_id = context.new_id()
        self._context = context
        self._clock = context.clock
        self._transport = transport
        self._head = head
        self._early = early
        self._key = b""
        now = context.clock()
        self._settled = settled = Settled(self.request_id, now, head.method, is_websocket=True, peer=head.peer)
        for name, value in head.headers:
            if name.lower() == b"traceparent":
                settled.traceparent = value
            elif name.lower() == b"tracestate":
                settled.tracestate = value
        self._lease: Lease | None = None
        self._session: Session | None = None
        self._upstream: _UpstreamSide | None = None
        self._opening: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._client_write: _Write = transport.write
        self._upstream_write: _Write = _discard
        self._turn = context.turn
        self._to_client: list[bytes] = []
        self._to_upstream: list[bytes] = []
        self._is_waiting = False  # for the end of a turn
        self._client_watch = Watch(now)
        self._upstream_watch = Watch(now)
        self._is_client_full = self._is_upstream_full = False
        self._is_redialling = False
        self._is_client_lost = False
        self._is_over = False
        self._ticks = 0
        self._seen: tuple[World, int] | None = None

    def start(self) -> None:
        """Begin the handshake with the provider."""
        context = self._context
        context.open.add(self)
        self._opening = context.tasks.start("open a session", self._open())

    def live(self) -> LiveSession | None:
        """Return what the list of open sessions shows of this one; None before it is open."""
        session, settled = self._session, self._settled
        if session is None or self._is_over:
            return None
        to = session.route.attribution
        return LiveSession(
            exchange=self.request_id,
            workspace=to.workspace,
            principal=to.principal,
            principal_name=to.principal_name,
            team=to.team,
            account=to.account,
            account_name=to.account_name,
            provider=to.provider,
            model=session.model,
            endpoint=to.endpoint,
            since_ms=int(settled.started_at * 1000),
            contexts=session.live_contexts,
            characters=settled.characters,
            audio_in_ms=session.audio_in_ms,
        )

    # ---- the client's transport

    def data_received(self, data: bytes) -> None:
        """Relay what the client sent."""
        session = self._session
        if session is None:
            self._keep_early(data)
            return
        now = self._clock()
        commands = session.from_client(data, now)
        if commands is FORWARD:
            self._send_upstream(data)
        elif commands is ADMIT:
            self._context.recorder.admit(session.admitted, int(now * 1000))
            self._send_upstream(data)
        elif commands:
            self._run(commands)
            if self._is_client_full:
                self._wait_for_reader(commands)

    def _wait_for_reader(self, commands: list[does.Command]) -> None:
        """Take nothing more from a client that is answered by us and does not read; cancels of one that listens pass."""
        for command in commands:
            if isinstance(command, does.ToClient):
                self._transport.pause_reading()
                return

    def eof_received(self) -> bool:
        """The client sends nothing more; it may still read, so the transport stays."""
        if self._session is None:
            # A client that gave up its handshake: there is no answer that it still waits for.
            self._transport.close()
        else:
            self._run(self._session.client_ended(self._clock()))
        return not self._transport.is_closing()

    def connection_lost(self, _: Exception | None) -> None:
        """The client is gone."""
        self._is_client_lost = True
        self._client_write = _discard
        if self._session is not None:
            self._run(self._session.client_gone(self._clock()))
        elif not self._is_over:
            if self._opening is not None:
                self._opening.cancel()
            self._settled.closed_by = "client"
            self._end_unopened("client_gone")

    def pause_writing(self) -> None:
        """The client reads slower than the provider speaks: stop reading there."""
        self._is_client_full = True
        if self._upstream is not None and not self._upstream.transport.is_closing():
            self._upstream.transport.pause_reading()

    def resume_writing(self) -> None:
        """The client caught up."""
        self._is_client_full = False
        if self._upstream is not None and not self._upstream.transport.is_closing():
            self._upstream.transport.resume_reading()
        if self._session is not None and not self._is_redialling:
            self._resume_client()

    def _keep_early(self, data: bytes) -> None:
        if self._is_over:
            return
        self._early += data
        if len(self._early) > _EARLY_BYTES:
            self._transport.pause_reading()

    # ---- the provider's transport, as told by its protocol

    def upstream_data(self, data: bytes) -> None:
        """Relay what the provider sent."""
        session = self._session
        if session is None:
            return
        commands = session.from_upstream(data, self._clock())
        if commands is FORWARD:
            self._send_client(data)
        elif commands is SETTLE:
            self._send_client(data)
            self._context.recorder.settle_context(session.take_ended())
        elif commands:
            self._run(commands)

    def upstream_ended(self) -> None:
        """The provider's connection ended."""
        self._upstream_write = _discard
        if self._session is not None:
            self._run(self._session.upstream_ended(self._clock()))

    def upstream_full(self) -> None:
        """The provider reads slower than the client speaks: stop reading there."""
        self._is_upstream_full = True
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def upstream_writable(self) -> None:
        """The provider caught up."""
        self._is_upstream_full = False
        if not self._is_redialling and not self._transport.is_closing():
            self._transport.resume_reading()

    # ---- opening: decide, dial, ask, accept

    async def _open(self) -> None:
        try:
            await self._admit()
        except UpstreamFault as fault:
            self._fault(fault)
        except Exception:  # the edge of one session
            _log.exception("session failed to open", request_id=self.request_id)
            self._settled.fault_phase = "internal"
            self._refuse(Refusal("internal"), "upstream_fault")

    async def _admit(self) -> None:
        context, head, settled = self._context, self._head, self._settled
        if context.is_draining:
            self._refuse(Refusal("draining"))
            return
        if (reason := context.closed_because()) is not None:
            self._refuse(Refusal(reason))
            return
        key = asked_key(head)
        if isinstance(key, Refusal):
            self._refuse(key)
            return
        self._key = key
        decision = decide(head, None, context.world(), context.clock())
        if isinstance(decision, NeedKeys):
            await context.key_sets.refresh(decision.issuer, decision.kid)
            decision = decide(head, None, context.world(), context.clock())
            if isinstance(decision, NeedKeys):
                decision = without_key(decision, context.world())
        if isinstance(decision, Refusal):
            self._refuse(decision)
            return
        if not isinstance(decision, Admit):
            raise RuntimeError("a handshake's facts stand in its head or in its messages")
        route = decision.route
        settled.caller, settled.endpoint, settled.route = route.caller, route.endpoint, route
        if route.caller.is_single_use:
            lease = await lease_of(context, route.caller, self.request_id)
            if isinstance(lease, Refusal):
                self._refuse(lease)
                return
            self._lease = lease
        credential = self._credential_of(route)
        if credential is None:
            self._refuse(Refusal("credential_unavailable"))
            return
        transport, reader, answer = await self._ask(route, credential)
        if answer.response.status != 101:
            transport.abort()
            self._relay_refusal(answer, credential)
            return
        # The world may have changed while the provider was asked.
        verdict = self._judge(route, Facts(), self._clock())
        if isinstance(verdict, Refusal):
            transport.abort()
            self._refuse(verdict)
            return
        self._accept(decision, credential, transport, reader, answer)

    def _credential_of(self, route: Route) -> Secret | None:
        settled = self._settled
        settled.credential_asked_at = self._clock()
        try:
            credential = self._context.credentials.of(route.account)
        except Exception as error:  # the seam promises an operator's sentence in whatever it raises
            _log.error("credential could not be opened", account=route.account.name, request_id=self.request_id, cause=str(error))
            return None
        settled.credential_opened_at = self._clock()
        return credential

    async def _ask(self, route: Route, credential: Secret) -> tuple[asyncio.Transport, HandshakeReader, Answer]:
        """Send the handshake to the route's provider and return its answer. Raises UpstreamFault."""
        settled = self._settled
        upstreams = self._context.upstreams
        host = upstreams.origin_of(route.account).host
        offered = [
            option.strip()
            for name, value in route.headers
            if name.lower() == b"sec-websocket-protocol"
            for option in value.split(b",")
        ]
        request = request_head(route, "GET", host, credential, b"")
        for is_last in (False, True):
            settled.dial_started_at = self._clock()
            connection = await upstreams.connect(route.account)
            settled.dialled_at = self._clock()
            transport = connection.transport
            reader = HandshakeReader(self._key, offered)
            transport.set_protocol(reader)
            settled.sent_at = self._clock()
            settled.anything_sent = True
            transport.write(request)
            timer = asyncio.get_running_loop().call_later(_ANSWER_SECONDS, reader.give_up)
            try:
                answer = await reader.answered
            except UpstreamFault:
                transport.abort()
                # A warm connection that the provider had closed meanwhile; a handshake may be repeated (RFC 9110 §9.2.2).
                if is_last or reader.has_read or not reader.is_over:
                    raise
            except asyncio.CancelledError:
                transport.abort()
                raise
            else:
                settled.request_ended_at = settled.sent_at
                settled.upstream_status = answer.response.status
                settled.upstream_request_id = answer.response.request_id.decode("latin-1")
                return transport, reader, answer
            finally:
                timer.cancel()
        raise AssertionError("the second try returned or raised")

    def _accept(
        self, admit: Admit, credential: Secret, transport: asyncio.Transport, reader: HandshakeReader, answer: Answer
    ) -> None:
        context, settled = self._context, self._settled
        route = admit.route
        now = self._clock()
        settled.status = 101
        limits = context.limits
        session = Session(
            route,
            admit.facts,
            settled,
            credential,
            SessionLimits(
                message_bytes=limits.message_bytes or _ANY_SIZE,
                judged_message_bytes=limits.judged_message_bytes,
                revocation_drain_seconds=limits.revocation_drain_seconds,
            ),
            self._judge,
            cartesia_version=cartesia_version(self._head, context.world().root_mounts),
            pod=context.pod,
            random_bytes=os.urandom,
            now=now,
        )
        self._client_write(switching_head(answer.response, self.request_id, route.subprotocol))
        self._session = session
        self._opening = None
        self._run(session.opened())
        self._timer = asyncio.get_running_loop().call_later(_TICK_SECONDS, self._tick)
        self._join(transport, reader)
        early, self._early = self._early, b""
        if early:
            self.data_received(early)
        self._resume_client()
        if context.is_draining:
            self._run(session.drain(now))

    def _join(self, transport: asyncio.Transport, reader: HandshakeReader) -> None:
        """Let the session have the provider's transport, beginning with what came along with its 101."""
        self._upstream = side = _UpstreamSide(self, transport)
        self._upstream_write = transport.write
        transport.set_protocol(side)
        if self._is_client_full:
            transport.pause_reading()
        if reader.rest:
            self.upstream_data(reader.rest)
        if reader.is_over:
            self.upstream_ended()

    def _resume_client(self) -> None:
        if not self._is_upstream_full and not self._transport.is_closing():
            self._transport.resume_reading()

    def _judge(self, route: Route, facts: Facts, now: float) -> Route | Refusal:
        return judge_message(route, facts, self._context.world(), now)

    # ---- ends before there was a session

    def _refuse(self, refusal: Refusal, outcome: Outcome = "refused") -> None:
        """Answer the handshake with a refusal or a fault of ours."""
        settled, head = self._settled, self._head
        settled.reason = refusal.reason
        settled.status = TABLE[refusal.reason].status
        mounts = self._context.world().root_mounts
        self._client_write(
            own_answer(
                refusal,
                self.request_id,
                head=head,
                place=settled.endpoint or registry.profile_of(head.path, head.host, mounts),
                version=cartesia_version(head, mounts),
                closes=True,
            )
        )
        self._end_unopened(outcome)

    def _fault(self, fault: UpstreamFault) -> None:
        settled = self._settled
        settled.fault_phase = fault.phase
        settled.anything_sent = fault.anything_sent
        _log.warning(
            "provider failed at a handshake",
            request_id=self.request_id,
            account=settled.route.account.name if settled.route else "",
            reason=fault.reason,
            phase=fault.phase,
            anything_sent=fault.anything_sent,
            detail=fault.detail,
        )
        self._refuse(Refusal(fault.reason), "upstream_fault")

    def _relay_refusal(self, answer: Answer, credential: Secret) -> None:
        """Relay a provider's refusal as the HTTP answer that it is."""
        settled = self._settled
        response = answer.response
        if leads_elsewhere(response):
            self._refuse(Refusal("redirect_refused"), "upstream_fault")
            return
        settled.status = response.status
        data = refusal_head(answer, self.request_id) + answer.body
        if response.status >= 400:
            data = Masker(credential).whole(data)
        self._client_write(data)
        self._end_unopened("provider_error")

    def _end_unopened(self, outcome: Outcome) -> None:
        self._opening = None
        self._settled.outcome = outcome
        self._settled.ended_at = self._clock()
        self._leave()
        self._early = b""
        if not self._is_client_lost:
            # What the client still sends is read and thrown away, or a reset would take the answer from it.
            self._resume_client()
            _end_writing(self._transport)
            asyncio.get_running_loop().call_later(_CLOSE_SECONDS, self._transport.close)

    def _leave(self) -> None:
        """Settle; the last thing that is done for a session, whether it opened or not."""
        if self._is_over:
            return
        self._is_over = True
        context = self._context
        context.open.discard(self.request_id)
        context.addresses.leave(self._head.peer)
        if self._lease is not None:
            self._lease.release()
        context.recorder.settle(self._settled)

    # ---- the session's commands

    def _run(self, commands: list[does.Command]) -> None:
        recorder = self._context.recorder
        for command in commands:
            if isinstance(command, does.ToUpstream):
                self._send_upstream(command.data)
            elif isinstance(command, does.ToClient):
                self._send_client(command.data)
            elif isinstance(command, does.Record):
                recorder.admit(command.tally, int(self._clock() * 1000))
            elif isinstance(command, does.SettleContext):
                recorder.settle_context(command.context)
            elif isinstance(command, does.EndClient):
                self._end_client()
            elif isinstance(command, does.EndUpstream):
                self._end_upstream()
            elif isinstance(command, does.Redial):
                self._redial(command.route)
            elif isinstance(command, does.Alert):
                _log.error(command.what, request_id=self.request_id)
            else:
                self._finish()

    def _send_client(self, data: bytes) -> None:
        self._to_client.append(data)
        self._has_written(len(data))

    def _send_upstream(self, data: bytes) -> None:
        self._to_upstream.append(data)
        self._has_written(len(data))

    def _has_written(self, size: int) -> None:
        """See that what was written leaves at the end of the loop's turn, or sooner if much waits."""
        if not self._is_waiting:
            self._is_waiting = True
            self._turn.at_its_end(self._flush)  # made for each turn: kept, it would be a cycle
        self._turn.grew(size)

    def _flush(self) -> None:
        """Write what was to be written in this turn of the loop."""
        self._is_waiting = False
        waiting = self._to_upstream
        if waiting:
            data = waiting[0] if len(waiting) == 1 else b"".join(waiting)
            waiting.clear()
            self._upstream_write(data)
        waiting = self._to_client
        if waiting:
            data = waiting[0] if len(waiting) == 1 else b"".join(waiting)
            waiting.clear()
            self._client_write(data)

    def _end_client(self) -> None:
        self._flush()
        self._client_write = _discard
        _end_writing(self._transport)

    def _end_upstream(self) -> None:
        self._flush()
        self._upstream_write = _discard
        if self._upstream is not None:
            _end_writing(self._upstream.transport)

    def _finish(self) -> None:
        """Close both sides after what was written has left, and settle."""
        session = self._session
        if session is None or self._is_over:
            return
        if self._timer is not None:
            self._timer.cancel()
        if self._opening is not None:
            self._opening.cancel()
        self._flush()
        self._client_write = self._upstream_write = _discard
        self._run(session.finished(self._clock()))
        self._leave()
        transports = [self._transport]
        if self._upstream is not None:
            transports.append(self._upstream.transport)
            self._upstream.detach()
        for transport in transports:
            transport.close()
            if transport.get_write_buffer_size():
                asyncio.get_running_loop().call_later(_CLOSE_SECONDS, transport.abort)
        self._session = None  # it holds `_judge`: a cycle, with all that the session had

    # ---- another account

    def _redial(self, route: Route) -> None:
        self._is_redialling = True
        self._transport.pause_reading()
        self._flush()
        self._upstream_write = _discard
        if self._upstream is not None:
            self._upstream.detach()
            self._upstream.transport.close()
            self._upstream = None
        self._opening = self._context.tasks.start("redial a session", self._redialled(route))

    async def _redialled(self, route: Route) -> None:
        session = cast(Session, self._session)  # only an open session redials
        transport: asyncio.Transport | None = None
        refusal: Refusal | None = None
        try:
            credential = self._credential_of(route)
            if credential is None:
                refusal = Refusal("credential_unavailable")
            else:
                transport, reader, answer = await self._ask(route, credential)
                if answer.response.status == 101:
                    self._settled.route = route
                    commands = session.redialled(route, credential, self._clock())
                    self._join(transport, reader)
                else:
                    transport.abort()
                    refusal = Refusal("upstream_refused", f"it answered {answer.response.status}")
        except UpstreamFault as fault:
            self._settled.fault_phase = fault.phase
            refusal = Refusal(fault.reason)
        except Exception:  # the edge of one session
            _log.exception("session failed to redial", request_id=self.request_id)
            refusal = Refusal("internal")
        self._opening = None
        self._is_redialling = False
        if refusal is not None:
            commands = session.redial_failed(refusal, self._clock())
        self._run(commands)
        self._resume_client()

    # ---- time, world, operators

    def _tick(self) -> None:
        session = self._session
        if session is None or self._is_over:
            return
        self._timer = asyncio.get_running_loop().call_later(_TICK_SECONDS, self._tick)
        now = self._clock()
        self._ticks += 1
        if not self._ticks % _TICKS_A_LOOK:
            self._look("client", self._transport, self._client_watch, now)
            if self._upstream is not None:
                self._look("provider", self._upstream.transport, self._upstream_watch, now)
        if not self._is_over and (commands := session.tick(now)):
            self._run(commands)

    def _look(self, side: ClosedBy, transport: asyncio.Transport, watch: Watch, now: float) -> None:
        """End the session if the peer does not live, or does not read, any more."""
        if self._is_over or transport.is_closing():
            return
        state = watch.look(transport, self._context.limits.stall_seconds, now)
        if state == "alive" or self._session is None:
            return
        self._run(self._session.peer_is_dead(side, "stalled" if state == "stalled" else "half_open", now))
        transport.abort()

    def world_changed(self, now: float) -> None:
        """Judge again what was admitted, if anything did change; see OpenExchange. Expiry is seen by the ticks."""
        world = self._context.world()
        seen = (world, world.revocations.version)
        if self._session is not None and seen != self._seen:
            self._seen = seen
            self._run(self._session.world_changed(now))

    def drain(self, now: float) -> None:
        """Finish what is under way, take nothing new; see OpenExchange."""
        if self._session is not None:
            self._run(self._session.drain(now))

    def end(self, reason: str, sentence: str = "") -> None:
        """End at once with a reason of ours; see OpenExchange."""
        if self._session is not None:
            self._run(self._session.end(reason, sentence, self._clock()))
        else:
            self._stop_opening(Refusal(reason, sentence), "ended")

    def abort(self) -> None:
        """Cut both sides; see OpenExchange."""
        if self._session is not None:
            self._run(self._session.abort())
            self._transport.abort()
        else:
            self._stop_opening(Refusal("draining"), "drained")

    def _stop_opening(self, refusal: Refusal, outcome: Outcome) -> None:
        if self._is_over:
            return
        if self._opening is not None:
            self._opening.cancel()
        self._refuse(refusal, outcome)


class _UpstreamSide(asyncio.Protocol):
    """The provider's side of a session: tells the relay what happens there, until it is detached."""

    __slots__ = ("_relay", "_take", "transport")

    def __init__(self, relay: Relay, transport: asyncio.Transport) -> None:
        self._relay: Relay | None = relay
        self._take = relay.upstream_data
        self.transport = transport

    def detach(self) -> None:
        """Hear nothing more of this connection."""
        self._relay = None
        self._take = _discard

    def data_received(self, data: bytes) -> None:
        """Hand on what the provider sent."""
        self._take(data)

    def eof_received(self) -> bool:
        """The provider sends nothing more: for a session that is its end."""
        self._ended()
        return False

    def connection_lost(self, _: Exception | None) -> None:
        """The connection is gone."""
        self._ended()

    def _ended(self) -> None:
        if self._relay is not None:
            self._relay.upstream_ended()

    def pause_writing(self) -> None:
        """The provider is slow."""
        if self._relay is not None:
            self._relay.upstream_full()

    def resume_writing(self) -> None:
        """The provider caught up."""
        if self._relay is not None:
            self._relay.upstream_writable()


def _end_writing(transport: asyncio.Transport) -> None:
    """Flush, then end our direction; over TLS that ends the connection."""
    if transport.is_closing():
        return
    if transport.can_write_eof():
        transport.write_eof()
    else:
        transport.close()
