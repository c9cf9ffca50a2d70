"""Cartesia's HTTP and WebSocket routes: bytes, server-sent events, contexts, voices.

Wire shapes are `cartesia_messages`, the WebSocket's rules `protocol`; this module moves audio and events, and keeps the
event loop free: every wait is for the speaker or the socket.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request, Response, WebSocket
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.websockets import WebSocketDisconnect

from kokoro_backend import cartesia_messages as messages
from kokoro_backend.audio import SAMPLE_BYTES, OutputFormat, encoder_for
from kokoro_backend.backend import Backend
from kokoro_backend.chunker import SentenceChunker, without_tiny
from kokoro_backend.errors import Problem, ProblemError, bad_request
from kokoro_backend.problems import problem_of
from kokoro_backend.protocol import (
    FIRST_CLAUSE_CHARS,
    Cancel,
    CartesiaSession,
    Command,
    Delay,
    Finish,
    Flush,
    Open,
    Reply,
    Say,
)
from kokoro_backend.scheduler import Session
from kokoro_backend.sessions import Sessions
from kokoro_backend.streaming import primed
from kokoro_backend.synthesis import Manner, Mark, Narration, Spoken
from kokoro_backend.tasks import start_task

FRAME_SECONDS = 0.1
"""Audio goes out in frames of at most this length."""
IDLE_SECONDS = 300
"""A socket without an open context is closed after this time, as Cartesia's is."""
_MAX_BODY = 1 << 20

router = APIRouter()


def backend_of(connection: Request | WebSocket) -> Backend:
    """Return the loaded backend; `server` lets no request through before there is one."""
    backend = connection.app.state.backend
    assert isinstance(backend, Backend)
    return backend


def sessions_of(websocket: WebSocket) -> Sessions:
    """Return the register of open sessions, which the server asks before it ends."""
    sessions = websocket.app.state.sessions
    assert isinstance(sessions, Sessions)
    return sessions


def request_id_of(connection: Request | WebSocket) -> str:
    """Return the id that the answer carries in X-Request-Id."""
    return str(connection.scope["state"]["request_id"])


def version_of(connection: Request | WebSocket) -> str:
    """Return the caller's Cartesia-Version; the query wins, as in Cartesia's documentation for WebSockets."""
    query = connection.query_params.get("cartesia_version") if isinstance(connection, WebSocket) else None
    return query or connection.headers.get("cartesia-version", "")


