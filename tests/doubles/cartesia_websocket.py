"""A provider's WebSockets over real sockets: scripted by the request, every byte recorded.

It frames by itself and shares no code with the gateway, so that both cannot be wrong in the same way. Without instructions
`/tts/websocket` synthesizes (contexts answered in order, interleaved), `/stt/websocket` transcribes, `/stt/turns/websocket`
tells one turn, any other path echoes frames byte for byte. The header `X-Double: <script>` names another behaviour, out of
`scripts`; a test adds its own.
"""

import asyncio
import base64
import contextlib
import hashlib
import json
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from tests.doubles.cartesia import CartesiaDouble, Connection, Received

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


def server_frame(opcode: int, payload: bytes, *, is_final: bool = True) -> bytes:
    """Return an unmasked frame."""
    first = bytes([opcode | (0x80 if is_final else 0)])
    if len(payload) < 126:
        return first + bytes([len(payload)]) + payload
    if len(payload) < 65536:
        return first + b"\x7e" + struct.pack("!H", len(payload)) + payload
    return first + b"\x7f" + struct.pack("!Q", len(payload)) + payload


def client_frame(opcode: int, payload: bytes, *, is_final: bool = True, mask: bytes = b"\xa1\xb2\xc3\xd4") -> bytes:
    """Return a masked frame."""
    plain = server_frame(opcode, payload, is_final=is_final)
    head = len(plain) - len(payload)
    masked = bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload)) if len(payload) < 100_000 else _masked(payload, mask)
    return plain[:1] + bytes([plain[1] | 0x80]) + plain[2:head] + mask + masked


def _masked(payload: bytes, mask: bytes) -> bytes:
    tables = [bytes(i ^ byte for i in range(256)) for byte in mask]
    whole = bytearray(len(payload))
    for i in range(4):
        whole[i::4] = payload[i::4].translate(tables[i])
    return bytes(whole)


def close_payload(code: int, reason: str = "") -> bytes:
    """Return a close frame's payload."""
    return struct.pack("!H", code) + reason.encode()


@dataclass
class Frame:
    """One frame as it was read: unmasked payload, raw bytes."""

    opcode: int
    payload: bytes
    raw: bytes
    is_final: bool
    is_masked: bool


@dataclass
class Socket:
    """One end of a connection, after its head."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    head: bytes = b""
    target: str = ""
    headers: list[tuple[str, str]] = field(default_factory=list)
    received: bytearray = field(default_factory=bytearray)
    """every byte that came after the head"""
    frames: list[Frame] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """the other side ended or reset the connection"""
    was_reset: bool = False
    _buffer: bytearray = field(default_factory=bytearray)

    def one(self, name: str) -> str | None:
        """Return a header's first value."""
        return next((value for spelled, value in self.headers if spelled.lower() == name.lower()), None)

    async def _need(self, count: int) -> bool:
        while len(self._buffer) < count:
            try:
                data = await self.reader.read(262144)
            except (ConnectionError, ssl.SSLError):
                self.was_reset = True
                data = b""
            if not data:
                self.gone.set()
                return False
            self.received += data
            self._buffer += data
        return True

    async def frame(self) -> Frame | None:
        """Return the next frame; None if the connection ended."""
        if not await self._need(2):
            return None
        size, at = self._buffer[1] & 0x7F, 2
        if size == 126:
            at = 4
        elif size == 127:
            at = 10
        if not await self._need(at):
            return None
        if at > 2:
            size = int.from_bytes(self._buffer[2:at], "big")
        is_masked = bool(self._buffer[1] & 0x80)
        end = at + 4 * is_masked + size
        if not await self._need(end):
            return None
        raw = bytes(self._buffer[:end])
        del self._buffer[:end]
        payload = _masked(raw[at + 4 :], raw[at : at + 4]) if is_masked else raw[at:]
        found = Frame(raw[0] & 15, payload, raw, raw[0] >= 0x80, is_masked)
        self.frames.append(found)
        return found

    async def message(self) -> Frame | None:
        """Return the next data or close frame, answering pings on the way; fragments are joined."""
        joined: Frame | None = None
        while (found := await self.frame()) is not None:
            if found.opcode == PING:
                await self.send(PONG, found.payload)
            elif found.opcode == CLOSE:
                return found
            elif found.opcode != PONG:
                joined = found if joined is None else Frame(joined.opcode, joined.payload + found.payload, b"", True, True)
                if found.is_final:
                    return joined
        return None

    async def send_raw(self, data: bytes) -> None:
        """Write bytes and wait until the system took them."""
        self.writer.write(data)
        with contextlib.suppress(ConnectionError):
            await self.writer.drain()

    async def send(self, opcode: int, payload: bytes) -> None:
        """Send a server's frame."""
        await self.send_raw(server_frame(opcode, payload))

    async def say(self, **message: object) -> None:
        """Send a JSON message."""
        await self.send(TEXT, json.dumps(message).encode())

    async def close(self, code: int, reason: str = "") -> None:
        """Send a close frame, and end the connection when it was answered or has ended."""
        await self.send(CLOSE, close_payload(code, reason))
        while (found := await self.frame()) is not None and found.opcode != CLOSE:
            pass
        self.writer.close()

    def reset(self) -> None:
        """Cut the connection with a TCP reset."""
        self.writer.transport.abort()


Script = Callable[["SocketsDouble", Socket], Awaitable[None]]
BY_PATH = {"/tts/websocket": "synthesize", "/stt/websocket": "transcribe", "/stt/turns/websocket": "take_turns"}


