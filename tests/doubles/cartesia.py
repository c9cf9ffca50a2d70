"""A provider over real sockets that answers as the request tells it to, and records every byte of every connection.

Without instructions it answers as Cartesia's endpoints do. The header `X-Double: <script>` names another behaviour, out of
`SCRIPTS` or added by a test with `double.scripts[name] = …`. It takes HTTP apart by itself and shares no code with the
gateway, so that both cannot be wrong in the same way. Used in any test's own event loop; TLS if given a context.
"""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

WAV = (
    b"RIFF\x08\x0c\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00\xc0\x5d\x00\x00\x80\xbb\x00\x00\x02\x00\x10\x00"
    b"data\xe4\x0b\x00\x00" + (bytes(range(256)) * 12)[:3044]
)
"""3,088 bytes: 63 ms of 24 kHz, 16 bit, mono; every byte value occurs"""
TRANSCRIPT = b'{"type": "transcript", "text": "hello", "language": "en", "duration": 2.5, "request_id": "r1"}'
VOICES = b'{"data": [{"id": "v1", "name": "Ann"}], "has_more": false}'
EVENTS = (
    b'event: chunk\ndata: {"type":"chunk","data":"AAAA","done":false,"status_code":206}\n\n',
    b'event: timestamps\ndata: {"type":"timestamps","word_timestamps":{"words":["hi"],"start":[0],"end":[0.2]}}\n\n',
    b'event: done\ndata: {"type":"done","done":true,"status_code":200}\n\n',
)


@dataclass
class Received:
    """One request as it arrived."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    head: bytes
    """with its empty line"""
    body: bytes = b""
    """decoded if it was chunked"""
    raw_body: bytes = b""

    def all(self, name: str) -> list[str]:
        """Return every value of a header, in order; the name is compared without case."""
        return [value for spelled, value in self.headers if spelled.lower() == name.lower()]

    def one(self, name: str) -> str | None:
        """Return the header's first value, None if there is none."""
        return next(iter(self.all(name)), None)


