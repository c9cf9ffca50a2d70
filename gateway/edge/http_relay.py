"""One HTTP exchange: a client's request to a provider, and its answer back, at protocol level.

Callbacks all the way: bytes that came from one side are written to the other in the same call, and a task runs only where
something has to be waited for (a dial, an issuer's keys). What is to happen with the next bytes of the request body is the
method in `_intake`: held for judgement, read as a form, forwarded, or thrown away. Everything ends in `_settle`, once.
Judging is `policy.decide`'s, framing is `gateway.http1`'s. Read next: `gateway.upstream.connection`.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Protocol, TypeAlias

import structlog
from uvicorn.protocols.http.flow_control import FlowControl

from contracts.events import Outcome
from contracts.secret import Secret
from gateway import http1
from gateway.edge.answers import CONTINUE, head_bytes, own_answer, preflight_answer
from gateway.edge.context import EdgeContext, Lease, lease_of
from gateway.edge.masking import Masker
from gateway.edge.metering import AnswerMeter, NoMeter, answer_meter
from gateway.edge.turn import Outgoing
from gateway.liveness import Watch
from gateway.state.credentials import NoCredential
from gateway.upstream.connection import UpstreamConnection
from gateway.upstream.faults import Phase, UpstreamFault
from gateway.upstream.origin import Origin
from policy.audio import bytes_a_second
from policy.decide import Admit, NeedFacts, NeedKeys, judge_message, without_key
from policy.facts import Facts, Unjudgeable
from policy.form import FormReader
from policy.providers import registry
from policy.providers.profile import Endpoint
from policy.refusal import TABLE, Refusal
from policy.repeated import Repeated
from policy.rewrite import request_head, response_headers
from policy.scan import cartesia_version
from policy.usage import Settled, Tally

_log = structlog.get_logger("gateway.edge")

_MOST_RESPONSE_HEAD_BYTES: Final = 64 * 1024
_MOST_RESPONSE_HEADERS: Final = 256
_KEPT_WHILE_WAITING_BYTES: Final = 64 * 1024
"""of a streamed body, while its provider is dialled"""
_CLOSE: Final = b"Connection: close\r\n"
_KEEP_ALIVE: Final = b"Connection: keep-alive\r\n"
"""without it an HTTP/1.0 client reads on to the connection's end (RFC 9112 §C.2.2)"""
_CHUNKED: Final = b"Transfer-Encoding: chunked\r\n"
_REPEATABLE: Final = frozenset({"GET", "HEAD"})


class ClientConnection(Protocol):
    """What an exchange needs of the connection that it came on; see `gateway.edge.protocol`."""

    context: EdgeContext
    transport: asyncio.Transport
    outgoing: Outgoing
    flow: FlowControl
    loop: asyncio.AbstractEventLoop

    def expire_in(self, seconds: float) -> None:
        """Call the exchange's `expired` unless something else happens within so many seconds; 0: never."""

    def exchange_done(self, *, closes: bool) -> None:
        """The exchange has written its last byte; the connection goes on, or closes."""


