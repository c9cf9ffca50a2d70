"""One open WebSocket, between the two 101s and its end: events in, commands out, no I/O and no clock.

The relay tells what happened (bytes from a side, a side that ended, a tick of the clock, a changed world) and does what it
is told. Where messages are not judged, a read is followed by its frame headers and passes as it came: `FORWARD`. Where they
are (text-to-speech), the client's messages are held until whole, judged, and forwarded as they came or dropped with an
in-band error; the provider's are never held. Read before: `policy.frames`; next: `gateway.edge.websocket_relay`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from contracts.events import Outcome
from contracts.secret import Secret
from policy import frames
from policy.audio import bytes_a_second, raw_rate
from policy.contexts import Context, Contexts, Said, audio_bytes_of, audio_ms_of, is_end, reason_of, said_by, said_in
from policy.facts import Facts, Unjudgeable
from policy.frames import Gate, Tap, Walker, unmasked
from policy.recall import Heard, Recall
from policy.refusal import TABLE, Refusal, in_band_error
from policy.rewrite import masked
from policy.route import Route
from policy.usage import ClosedBy, Settled, SettledContext, Tally

Judge: TypeAlias = Callable[[Route, Facts, float], Route | Refusal]
"""judges one message, or with empty facts the open session, by the world in force: (route, facts, now)"""


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Bytes and seconds as named."""

    message_bytes: int = 16 * 1024 * 1024
    """one message, per direction; over it 1009 to its sender"""
    judged_message_bytes: int = 1024 * 1024
    """a message that is judged is held whole"""
    contexts: int = 1024
    """live at once on one socket"""
    boundary_seconds: float = 5.0
    """how long a frame of our own waits for the end of a message"""
    close_seconds: float = 5.0
    """from a close frame, or the end of one side, to the end of both"""
    revocation_drain_seconds: float = 5.0
    usage_seconds: float = 15.0
    """between two interim usage events of a session"""
    quiet_seconds: float = 2.0
    """a session without contexts may be drained when nothing went by for so long"""
    cancelled_seconds: float = 30.0
    """a cancelled context that the provider says nothing more about is settled"""


class ToClient:
    """Write to the client."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


class ToUpstream:
    """Write to the provider."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


class Record:
    """Write usage down before what follows leaves."""

    __slots__ = ("tally",)

    def __init__(self, tally: Tally) -> None:
        self.tally = tally


class SettleContext:
    """A context ended."""

    __slots__ = ("context",)

    def __init__(self, context: SettledContext) -> None:
        self.context = context


class Redial:
    """Drop the provider's connection, on which no message went out, and dial the route's account instead."""

    __slots__ = ("route",)

    def __init__(self, route: Route) -> None:
        self.route = route


class EndClient:
    """Write nothing more to the client: flush, then end that direction of the connection. Reads go on."""

    __slots__ = ()


class EndUpstream:
    """Likewise towards the provider."""

    __slots__ = ()


class Finish:
    """Both sides are over: flush, close both connections, settle."""

    __slots__ = ()


class Alert:
    """Something that an operator must see: a fixed word, never content."""

    __slots__ = ("what",)

    def __init__(self, what: str) -> None:
        self.what = what


# Classes of their own, and not Structs: compiled, one costs a sixth of a microsecond less to make and to tell apart.
Command: TypeAlias = ToClient | ToUpstream | Record | SettleContext | Redial | EndClient | EndUpstream | Finish | Alert

FORWARD: Final[list[Command]] = []
"""what came passes to the other side as it came; compared by identity"""

ADMIT: Final[list[Command]] = []
"""the session's `admitted` is to be written down, then what the client sent passes as it came; compared by identity"""

SETTLE: Final[list[Command]] = []
"""what the provider sent passes as it came, then what `take_ended` returns is settled; compared by identity"""

_MOST_READ_BYTES: Final = 64 * 1024
"""of a message of a recognition: transcripts and errors are smaller"""

_MOST_HASHED: Final = 1_000_000
"""characters of a context after which its texts are no longer kept for the hash: a context may go on for hours"""

_BEGINS_CREDENTIAL: Final = 4
"""bytes at the end of a read that are taken for the beginning of the credential"""

_NO_FACTS: Final = Facts()

_IDLE_REASON: Final = b"connection idle timeout"
"""Cartesia's words when it ends a quiet socket with 1000 (pipecat #1818)"""


