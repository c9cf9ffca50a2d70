"""One client connection: requests off the wire, one at a time, each to where it is answered.

uvicorn gives every connection to this class (its `http=` option). A request under a provider mount becomes an `Exchange`
on this same transport, an upgrade there is handed to the WebSocket relay, and everything else goes, byte for byte, to
uvicorn's own protocol and so to the FastAPI app. What arrives while a request is under way waits in one bounded buffer.
Timeouts are plain attributes that the server looks at once a second. Read next: `gateway.edge.http_relay`.
"""

import asyncio
import contextlib
import math
from typing import Any, Final, cast

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from gateway import http1
from gateway.edge.answers import own_answer
from gateway.edge.context import EdgeContext
from gateway.edge.http_relay import Exchange
from gateway.edge.turn import Outgoing
from gateway.liveness import Watch
from policy.facts import RequestHead
from policy.providers import registry
from policy.refusal import TABLE, Refusal
from policy.repeated import Repeated
from policy.usage import Settled

_LINGER_IDLE_SECONDS: Final = 5.0
_TICKS_A_LOOK: Final = 2
_TLS_HANDSHAKE: Final = b"\x16\x03"
"""how every TLS connection begins (RFC 8446 §5.1)"""
_LINGER_SECONDS: Final = 120.0
"""after a refusal that left a body unread: how long it is still read and thrown away, so that the client, which may send
first and read later, gets to see the answer instead of a reset (a 200 MB upload without a token ends in a readable 401)"""


