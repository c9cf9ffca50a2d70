"""Cartesia's TTS WebSocket as a state machine without I/O: messages in, commands out.

It owns the table of contexts, their sentence chunkers and flush counters. Who executes the commands is `cartesia_api`;
what a message may contain is `cartesia_messages`. Time comes in as `expire`, when a buffer delay has run out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kokoro_backend.cartesia_messages import (
    SpeechRequest,
    done_event,
    error_event,
    json_object,
    parse_request,
    transcript,
)
from kokoro_backend.chunker import SentenceChunker, without_tiny
from kokoro_backend.errors import Problem, ProblemError, bad_request
from kokoro_backend.voices import VoiceCatalogue

MAX_CONTEXTS = 256
"""Contexts that may be open on one socket."""
FIRST_CLAUSE_CHARS = 24
"""The first clause of a context may be spoken before its sentence is complete, if it has this many characters."""


@dataclass(frozen=True)
class Open:
    """Begin a context."""

    context_id: str
    request: SpeechRequest


@dataclass(frozen=True)
class Say:
    """Speak a sentence of an open context."""

    context_id: str
    sentence: str


@dataclass(frozen=True)
class Flush:
    """Tell the client, in its place, that everything said so far is out."""

    context_id: str
    flush_id: int


@dataclass(frozen=True)
class Finish:
    """Nothing more will be said in the context: `done` after its audio."""

    context_id: str


@dataclass(frozen=True)
class Cancel:
    """Stop the context now; `done` follows at once."""

    context_id: str


@dataclass(frozen=True)
class Delay:
    """Call `expire` in `seconds`, unless a later Delay for the context comes first; None withdraws it."""

    context_id: str
    seconds: float | None


@dataclass(frozen=True)
class Reply:
    """Send this event."""

    event: dict[str, Any]


Command = Open | Say | Flush | Finish | Cancel | Delay | Reply


@dataclass
class _Context:
    request: SpeechRequest
    chunker: SentenceChunker
    flushes: int = 0
    is_finished: bool = False


class CartesiaSession:
    """One socket's contexts."""

    def __init__(self, version: str, catalogue: VoiceCatalogue, new_id: Callable[[], str], *, has_timings: bool = True) -> None:
        """version: the caller's Cartesia-Version, "" if it gave none; new_id: makes ids for errors and contexts."""
        self._version = version
        self._catalogue = catalogue
        self._new_id = new_id
        self._has_timings = has_timings
        self._contexts: dict[str, _Context] = {}

    @property
    def is_idle(self) -> bool:
        """Say whether no context is open."""
        return not self._contexts

    def receive(self, raw: str | bytes) -> list[Command]:
        """Take one message; return what is to be done about it. Never raises on bad input: it answers with an error."""
        context_id: str | None = None
        try:
            body = json_object(raw)
            context_id = _context_id(body)
            return self._handle(body, context_id)
        except ProblemError as error:
            commands: list[Command] = [Reply(self.refusal(error.problem, context_id))]
            is_late = error.problem.code == "context_closed"
            if context_id is not None and not is_late and self._contexts.pop(context_id, None) is not None:
                # The error ends the context for the client; its audio must not go on arriving after it.
                # Late input is another matter: what was said before it is still wanted.
                commands = [Delay(context_id, None), Cancel(context_id), *commands]
            return commands

    def refusal(self, problem: Problem, context_id: str | None) -> dict[str, Any]:
        """Return the error event for `problem` in this session's version."""
        return error_event(problem, self._version, self._new_id(), context_id)

    def ended(self, context_id: str) -> None:
        """Take note that the context's last audio is out, or that it failed: its id is free again."""
        self._contexts.pop(context_id, None)

    def expire(self, context_id: str) -> list[Command]:
        """The context's buffer delay has run out: speak what is held, up to the last whole word."""
        context = self._contexts.get(context_id)
        if context is None or context.is_finished:
            return []
        return [Say(context_id, words) for words in context.chunker.take_words()]

    def _handle(self, body: dict[str, Any], context_id: str | None) -> list[Command]:
        if body.get("cancel"):
            return self._cancel(context_id)
        is_continued = _flag(body, "continue")
        is_flush = _flag(body, "flush")
        text = transcript(body)
        if context_id is None:
            if is_continued:
                raise bad_request("context_id is missing: a message with continue needs one.")
            context_id = self._new_id()
        context = self._contexts.get(context_id)
        if context is not None and context.is_finished:
            raise bad_request("This context has had its last input (continue was false): start a new context.", "context_closed")
        commands: list[Command] = []
        if not text.strip() and not is_continued and context is None:
            # A client that closes a context which is over already still waits for `done`.
            return [Reply(done_event(context_id))]
        if context is None:
            context = self._open(body, context_id)
            commands.append(Open(context_id, context.request))
        elif text.strip():
            # Closing messages may name another model and voice (official SDKs do); ones that speak may not.
            self._check_same(body, context)
        commands += self._feed(context, context_id, text, is_flush=is_flush, is_continued=is_continued)
        return commands

    def _open(self, body: dict[str, Any], context_id: str) -> _Context:
        if len(self._contexts) >= MAX_CONTEXTS:
            raise ProblemError(
                Problem(
                    429,
                    "concurrency_limited",
                    "Too many contexts",
                    f"{MAX_CONTEXTS} contexts are open on this connection: finish some, or open another connection.",
                )
            )
        request = parse_request(body, self._catalogue, raw_only=True, has_timings=self._has_timings)
        context = _Context(request, SentenceChunker(first_clause_chars=FIRST_CLAUSE_CHARS))
        self._contexts[context_id] = context
        return context

    def _check_same(self, body: dict[str, Any], context: _Context) -> None:
        request = parse_request(body, self._catalogue, raw_only=True, has_timings=self._has_timings)
        if request.manner != context.request.manner or request.output != context.request.output:
            raise bad_request(
                "Voice, language, speed, volume and output_format must stay the same within a context: start a new one.",
                "context_changed",
            )

    def _feed(self, context: _Context, context_id: str, text: str, *, is_flush: bool, is_continued: bool) -> list[Command]:
        sentences = context.chunker.feed(text)
        # A delay of 0 hands the buffering to the caller: each message is spoken as it is.
        speaks_now = is_flush or not is_continued or context.request.buffer_delay_ms == 0
        if speaks_now:
            sentences += context.chunker.flush()
        commands: list[Command] = [Say(context_id, sentence) for sentence in without_tiny(sentences)]
        if is_flush:
            context.flushes += 1
            commands.append(Flush(context_id, context.flushes))
        if not is_continued:
            context.is_finished = True
            commands += [Delay(context_id, None), Finish(context_id)]
        elif not speaks_now:
            is_held = bool(context.chunker.pending.strip())
            commands.append(Delay(context_id, context.request.buffer_delay_ms / 1000 if is_held else None))
        return commands

    def _cancel(self, context_id: str | None) -> list[Command]:
        if context_id is None:
            raise bad_request("context_id is missing: say which context to cancel.")
        if self._contexts.pop(context_id, None) is None:
            return []  # It has just ended: the client's cancel and our done have crossed.
        return [Delay(context_id, None), Cancel(context_id), Reply(done_event(context_id))]


def _context_id(body: dict[str, Any]) -> str | None:
    value = body.get("context_id")
    if value is None or value == "":
        return None
    if not isinstance(value, str) or len(value) > 256:
        raise bad_request("context_id must be a string of at most 256 characters.")
    return value


def _flag(body: dict[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise bad_request(f"{name} must be true or false.")
    return bool(value)