class Session:
    """The state of one session. Methods take `now` in Unix seconds and return commands, in the order to run them.

    Each direction flows until its sender closes or ends it; a session is over when both sides are, or `close_seconds` after
    the first. `settled` is filled on the way; after `Finish` the relay calls `finished` and hands both to the recorder.
    """

    __slots__ = (
        "_audio_rate",
        "_bound",
        "_boundary_by",
        "_clear",
        "_client",
        "_client_closed",
        "_client_ended",
        "_client_told",
        "_contexts",
        "_cut_by",
        "_cut_reason",
        "_error",
        "_finish_by",
        "_gate",
        "_has_deadlines",
        "_has_ended_client",
        "_has_ended_upstream",
        "_has_finished",
        "_has_heard",
        "_has_sent",
        "_is_draining",
        "_is_redialling",
        "_judge",
        "_judged",
        "_kept",
        "_last_ping",
        "_last_words",
        "_limits",
        "_messages_seen",
        "_own",
        "_passes",
        "_quiet_since",
        "_random",
        "_reader",
        "_recall",
        "_secret",
        "_takes",
        "_upstream",
        "_upstream_closed",
        "_upstream_ended",
        "_upstream_told",
        "_usage_at",
        "_usual",
        "_usual_rate",
        "_usual_route",
        "_version",
        "_waiting",
        "admitted",
        "ended",
        "route",
        "settled",
        "tally",
    )

    admitted: Tally
    """of the message that the last `ADMIT` is about"""
    ended: SettledContext | None
    """the context that the last `SETTLE` is about, until it is taken"""

    def __init__(
        self,
        route: Route,
        facts: Facts,
        settled: Settled,
        credential: Secret,
        limits: SessionLimits,
        judge: Judge,
        *,
        cartesia_version: str,
        pod: str,
        random_bytes: Callable[[int], bytes],
        now: float,
    ) -> None:
        """facts: what the handshake says. random_bytes: for the masks of our own frames upstream (RFC 6455 §5.3)."""
        self.route = route
        self._bound = route  # messages are judged against it: once one went out, its account is kept while it serves
        self.settled = settled
        self._limits = limits
        self._judge = judge
        self._version = cartesia_version
        self._random = random_bytes
        self._secret = credential
        self._clear = credential.reveal()
        self._kept = b""  # of the provider's last read, what may be the beginning of the credential
        judged = route.endpoint.judged == "message"
        self._gate = Gate(limits.judged_message_bytes) if judged else None
        self._client = None if judged else Walker("client", limits.message_bytes)
        is_recognition = route.endpoint.metering == "stt_stream"
        self._reader: Tap | None = None
        if judged:
            self._reader = Tap(limits.message_bytes, limits.judged_message_bytes)
        elif is_recognition:
            self._reader = Tap(limits.message_bytes, _MOST_READ_BYTES)
        self._upstream: Walker = self._reader or Walker("server", limits.message_bytes)
        self._recall = Recall(route.endpoint)
        self._contexts = Contexts(settled, pod, limits.contexts)
        self._has_deadlines = False  # of its contexts one may have a time by which it must have ended
        self._judged: dict[tuple[str | None, str | None, bool, bool], Route | Refusal] = {}
        self._usual = _NO_FACTS  # of the last message that was decided; to where; the rate of its audio
        self._usual_route = route
        self._usual_rate = 0
        self.ended = None
        self.tally = None if judged else Tally(settled.request_id, route.attribution, pod, dict(route.metadata))
        settled.tally = self.tally
        self._audio_rate = bytes_a_second(facts.encoding, facts.sample_rate) if is_recognition else 0
        if self.tally is not None and is_recognition and not self._audio_rate:
            self.tally.add("unmeasured", 1)
        self._has_heard = False  # the provider recognised something
        self._error = ""  # the reason of its last error, as long as nothing came after it

        self._takes = True  # what the client sends goes to the provider
        self._passes = True  # what the provider sends goes to the client, and nothing of ours waits to go between
        self._has_sent = False  # a judged message went out: the socket is bound to its account
        self._client_closed = self._upstream_closed = False  # a close frame came from there
        self._client_told = self._upstream_told = False  # a close frame went there
        self._client_ended = self._upstream_ended = False  # no byte will come from there any more
        self._has_ended_client = self._has_ended_upstream = False  # we end that direction
        self._has_finished = False

        self._own: list[bytes] = []  # frames of ours to the client that wait for the end of a message
        self._last_words = False  # the last of them is a close frame
        self._boundary_by = 0.0
        self._cut_reason = ""  # set: no client byte passes any more, the session ends by `_cut_by`
        self._cut_by = 0.0
        self._finish_by = 0.0
        self._is_draining = False
        self._is_redialling = False
        self._waiting: list[tuple[bytes, bytes]] = []  # messages: as they came, unmasked
        self._last_ping: bytes | None = None
        self._messages_seen = 0
        self._quiet_since = now
        self._usage_at = now

    # ---- what the relay tells: bytes

    def opened(self) -> list[Command]:
        """The session begins: both sides have their 101."""
        return [Record(self.tally)] if self.tally is not None else []

    def from_client(self, data: bytes, now: float) -> list[Command]:
        """Take what the client sent. `FORWARD`: it passes to the provider as it came."""
        client = self._client
        if client is None:
            return self._judge_client(data, now)
        if client.is_over:
            return []
        if not client.walk(data):
            return FORWARD if self._takes else []
        out: list[Command] = []
        if self._takes:
            out.append(ToUpstream(data[: client.cut]))
        if client.close is not None:
            self._client_said_goodbye(now, out)
        elif client.fault is not None:
            self._fail(client.fault, "client", now, out)
        return out

    def from_upstream(self, data: bytes, now: float) -> list[Command]:
        """Take what the provider sent. `FORWARD`: it passes to the client as it came."""
        if data[-1] in self._clear or self._kept:
            whole = self._without_half_a_credential(data)
            if whole is not data:
                return self._passed(whole, now)
        return self._from_upstream(data, now)

    def _without_half_a_credential(self, data: bytes) -> bytes:
        """Keep back the end of a read if it may be the beginning of the credential; the next read begins with it.

        Four bytes have to fit: nothing that a provider says by chance is held up by that, and fewer give nothing away.
        """
        clear = self._clear
        if self._kept:
            data, self._kept = self._kept + data, b""
        at = data.find(clear[:_BEGINS_CREDENTIAL], max(0, len(data) - len(clear) + 1))
        while at >= 0:
            if clear.startswith(data[at:]):
                self._kept = data[at:]
                return data[:at]
            at = data.find(clear[:_BEGINS_CREDENTIAL], at + 1)
        return data

    def _passed(self, data: bytes, now: float) -> list[Command]:
        """Take bytes of the provider's that are not what the relay holds: it cannot forward them by itself."""
        commands = self._from_upstream(data, now) if data else []
        if commands is FORWARD:
            return [ToClient(data)]
        return [ToClient(data), SettleContext(self.take_ended())] if commands is SETTLE else commands

    def take_ended(self) -> SettledContext:
        """Return the context that a `SETTLE` is about, once: it holds its text, and the session may be quiet from now on."""
        ended, self.ended = self.ended, None
        if ended is None:
            raise RuntimeError("no context has ended that was not taken")
        return ended

    def _from_upstream(self, data: bytes, now: float) -> list[Command]:
        upstream = self._upstream
        if upstream.is_over:
            return []
        if not self.settled.first_byte_at:
            self.settled.first_byte_at = now
        out: list[Command] = []
        reader = self._reader
        errors = True
        if reader is None:
            if not upstream.walk(data) and self._passes and self._clear not in data:
                return FORWARD
        else:
            errors = self._read(reader, data, now, out) if self.tally is None else self._read_recognition(reader, data)
            # Only where an error may be on its way is there something to mask; the search costs more than all before it.
            may_hold_error = errors or not upstream.is_between_messages
            if self._passes and not upstream.is_over and not (may_hold_error and self._clear in data):
                if not out:
                    return FORWARD
                if self._is_draining or self._cut_reason:
                    self._drain_at_boundary(now, out)
                if len(out) == 1:
                    only = out[0]
                    if isinstance(only, SettleContext):
                        self.ended = only.context
                        return SETTLE
                out.insert(0, ToClient(data))
                return out
        self._pass_aside(data, errors, now, out)
        return out

    def _pass_aside(self, data: bytes, may_hold_error: bool, now: float, out: list[Command]) -> None:
        """Pass a read of the provider's for which there is more to do than to pass it."""
        upstream = self._upstream
        after = out[:]
        out.clear()
        if upstream.is_over:
            data = data[: upstream.cut]
        if self._clear in data and (may_hold_error or upstream.close is not None or not upstream.is_between_messages):
            data = masked(data, self._secret)
            out.append(Alert("credential_in_answer"))
        if self._client_told or self._has_ended_client:
            pass  # nothing may follow our close frame
        elif self._own and upstream.boundary >= 0:
            out.append(ToClient(data[: upstream.boundary]))
            self._put_own(out)
            if not self._client_told:
                out.append(ToClient(data[upstream.boundary :]))
        else:
            out.append(ToClient(data))
        out += after
        if upstream.close is not None:
            self._upstream_said_goodbye(now, out)
        elif upstream.fault is not None:
            self._fail(upstream.fault, "provider", now, out)
        else:
            self._drain_at_boundary(now, out)

    # ---- what the relay tells: ends

    def client_ended(self, now: float) -> list[Command]:
        """The client ended its direction (TCP FIN); it may still read."""
        out: list[Command] = []
        if self._client_ended or self._has_finished:
            return out
        self._client_ended = True
        self._takes = False
        if not self._client_closed:
            self._blame("client", "client_gone", 1006)
        self._end_upstream(out)
        self._over(now, out)
        return out

    def client_gone(self, now: float) -> list[Command]:
        """The client's connection is lost: there is nobody to write to."""
        out = self.client_ended(now)
        self._finish(out)
        return out

    def upstream_ended(self, now: float) -> list[Command]:
        """The provider's connection ended, in order or not."""
        out: list[Command] = []
        if self._upstream_ended or self._has_finished:
            return out
        kept, self._kept = self._kept, b""
        out += self._passed(kept, now)
        self._upstream_ended = True
        self._takes = False
        self._own.clear()
        if not self._upstream_closed:
            self._blame("provider", "upstream_fault", 1006)
        self._end_client(out)
        self._over(now, out)
        return out

    def peer_is_dead(self, side: ClosedBy, reason: str, now: float) -> list[Command]:
        """A side answers nothing, or reads nothing, for too long; the other one is told why."""
        out: list[Command] = []
        if self._has_finished:
            return out
        if side == "client":
            self._blame("client", "client_gone", 1006, reason)
            self._tell_upstream(1001, out)
        else:
            self._blame("provider", "upstream_fault", 1006, reason)
            self._tell_client(1011, f"{reason}: the provider stopped answering", now, out)
        self._finish(out)
        return out

    # ---- what the relay tells: time, world, operators

    def tick(self, now: float) -> list[Command]:
        """About once a second: deadlines, expiry, interim usage."""
        out: list[Command] = []
        if self._has_finished:
            return out
        if self._finish_by and now >= self._finish_by:
            self._finish(out)
            return out
        if self._own and now >= self._boundary_by:
            self._blame("gateway", "ended", 1006, self.settled.reason or "no_boundary")
            self._finish(out)
            return out
        if now >= self.route.caller.expires_at and not self._cut_reason:
            self._judge_again(now, out)
        if self._cut_reason and now >= self._cut_by:
            self._end(self._cut_reason, now, out)
        if self._has_deadlines:
            self._end_overdue(now, out)
        if now - self._usage_at >= self._limits.usage_seconds:
            self._usage_at = now
            if self.tally is not None:
                self._count_audio()
                out.append(Record(self.tally))
            for context in self._contexts:
                context.count_audio()
                out.append(Record(context.tally))
        if self._is_draining and self._client is not None:
            seen = self._client.messages + self._upstream.messages
            if seen != self._messages_seen:
                self._messages_seen = seen
                self._quiet_since = now
            elif now - self._quiet_since >= self._limits.quiet_seconds:
                self._drain_at_boundary(now, out)
        return out

    def _end_overdue(self, now: float, out: list[Command]) -> None:
        """End the contexts that must have ended by now."""
        self._has_deadlines = False
        for context in self._contexts:
            if not context.ends_by:
                continue
            if now < context.ends_by:
                self._has_deadlines = True
            elif context.refusal is not None:
                self._end(context.refusal.reason, now, out)
            else:
                out.append(SettleContext(self._contexts.end(context, "cancelled", now)))

    def world_changed(self, now: float) -> list[Command]:
        """Judge again what is open: configuration or revocations changed."""
        out: list[Command] = []
        self._forget_verdicts()
        if self._has_finished or self._cut_reason:
            return out
        if not self._judge_again(now, out):
            return out
        for context in self._contexts:
            if context.refusal is None:
                facts = Facts(model=context.model or None, voice=context.voice or None, speaks=True)
                verdict = self._judge(context.route, facts, now)
                if isinstance(verdict, Refusal):
                    context.refusal = verdict
                    self._has_deadlines = True
                    context.ends_by = now + self._limits.revocation_drain_seconds
                    self._refuse(verdict, context.asked_as, now, out)
        return out

    def _judge_again(self, now: float, out: list[Command]) -> bool:
        """Judge the open session itself; False if it must end. An issuer's `expiry` decides what an expired token means."""
        verdict = self._judge(self.route, _NO_FACTS, now)
        if isinstance(verdict, Refusal):
            self._cut(verdict.reason, now, out)
            return False
        return True

    def drain(self, now: float) -> list[Command]:
        """The pod stops: live contexts go on, new ones are refused, and the session ends when none is left."""
        out: list[Command] = []
        self._is_draining = True
        self._quiet_since = now
        if self._client is None:
            self._drain_at_boundary(now, out)
        return out

    def end(self, reason: str, sentence: str, now: float) -> list[Command]:
        """End now, for a reason of ours. sentence: for the client, may be empty."""
        out: list[Command] = []
        self._end(reason, now, out, sentence)
        return out

    def abort(self) -> list[Command]:
        """Stop at once; the drain's deadline has passed."""
        out: list[Command] = []
        self._blame("gateway", "drained", 1006, "draining")
        self._finish(out)
        return out

    # ---- another account's provider, before anything went out

    def redialled(self, route: Route, credential: Secret, now: float) -> list[Command]:
        """The provider of another account is open: what waited is judged and sent there."""
        out: list[Command] = []
        if self._has_finished:
            return out
        self.route = self._bound = replace(route, model="")
        self._secret = credential
        self._clear = credential.reveal()
        self._kept = b""
        self._is_redialling = False
        self._forget_verdicts()
        if self._ending:
            return out
        self._takes = True
        waiting, self._waiting = self._waiting, []
        for raw, payload in waiting:
            self._client_message(raw, payload, now, out)
        return out

    def redial_failed(self, refusal: Refusal, now: float) -> list[Command]:
        """The provider of another account refused or cannot be reached: the waiting messages are answered, then 1008."""
        out: list[Command] = []
        if self._has_finished:
            return out
        self._is_redialling = False
        self._upstream_ended = True
        for _, payload in self._waiting:
            heard = self._recall.hear(payload)
            context_id, facts = (heard.context_id, heard.facts) if isinstance(heard, Heard) else (None, _NO_FACTS)
            self._refuse_message(refusal, context_id, facts, now, out)
        self._waiting.clear()
        self._end(refusal.reason, now, out, code=1008)
        return out

    # ---- the client's messages, where they are judged

    def _judge_client(self, data: bytes, now: float) -> list[Command]:
        gate = self._gate
        if gate is None or gate.is_over:
            return []
        out: list[Command] = []
        at = gate.payload_at(data) if self._takes else 0
        if at:
            context = self._admitted(data, unmasked(data[at:], data[at - 4 : at]), now, out)
            if context is not None:
                if not out:
                    self.admitted = context.tally
                    return ADMIT
                out.append(Record(context.tally))
                out.append(ToUpstream(data))
            return out
        for opcode, raw, payload in gate.feed(data):
            if opcode < 8:
                self._client_message(raw, payload, now, out)
            elif opcode == frames.CLOSE:
                if gate.fault is None:
                    if self._takes:
                        out.append(ToUpstream(raw))
                    self._client_said_goodbye(now, out)
            elif self._takes:
                if opcode == frames.PING:
                    self._last_ping = payload
                out.append(ToUpstream(raw))
            elif self._is_redialling and opcode == frames.PING:
                self._say(frames.frame(frames.PONG, payload), now, out)
        if gate.fault is not None:
            self._fail(gate.fault, "client", now, out)
        return out

    def _client_message(self, raw: bytes, payload: bytes, now: float, out: list[Command]) -> None:
        """Judge one whole message; pass it on, drop it with an error, or have another account dialled for it."""
        if self._takes:
            context = self._admitted(raw, payload, now, out)
            if context is not None:
                out.append(Record(context.tally))
                out.append(ToUpstream(raw))
        elif self._is_redialling:
            self._waiting.append((raw, payload))

    def _admitted(self, raw: bytes, payload: bytes, now: float, out: list[Command]) -> Context | None:
        """Judge one whole message. Return the context of one that speaks, and may be sent once it is written down.

        For any other message what is to be done is in `out`.
        """
        settled = self.settled
        settled.messages_from_client += 1
        settled.bytes_from_client += len(payload)
        heard = self._recall.hear(payload)
        if isinstance(heard, Unjudgeable):
            self._refuse_message(Refusal(heard.reason, heard.key), heard.context_id, _NO_FACTS, now, out)
            return None
        contexts = self._contexts
        context_id = heard.context_id
        context = contexts.live(context_id)
        facts = heard.facts
        if context is not None and context.refusal is not None:
            self._refuse_message(context.refusal, context_id, facts, now, out)
            return None
        if facts is self._usual and heard.speaks:
            # It is like the one that was decided last, but for its text: an agent hardly sends anything else.
            if context is None and not self._is_draining and not contexts.is_full:
                context = self._open(heard, self._usual_route, self._usual_rate, now, out)
            if context is not None:
                self._count(context, heard, now)
                return context
        if not heard.speaks and (context is not None or contexts.was_admitted(context_id)):
            if context is not None and facts.cancels:
                context.is_cancelled = True
                context.ends_by = now + self._limits.cancelled_seconds
                self._has_deadlines = True
            out.append(ToUpstream(raw))
            return None
        if not heard.speaks and facts.is_control:
            out.append(ToUpstream(raw))
            return None
        verdict = self._verdict(heard, context is None, now)
        if isinstance(verdict, Refusal):
            # A context that was never opened may still be.
            contexts.refused(None if verdict.reason == "context_unknown" else context_id, verdict)
            self._refuse_message(verdict, context_id, facts, now, out)
            return None
        if verdict.account.id != self.route.account.id:
            self._takes = False
            self._is_redialling = True
            self._waiting.append((raw, payload))
            if self._last_ping is not None:  # its pong is lost with the connection
                self._say(frames.frame(frames.PONG, self._last_ping), now, out)
            out.append(Redial(verdict))
            return None
        rate = raw_rate(facts.output)
        if not self._has_sent:
            self._has_sent = True
            self._bound = verdict
            self._forget_verdicts()
        elif heard.speaks and facts.transcript is not heard.transcript:  # else no other message has these facts
            self._usual, self._usual_route, self._usual_rate = facts, verdict, rate
        if context is None:
            context = self._open(heard, verdict, rate, now, out)
        self._count(context, heard, now)
        return context

    def _open(self, heard: Heard, route: Route, audio_rate: int, now: float, out: list[Command]) -> Context:
        """Open the context of a message that was admitted."""
        contexts = self._contexts
        context = contexts.open(heard.context_id, heard.facts.voice or "", route, audio_rate, now)
        if heard.context_id is None and (surplus := contexts.surplus()) is not None:
            out.append(SettleContext(contexts.end(surplus, "completed", now)))
        return context

    def _count(self, context: Context, heard: Heard, now: float) -> None:
        """Count the text of a message that was admitted."""
        if heard.characters:
            context.tally.add("characters", heard.characters)
            context.characters += heard.characters
            self.settled.characters += heard.characters
            if len(context.transcript) < _MOST_HASHED:
                context.transcript += heard.transcript
        context.text_ended_at = now

    def _forget_verdicts(self) -> None:
        """Decide anew from here on."""
        self._judged.clear()
        self._usual = _NO_FACTS

    def _verdict(self, heard: Heard, is_new: bool, now: float) -> Route | Refusal:
        """Say where a message goes that speaks, or that opens a context."""
        facts = heard.facts
        if not heard.speaks:
            earlier = self._contexts.refusal_of(heard.context_id)
            if earlier is not None:
                return earlier
            if heard.context_id is not None and (facts.cancels or facts.model is None):
                return Refusal("context_unknown")
            if facts.model is None:
                return Refusal("model_missing")
            facts = replace(facts, speaks=True)  # it opens a context with that model and voice
        if is_new:
            if self._is_draining:
                return Refusal("draining")
            if self._contexts.is_full:
                return Refusal("limit_reached", f"{self._limits.contexts} contexts on one socket")
        asked = (facts.model, facts.voice, facts.is_voice_embedded, facts.saves_audio)
        verdict = self._judged.get(asked)
        if verdict is None:
            if len(self._judged) > 64:
                self._judged.clear()
            verdict = self._judged[asked] = self._judge(self._bound, facts, now)
        if isinstance(verdict, Refusal) or verdict.account.id == self.route.account.id:
            return verdict
        if self._has_sent or not self._upstream.is_between_messages:
            return Refusal("model_on_another_account", f"/{self.route.endpoint.provider}/@{verdict.account.name}/")
        return verdict

    def _refuse_message(self, refusal: Refusal, context_id: str | None, facts: Facts, now: float, out: list[Command]) -> None:
        """Answer a message that does not pass, and have its reason told as well."""
        self._refuse(refusal, context_id, now, out)
        out.append(SettleContext(self._contexts.refusal_settled(refusal, facts, self._bound, now)))

    def _refuse(self, refusal: Refusal, context_id: str | None, now: float, out: list[Command]) -> None:
        error = in_band_error(refusal, self._version, context_id, self.settled.request_id)
        self._say(frames.frame(frames.TEXT, error), now, out)

    # ---- the provider's messages, where they are read

    def _read(self, reader: Tap, data: bytes, now: float, out: list[Command]) -> bool:
        """Read the messages that end in a read. True: an error is among them, or one that cannot be read."""
        errors = False
        pos, size = 0, len(data)
        while pos < size:
            end = reader.step(data, pos)
            if not end:
                for opcode, payload in reader.read_on(data, pos):
                    if opcode == frames.BINARY:
                        self._spoke(None, len(payload or b""), now)
                    elif self._provider_said(said_by(payload) if payload is not None else None, now, out):
                        errors = True
                break
            if reader.opcode == frames.BINARY:  # audio as it is (Kokoro's own socket)
                self._spoke(None, end - reader.payload_at, now)
            elif self._provider_said(said_in(data, reader.payload_at, end), now, out):
                errors = True
            pos = end
        return errors

    def _spoke(self, context_id: object, size: int, now: float) -> Context | None:
        """Note an arrival of audio, in bytes; return the context that it is for."""
        context = self._contexts.answered(context_id)
        if context is not None:
            context.audio_arrived(size, now)
        if not self.settled.first_audio_at:
            self.settled.first_audio_at = now
        return context

    def _provider_said(self, said: Said | None, now: float, out: list[Command]) -> bool:
        """Keep the table of contexts by what the provider says. True for an error, or for what cannot be read."""
        if said is None:
            return True
        contexts = self._contexts
        kind = said.type
        if kind == "chunk":
            context = self._spoke(said.context_id, audio_bytes_of(said), now)
        else:
            context = contexts.answered(said.context_id)
            if kind == "error":
                if context is not None and said.done is not False:
                    out.append(SettleContext(contexts.end(context, "provider_error", now, reason_of(said))))
                return True
        if context is not None and is_end(said):
            audio_ms = audio_ms_of(said)
            if audio_ms is not None:
                context.tally.provider_said("audio_out_ms", audio_ms)
            outcome: Outcome = "cancelled" if context.is_cancelled or said.cancelled is True else "completed"
            out.append(SettleContext(contexts.end(context, outcome, now)))
        return False

    def _read_recognition(self, reader: Tap, data: bytes) -> bool:
        """Note whether a recognition bore fruit, and whether it failed. True as above."""
        errors = False
        for opcode, payload in reader.feed(data):
            said = said_by(payload) if payload is not None and opcode == frames.TEXT else None
            if said is None:
                errors = True
            elif said.type == "error":
                self._error = reason_of(said)
                errors = True
            elif said.type != "connected":
                self._has_heard = True
                self._error = ""
        return errors

    # ---- what is told of it while it lives

    @property
    def model(self) -> str:
        """The model that it was opened for, or that it first spoke with; empty before."""
        return self.route.model or self._bound.model

    @property
    def live_contexts(self) -> int:
        """How many contexts are under way."""
        return len(self._contexts)

    @property
    def audio_in_ms(self) -> int:
        """How much audio went to the provider so far; 0 where it cannot be measured."""
        return self._client.binary_bytes * 1000 // self._audio_rate if self._client is not None and self._audio_rate else 0

    # ---- ends

    def _client_said_goodbye(self, now: float, out: list[Command]) -> None:
        close = self._client.close if self._client is not None else self._gate.close if self._gate is not None else None
        self._client_closed = True
        if close is None:
            return
        if self._takes:
            self._upstream_told = True
        self._takes = False
        self._blame("client", "completed", close.code)
        if self._cut_reason:
            self._end(self._cut_reason, now, out)
        elif self._is_redialling:  # no provider to answer it: we do
            self._tell_client(close.code if frames.is_sendable(close.code) else 1000, "", now, out)
            self._finish(out)
            return
        self._over(now, out)

    def _upstream_said_goodbye(self, now: float, out: list[Command]) -> None:
        close = self._upstream.close
        self._upstream_closed = True
        if close is None:
            return
        self._client_told = True
        self._own.clear()
        self._passes = False
        outcome: Outcome = "upstream_fault" if 1002 <= close.code <= 1015 and close.code not in (1005, 1012) else "completed"
        is_idle = close.code == 1000 and close.reason == _IDLE_REASON
        self._blame("provider", outcome, close.code, "provider_idle" if is_idle else "")
        self._over(now, out)

    def _fail(self, fault: frames.FramingFault, sender: ClosedBy, now: float, out: list[Command]) -> None:
        """End a session whose framing a side broke: nothing after it can be understood, so nobody waits for an answer."""
        is_size = fault.code == frames.MESSAGE_TOO_BIG
        reason = "message_too_large" if is_size else "protocol_error"
        self._takes = False
        self._blame(sender, "client_gone" if sender == "client" else "upstream_fault", fault.code, reason)
        text = f"{reason}: {fault.sentence}"
        to_client = fault.code if sender == "client" or not is_size else 1011
        to_upstream = fault.code if sender == "provider" or not is_size else 1001
        self._tell_upstream(to_upstream, out, text)
        self._end_upstream(out)
        self._tell_client(to_client, text, now, out)
        if self._client_told:
            self._end_client(out)
        self._over(now, out)

    def _cut(self, reason: str, now: float, out: list[Command]) -> None:
        """Let no client byte pass from here on; audio of text already sent may drain, then the session ends."""
        self._takes = False
        self._cut_reason = reason
        self._cut_by = now
        if len(self._contexts):
            self._cut_by += self._limits.revocation_drain_seconds
        else:
            self._end(reason, now, out)

    def _end(self, reason: str, now: float, out: list[Command], sentence: str = "", code: int = 0) -> None:
        """End the session for a reason of ours, with close frames to both sides."""
        if self._ending or self._has_finished:
            return
        rule = TABLE[reason]
        self._takes = False
        outcome: Outcome = "drained" if reason == "draining" else "ended"
        self._blame("gateway", outcome, code or rule.close_code, reason)
        self._tell_upstream(1001, out)
        if self._upstream_told is False:
            self._end_upstream(out)
        self._tell_client(code or rule.close_code, f"{reason}: {sentence or rule.sentence}", now, out)
        self._over(now, out)

    @property
    def _ending(self) -> bool:
        """We told the client that the session ends, or are about to."""
        return self._last_words or self._client_told

    def _drain_at_boundary(self, now: float, out: list[Command]) -> None:
        """End a session that has nothing under way, if something waits for that."""
        if not (self._is_draining or self._cut_reason) or len(self._contexts) or self._has_finished or self._ending:
            return
        if self._cut_reason:
            self._end(self._cut_reason, now, out)
        elif self._client is None or self._client.is_between_messages:
            self._end("draining", now, out)

    def _blame(self, who: ClosedBy, outcome: Outcome, code: int, reason: str = "") -> None:
        """Note who ended the session and how; the first to do so is the one."""
        settled = self.settled
        if not settled.closed_by:
            settled.closed_by = who
            settled.close_code = code
            settled.outcome = outcome
            settled.reason = reason

    def _tell_client(self, code: int, text: str, now: float, out: list[Command]) -> None:
        if not self._ending and not self._has_ended_client:
            self._last_words = True
            self._say(frames.close_frame(code, text), now, out)

    def _tell_upstream(self, code: int, out: list[Command], text: str = "") -> None:
        """Close towards the provider, if it stands between messages and still listens."""
        if self._upstream_told or self._upstream_ended or self._has_ended_upstream or self._is_redialling:
            return
        if self._client is None or self._client.is_between_messages:
            self._upstream_told = True
            out.append(ToUpstream(frames.close_frame(code, text, self._random(4))))

    def _say(self, frame: bytes, now: float, out: list[Command]) -> None:
        """Send a frame of our own to the client, now or at the end of the message that is going by."""
        if self._client_told or self._has_ended_client:
            return
        self._own.append(frame)
        if self._upstream.is_between_messages or self._upstream_ended:
            self._put_own(out)
        elif self._passes:
            self._passes = False
            self._boundary_by = now + self._limits.boundary_seconds

    def _put_own(self, out: list[Command]) -> None:
        out.append(ToClient(b"".join(self._own)))
        self._own.clear()
        self._client_told = self._last_words
        self._passes = not self._client_told

    def _end_client(self, out: list[Command]) -> None:
        if not self._has_ended_client:
            self._has_ended_client = True
            self._passes = False
            out.append(EndClient())

    def _end_upstream(self, out: list[Command]) -> None:
        if not self._has_ended_upstream and not self._upstream_ended:
            self._has_ended_upstream = True
            out.append(EndUpstream())

    def _over(self, now: float, out: list[Command]) -> None:
        """See whether the session is over, after one of its ends came nearer."""
        if self._has_finished:
            return
        if not self._finish_by:
            self._finish_by = now + self._limits.close_seconds
        has_parted = self._client_closed and self._client_told
        if has_parted:
            self._end_client(out)
        if self._upstream_ended and (has_parted or self._client_ended):
            self._finish(out)

    def _finish(self, out: list[Command]) -> None:
        if not self._has_finished:
            self._has_finished = True
            self._takes = self._passes = False
            out.append(Finish())

    # ---- what is left to settle

    def finished(self, now: float) -> list[Command]:
        """Return what settles the contexts that are still live, and complete `settled`; called once, at the end."""
        settled = self.settled
        settled.ended_at = now
        outcome = settled.outcome
        if outcome == "completed" and settled.closed_by == "client":
            outcome = "client_gone"
        out: list[Command] = []
        for context in self._contexts:
            ended = self._contexts.end(context, "cancelled" if context.is_cancelled else outcome, now, settled.reason)
            ended.is_owed = True  # its text left, and the provider did not say that it failed (ADR 0004)
            out.append(SettleContext(ended))
        settled.is_owed = self.tally is not None or None  # likewise a stream's audio
        if self._error:
            # Errors cost nothing (Cartesia docs, pricing); what was recognised before one does.
            settled.is_owed = self._has_heard
            settled.outcome, settled.reason = "provider_error", self._error
        client, upstream = self._client, self._upstream
        if client is not None:
            self._count_audio()
            settled.messages_from_client = client.messages
            settled.bytes_from_client = client.binary_bytes + client.text_bytes
        settled.messages_to_client = upstream.messages
        settled.bytes_to_client = upstream.binary_bytes + upstream.text_bytes
        return out

    def _count_audio(self) -> None:
        """Bring the tally up to the audio that went to the provider (Cartesia: silence counts; pings and text do not)."""
        if self.tally is not None and self._audio_rate:
            self.tally.set("audio_in_ms", self.audio_in_ms)
