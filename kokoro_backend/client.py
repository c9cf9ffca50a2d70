"""A client for the bidirectional stream: say a ready string, or a language model's tokens while they come.

    async with SpeechClient("ws://127.0.0.1:8080/invocations-bidirectional-stream") as speech:
        async for audio in speech.speak(tokens):   # a string, or an async iterator of strings
            play(audio)                            # bytes: 16-bit little-endian mono PCM

A sentence is sent as soon as it is complete, without waiting for the audio of the one before; audio comes back in order.
Sessions have a limit (SageMaker ends them after 30 minutes): what is spoken next opens a new one in time.
`told_apart` and `SseReassembler` are for transports that lose frame types or cut events. Needs only `websockets`.
"""

import asyncio
import json
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, Self

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.protocol import State

from kokoro_backend.chunker import SentenceChunker
from kokoro_backend.tasks import start_task

FIRST_CLAUSE_CHARS = 24
SESSION_SECONDS = 28 * 60.0
"""Age from which a session is replaced before something new is spoken: SageMaker ends it at 30 minutes, even in a word."""


class SpeechError(Exception):
    """The server refused or could not speak a message; `code` is stable, `message` is for people."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class SpeechInterrupted(Exception):
    """The connection ended while audio was still due."""


@dataclass(frozen=True)
class Audio:
    """A piece of audio."""

    data: bytes


@dataclass(frozen=True)
class Control:
    """A control frame."""

    fields: dict[str, Any]


def told_apart(chunk: str | bytes, *, keeps_frame_types: bool) -> Audio | Control:
    """Return what `chunk` is.

    keeps_frame_types: the transport says text or binary (WebSocket; SageMaker's DataType): text is control, binary audio.
    Otherwise a chunk that parses whole as a JSON object is control and all else is audio. The first byte alone does not
    tell: PCM may begin with "{". Raises SpeechInterrupted for text that is no control frame.
    """
    if keeps_frame_types and isinstance(chunk, bytes):
        return Audio(chunk)
    raw = chunk.encode() if isinstance(chunk, str) else chunk
    fields = _json_object(raw)
    if fields is not None:
        return Control(fields)
    if isinstance(chunk, str):
        raise SpeechInterrupted("a text frame is no control frame")
    return Audio(chunk)


def _json_object(raw: bytes) -> dict[str, Any] | None:
    # `{}` is two bytes, a valid sample of PCM, and no control frame: those all have a type.
    if len(raw) < 3 or raw[:1] != b"{" or raw.rstrip()[-1:] != b"}":
        return None
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and isinstance(value.get("type"), str) else None


class SseReassembler:
    """Puts server-sent events together from pieces that are cut anywhere: an event is complete at its blank line."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, piece: bytes) -> list[dict[str, Any]]:
        """Take bytes; return the JSON data of the events that are complete."""
        self._held += piece
        # CR LF may be cut in two: a CR at the very end waits for what follows.
        text, rest = (self._held[:-1], b"\r") if self._held.endswith(b"\r") else (self._held, b"")
        text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *blocks, last = text.split(b"\n\n")
        self._held = last + rest
        return [event for block in blocks if (event := _event(block)) is not None]


def _event(block: bytes) -> dict[str, Any] | None:
    lines = [line[5:].removeprefix(b" ") for line in block.split(b"\n") if line.startswith(b"data:")]
    if not lines:
        return None
    value = json.loads(b"\n".join(lines))
    if not isinstance(value, dict):
        raise SpeechInterrupted("an event is no JSON object")
    return value


class Transport(Protocol):
    """A connection to a bidirectional stream. SageMaker's SDK is wrapped in one of these to use this client with it."""

    keeps_frame_types: bool

    @property
    def is_open(self) -> bool:
        """Say whether messages can still be sent; False as soon as the end of the connection is known."""
        ...

    async def send(self, message: str) -> None:
        """Send one control message."""
        ...

    async def receive(self) -> str | bytes | None:
        """Return the next chunk, None at the end."""
        ...

    async def close(self) -> None:
        """End the connection."""
        ...


class WebSocketTransport:
    """The container's own WebSocket."""

    keeps_frame_types = True

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    @property
    def is_open(self) -> bool:
        """Say whether the WebSocket is open."""
        return self._connection.state is State.OPEN

    async def send(self, message: str) -> None:
        """Send a text frame."""
        try:
            await self._connection.send(message)
        except ConnectionClosed as error:
            raise SpeechInterrupted("the connection is closed") from error

    async def receive(self) -> str | bytes | None:
        """Return the next message, None once the connection is closed."""
        try:
            return await self._connection.recv()
        except ConnectionClosed:
            return None

    async def close(self) -> None:
        """Close with 1000."""
        await self._connection.close()


@dataclass
class _Due:
    """The messages that are not answered yet, in the order they were sent."""

    request_ids: list[str] = field(default_factory=list)
    is_all_sent: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class SpeechClient:
    """One session after another with the backend. Speak one thing at a time; the session stays open between them.

    A session that has ended meanwhile, or is close to its limit, is replaced before the next thing is spoken. One that ends
    while audio is due raises SpeechInterrupted: only the caller knows whether half a text should be said again.
    """

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        voice: str = "af_heart",
        speed: float = 1.0,
        sample_rate: int = 24_000,
        open_transport: Callable[[], Awaitable[Transport]] | None = None,
        session_seconds: float = SESSION_SECONDS,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """url: ws:// or wss:// address of the stream; key: the backend's caller key; open_transport: instead of a WebSocket.

        session_seconds: the age at which a session is replaced, seconds.
        """
        self._url = url
        self._key = key
        self._options = {"voice": voice, "speed": speed, "sample_rate": sample_rate}
        self._open_transport = open_transport or self._open_websocket
        self._session_seconds = session_seconds
        self._new_id = new_id
        self._clock = clock
        self._transport: Transport | None = None
        self._opened_at = 0.0

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        await self._close()

    async def _open(self) -> Transport:
        self._transport = await self._open_transport()
        self._opened_at = self._clock()
        return self._transport

    async def _open_websocket(self) -> Transport:
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        return WebSocketTransport(await connect(self._url, additional_headers=headers, compression=None, max_size=None))

    async def _close(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            try:
                await transport.send('{"type":"close"}')
            except SpeechInterrupted:
                pass  # It is closed already.
            await transport.close()

    async def _session(self) -> Transport:
        """Return the open session, or a new one where it has ended or is too old to begin something in."""
        transport = self._opened()
        if transport.is_open and self._clock() - self._opened_at < self._session_seconds:
            return transport
        await self._close()
        return await self._open()

    async def speak(self, text: str | AsyncIterable[str], *, in_one: bool = False) -> AsyncGenerator[bytes, None]:
        """Yield the audio of `text` as it comes: PCM, 16-bit little-endian, mono, at the session's sample rate.

        in_one: send the text in one message once it is whole, instead of each sentence as soon as it is complete.
        Leaving the iteration early (`aclose`) cancels what is still due; the session can be used again.
        Raises SpeechError if the server refuses a sentence, SpeechInterrupted if the connection ends, OSError or an error of
        the transport if a new session is due and cannot be opened.
        """
        transport = await self._session()
        due = _Due()
        sending = start_task(self._send_all(text, due, in_one=in_one), name="speech text")
        is_over = False
        try:
            # Until the first sentence is complete there is nothing to receive.
            while due.request_ids or not due.is_all_sent:
                if not due.request_ids:
                    due.changed.clear()
                    await due.changed.wait()
                    continue
                chunk = await transport.receive()
                if chunk is None:
                    raise SpeechInterrupted("the connection ended before the audio did")
                match told_apart(chunk, keeps_frame_types=transport.keeps_frame_types):
                    case Audio(data):
                        yield data
                    case Control(fields):
                        self._account(fields, due)
            is_over = True
        finally:
            if not sending.done():
                sending.cancel()
                await asyncio.wait([sending])
            if not is_over:
                await self._drain(due)
        if error := sending.exception():
            raise error

    async def say(self, text: str) -> bytes:
        """Return the whole audio of `text`."""
        async with aclosing(self.speak(text)) as pieces:
            return b"".join([piece async for piece in pieces])

    def _opened(self) -> Transport:
        if self._transport is None:
            raise SpeechInterrupted("enter the client first: async with SpeechClient(...) as speech")
        return self._transport

    async def _send_all(self, text: str | AsyncIterable[str], due: _Due, *, in_one: bool) -> None:
        chunker = SentenceChunker(first_clause_chars=FIRST_CLAUSE_CHARS)
        try:
            if in_one:
                whole = text if isinstance(text, str) else "".join([token async for token in text])
                if whole.strip():
                    await self._send(whole, due)
            elif isinstance(text, str):
                for sentence in chunker.feed(text):
                    await self._send(sentence, due)
            else:
                async for token in text:
                    for sentence in chunker.feed(token):
                        await self._send(sentence, due)
            for sentence in chunker.flush():
                await self._send(sentence, due)
        finally:
            due.is_all_sent = True
            due.changed.set()

    async def _send(self, sentence: str, due: _Due) -> None:
        request_id = self._new_id()
        due.request_ids.append(request_id)
        due.changed.set()
        await self._opened().send(json.dumps({"text": sentence, "request_id": request_id} | self._options))

    @staticmethod
    def _account(fields: dict[str, Any], due: _Due) -> None:
        kind = fields.get("type")
        if kind in ("synthesis_complete", "error") and fields.get("request_id") in due.request_ids:
            due.request_ids.remove(fields["request_id"])
        if kind == "error":
            raise SpeechError(str(fields.get("code", "unknown")), str(fields.get("message", "no reason given")))

    async def _drain(self, due: _Due) -> None:
        """Cancel what is due and read to its end, so that the next thing to be spoken starts clean."""
        transport = self._opened()
        try:
            if due.request_ids:
                await transport.send('{"type":"cancel"}')
            while due.request_ids and (chunk := await transport.receive()) is not None:
                frame = told_apart(chunk, keeps_frame_types=transport.keeps_frame_types)
                if isinstance(frame, Control):
                    try:
                        self._account(frame.fields, due)
                    except SpeechError:
                        continue
        except SpeechInterrupted:
            return
