"""SageMaker's container contract: POST /invocations and the bidirectional stream at /invocations-bidirectional-stream.

One session answers its messages strictly in the order they were sent, though several may be sent ahead; an error frame
never ends it; only `{"type":"close"}` or the client's own close does. Shapes are `container_messages`.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager

from fastapi import APIRouter, Request, Response, WebSocket
from fastapi.responses import StreamingResponse
from starlette.websockets import WebSocketDisconnect

from kokoro_backend import container_messages as messages
from kokoro_backend.audio import SAMPLE_BYTES, OutputFormat, PcmEncoder, encoder_for, wav_header
from kokoro_backend.backend import Backend
from kokoro_backend.cartesia_api import backend_of, frames, narrate_whole, read_body, request_id_of, sessions_of
from kokoro_backend.engine import SAMPLE_RATE
from kokoro_backend.errors import QUEUE_SATURATED, Problem, ProblemError
from kokoro_backend.problems import problem_of
from kokoro_backend.scheduler import Session
from kokoro_backend.streaming import primed
from kokoro_backend.tasks import start_task

MAX_WAITING = 64
"""Messages that may be sent ahead on one session."""

router = APIRouter()


@router.post("/invocations")
async def invocations(request: Request) -> Response:
    """Speak one text: streamed audio, streamed events with base64, or a whole file."""
    backend = backend_of(request)
    invocation = messages.parse_invocation(await read_body(request), backend.voices, time.time())
    speak = invocation.speak
    if invocation.is_sse:
        stream = await primed(request, _sse(backend, speak))
        return StreamingResponse(stream, media_type="text/event-stream", headers={"Cache-Control": "no-store"})
    media_type = speak.output.media_type if speak.output.container != "raw" else "audio/pcm"
    if invocation.is_streamed:
        return StreamingResponse(await primed(request, _audio(backend, speak)), media_type=media_type)
    headers: dict[str, str] = {}
    # One piece, the whole file: a caller who leaves before it is there frees the model as one of a stream does.
    file = await primed(request, _file(backend, speak, headers))
    return Response(b"".join([piece async for piece in file]), media_type=media_type, headers=headers)


async def _audio(backend: Backend, speak: messages.SpeakMessage) -> AsyncGenerator[bytes, None]:
    encoder = encoder_for(speak.output)
    async with aclosing(narrate_whole(backend, speak.text, speak.manner, Session())) as pieces:
        async for piece in pieces:
            if encoded := encoder.feed(piece.audio):
                yield encoded
    if tail := encoder.flush():
        yield tail


async def _sse(backend: Backend, speak: messages.SpeakMessage) -> AsyncGenerator[bytes, None]:
    # Events carry bare audio: a WAV header in the middle of a stream of events helps nobody.
    raw = OutputFormat("raw", "pcm_s16le", speak.output.sample_rate)
    encoder = encoder_for(speak.output if speak.output.is_compressed else raw)
    sequence = 0
    seconds = 0.0
    try:
        async with aclosing(narrate_whole(backend, speak.text, speak.manner, Session())) as pieces:
            async for piece in pieces:
                if sequence == 0 and seconds == 0.0:
                    yield messages.sse_start(speak)
                seconds += len(piece.audio) / SAMPLE_RATE
                for frame in _cut(encoder.feed(piece.audio), speak.output):
                    yield messages.sse_chunk(sequence, frame)
                    sequence += 1
        for frame in _cut(encoder.flush(), speak.output):
            yield messages.sse_chunk(sequence, frame)
            sequence += 1
        yield messages.sse_end(sequence, seconds)
    except Exception as error:  # The edge of one request: a stream that cannot go on says so before it ends.
        if seconds == 0.0:
            raise  # There is still a status to say it with.
        yield messages.sse_error(speak.request_id, problem_of(error))


def _cut(audio: bytes, output: OutputFormat) -> list[bytes]:
    return [audio][: len(audio)] if output.is_compressed else frames(audio, output)


async def _file(backend: Backend, speak: messages.SpeakMessage, headers: dict[str, str]) -> AsyncGenerator[bytes, None]:
    """Yield the whole file once it is spoken, and put into `headers` how long it is and how long it took."""
    began = time.perf_counter()
    # The header of a WAV is written last here, when its length is known.
    output = speak.output
    encoder = encoder_for(output if output.is_compressed else OutputFormat("raw", output.encoding, output.sample_rate))
    audio = bytearray()
    seconds = 0.0
    async with aclosing(narrate_whole(backend, speak.text, speak.manner, Session())) as pieces:
        async for piece in pieces:
            seconds += len(piece.audio) / SAMPLE_RATE
            audio += encoder.feed(piece.audio)
    audio += encoder.flush()
    body = bytes(audio)
    if output.container == "wav":
        body = wav_header(output.encoding, output.sample_rate, len(body)) + body
    elapsed = time.perf_counter() - began
    headers |= {"X-Audio-Duration": f"{seconds:.3f}", "X-RTF": f"{elapsed / seconds if seconds else 0:.3f}"}
    yield body


@router.websocket("/invocations-bidirectional-stream")
async def bidirectional_stream(websocket: WebSocket) -> None:
    """Speak message after message on one session."""
    await websocket.accept(headers=[(b"x-request-id", request_id_of(websocket).encode())])
    stream = _Stream(websocket)
    with sessions_of(websocket).open(lambda: stream.owes_answer):
        await stream.serve()


class _Stream:
    """One session: a reader that queues messages and a speaker that answers them in order."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket
        self._backend = backend_of(websocket)
        self._share = Session()
        self._waiting: asyncio.Queue[messages.SpeakMessage | str | None] = asyncio.Queue()
        self._cancelled: set[int] = set()
        self._queued: list[messages.SpeakMessage] = []
        self._current: messages.SpeakMessage | None = None
        self._speaking: asyncio.Task[Problem | None] | None = None
        self._owed = 0

    @property
    def owes_answer(self) -> bool:
        """Say whether a message that was taken is not answered yet."""
        return self._owed > 0

    async def serve(self) -> None:
        """Read until close or disconnect."""
        speaking = start_task(self._answer_all(), name="kokoro session")
        try:
            while True:
                message = await self._websocket.receive()
                if message["type"] == "websocket.disconnect":
                    return
                text = message.get("text")
                if not self._take(text if text is not None else message.get("bytes") or b""):
                    break
            # What was sent before the close is still answered, unless the client leaves meanwhile.
            leaving = start_task(self._until_disconnected(), name="kokoro session end")
            await asyncio.wait({speaking, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if speaking.done():
                leaving.cancel()
                await self._websocket.close(1000)
        except (WebSocketDisconnect, RuntimeError):
            return
        finally:
            speaking.cancel()
            if self._speaking is not None:
                self._speaking.cancel()

    async def _until_disconnected(self) -> None:
        while (await self._websocket.receive())["type"] != "websocket.disconnect":
            pass

    def _take(self, raw: str | bytes) -> bool:
        """Queue one message; return False on `close`. A bad one is answered in its turn, like a good one."""
        try:
            message = messages.parse_message(raw, self._backend.voices, time.time())
            if isinstance(message, messages.SpeakMessage) and len(self._queued) >= MAX_WAITING:
                raise ProblemError(QUEUE_SATURATED)
        except ProblemError as error:
            self._owe(messages.error_frame(messages.request_id_in(raw), error.problem))
            return True
        match message:
            case messages.CloseMessage():
                self._waiting.put_nowait(None)
                return False
            case messages.CancelMessage(request_id):
                self._cancel(request_id)
            case messages.SpeakMessage():
                self._queued.append(message)
                self._owe(message)
        return True

    def _owe(self, answer: messages.SpeakMessage | str) -> None:
        self._owed += 1
        self._waiting.put_nowait(answer)

    def _cancel(self, request_id: str | None) -> None:
        for message in self._queued:
            if request_id is None or message.request_id == request_id:
                self._cancelled.add(id(message))
                if message is self._current and self._speaking is not None:
                    self._speaking.cancel()

    async def _answer_all(self) -> None:
        try:
            while (item := await self._waiting.get()) is not None:
                if isinstance(item, str):
                    await self._send_control(item)
                else:
                    await self._answer(item)
                    self._queued.remove(item)
                    self._cancelled.discard(id(item))
                self._owed -= 1
        except _Gone:
            return  # The reader ends the session.

    async def _answer(self, message: messages.SpeakMessage) -> None:
        began = time.perf_counter()
        progress = _Progress()
        problem: Problem | None = None
        if id(message) not in self._cancelled:
            self._current = message
            self._speaking = start_task(self._speak(message, progress), name="kokoro message")
            await asyncio.wait([self._speaking])
            self._current = None
            problem = None if self._speaking.cancelled() else self._speaking.result()
        if problem is not None:
            await self._send_control(messages.error_frame(message.request_id, problem))
            return
        if not progress.has_started:
            await self._send_control(messages.start_frame(message.request_id, message.output.sample_rate))
        was_cancelled = id(message) in self._cancelled
        elapsed = time.perf_counter() - began
        await self._send_control(
            messages.complete_frame(message.request_id, progress.seconds, elapsed, was_cancelled=was_cancelled)
        )

    async def _speak(self, message: messages.SpeakMessage, progress: "_Progress") -> Problem | None:
        """Send the audio; return what went wrong, None for nothing."""
        encoder = PcmEncoder(message.output)
        try:
            async with aclosing(narrate_whole(self._backend, message.text, message.manner, self._share)) as pieces:
                async for piece in pieces:
                    if not progress.has_started:
                        progress.has_started = True
                        await self._send_control(messages.start_frame(message.request_id, message.output.sample_rate))
                    await self._send_audio(encoder.feed(piece.audio), message.output, progress)
            await self._send_audio(encoder.flush(), message.output, progress)
        except _Gone:
            return None  # Whoever sends next finds it out as well.
        except Exception as error:  # The edge of one message: an error frame answers it, and the session goes on.
            return problem_of(error)
        return None

    async def _send_control(self, frame: str) -> None:
        with _sending():
            await self._websocket.send_text(frame)

    async def _send_audio(self, audio: bytes, output: OutputFormat, progress: "_Progress") -> None:
        for frame in frames(audio, output):
            with _sending():
                await self._websocket.send_bytes(frame)
            progress.seconds += len(frame) / SAMPLE_BYTES[output.encoding] / output.sample_rate


class _Gone(Exception):
    """The client is not there any more."""


@contextmanager
def _sending() -> Iterator[None]:
    """Tell a client who has gone from a failure of ours: Starlette says it with a RuntimeError, which anything may raise."""
    try:
        yield
    except (WebSocketDisconnect, RuntimeError) as error:
        raise _Gone from error


class _Progress:
    """How far a message's answer has come."""

    has_started = False
    seconds = 0.0