async def read_body(request: Request) -> bytes:
    """Return the body. Raises ProblemError beyond 1 MiB."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > _MAX_BODY:
            raise ProblemError(Problem(413, "body_too_large", "Too large", "The body is larger than 1 MiB: send it in parts."))
    return bytes(body)


async def narrate_whole(backend: Backend, text: str, manner: Manner, session: Session) -> AsyncGenerator[Spoken, None]:
    """Speak a whole text sentence by sentence, the first clause early; close the iterator to stop."""
    narration = Narration(manner, session)
    chunker = SentenceChunker(first_clause_chars=FIRST_CLAUSE_CHARS)
    for sentence in without_tiny([*chunker.feed(text), *chunker.flush()]):
        narration.say(sentence)
    narration.close()
    async with aclosing(backend.speaker.narrate(narration)) as pieces:
        async for piece in pieces:
            if isinstance(piece, Spoken):
                yield piece


def frames(audio: bytes, output: OutputFormat) -> list[bytes]:
    """Cut encoded raw audio into frames of at most FRAME_SECONDS, at sample boundaries."""
    size = int(FRAME_SECONDS * output.sample_rate) * SAMPLE_BYTES[output.encoding]
    return [audio[start : start + size] for start in range(0, len(audio), size)]


async def _parsed(request: Request, *, raw_only: bool) -> tuple[messages.SpeechRequest, dict[str, Any]]:
    body = messages.json_object(await read_body(request))
    backend = backend_of(request)
    parsed = messages.parse_request(body, backend.voices, raw_only=raw_only, has_timings=backend.has_timings)
    if not parsed.transcript.strip():
        raise bad_request("transcript is empty: there is nothing to say.")
    return parsed, body


@router.post("/tts/bytes")
async def tts_bytes(request: Request) -> Response:
    """Speak a transcript as one stream of audio bytes, the first as soon as there are any."""
    parsed, _ = await _parsed(request, raw_only=False)

    async def audio() -> AsyncGenerator[bytes, None]:
        encoder = encoder_for(parsed.output)
        speech = narrate_whole(backend_of(request), parsed.transcript, parsed.manner, Session())
        async with aclosing(speech) as pieces:
            async for piece in pieces:
                if encoded := encoder.feed(piece.audio):
                    yield encoded
        if tail := encoder.flush():
            yield tail

    return StreamingResponse(await primed(request, audio()), media_type=parsed.output.media_type)


@router.post("/tts/sse")
async def tts_sse(request: Request) -> Response:
    """Speak a transcript as server-sent events."""
    parsed, body = await _parsed(request, raw_only=True)
    context_id = body.get("context_id")
    if context_id is not None and not isinstance(context_id, str):
        raise bad_request("context_id must be a string.")

    async def events() -> AsyncGenerator[bytes, None]:
        has_begun = False
        try:
            async with aclosing(_events(backend_of(request), parsed, context_id)) as stream:
                async for event in stream:
                    has_begun = True
                    yield _sse(event)
        except Exception as error:
            # The edge of one request: whatever failed, its reader hears of it (hexgrad/kokoro#325), and `problem_of` logs
            # what was not foreseen. Before the first event there is still a status to say it with.
            if not has_begun:
                raise
            yield _sse(messages.error_event(problem_of(error), version_of(request), request_id_of(request), context_id))

    return StreamingResponse(
        await primed(request, events()), media_type="text/event-stream", headers={"Cache-Control": "no-store"}
    )


def _sse(event: dict[str, Any]) -> bytes:
    return f"event: {event['type']}\ndata: {messages.dumps(event)}\n\n".encode()


async def _events(
    backend: Backend, parsed: messages.SpeechRequest, context_id: str | None
) -> AsyncGenerator[dict[str, Any], None]:
    writer = _ContextWriter(parsed, context_id)
    async with aclosing(narrate_whole(backend, parsed.transcript, parsed.manner, Session())) as pieces:
        async for piece in pieces:
            for event in writer.spoken(piece):
                yield event
    for event in writer.finished():
        yield event


class _ContextWriter:
    """Turns a narration's pieces into the events of one context."""

    def __init__(self, request: messages.SpeechRequest, context_id: str | None) -> None:
        self._request = request
        self._context_id = context_id
        self._encoder = encoder_for(request.output)
        self._flush_id: int | None = None
        self._began = time.perf_counter()

    def spoken(self, piece: Spoken) -> list[dict[str, Any]]:
        events = []
        if self._request.words and piece.words:
            events.append(messages.timestamps_event(piece.words, self._context_id, self._flush_id))
        if self._request.phonemes and piece.phonemes:
            events.append(messages.phonemes_event(piece.phonemes, self._context_id, self._flush_id))
        return events + self._chunks(self._encoder.feed(piece.audio))

    def flushed(self, mark: Mark) -> list[dict[str, Any]]:
        self._flush_id = mark.flush_id + 1
        assert self._context_id is not None
        return [messages.flush_done_event(self._context_id, mark.flush_id)]

    def finished(self) -> list[dict[str, Any]]:
        return [*self._chunks(self._encoder.flush()), messages.done_event(self._context_id)]

    def _chunks(self, audio: bytes) -> list[dict[str, Any]]:
        now = time.perf_counter()
        step_ms = (now - self._began) * 1000
        self._began = now
        return [
            messages.chunk_event(frame, step_ms, self._context_id, self._flush_id)
            for frame in frames(audio, self._request.output)
        ]


@router.websocket("/tts/websocket")
async def tts_websocket(websocket: WebSocket) -> None:
    """Speak many contexts over one socket."""
    await websocket.accept(headers=[(b"x-request-id", request_id_of(websocket).encode())])
    socket = _Socket(websocket)
    with sessions_of(websocket).open(lambda: socket.owes_answer):
        await socket.serve()