@dataclass
class Connection:
    """One accepted connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    received: bytearray = field(default_factory=bytearray)
    """every byte that came, in order"""
    requests: list[Received] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """the other side closed or reset"""
    buffer: bytearray = field(default_factory=bytearray)
    is_resumed_tls: bool = False

    async def more(self) -> bool:
        """Read once; False at the end."""
        try:
            data = await self.reader.read(65536)
        except (ConnectionError, ssl.SSLError):
            data = b""
        if not data:
            self.gone.set()
            return False
        self.received += data
        self.buffer += data
        return True

    async def until(self, mark: bytes) -> bytes | None:
        """Return the bytes up to and with the mark; None if the connection ended before."""
        while (end := self.buffer.find(mark)) < 0:
            if not await self.more():
                return None
        return self.take(end + len(mark))

    async def exactly(self, count: int) -> bytes | None:
        """Return so many bytes; None if the connection ended before."""
        while len(self.buffer) < count:
            if not await self.more():
                return None
        return self.take(count)

    def take(self, count: int) -> bytes:
        """Remove and return the first bytes of the buffer."""
        taken = bytes(self.buffer[:count])
        del self.buffer[:count]
        return taken

    async def send(self, data: bytes) -> None:
        """Write and wait until the system took it."""
        self.writer.write(data)
        with contextlib.suppress(ConnectionError):
            await self.writer.drain()

    async def answer(self, status: str, *headers: str, body: bytes = b"") -> None:
        """Send a whole answer with a Content-Length."""
        lines = [f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}"]
        await self.send("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)

    def reset(self) -> None:
        """Cut the connection with a TCP reset."""
        if not self.writer.is_closing():
            self.writer.transport.abort()


Script = Callable[["CartesiaDouble", Connection, Received], Awaitable[bool]]
"""answers one request; returns whether the connection goes on"""


async def _answer_like_cartesia(double: "CartesiaDouble", connection: Connection, request: Received) -> bool:
    path = request.target.partition("?")[0]
    if path in ("/tts/bytes", "/infill/bytes", "/voice-changer/bytes"):
        await connection.answer("200 OK", "Content-Type: audio/wav", "X-Request-ID: req-1", body=WAV)
    elif path in ("/tts/sse", "/voice-changer/sse"):
        await connection.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for event in EVENTS:
            await connection.send(b"%x\r\n%b\r\n" % (len(event), event))
        await connection.send(b"0\r\n\r\n")
    elif path in ("/stt", "/audio/transcriptions"):
        await connection.answer("200 OK", "Content-Type: application/json", body=TRANSCRIPT)
    elif request.method == "DELETE":
        await connection.send(b"HTTP/1.1 204 No Content\r\n\r\n")
    elif request.method == "HEAD":
        await connection.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 57\r\n\r\n")
    else:
        await connection.answer("200 OK", "Content-Type: application/json", body=VOICES)
    return True


async def _chunked(double: "CartesiaDouble", connection: Connection, request: Received) -> bool:
    """Three chunks, with extensions and a trailer."""
    await connection.send(b"HTTP/1.1 200 OK\r\nContent-Type: audio/wav\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n")
    for at in range(0, 3000, 1000):
        await connection.send(b"3e8;part=%d\r\n%b\r\n" % (at, WAV[at : at + 1000]))
    await connection.send(b"0\r\nX-Sum: 1\r\n\r\n")
    return True


async def _until_close(double: "CartesiaDouble", connection: Connection, request: Received) -> bool:
    await connection.send(b"HTTP/1.1 200 OK\r\nContent-Type: audio/wav\r\n\r\n" + WAV)
    return False


async def _first_then_wait(double: "CartesiaDouble", connection: Connection, request: Received) -> bool:
    """One chunk at once, the rest when the test sets `go`."""
    await connection.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    await connection.send(b"%x\r\n%b\r\n" % (len(EVENTS[0]), EVENTS[0]))
    await double.go.wait()
    await connection.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(EVENTS[2]), EVENTS[2]))
    return True


async def _silent(double: "CartesiaDouble", connection: Connection, request: Received) -> bool:
    await connection.more()
    return False


async def _close_without_answer(double: "CartesiaDouble", connection: Connection, request: Received) -> bool:
    return False


async def _reset_in_body(double: "CartesiaDouble", connection: Connection, request: Received) -> bool:
    await connection.send(b"HTTP/1.1 200 OK\r\nContent-Type: audio/wav\r\nContent-Length: 3000\r\n\r\n" + WAV[:1000])
    await double.go.wait()
    connection.reset()
    return False


async def _close_in_chunked_body(double: "CartesiaDouble", connection: Connection, request: Received) -> bool:
    await connection.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3e8\r\n" + WAV[:500])
    return False


async def _echo(double: "CartesiaDouble", connection: Connection, request: Received) -> bool:
    await connection.answer("200 OK", "Content-Type: application/octet-stream", body=request.body)
    return True


async def _leak(double: "CartesiaDouble", connection: Connection, request: Received) -> bool:
    """An error that repeats the credential, in head and body."""
    credential = (request.one("Authorization") or "").removeprefix("Bearer ")
    body = json.dumps({"title": "Unauthorized", "message": f"Invalid key {credential}"}).encode()
    await connection.answer("401 Unauthorized", f'WWW-Authenticate: Bearer hint="{credential}"', body=body)
    return True


async def _leak_in_pieces(double: "CartesiaDouble", connection: Connection, request: Received) -> bool:
    """An error whose chunks cut the credential in two."""
    credential = (request.one("Authorization") or "").removeprefix("Bearer ").encode()
    await connection.send(b"HTTP/1.1 403 Forbidden\r\nTransfer-Encoding: chunked\r\n\r\n")
    half = len(credential) // 2
    for piece in (b"no: " + credential[:half], credential[half:] + b" is not known"):
        await connection.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        await asyncio.sleep(0.02)  # two writes must become two reads
    await connection.send(b"0\r\n\r\n")
    return True


def answers(raw: bytes, *, goes_on: bool = True) -> Script:
    """Return a script that sends these bytes and nothing else."""

    async def script(double: "CartesiaDouble", connection: Connection, request: Received) -> bool:
        await connection.send(raw)
        return goes_on

    return script


def refuses(status: str, *headers: str, body: bytes = b'{"title": "T", "message": "M"}') -> Script:
    """Return a script that answers with this status."""

    async def script(double: "CartesiaDouble", connection: Connection, request: Received) -> bool:
        await connection.answer(status, "Content-Type: application/json", *headers, body=body)
        return True

    return script


SCRIPTS: dict[str, Script] = {
    "chunked": _chunked,
    "until-close": _until_close,
    "first-then-wait": _first_then_wait,
    "silent": _silent,
    "close": _close_without_answer,
    "reset-in-body": _reset_in_body,
    "close-in-chunked-body": _close_in_chunked_body,
    "echo": _echo,
    "leak": _leak,
    "leak-in-pieces": _leak_in_pieces,
    "429": refuses("429 Too Many Requests", "Retry-After: 7", "X-Request-ID: req-429"),
    "500": refuses("500 Internal Server Error"),
    "304": answers(b'HTTP/1.1 304 Not Modified\r\nETag: "x"\r\nContent-Length: 57\r\n\r\n'),
    "early-hints": answers(
        b"HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    ),
    "redirect-away": answers(b"HTTP/1.1 307 Temporary Redirect\r\nLocation: https://evil.test/x\r\nContent-Length: 0\r\n\r\n"),
    "redirect-here": answers(b"HTTP/1.1 307 Temporary Redirect\r\nLocation: /cartesia/voices/\r\nContent-Length: 0\r\n\r\n"),
    "not-http": answers(b"SSH-2.0-OpenSSH_9.2\r\n\r\n", goes_on=False),
    "both-framings": answers(
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", goes_on=False
    ),
    "two-cookies": answers(b"HTTP/1.1 200 OK\r\nset-cookie: a=1\r\nSet-Cookie: b=2\r\nContent-Length: 0\r\n\r\n"),
    "closes": answers(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"),
    "closes-unasked": answers(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", goes_on=False),
    "more-than-length": answers(
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
    ),
}


class CartesiaDouble:
    """The double. Use as `async with CartesiaDouble() as double`; `origin` is what an account names."""

    def __init__(self, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> None:
        self.connections: list[Connection] = []
        self.scripts: dict[str, Script] = dict(SCRIPTS)
        self.go = asyncio.Event()
        """what scripts that wait for the test wait for"""
        self.on_upgrade: Script | None = None
        """answers WebSocket handshakes; None: 404"""
        self.default: Script = _answer_like_cartesia
        self.reads_bodies = True
        """False: a script runs as soon as the head is there, and reads the body itself or not at all"""
        self._tls = tls
        self._host = host
        self._running: set[asyncio.Task[None]] = set()
        self._accepted = asyncio.Event()

    async def __aenter__(self) -> "CartesiaDouble":
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._accept, self._host, 0, ssl=self._tls, limit=2**26)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the listener and every connection."""
        self._server.close()
        for connection in self.connections:
            connection.reset()
        for task in tuple(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def stop_listening(self) -> None:
        """Take no more connections; those that are open go on."""
        self._server.close()

    @property
    def origin(self) -> str:
        """Return the origin as an account names it."""
        return f"{'https' if self._tls else 'http'}://{'localhost' if self._tls else self._host}:{self.port}"

    @property
    def requests(self) -> list[Received]:
        """Return every request, in the order of their connections."""
        return [request for connection in self.connections for request in connection.requests]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(reader, writer)
        tls = writer.get_extra_info("ssl_object")
        connection.is_resumed_tls = bool(tls is not None and tls.session_reused)
        self.connections.append(connection)
        task = asyncio.current_task()
        if task is not None:
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        try:
            while await self._one(connection):
                pass
        except asyncio.CancelledError:
            pass
        finally:
            writer.close()

    async def _one(self, connection: Connection) -> bool:
        head = await connection.until(b"\r\n\r\n")
        if head is None:
            return False
        first, *lines = head[:-4].decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ")
        headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        request = Received(method, target, headers, head)
        connection.requests.append(request)
        if (request.one("Upgrade") or "").lower() == "websocket":
            if self.on_upgrade is None:
                await connection.answer("404 Not Found")
                return True
            return await self.on_upgrade(self, connection, request)
        if self.reads_bodies:
            if (request.one("Expect") or "").lower() == "100-continue":
                await connection.send(b"HTTP/1.1 100 Continue\r\n\r\n")
            if not await self._read_body(connection, request):
                return False
        script = self.scripts.get(request.one("X-Double") or "", self.default)
        return await script(self, connection, request)

    async def _read_body(self, connection: Connection, request: Received) -> bool:
        before = len(connection.received) - len(connection.buffer)
        if "chunked" in (request.one("Transfer-Encoding") or ""):
            while True:
                line = await connection.until(b"\r\n")
                if line is None:
                    return False
                size = int(line.split(b";")[0], 16)
                chunk = await connection.exactly(size + 2) if size else await connection.until(b"\r\n")
                if chunk is None:
                    return False
                if not size:
                    break
                request.body += chunk[:-2]
        else:
            body = await connection.exactly(int(request.one("Content-Length") or 0))
            if body is None:
                return False
            request.body = body
        request.raw_body = bytes(connection.received[before : len(connection.received) - len(connection.buffer)])
        return True


@contextlib.asynccontextmanager
async def dead_origin() -> AsyncIterator[str]:
    """An origin on which nobody listens."""
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    yield f"http://127.0.0.1:{port}"