async def synthesize(double: "SocketsDouble", socket: Socket) -> None:
    """Answer each text with two chunks at once, and a context that is closed with `done`."""
    while (message := await socket.message()) is not None:
        if message.opcode == CLOSE:
            await socket.send(CLOSE, message.payload)
            break
        asked = json.loads(message.payload)
        context = asked.get("context_id")
        if asked.get("cancel"):
            await socket.say(type="done", done=True, status_code=200, context_id=context)
            continue
        text = asked.get("transcript", "")
        for half in (text[: len(text) // 2], text[len(text) // 2 :]):
            if half.strip():
                audio = base64.b64encode(half.encode() * 40).decode()
                await socket.say(type="chunk", data=audio, done=False, status_code=206, step_time=1.0, context_id=context)
        if asked.get("flush"):
            await socket.say(type="flush_done", done=False, flush_done=True, flush_id=1, status_code=206, context_id=context)
        if not asked.get("continue"):
            await socket.say(type="done", done=True, status_code=200, context_id=context)
    socket.writer.close()


async def transcribe(double: "SocketsDouble", socket: Socket) -> None:
    """Answer audio with partial transcripts, `finalize` with a final one, `close` and `done` with the end."""
    heard = 0
    while (message := await socket.message()) is not None:
        if message.opcode == CLOSE:
            await socket.send(CLOSE, message.payload)
            break
        if message.opcode == BINARY:
            heard += len(message.payload)
            await socket.say(type="transcript", is_final=False, text="hel", request_id="rq1", duration=heard / 32000)
        elif message.payload == b"finalize":
            await socket.say(type="transcript", is_final=True, text="hello", request_id="rq1", duration=heard / 32000)
            await socket.say(type="flush_done", request_id="rq1")
        elif message.payload in (b"close", b"done"):
            await socket.say(type="done", request_id="rq1")
            await socket.close(1000)
            return
    socket.writer.close()


async def take_turns(double: "SocketsDouble", socket: Socket) -> None:
    """Answer the first audio with one turn, and end the session."""
    await socket.say(type="connected", request_id="r1")
    await socket.message()
    await socket.say(type="turn.start", request_id="r1")
    await socket.say(type="turn.update", request_id="r1", transcript="hel")
    await socket.say(type="turn.end", request_id="r1", transcript="hello")
    await socket.close(1000)


async def echo(double: "SocketsDouble", socket: Socket) -> None:
    """Send every data frame back with the same opcode and FIN bit, byte for byte."""
    while (found := await socket.frame()) is not None:
        if found.opcode == CLOSE:
            await socket.send(CLOSE, found.payload)
            break
        if found.opcode == PING:
            await socket.send(PONG, found.payload)
        elif found.opcode != PONG:
            await socket.send_raw(server_frame(found.opcode, found.payload, is_final=found.is_final))
    socket.writer.close()


async def listen(double: "SocketsDouble", socket: Socket) -> None:
    """Only read; answer a close."""
    while (found := await socket.frame()) is not None:
        if found.opcode == CLOSE:
            await socket.send(CLOSE, found.payload)
            break
    socket.writer.close()


@dataclass
class SocketsDouble:
    """The double. `sockets`: every connection that sent a head, in order."""

    port: int = 0
    scheme: str = "http"
    sockets: list[Socket] = field(default_factory=list)
    scripts: dict[str, Script] = field(
        default_factory=lambda: {
            "synthesize": synthesize,
            "transcribe": transcribe,
            "take_turns": take_turns,
            "echo": echo,
            "listen": listen,
        }
    )
    answers: dict[str, bytes] = field(default_factory=dict)
    """`X-Double` value -> raw bytes that answer the handshake instead of a 101; the connection ends then"""
    extra_101: bytes = b"X-Request-ID: upstream-1\r\n"
    along: bytes = b""
    """sent in the same write as the 101"""
    go: asyncio.Event = field(default_factory=asyncio.Event)
    """what a script of a test waits for"""
    script: str = ""
    """for requests that name none; empty: by path"""

    @property
    def origin(self) -> str:
        """Return the double's origin."""
        return f"{self.scheme}://{'localhost' if self.scheme == 'https' else '127.0.0.1'}:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()
            return
        await self._session(reader, writer, head)

    async def take_over(self, _: CartesiaDouble, connection: Connection, received: Received) -> bool:
        """Answer an upgrade that came to the double of the HTTP surface: its `on_upgrade`."""
        await self._session(connection.reader, connection.writer, received.head, connection.buffer)
        return False

    async def _session(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes, early: bytes | bytearray = b""
    ) -> None:
        first, *lines = head[:-4].decode("latin-1").split("\r\n")
        headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        socket = Socket(reader, writer, head, first.split(" ")[1], headers, bytearray(early), _buffer=bytearray(early))
        self.sockets.append(socket)
        name = socket.one("X-Double") or self.script
        if name in self.answers:
            await socket.send_raw(self.answers[name])
            writer.close()
            return
        key = socket.one("Sec-WebSocket-Key") or ""
        accept = base64.b64encode(hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest())
        await socket.send_raw(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + accept + b"\r\n" + self.extra_101 + b"\r\n" + self.along
        )
        path = socket.target.partition("?")[0]
        by_path = BY_PATH.get(path, "echo")
        await self.scripts[name or by_path](self, socket)
        await socket.frame()
        writer.close()


@contextlib.asynccontextmanager
async def sockets_double(tls: ssl.SSLContext | None = None) -> AsyncIterator[SocketsDouble]:
    """Serve until the block ends."""
    double = SocketsDouble()
    tasks: set[asyncio.Task[None]] = set()

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await double.serve(reader, writer)

    server = await asyncio.start_server(served, "127.0.0.1", 0, ssl=tls, limit=2**24)
    double.port = server.sockets[0].getsockname()[1]
    try:
        yield double
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