class _Socket:
    """Executes a session's commands on one accepted socket."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket
        self._backend = backend_of(websocket)
        self._session = CartesiaSession(
            version_of(websocket),
            self._backend.voices,
            lambda: str(uuid.uuid4()),
            has_timings=self._backend.has_timings,
        )
        # All contexts of a socket are one session to the scheduler: opening many buys no larger share.
        self._share = Session()
        self._narrations: dict[str, Narration] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._sending = asyncio.Lock()
        self._answers: set[asyncio.Task[None]] = set()

    @property
    def owes_answer(self) -> bool:
        """Say whether a context is open, or its last event is not out yet."""
        return bool(self._answers)

    async def serve(self) -> None:
        """Read until the client leaves or has been silent for too long without an open context."""
        try:
            while True:
                try:
                    async with asyncio.timeout(IDLE_SECONDS):
                        message = await self._websocket.receive()
                except TimeoutError:
                    if self._session.is_idle:
                        await self._websocket.close(1000, "connection idle timeout")
                        return
                    continue
                if message["type"] == "websocket.disconnect":
                    return
                raw = message.get("text")
                for command in self._session.receive(raw if raw is not None else message.get("bytes") or b""):
                    await self._execute(command)
        except WebSocketDisconnect:
            return
        finally:
            for timer in self._timers.values():
                timer.cancel()
            for task in self._tasks.values():
                task.cancel()

    async def _execute(self, command: Command) -> None:
        match command:
            case Open(context_id, request):
                narration = Narration(request.manner, self._share)
                self._narrations[context_id] = narration
                task = start_task(self._speak(context_id, request, narration), name="kokoro context")
                self._tasks[context_id] = task
                self._answers.add(task)
                task.add_done_callback(self._answers.discard)
            case Say(context_id, sentence):
                if found := self._narrations.get(context_id):
                    found.say(sentence)
            case Flush(context_id, flush_id):
                if found := self._narrations.get(context_id):
                    found.mark(flush_id)
            case Finish(context_id):
                if found := self._narrations.get(context_id):
                    found.close()
            case Delay(context_id, seconds):
                self._set_timer(context_id, seconds)
            case Cancel(context_id):
                await self._stop(context_id)
            case Reply(event):
                await self._send([event])

    def _set_timer(self, context_id: str, seconds: float | None) -> None:
        if seconds is None:
            if timer := self._timers.pop(context_id, None):
                timer.cancel()
        elif context_id not in self._timers:
            # Counted from the first text that waits; later fragments do not put it off.
            self._timers[context_id] = asyncio.get_running_loop().call_later(seconds, self._expire, context_id)

    def _expire(self, context_id: str) -> None:
        self._timers.pop(context_id, None)
        for command in self._session.expire(context_id):
            if isinstance(command, Say) and (narration := self._narrations.get(context_id)):
                narration.say(command.sentence)

    async def _stop(self, context_id: str) -> None:
        self._narrations.pop(context_id, None)
        task = self._tasks.pop(context_id, None)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _speak(self, context_id: str, request: messages.SpeechRequest, narration: Narration) -> None:
        writer = _ContextWriter(request, context_id)
        try:
            async with aclosing(self._backend.speaker.narrate(narration)) as pieces:
                async for piece in pieces:
                    await self._send(writer.flushed(piece) if isinstance(piece, Mark) else writer.spoken(piece))
            last = writer.finished()
        except WebSocketDisconnect:
            return
        except Exception as error:  # The edge of one context: its client hears of every end; the other contexts go on.
            last = [self._session.refusal(problem_of(error), context_id)]
        # The id is free before the client can know that the context is over.
        self._session.ended(context_id)
        self._narrations.pop(context_id, None)
        self._tasks.pop(context_id, None)
        self._set_timer(context_id, None)
        await self._send(last)

    async def _send(self, events: list[dict[str, Any]]) -> None:
        async with self._sending:
            for event in events:
                try:
                    await self._websocket.send_text(messages.dumps(event))
                except (RuntimeError, WebSocketDisconnect):
                    return  # The client has gone; the reader ends the session.


@router.get("/voices")
@router.get("/voices/", include_in_schema=False)
async def list_voices(request: Request) -> Response:
    """List the voices, a page at a time."""
    return JSONResponse(messages.voice_page(backend_of(request).voices, request.query_params))


@router.get("/voices/{voice_id}")
async def get_voice(request: Request, voice_id: str) -> Response:
    """Show one voice, by id or name."""
    voice = backend_of(request).voices.find(voice_id)
    if voice is None:
        raise ProblemError(
            Problem(404, "voice_not_found", "Not found", f"There is no voice {voice_id[:80]!r}. GET /voices lists them.")
        )
    return JSONResponse(messages.voice_fields(voice))


@router.get("/")
async def status() -> Response:
    """Answer an SDK's get_status."""
    return JSONResponse({"ok": True, "version": messages.NEWEST_VERSION})