class Exchange:
    """A request under way on a client connection. See `gateway.edge.context.OpenExchange` for what the pod asks of it."""

    # Defaults on the class: most exchanges never set most of these, and each would cost at every birth.
    _intake: "Intake"
    """what happens with body bytes; a plain function, as a bound method would tie each exchange into a cycle"""
    is_request_done = False
    """the whole request body was taken from the client"""
    closes = False
    """the client connection ends after this answer"""
    _is_over = False
    _facts: Facts | None = None
    _admit: Admit | None = None
    _place: NeedFacts | None = None
    _have_keys_been_asked = False
    _held_size = 0
    _body_size = 0
    _chunks: http1.ChunkedBody | None = None
    _form: FormReader | None = None
    _file: FormReader | None = None
    """measures a form's file whose length is billed; the form itself if that is judged"""
    _has_continued = False
    _credential: Secret | None = None
    _origin: Origin | None = None
    _upstream: UpstreamConnection | None = None
    _unsent = b""
    """the whole request, until it leaves for the provider at the end of the loop's turn"""
    _upstream_watch: Watch | None = None
    """None as long as the exchange is young"""
    _is_reused = False
    _has_retried = False
    _is_judged = True
    """False while a form goes to the only account it can go to, its model still unread: the end is withheld"""
    _is_sent_whole = False
    _has_sent_text = False
    """what is metered left for the provider, or will with `_unsent`; it bills it whatever happens then"""
    _partial = b""
    _answer: http1.Response | None = None
    _answer_left = 0
    _answer_chunks: http1.ChunkedBody | None = None
    _writes_chunks = False
    _masker: Masker | None = None
    _meter: AnswerMeter | None = None
    _audio_at = 0.0
    """when audio last came"""
    _tally: Tally | None = None
    _is_ending = False
    _lease: Lease | None
    """of a single-use token, while this exchange is the one that it has open"""

    def __init__(self, edge: ClientConnection, request: http1.Request, head: Repeated) -> None:
        context = edge.context
        self.edge = edge
        self._out = edge.outgoing
        self.context = context
        self.request = request
        self._repeated = head
        self.head = head.head
        self.closes = request.closes or context.is_draining
        self.request_id = context.new_id()
        self.settled = Settled(self.request_id, context.clock(), request.method)
        self._lease = None  # not on the class: a compiled one does not take over a default for a Protocol (ADR 0075)
        self._left = request.length
        self._held: list[bytes] = []
        self._intake = Exchange._keep

    # The request

    def start(self, rest: bytes) -> bytes:
        """Begin, with what came after the head; return what is beyond this request's end."""
        context = self.context
        request = self.request
        limits = context.limits
        context.open.add(self)
        length = request.length
        if length == http1.CHUNKED:
            self._chunks = http1.ChunkedBody()
        elif length <= len(rest):
            # the usual request: its body came whole with its head, or it has none
            self.is_request_done = True
            if length:
                self._body_size = length
                self._held = [rest[:length] if length < len(rest) else rest]
                rest = rest[length:]
        if request.method == "OPTIONS" and (preflight := preflight_answer(self.head, self.request_id)) is not None:
            self._answer_here(204, preflight, "completed")
        elif (reason := context.closed_because()) is not None:
            self._refuse(Refusal(reason))
        elif limits.body_bytes and request.length > limits.body_bytes:
            self._refuse(Refusal("body_too_large", f"{limits.body_bytes} bytes are taken"))
        else:
            self._judge()
        if not rest or self.is_request_done:
            return rest
        return self.client_data(rest)

    def client_data(self, data: bytes) -> bytes:
        """Take bytes of the request body; return what is beyond its end."""
        if self._is_over:
            return b""
        left_over = b""
        if self._chunks is None:
            left = self._left
            if len(data) > left:
                data, left_over = data[:left], data[left:]
            self._left = left = left - len(data)
            self.is_request_done = left == 0
            pieces = [data]
            self._body_size += len(data)
        else:
            try:
                pieces, used = self._chunks.feed(data)
            except http1.Malformed as error:
                self._refuse(Refusal(error.reason, error.detail))
                return b""
            if self._chunks.is_complete:
                self.is_request_done = True
                left_over = data[used:]
            self._body_size += sum(map(len, pieces))
            limit = self.context.limits.body_bytes
            if limit and self._body_size > limit:
                self._refuse(Refusal("body_too_large", f"{limit} bytes are taken"))
                return b""
        if not self.is_request_done:
            self.edge.expire_in(self.context.limits.body_idle_seconds)
        if pieces or self.is_request_done:
            self._intake(self, pieces, self.is_request_done)
        return left_over

    def _judge(self) -> None:
        """Ask the policy core, with what is known by now, and do what it says."""
        decision = self._repeated.decide(self._facts, self.context.world(), self.context.clock())
        if type(decision) is Admit:
            self._admitted(decision)
        elif type(decision) is NeedFacts:
            self._need_facts(decision)
        elif type(decision) is NeedKeys:
            self._need_keys(decision)
        elif type(decision) is Refusal:
            self._refuse(decision)

    def _need_facts(self, need: NeedFacts) -> None:
        self._place = need
        self.settled.endpoint = need.endpoint
        if need.place == "json_body":
            limit = self.context.limits.judged_body_bytes
            if self.request.length > limit:
                self._refuse(Refusal("body_too_large", f"{limit} bytes are taken"))
                return
            if self.is_request_done:
                self._hold_json([], True)
                return
            self._invite_body()
            self._switch(Exchange._hold_json)
        else:
            self._form = self._file = self._form_reader(need.endpoint)
            self._invite_body()
            self._switch(Exchange._read_form)

    def _need_keys(self, need: NeedKeys) -> None:
        if self._have_keys_been_asked:
            self._refuse(without_key(need, self.context.world()))
            return
        self._have_keys_been_asked = True
        self._switch(Exchange._keep)
        self.context.tasks.start("refresh keys for a request", self._refresh_keys(need))

    async def _refresh_keys(self, need: NeedKeys) -> None:
        with self._one_request():
            await self.context.key_sets.refresh(need.issuer, need.kid)
            if not self._is_over:
                self._judge()

    def _invite_body(self) -> None:
        """Answer `Expect: 100-continue`, now that the caller is known and the body is wanted."""
        if self.request.expects_continue and not self._body_size and not self.is_request_done:
            self._has_continued = True
            self._out.write(CONTINUE)

    def _switch(self, intake: "Intake") -> None:
        """From now on the body goes to `intake`, beginning with what was held."""
        self._intake = intake
        held, self._held = self._held, []
        self._held_size = 0
        self.edge.flow.resume_reading()
        if held or self.is_request_done:
            intake(self, held, self.is_request_done)

    def _form_reader(self, endpoint: Endpoint) -> FormReader:
        scan = self.head.scan
        said = Facts() if scan is None else scan.facts  # raw files say in the query what they are
        return FormReader(None if scan is None else scan.content_type, endpoint, bytes_a_second(said.encoding, said.sample_rate))

    # What becomes of the body

    def _hold(self, pieces: list[bytes]) -> None:
        self._held += pieces
        self._held_size += sum(map(len, pieces))

    def _keep(self, pieces: list[bytes], is_end: bool) -> None:
        """Hold the body while something else is waited for."""
        self._hold(pieces)
        if self._held_size > _KEPT_WHILE_WAITING_BYTES and not is_end:
            self.edge.flow.pause_reading()

    def _hold_json(self, pieces: list[bytes], is_end: bool) -> None:
        """Hold a judged JSON body until it is whole, then judge it."""
        self._held += pieces
        limit = self.context.limits.judged_body_bytes
        if self._body_size > limit:
            self._refuse(Refusal("body_too_large", f"{limit} bytes are taken"))
            return
        if not is_end or self._place is None:
            return
        held = self._held
        if len(held) > 1:
            self._held = held = [b"".join(held)]
        facts = self._repeated.facts(held[0] if held else b"", self._place.endpoint)
        if isinstance(facts, Unjudgeable):
            self._refuse(Refusal(facts.reason, facts.key))
            return
        self._facts = facts
        self._judge()

    def _read_form(self, pieces: list[bytes], is_end: bool) -> None:
        """Hold a form until its judged fields were seen."""
        if not self._is_form_readable(pieces, is_end):
            return
        self._hold(pieces)
        if self._facts is not None:
            self._intake = Exchange._keep_form
            self._judge()
        elif self._held_size > self.context.limits.held_form_bytes:
            # The fields may stand behind a file: send on what cannot go anywhere else, and withhold the form's end.
            route = self._place.route if self._place is not None else None
            if route is None:
                self._refuse(Refusal("form_order"))
                return
            self._is_judged = False
            self._go(Admit(route, Facts()))

    def _is_form_readable(self, pieces: list[bytes], is_end: bool) -> bool:
        """Read a form's judged fields as they pass; refuses and tells False where it cannot be read with certainty."""
        form = self._form
        if form is None:
            return True
        for piece in pieces:
            found = form.feed(piece)
            if isinstance(found, Unjudgeable):
                self._refuse(Refusal(found.reason))
                return False
            if found is not None:
                self._facts = found
        if is_end and not form.is_complete:
            self._refuse(Refusal("form_malformed"))
            return False
        return True

    def _keep_form(self, pieces: list[bytes], is_end: bool) -> None:
        """Hold a form while its provider is dialled."""
        if self._is_form_readable(pieces, is_end):
            self._keep(pieces, is_end)

    def _forward_form(self, pieces: list[bytes], is_end: bool) -> None:
        """Forward a form; until its judged fields were seen, the last piece is withheld."""
        if not self._is_form_readable(pieces, is_end) or not self._is_form_judged():
            return
        pieces = self._held + pieces
        self._held = []
        if not self._is_judged:
            self._held = [pieces.pop()]
        self._write_body(pieces, is_end)

    def _is_form_judged(self) -> bool:
        """Judge a form that is on its way, as soon as it can be; refuses and tells False if it must not go on."""
        if self._is_judged or self._facts is None:
            return True
        decision = self._repeated.decide(self._facts, self.context.world(), self.context.clock())
        admit = self._admit
        if isinstance(decision, Refusal):
            self._refuse(decision)
            return False
        if not isinstance(decision, Admit) or admit is None or decision.route.account.id != admit.route.account.id:
            self._refuse(Refusal("form_order"))
            return False
        self._admit = decision
        self.settled.route = decision.route
        self._is_judged = True
        self._begin_tally(decision, self.context.clock())
        return True

    # Towards the provider

    def _admitted(self, admit: Admit) -> None:
        if admit.route.endpoint.is_answered_here:
            self._admit = admit
            self._invite_body()
            self._switch(Exchange._hold_for_minting)
            return
        self._go(admit)

    def _go(self, admit: Admit) -> None:
        """Take the route: credential, connection, head."""
        self._admit = admit
        route = admit.route
        settled = self.settled
        settled.route = route
        settled.caller = route.caller
        settled.endpoint = route.endpoint
        context = self.context
        if route.caller.is_single_use and self._lease is None and route.endpoint.metering != "none":
            self._intake = Exchange._keep if self._form is None else Exchange._keep_form
            context.tasks.start("take a lease for a request", self._leased(admit))
            return
        settled.credential_asked_at = context.clock()
        try:
            self._credential = context.credentials.of(route.account)
            self._origin = origin = context.upstreams.origin_of(route.account)
        except UpstreamFault as fault:
            self._fault(fault)
            return
        except NoCredential as error:
            _log.error("credential could not be opened", account=route.account.name, request_id=self.request_id, cause=str(error))
            self._refuse(Refusal("credential_unavailable"))
            return
        settled.credential_opened_at = now = context.clock()
        connection = origin.take()
        if connection is not None:
            self._is_reused = True
            self._send(connection, now)
            return
        self._dial(origin)

    async def _leased(self, admit: Admit) -> None:
        """Go on once this exchange is the only one that its single-use token has open."""
        with self._one_request():
            lease = await lease_of(self.context, admit.route.caller, self.request_id)
            if isinstance(lease, Refusal):
                if not self._is_over:
                    self._refuse(lease)
            elif self._is_over:
                lease.release()
            else:
                self._lease = lease
                self._go(admit)

    def _dial(self, origin: Origin) -> None:
        self._intake = Exchange._keep if self._form is None else Exchange._keep_form
        self.edge.expire_in(0)
        self.settled.dial_started_at = self.context.clock()
        self.context.tasks.start("dial for a request", self._dialled(origin))

    async def _dialled(self, origin: Origin) -> None:
        with self._one_request():
            try:
                connection = await origin.dial()
            except UpstreamFault as fault:
                if not self._is_over:
                    self._fault(fault)
                return
            if self._is_over:
                origin.give_back(connection)
                return
            self.settled.dialled_at = now = self.context.clock()
            self._send(connection, now)

    def _send(self, connection: UpstreamConnection, now: float) -> None:
        """Write the request's head and what is there of its body. now: Unix seconds."""
        admit, origin, credential = self._admit, self._origin, self._credential
        if admit is None or origin is None or credential is None:
            raise RuntimeError("a connection was taken before there was a route")
        if not self._is_form_judged():
            origin.give_back(connection)
            return
        admit = self._admit or admit
        self._upstream = connection
        connection.receiver = self
        self.settled.sent_at = now
        self.settled.anything_sent = True
        if self._unsent:
            self._leaves_soon(now)
            return
        if self._is_judged:
            self._begin_tally(admit, now)
        length = self.request.length
        head = request_head(admit.route, self.request.method, origin.host, credential, self.request.framing)
        if self.is_request_done:
            held = self._held
            if self._form is None and self._file is not None:
                for piece in held:
                    self._file.feed(piece)
            if self.request.method not in _REPEATABLE:
                self._held = []
            body = held[0] if len(held) == 1 else b"".join(held)
            if length == http1.CHUNKED:
                body = (http1.chunk_of([body]) if body else b"") + http1.LAST_CHUNK
            self._unsent = head + body if body else head
            self._leaves_soon(now)
            return
        connection.transport.write(head)
        held, self._held = self._held, []
        if not self._is_judged:
            self._held = [held.pop()]
        self._intake = Exchange._write_body if self._form is None else Exchange._forward_form
        self._write_body(held, False)
        self.edge.flow.resume_reading()
        self.edge.expire_in(self.context.limits.body_idle_seconds)

    def _leaves_soon(self, now: float) -> None:
        """See that the whole request leaves at the end of the turn."""
        turn = self.context.turn
        turn.at_its_end(self._leave)
        self._sent_whole(now)
        turn.grew(len(self._unsent))

    def _leave(self) -> None:
        """Write the whole request, unless its connection has ended meanwhile: then `upstream_lost` comes, and finds it."""
        unsent, upstream = self._unsent, self._upstream
        if unsent and upstream is not None and not upstream.transport.is_closing():
            self._unsent = b""
            upstream.transport.write(unsent)

    def _leave_elsewhere(self, origin: Origin) -> None:
        """Take another connection for a request of which nothing has left: the one that it had ended, or spoke unasked."""
        self._is_sent_whole = self.settled.anything_sent = False
        connection = origin.take()
        if connection is not None:
            self._send(connection, self.context.clock())
        else:
            self._is_reused = False
            self._dial(origin)

    def _begin_tally(self, admit: Admit, now: float) -> None:
        """Write down what the text costs, before its bytes leave."""
        if self._tally is not None:
            return
        route, facts = admit.route, admit.facts
        self._tally = self.settled.tally = tally = Tally(
            self.request_id, route.attribution, self.context.pod, dict(route.metadata) if route.metadata else None
        )
        metering = route.endpoint.metering
        if metering == "none":
            return
        endpoint = route.endpoint
        if facts.characters:
            tally.add("characters", facts.characters + endpoint.base_characters)
            self.settled.characters = facts.characters
            self.settled.transcript = facts.transcript
        self.settled.voice = facts.voice or ""
        if endpoint.file_key is not None and self._file is None:
            self._file = self._form_reader(endpoint)
        self.context.recorder.admit(tally, int(now * 1000))
        self._has_sent_text = True

    def _write_body(self, pieces: list[bytes], is_end: bool) -> None:
        """Forward body bytes."""
        upstream = self._upstream
        if upstream is None:
            return
        if self._form is None and self._file is not None:
            for piece in pieces:
                self._file.feed(piece)
        if self.request.length == http1.CHUNKED:
            pieces = [piece for piece in pieces if piece]
            data = http1.chunk_of(pieces) if pieces else b""
            if is_end:
                data += http1.LAST_CHUNK
        else:
            data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if data:
            upstream.transport.write(data)
        if is_end:
            self._sent_whole(self.context.clock())

    def _sent_whole(self, now: float) -> None:
        self._is_sent_whole = True
        self.settled.request_ended_at = now
        self.settled.bytes_from_client = self._body_size
        if self._answer is None:
            self.edge.expire_in(self.context.limits.response_head_seconds)

    def _throw_away(self, pieces: list[bytes], is_end: bool) -> None:
        """The body is not wanted any more; the connection closes after the answer, see EdgeProtocol."""

    def upstream_full(self) -> None:
        """The provider reads slowly: so does the gateway from the client."""
        if not self.is_request_done:
            self.edge.flow.pause_reading()
            self.edge.expire_in(0)  # whether it still reads is looked at, see `look_upstream`

    def upstream_writable(self) -> None:
        """The provider caught up."""
        if not self.is_request_done:
            self.edge.flow.resume_reading()
            self.edge.expire_in(self.context.limits.body_idle_seconds)

    # The answer

    def upstream_data(self, data: bytes) -> None:
        """Take bytes of the provider's answer."""
        if self._unsent and self._upstream is not None:  # nothing was asked here yet
            self._upstream.abort()
            self.upstream_lost(None)
            return
        if self._answer is not None:
            self.edge.expire_in(self.context.limits.response_idle_seconds)
            self._relay_body(data, b"")
            return
        buffer = self._partial + data if self._partial else data
        while True:
            end = buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(buffer) > _MOST_RESPONSE_HEAD_BYTES:
                    self._fault(_not_http("the head is too large"))
                self._partial = buffer
                return
            try:
                head = buffer[: end + 2]
                response = http1.parse_response(head, _MOST_RESPONSE_HEADERS)
            except http1.Malformed as error:
                self._fault(_not_http(error.detail))
                return
            buffer = buffer[end + 4 :]
            if response.status >= 200:
                self._partial = b""
                self._begin_answer(response, head, buffer)
                return
            if response.status == 101:
                self._fault(_not_http("101 without an upgrade"))
                return
            self._relay_interim(response)
            if not buffer:
                self._partial = b""
                return

    def _relay_interim(self, response: http1.Response) -> None:
        """Pass a 1xx on, except where the gateway has said it already or the client cannot know it."""
        if response.status == 100:
            if self._has_continued or not self.request.expects_continue:
                return
            self._has_continued = True
        if self.request.minor:
            headers = response_headers(response.headers, self.request_id)
            self._out.write(head_bytes(response.status, response.reason, headers))

    def _begin_answer(self, response: http1.Response, head: bytes, rest: bytes) -> None:
        """Answer the client with the provider's head; `rest` is what came after it."""
        settled = self.settled
        settled.first_byte_at = self.context.clock()
        settled.upstream_status = status = response.status
        settled.upstream_request_id = response.request_id.decode("latin-1")
        if response.location is not None and 300 <= status < 400 and not http1.stays_on_host(response.location):
            self._fault(UpstreamFault("redirect_refused", "response_head", anything_sent=True, detail="redirect to another host"))
            return
        self._answer = response
        settled.status = status
        if not self.is_request_done:
            self.closes = True  # the provider answered before the request's end; the rest is read and thrown away
        length = response.length
        extra = b""
        if not response.has_body(self.request.method):
            length = 0
        elif length == http1.CHUNKED or length == http1.UNTIL_CLOSE:
            if length == http1.CHUNKED:
                self._answer_chunks = http1.ChunkedBody(may_be_padded=True)
            if self.request.minor:
                self._writes_chunks = True
                extra = _CHUNKED
            else:
                self.closes = True
        if self.closes:
            extra += _CLOSE
        elif not self.request.minor:
            extra += _KEEP_ALIVE
        self._answer_left = length
        if response.passes_whole:
            head = b"%bX-Glottis-Request-Id: %b\r\n%b\r\n" % (head, self.request_id.encode("ascii"), extra)
        else:
            head = head_bytes(status, response.reason, response_headers(response.headers, self.request_id), extra)
        if status >= 400 and self._credential is not None:
            self._masker = Masker(self._credential)
            head = self._masker.whole(head)
        elif self._has_sent_text and self._admit is not None:
            self._meter = answer_meter(self._admit.route.endpoint, self._admit.facts, self._file, response)
        if length == 0:
            self._out.write(head)
            self._end_answer(is_reusable=not rest)
            return
        if not 0 < length <= len(rest):  # more is waited for
            self.edge.expire_in(self.context.limits.response_idle_seconds)
        if rest:
            self._relay_body(rest, head)
        else:
            self._out.write(head)

    def _relay_body(self, data: bytes, before: bytes) -> None:
        """Write body bytes to the client as they came; `before` goes first, in the same write."""
        is_end = False
        is_clean = True
        if self._answer_chunks is not None:
            try:
                pieces, used = self._answer_chunks.feed(data)
            except http1.Malformed as error:
                self._cut(UpstreamFault("upstream_protocol", "response_body", anything_sent=True, detail=error.detail))
                return
            is_end = self._answer_chunks.is_complete
            is_clean = used == len(data)
            payload = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        else:
            payload = data
            left = self._answer_left
            if left >= 0:
                if len(data) > left:
                    payload, is_clean = data[:left], False
                self._answer_left = left = left - len(payload)
                is_end = left == 0
        self._count(payload)
        if self._masker is None and self._meter is not None and self._meter.has_failed and self._credential is not None:
            self._masker = Masker(self._credential)
        if self._masker is not None:
            payload = self._masker.feed(payload, is_end)
        if self._writes_chunks:
            out = http1.chunk_of([payload]) if payload else b""
            if is_end:
                out += http1.LAST_CHUNK
        else:
            out = payload
        if before:
            self._out.write(before)
        if out:
            self._out.write(out)
        if is_end:
            self._end_answer(is_reusable=is_clean)

    def _count(self, payload: bytes) -> None:
        settled = self.settled
        settled.bytes_to_client += len(payload)
        if self._meter is not None and self._meter.feed(payload):
            now = self.context.clock()
            if not settled.first_audio_at:
                settled.first_audio_at = now
            elif now - self._audio_at > settled.largest_audio_gap:
                settled.largest_audio_gap = now - self._audio_at
            self._audio_at = now

    def _end_answer(self, *, is_reusable: bool) -> None:
        """The answer is complete."""
        response, upstream, origin = self._answer, self._upstream, self._origin
        if response is None or upstream is None or origin is None:
            return
        self._upstream = None
        if is_reusable and self._is_sent_whole and not response.closes and self._answer_left != http1.UNTIL_CLOSE:
            if self.edge.flow.write_paused:  # the last bytes filled the client's buffer: the next exchange has to be heard
                upstream.transport.resume_reading()
            origin.give_back(upstream)
        else:
            upstream.abort()
        self._is_over = True
        self._settle(self._outcome_of(response))
        self.edge.exchange_done(closes=self.closes)

    def upstream_lost(self, error: Exception | None) -> None:
        """The provider's connection is gone."""
        self._upstream = None
        if self._is_over:
            return
        response = self._answer
        if response is None:
            if self._unsent and self._is_reused and self._origin is not None:
                self._leave_elsewhere(self._origin)
                return
            if self._may_retry():
                self._has_retried = True
                self._is_reused = False
                self._is_sent_whole = False
                self._partial = b""
                if self._origin is not None:
                    self._dial(self._origin)
                return
            is_sent = not self._unsent
            self._fault(UpstreamFault("upstream_gone", "response_head", anything_sent=is_sent, detail=type(error).__name__))
        elif self._answer_left == http1.UNTIL_CLOSE and self._answer_chunks is None and error is None:
            self._end_by_close()
        else:
            self._cut(UpstreamFault("upstream_gone", "response_body", anything_sent=True, detail=type(error).__name__))

    def _may_retry(self) -> bool:
        """Only what nobody can be billed twice for, only once, and only where a pooled connection may have been stale."""
        return (
            self.request.method in _REPEATABLE
            and self._is_reused
            and not self._has_retried
            and self._is_sent_whole
            and not self._partial
            and (bool(self._held) or not self._body_size)  # a body that was streamed is gone
        )

    def _end_by_close(self) -> None:
        """The answer had no length and its connection ended in order."""
        rest = self._masker.feed(b"", True) if self._masker is not None else b""
        if self._writes_chunks:
            self._out.write((http1.chunk_of([rest]) if rest else b"") + http1.LAST_CHUNK)
        elif rest:
            self._out.write(rest)
        response = self._answer
        self._is_over = True
        self._settle("completed" if response is None else self._outcome_of(response))
        self.edge.exchange_done(closes=self.closes)

    def client_full(self) -> None:
        """The client reads slowly: so does the gateway from the provider."""
        if self._upstream is not None:
            self._upstream.transport.pause_reading()
            self.edge.expire_in(0)  # whether it still reads is looked at, see EdgeProtocol

    def client_writable(self) -> None:
        """The client caught up."""
        if self._upstream is not None:
            self._upstream.transport.resume_reading()
            self.edge.expire_in(self.context.limits.response_idle_seconds)

    def look_upstream(self, stall_seconds: float, now: float) -> None:
        """Give the provider up if it does not live, or does not read, any more; called every two seconds."""
        upstream = self._upstream
        if upstream is None:
            return
        watch = self._upstream_watch
        if watch is None:
            self._upstream_watch = watch = Watch(now)
        state = watch.look(upstream.transport, stall_seconds, now)
        if state == "dead":
            upstream.abort()
            self.upstream_lost(TimeoutError())
        elif state == "stalled":
            self._fault(UpstreamFault("upstream_timeout", "send", anything_sent=True, detail="nothing is taken"))

    # Ends

    def client_lost(self, reason: str = "") -> None:
        """The client hung up, or `reason` is why it is given up: what it asked for is not wanted any more."""
        if self._is_over:
            return
        self._drop_upstream()
        self._is_over = True
        self.settled.closed_by = "client"
        self.settled.reason = reason
        self._settle("client_gone")

    def expired(self) -> None:
        """Nothing happened for too long, on the side that is waited for."""
        if self._is_over:
            return
        if self._answer is not None:
            self._cut(UpstreamFault("upstream_timeout", "response_body", anything_sent=True, detail="silence"))
        elif self.is_request_done or self.edge.flow.read_paused:
            phase: Phase = "response_head" if self._is_sent_whole else "send"
            self._fault(UpstreamFault("upstream_timeout", phase, anything_sent=True, detail="silence"))
        else:
            self._refuse(Refusal("body_timeout"))

    def world_changed(self, now: float) -> None:
        """Judge again; see OpenExchange."""
        admit = self._admit
        if admit is None or self._is_over or self._is_ending:
            return
        verdict = judge_message(admit.route, Facts(), self.context.world(), now)
        if not isinstance(verdict, Refusal):
            return
        if not self._is_sent_whole and self._answer is None:
            self._refuse(verdict)
            return
        self._is_ending = True
        self.edge.loop.call_later(self.context.limits.revocation_drain_seconds, self.end, verdict.reason)

    def drain(self, now: float) -> None:  # noqa: ARG002  # as OpenExchange has it
        """Finish this exchange and close its connection; see OpenExchange."""
        self.closes = True

    def end(self, reason: str, sentence: str = "") -> None:
        """End at once; see OpenExchange."""
        if self._is_over:
            return
        if self._answer is None:
            # Text that the provider has is paid for, whatever we answer: only what was never sent is free.
            self._refuse(Refusal(reason, sentence), outcome="ended" if self.settled.anything_sent else "refused")
        else:
            self.settled.reason = reason
            self._cut(None, outcome="ended")

    def abort(self) -> None:
        """Cut both sides; see OpenExchange."""
        if self._is_over:
            return
        if self._answer is None:
            self.closes = True
            self._refuse(Refusal("draining"), outcome="drained")
        else:
            self._cut(None, outcome="drained")

    def _refuse(self, refusal: Refusal, outcome: Outcome = "refused") -> None:
        """Answer with a refusal; what was begun upstream is cut."""
        self.settled.reason = refusal.reason
        self._drop_upstream()
        if self._has_sent_text and not self._unsent:
            refusal = replace(refusal, may_be_billed=True)
        if self._answer is not None:
            self._cut(None, outcome=outcome)
            return
        if not self.is_request_done:
            self.closes = True
        place = self.settled.endpoint or registry.profile_of(self.head.path, self.head.host, self.context.world().root_mounts)
        answer = own_answer(
            refusal,
            self.request_id,
            head=self.head,
            place=place,
            version=cartesia_version(self.head, self.context.world().root_mounts),
            closes=self.closes,
        )
        self._answer_here(TABLE[refusal.reason].status, answer, outcome)

    def _answer_here(self, status: int, answer: bytes, outcome: Outcome) -> None:
        """Write a whole answer of our own and end."""
        self.settled.status = status
        self._intake = Exchange._throw_away
        self._held = []
        self._is_over = True
        if not self.is_request_done or not self.request.minor:
            self.closes = True
        self._out.write(answer)
        self._settle(outcome)
        self.edge.exchange_done(closes=self.closes)

    def _hold_for_minting(self, pieces: list[bytes], is_end: bool) -> None:
        """Hold the body of `POST /access-token`, which is answered here."""
        self._held += pieces
        if self._body_size > self.context.limits.judged_body_bytes:
            self._refuse(Refusal("body_too_large"))
            return
        admit = self._admit
        if not is_end or admit is None:
            return
        self.settled.route = admit.route
        self.settled.caller = admit.route.caller
        mint = self.context.mint_access_token
        if mint is None:
            self._refuse(Refusal("credential_unavailable"))
            return
        minted = mint(admit.route, b"".join(self._held), self.context.clock())
        if isinstance(minted, Refusal):
            self._refuse(minted)
            return
        headers = [
            (b"Content-Type", b"application/json"),
            (b"Content-Length", b"%d" % len(minted)),
            (b"X-Glottis-Request-Id", self.request_id.encode("ascii")),
            (b"Cache-Control", b"no-store"),
        ]
        head = head_bytes(200, b"OK", headers, _CLOSE if self.closes else b"")
        self._answer_here(200, head + minted, "completed")

    def _fault(self, fault: UpstreamFault) -> None:
        """The provider failed before its answer began: say so in the provider's own shape."""
        self.settled.fault_phase = fault.phase
        self.settled.anything_sent = fault.anything_sent
        _log.warning(
            "upstream fault",
            reason=fault.reason,
            phase=fault.phase,
            anything_sent=fault.anything_sent,
            detail=fault.detail,
            request_id=self.request_id,
        )
        self._refuse(Refusal(fault.reason), outcome="upstream_fault")

    def _cut(self, fault: UpstreamFault | None, outcome: Outcome = "upstream_fault") -> None:
        """The answer cannot be completed: the client must see that it is cut off, after what was relayed."""
        if fault is not None:
            self.settled.fault_phase = fault.phase
            self.settled.reason = fault.reason
        self._drop_upstream()
        self._is_over = True
        self._out.flush()
        transport = self.edge.transport
        if (self._writes_chunks or self._answer_left >= 0 or self._answer_chunks is not None) and not self.edge.flow.write_paused:
            transport.close()  # flushes, and the missing rest tells
        else:
            transport.abort()  # an answer that ends with its connection looks whole unless it is reset
        self._settle(outcome)
        self.edge.exchange_done(closes=True)

    def _drop_upstream(self) -> None:
        self._leave()  # it is counted, and the provider may have begun with it
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.abort()

    def _settle(self, outcome: Outcome) -> None:
        """Hand over what is known; called exactly once."""
        context = self.context
        context.open.discard(self.request_id)
        if self._lease is not None:
            self._lease.release()
        settled = self.settled
        settled.outcome = outcome
        settled.is_owed = is_owed = self._is_owed
        if is_owed:
            self._measure()
        settled.peer = self.head.peer
        settled.traceparent = self.request.trace_parent
        settled.tracestate = self.request.trace_state
        settled.ended_at = context.clock()
        context.recorder.settle(settled)

    # Small help

    def _outcome_of(self, response: http1.Response) -> Outcome:
        """Say what a whole answer is: providers fail by a status, or by an event inside a 200."""
        meter = self._meter
        if meter is not None and meter.has_failed:
            self.settled.reason = meter.reason
            return "provider_error"
        return "provider_error" if response.status >= 400 else "completed"

    def _measure(self) -> None:
        """Count what the answer, as far as it came, tells of what is owed."""
        tally, endpoint = self._tally, self.settled.endpoint
        if tally is None or endpoint is None:
            return
        if self._meter is not None:
            self._meter.end(tally, self._file)
        elif endpoint.file_key is not None and self._is_sent_whole:
            NoMeter(endpoint).end(tally, self._file)

    @property
    def _is_owed(self) -> bool | None:
        """Whether what was counted stays counted (ADR 0004); None: the outcome decides."""
        if self._unsent:
            return False  # it never left
        if self._answer is not None and self._answer.status >= 400:
            return False  # the provider says itself that it did not serve this
        if self._meter is not None and self._meter.has_failed:
            return False  # likewise, inside a 200
        return True if self._has_sent_text else None

    def _one_request(self) -> "_OneRequest":
        return _OneRequest(self)


Intake: TypeAlias = Callable[[Exchange, list[bytes], bool], None]
"""takes pieces of a request body, and whether they are its last"""


class _OneRequest:
    """The process edge of one request's task: a fault of ours is logged with its trace and answered 500."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception):
            return False
        _log.exception("exchange failed", request_id=self._exchange.request_id, exc_info=error)
        self._exchange.settled.fault_phase = "internal"
        self._exchange.end("internal")
        return True


def _not_http(detail: str) -> UpstreamFault:
    return UpstreamFault("upstream_protocol", "response_head", anything_sent=True, detail=detail)