class EdgeProtocol(HttpToolsProtocol):
    """A client connection on a public listener."""

    def __init__(
        self,
        context: EdgeContext,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],  # Any: uvicorn's own type
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.context = context
        self.peer = ""
        self.deadline = math.inf
        """monotonic seconds (the loop's) after which `expired` is called"""
        self._ticks = 0
        self._watch: Watch | None = None
        """of the client; None as long as nothing lasted"""
        self._buffer = b""
        self._is_head_begun = False
        self._exchange: Exchange | None = None
        self._app_request: _AppRequest | None = None
        self._described_key = b""
        self._described_before: tuple[http1.Request, Repeated] | None = None
        self._lingers_until = 0.0
        """0: does not linger"""
        self._is_advancing = False
        self._is_counted = False

    # What the transport tells

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn narrows it
        """Take the connection in, unless its address has too many."""
        super().connection_made(transport)
        self.outgoing = Outgoing(transport, self.context.turn)
        self.peer = self.client[0] if self.client else ""
        limits = self.context.limits
        self.expire_in(limits.keep_alive_seconds)
        if self.context.addresses.enter(self.peer, limits.connections_per_address):
            self._is_counted = True
        else:
            self._refuse(Refusal("connection_limit"))

    def data_received(self, data: bytes) -> None:
        """Give the bytes to the request under way, or begin the next one."""
        exchange = self._exchange
        if exchange is not None:
            if exchange.is_request_done:
                self._wait_in_line(data)
            elif left_over := exchange.client_data(data):
                self._wait_in_line(left_over)
            return
        if self._lingers_until:
            self.deadline = min(self.loop.time() + _LINGER_IDLE_SECONDS, self._lingers_until)
            return
        if self._app_request is not None:
            self._app_data(data)
            return
        self._buffer = self._buffer + data if self._buffer else data
        self._advance()

    def eof_received(self) -> None:
        """Write what waits: the transport closes itself when this returns, and takes nothing any more."""
        self.outgoing.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever works for this client that it is gone."""
        exchange, self._exchange = self._exchange, None
        self.outgoing.drop()
        if exchange is not None:
            exchange.client_lost()
        if self._is_counted:
            self._is_counted = False
            self.context.addresses.leave(self.peer)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client reads slower than the provider speaks."""
        super().pause_writing()
        if self._exchange is not None:
            self._exchange.client_full()

    def resume_writing(self) -> None:
        """The client caught up."""
        super().resume_writing()
        if self._exchange is not None:
            self._exchange.client_writable()
        elif self._buffer and not self._is_advancing and self._app_request is None:
            self.flow.resume_reading()
            self._advance()

    def expire_in(self, seconds: float) -> None:
        """Move the deadline; 0: there is none."""
        self.deadline = self.loop.time() + seconds if seconds else math.inf

    def tick(self, now: float) -> None:
        """Look at the deadline, and every other time at who lives; called once a second. now: the loop's seconds."""
        if self.deadline < now:
            self.expired()
        self._ticks += 1
        if not self._ticks % _TICKS_A_LOOK:
            self._look(now)

    def _look(self, now: float) -> None:
        """End what lasts for a client that does not live, or does not read, any more, and likewise for its provider."""
        exchange, transport = self._exchange, self.transport
        if exchange is None and not transport.get_write_buffer_size():
            self._watch = None
            return
        watch = self._watch
        if watch is None:
            self._watch = watch = Watch(now)
        stall_seconds = self.context.limits.stall_seconds
        state = watch.look(transport, stall_seconds, now)
        if state == "alive":
            if exchange is not None:
                exchange.look_upstream(stall_seconds, now)
            return
        if exchange is not None:
            exchange.client_lost("stalled" if state == "stalled" else "half_open")
        transport.abort()

    def expired(self) -> None:
        """The deadline has passed."""
        self.deadline = math.inf
        if self._exchange is not None:
            self._exchange.expired()
        elif self._is_head_begun:
            self._refuse(Refusal("head_timeout"))
        elif self._app_request is None or not self._app_request.is_body_done or self._lingers_until:
            self._close()

    def shutdown(self) -> None:
        """Stop: an idle connection closes now, a busy one after its answer."""
        if self._exchange is not None:
            self._exchange.closes = True
        elif self._app_request is not None:
            super().shutdown()
        else:
            self._close()

    def _close(self) -> None:
        """Close the connection after what was written."""
        self.outgoing.flush()
        self.transport.close()

    # What an exchange tells

    def exchange_done(self, *, closes: bool) -> None:
        """The exchange has written its last byte; go on with what waits in line, or close."""
        exchange, self._exchange = self._exchange, None
        if self.transport.is_closing():
            return
        if closes:
            if exchange is None or exchange.is_request_done:
                self._close()
            else:
                self._linger()
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        if not self._is_advancing:
            self._advance()

    # Requests

    def _wait_in_line(self, data: bytes) -> None:
        """Keep pipelined bytes until their turn; one head's worth, then the client has to wait."""
        self._buffer = self._buffer + data if self._buffer else data
        if len(self._buffer) > self.context.limits.head_bytes:
            self.flow.pause_reading()

    def _advance(self) -> None:
        """Begin requests as long as whole heads wait, none is under way and the client takes its answers."""
        self._is_advancing = True
        try:
            while self._exchange is None and self._app_request is None and not self.transport.is_closing():
                buffer = self._buffer
                if buffer:
                    self.outgoing.flush()  # the answer before: whether the client takes it is known then
                if self.flow.write_paused and buffer:
                    self.deadline = math.inf  # whether it still reads is looked at
                    self._wait_in_line(b"")
                    return
                end = buffer.find(b"\r\n\r\n")
                if end < 0 or end > self.context.limits.head_bytes:
                    self._await_head(buffer)
                    return
                if not end:
                    self._refuse(Refusal("head_malformed", "more than one empty line before a request"))
                    return
                if buffer.startswith(b"\r\n"):  # RFC 9112 §2.2: an empty line before a request is skipped
                    self._buffer = buffer[2:]
                    continue
                self._is_head_begun = False
                self._buffer = b""
                self._begin(buffer[: end + 2], buffer[end + 4 :])
        finally:
            self._is_advancing = False

    def _await_head(self, buffer: bytes) -> None:
        limits = self.context.limits
        if not buffer:
            self.expire_in(limits.keep_alive_seconds)
        elif buffer.startswith(_TLS_HANDSHAKE):  # SDKs dial sockets with wss:// whatever their base URL says
            self._refuse(Refusal("head_malformed", "this port speaks plain HTTP, not TLS"))
        elif len(buffer) > limits.head_bytes:
            self._refuse(Refusal("head_too_large", f"{limits.head_bytes} bytes are taken"))
        elif b"\n\n" in buffer or b"\n\r\n" in buffer.lstrip(b"\r\n"):
            self._refuse(Refusal("head_malformed", "a line is not ended by CR LF"))
        elif not self._is_head_begun:
            self._is_head_begun = True
            self.expire_in(limits.head_seconds)

    def _begin(self, head: bytes, rest: bytes) -> None:
        """Give one request, whose head is whole, to where it is answered; `rest` is what came after its head."""
        try:
            request, repeated = self._described(head)
        except http1.Malformed as error:
            self._refuse(Refusal(error.reason, error.detail))
            return
        if repeated is None:
            self._begin_app_request(request, head, rest)
            return
        if request.upgrade == b"websocket":
            self._hand_over(request, repeated.head, rest)
            return
        self._exchange = exchange = Exchange(self, request, repeated)
        left_over = exchange.start(rest)
        if left_over:
            self._wait_in_line(left_over)

    def _described(self, head: bytes) -> tuple[http1.Request, Repeated | None]:
        """Return what a head says; no second value if it is for the app. Raises Malformed.

        SDKs send the same head again and again on a connection, but for the length of the body: such a head is not taken
        apart again. The rest of it being byte for byte the same, so is everything that was found in it, also by policy.
        """
        key, line, length = http1.without_length(head)
        known = self._described_before
        if known is not None and length >= 0 and key == self._described_key and (length > 0) is known[1].head.has_body:
            known[0].length = length
            known[0].framing = line
            return known
        self._described_before = None
        request = http1.parse_request(head, self.context.limits.header_count)
        path, _, query = request.target.partition(b"?")
        host = http1.host_name(request.host)
        if not registry.is_mount(path, host, self.context.world().root_mounts):
            return request, None
        described = RequestHead(
            request.method,
            path,
            query,
            request.headers,
            request.upgrade == b"websocket",
            request.length != 0,
            host,
            self.peer,
        )
        repeated = Repeated(described)
        if request.framing == line:
            self._described_key = key
            self._described_before = request, repeated
        return request, repeated

    def _hand_over(self, request: http1.Request, described: RequestHead, early: bytes) -> None:
        """Give the transport to the WebSocket relay, with what came after the handshake's head."""
        take_over = self.context.take_over
        if take_over is None or request.length or request.method != "GET" or request.minor == 0:
            self._refuse(Refusal("upgrade_refused"))
            return
        self.connections.discard(self)
        self._is_counted = False  # the session leaves the count when it ends
        self.deadline = math.inf
        protocol = take_over(self.transport, described, early, self.context)
        self.transport.set_protocol(protocol)
        self.parser = None  # type: ignore[assignment]  # as uvicorn does itself at the end: the two hold each other

    # Requests of the app

    def _begin_app_request(self, request: http1.Request, head: bytes, rest: bytes) -> None:
        if request.upgrade:
            self._refuse(Refusal("not_found" if request.upgrade == b"websocket" else "upgrade_refused"))
            return
        if not request.target.isascii():
            self._refuse(Refusal("path_refused"))
            return
        self._app_request = _AppRequest(request)
        self.expire_in(self.context.limits.body_idle_seconds)
        super().data_received(head + b"\r\n")
        if self._app_request is not None:
            self._app_data(rest)

    def _app_data(self, data: bytes) -> None:
        app_request = cast(_AppRequest, self._app_request)  # its two callers have just looked
        if app_request.is_body_done:
            if data:
                self._wait_in_line(data)
            return
        self.expire_in(self.context.limits.body_idle_seconds)
        try:
            used, is_body_done = app_request.take(data, self.context.limits.judged_body_bytes)
        except http1.Malformed as error:
            self._app_request = None
            self._refuse(Refusal(error.reason, error.detail))
            return
        if used:
            super().data_received(data[:used])
        if used < len(data):
            self._wait_in_line(data[used:])
        if app_request.is_answered and is_body_done:
            self._end_app_request()

    def on_response_complete(self) -> None:
        """The app has answered; called by uvicorn's request cycle."""
        super().on_response_complete()
        self._unset_keepalive_if_required()  # keep-alive is counted by `deadline`
        app_request = self._app_request
        if app_request is None:
            return
        app_request.is_answered = True
        if app_request.is_body_done and not self.transport.is_closing():
            self._end_app_request()

    def _end_app_request(self) -> None:
        self._app_request = None
        if not self._is_advancing:
            self._advance()

    # Refusals before there is an exchange

    def _refuse(self, refusal: Refusal) -> None:
        """Answer what is no acceptable request, and close: its end is not known."""
        context = self.context
        request_id = context.new_id()
        now = context.clock()
        self.outgoing.write(own_answer(refusal, request_id, closes=True))
        context.recorder.settle(
            Settled(
                request_id=request_id,
                started_at=now,
                method="",
                peer=self.peer,
                outcome="refused",
                reason=refusal.reason,
                status=TABLE[refusal.reason].status,
                ended_at=now,
            )
        )
        self._linger()

    def _linger(self) -> None:
        """Say that nothing more comes, and read on for a while without keeping anything."""
        self._buffer = b""
        self._is_head_begun = False
        self.outgoing.flush()
        if self.transport.can_write_eof():
            with contextlib.suppress(OSError):  # the client may be gone already
                self.transport.write_eof()
        now = self.loop.time()
        # one that its address had no room for has nothing to send first, and is not counted: it must not stay
        self._lingers_until = now + (_LINGER_SECONDS if self._is_counted else _LINGER_IDLE_SECONDS)
        self.deadline = now + _LINGER_IDLE_SECONDS
        self.flow.resume_reading()


class _AppRequest:
    """Where a request of the app stands: its end has to be known before the next one begins."""

    __slots__ = ("_chunks", "_left", "_size", "is_answered", "is_body_done")

    def __init__(self, request: http1.Request) -> None:
        self._left = max(request.length, 0)
        self._chunks = http1.ChunkedBody() if request.length == http1.CHUNKED else None
        self._size = 0
        self.is_body_done = request.length == 0
        self.is_answered = False

    def take(self, data: bytes, limit: int) -> tuple[int, bool]:
        """Return how many of the bytes belong to the body, and whether it is whole now. Raises Malformed, also for its size."""
        if self._chunks is not None:
            _, used = self._chunks.feed(data)
            self.is_body_done = self._chunks.is_complete
        else:
            used = min(self._left, len(data))
            self._left -= used
            self.is_body_done = not self._left
        self._size += used
        if self._size > limit:
            raise http1.Malformed("body_too_large")
        return used, self.is_body_done
