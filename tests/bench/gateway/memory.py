"""What sessions, streams and uploads cost a gateway in memory: `python -m tests.bench.gateway.memory [what …]`.

Each measurement has a gateway of its own (`glottis gateway --config`) and prints what its process holds on the way; then the
gateway is told to stop, and its exit status and every complaint in its log are printed. Provider and clients are in this
process, over loopback. The figures of an idle session include what the system does not count as the gateway's.

  idle      5,000 open sessions that say nothing        idle-tls  the same, with TLS to the provider
  slow      100 sessions whose clients do not read      churn     10,000 sessions, each opened, spoken on and closed
  streams   100,000 streams that clients abort          upload    one file of 2 GB for recognition
"""

import argparse
import asyncio
import base64
import datetime
import hashlib
import json
import resource
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import uvloop

from glottis.certificates import Certificates, ensure_certificates
from tests.bench.gateway.alone import Alone, Looks, alone
from tests.doubles.cartesia_websocket import BINARY, CLOSE, TEXT, client_frame, close_payload, server_frame
from tests.kit.sessions import STT, TTS, handshake

AT_ONCE = 50
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n6\r\ndata: \r\n"
FLOOD = server_frame(BINARY, bytes(65_536))
AUDIO = base64.b64encode(bytes(3600)).decode()
SETTLE_SECONDS = 2.0
"""for the last ends to reach the gateway, and its one-second look at connections"""


class Provider(asyncio.Protocol):
    """Answers a handshake and speaks one chunk for each text; floods or streams where the target says so; else takes all."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class
        self._head = b""
        self._take: Callable[[bytes], None] = self._handshake
        self._is_flooding = False

    def data_received(self, data: bytes) -> None:
        self._take(data)

    def _handshake(self, data: bytes) -> None:
        self._head += data
        head, end, rest = self._head.partition(b"\r\n\r\n")
        if not end:
            return
        if b"Sec-WebSocket-Key: " not in head:
            if b"/tts/sse" in head:
                self._take = lambda _: None
                self._transport.write(STREAM)
                return
            self._left = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0])
            self._take = self._swallow
            self._swallow(rest)
            return
        key = head.partition(b"Sec-WebSocket-Key: ")[2].partition(b"\r\n")[0]
        accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
        upgrade = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        self._transport.write(upgrade + b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n")
        self._take = self._frame
        if b"X-Flood: 1" in head:
            self._is_flooding = True
            self.resume_writing()

    def _swallow(self, data: bytes) -> None:
        self._left -= len(data)
        if self._left == 0:
            said = b'{"type":"transcript","text":"hello","duration":1.0}'
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(said), said))

    def _frame(self, data: bytes) -> None:
        """Answer a read, which is one whole frame here: a close, audio, or a text."""
        if data[0] & 15 == CLOSE:
            self._transport.write(server_frame(CLOSE, close_payload(1000)))
        elif data[0] & 15 == BINARY:
            self._transport.write(server_frame(TEXT, b'{"type":"transcript","is_final":false,"text":"a"}'))
        else:
            chunk = {"type": "chunk", "data": AUDIO, "done": False, "context_id": "c1"}
            self._transport.write(server_frame(TEXT, json.dumps(chunk).encode()))
            self._transport.write(server_frame(TEXT, b'{"type":"done","done":true,"status_code":200,"context_id":"c1"}'))

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        while self._is_flooding and not self._is_full:
            self._transport.write(FLOOD)

    def connection_lost(self, error: Exception | None) -> None:
        self._is_flooding = False


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def opened(gateway: Alone, target: str, *headers: str) -> Streams:
    """Open a session."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(handshake(target, *headers, token=gateway.token))
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 101"):
        sys.exit((head + await reader.read()).decode())
    return reader, writer


async def in_batches(count: int, one: Callable[[], Awaitable[Streams | None]]) -> list[Streams]:
    """Do so many, some at once; return what they opened."""
    made = []
    for begun in range(0, count, AT_ONCE):
        batch = await asyncio.gather(*(one() for _ in range(min(AT_ONCE, count - begun))))
        made += [streams for streams in batch if streams is not None]
    return made


async def idle(gateway: Alone, looks: Looks, count: int) -> None:
    """Hold sessions open that say nothing."""
    looks.look("before")
    sessions = await in_batches(count, lambda: opened(gateway, TTS))
    await asyncio.sleep(SETTLE_SECONDS)
    looks.look(f"{len(sessions)} idle sessions")
    each = (looks.resident_kib[-1] - looks.resident_kib[0]) / len(sessions)
    sys.stdout.write(f"{each:.1f} KiB a session; the process held at most {looks.most_mb:.0f} MB\n")
    for _, writer in sessions:
        writer.transport.abort()
    await asyncio.sleep(SETTLE_SECONDS)
    looks.look("after")


async def slow(gateway: Alone, looks: Looks, count: int) -> None:
    """Let clients not read what a provider floods them with, and see whether another session notices."""
    looks.look("before")
    quiet = await round_trips(gateway, 300)

    async def stuck() -> Streams:
        streams = await opened(gateway, STT, "X-Flood: 1")
        streams[0]._transport.pause_reading()  # type: ignore[attr-defined]  # StreamReader has no public way to stop
        return streams

    sessions = await in_batches(count, stuck)
    for second in range(0, 31, 10):
        await asyncio.sleep(10 if second else SETTLE_SECONDS)
        looks.look(f"{len(sessions)} that do not read, {second} s")
    beside = await round_trips(gateway, 300)
    sys.stdout.write(f"another session's round trip: {quiet[0]:.2f} ms (p99 {quiet[1]:.2f}) before, ")
    sys.stdout.write(f"{beside[0]:.2f} ms (p99 {beside[1]:.2f}) beside them\n")
    for _, writer in sessions:
        writer.transport.abort()
    await asyncio.sleep(SETTLE_SECONDS)
    looks.look("after")


async def round_trips(gateway: Alone, count: int) -> tuple[float, float]:
    """Return median and 99th percentile of a session's round trips, in milliseconds."""
    reader, writer = await opened(gateway, STT)
    audio, took = client_frame(BINARY, bytes(640)), []
    for _ in range(count):
        began = time.perf_counter()
        writer.write(audio)
        await reader.readexactly(2 + 49)
        took.append((time.perf_counter() - began) * 1e3)
        await asyncio.sleep(0.005)
    writer.transport.abort()
    return statistics.median(took), statistics.quantiles(took, n=100)[98]


async def churn(gateway: Alone, looks: Looks, count: int) -> None:
    """Open sessions, speak on each, close each."""
    said = {"model_id": "sonic-3", "transcript": "Hello.", "voice": {"mode": "id", "id": "v1"}, "context_id": "c1"}
    text, bye = client_frame(TEXT, json.dumps(said).encode()), client_frame(CLOSE, close_payload(1000))

    async def one() -> None:
        reader, writer = await opened(gateway, TTS)
        writer.write(text)
        await reader.readuntil(b'"done":true,"status_code":200,"context_id":"c1"}')
        writer.write(bye)
        await reader.read()
        writer.close()

    await slope(looks, "sessions", count, one)


async def streams(gateway: Alone, looks: Looks, count: int) -> None:
    """Begin streams, see their first bytes, hang up."""
    body = json.dumps({"model_id": "sonic-3", "transcript": "Hello.", "voice": {"mode": "id", "id": "v1"}}).encode()
    request = (
        f"POST /cartesia/tts/sse HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {gateway.token}\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(request)
        head = await reader.readuntil(b"data: ")
        if not head.startswith(b"HTTP/1.1 200"):
            sys.exit(head.decode())
        writer.transport.abort()

    await slope(looks, "aborted streams", count, one)


async def slope(looks: Looks, what: str, count: int, one: Callable[[], Awaitable[None]]) -> None:
    """Do so many, look after each tenth, and say how memory went from the second tenth (all caches full) to the last."""
    for tenth in range(11):
        if tenth:
            await in_batches(count // 10, one)
        await asyncio.sleep(SETTLE_SECONDS)
        looks.look(f"{tenth * count // 10} {what}")
    grown = looks.resident_kib[-1] - looks.resident_kib[2]
    per = grown * 1024 / (count * 8 / 10)
    sys.stdout.write(f"from {count // 5} to {count}: {grown:+} KiB, {per:+.1f} bytes each; ")
    sys.stdout.write(f"descriptors {looks.descriptors[2]} -> {looks.descriptors[-1]}\n")


async def upload(gateway: Alone, looks: Looks, megabytes: int) -> None:
    """Send one file for recognition, in a form whose model stands first, as fast as it is taken."""
    part = '--b\r\nContent-Disposition: form-data; name="{}"\r\n\r\n{}'
    begin = (part.format("model", "ink-whisper\r\n") + part.format('file"; filename="a.raw', "")).encode()
    end, piece = b"\r\n--b--\r\n", bytes(2**20)
    length = len(begin) + megabytes * 2**20 + len(end)
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(
        f"POST /cartesia/stt HTTP/1.1\r\nHost: gateway\r\nContent-Type: multipart/form-data; boundary=b\r\n"
        f"Authorization: Bearer {gateway.token}\r\nContent-Length: {length}\r\n\r\n".encode()
        + begin
    )
    await writer.drain()
    looks.look("before")
    began = time.perf_counter()
    for _ in range(megabytes):
        writer.write(piece)
        await writer.drain()
    writer.write(end)
    head = await reader.readuntil(b"\r\n\r\n")
    took = time.perf_counter() - began
    if not head.startswith(b"HTTP/1.1 200"):
        sys.exit((head + await reader.read()).decode())
    looks.look(f"{megabytes} MB sent")
    sys.stdout.write(f"{megabytes / took:.0f} MB/s; the process held at most {looks.most_mb:.1f} MB\n")
    writer.close()


MEASUREMENTS: dict[str, tuple[Callable[[Alone, Looks, int], Awaitable[None]], int]] = {
    "idle": (idle, 5000),
    "idle-tls": (idle, 5000),
    "slow": (slow, 100),
    "churn": (churn, 10_000),
    "streams": (streams, 100_000),
    "upload": (upload, 2048),
}


async def measure(what: str, count: int, certificates: Certificates | None) -> None:
    """Start a gateway before a provider, measure one thing, stop it."""
    sys.stdout.write(f"--- {what}\n")
    tls = None
    if certificates is not None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificates.server, certificates.server_key)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Provider, "127.0.0.1", 0, ssl=tls, backlog=1000)
    port = server.sockets[0].getsockname()[1]
    origin = f"https://localhost:{port}" if tls else f"http://127.0.0.1:{port}"
    with alone(origin, certificates.authority if certificates else None) as gateway:
        await gateway.until_ready()
        await MEASUREMENTS[what][0](gateway, Looks(gateway.gateway.child.pid), count)
        await asyncio.to_thread(gateway.stop)
    server.close()


def main() -> None:
    """Measure what the command line names, or everything."""
    parser = argparse.ArgumentParser(description="What sessions, streams and uploads cost a gateway in memory.")
    parser.add_argument("what", nargs="*", help=f"of {', '.join(MEASUREMENTS)}; default: all")
    parser.add_argument("--count", type=int, help="sessions, streams or megabytes, in place of each one's own number")
    options = parser.parse_args()
    if unknown := set(options.what) - set(MEASUREMENTS):
        parser.error(f"there is no measurement {', '.join(sorted(unknown))}")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as folder:
        for what in options.what or MEASUREMENTS:
            certificates = ensure_certificates(Path(folder), datetime.datetime.now(datetime.UTC)) if what == "idle-tls" else None
            uvloop.run(measure(what, options.count or MEASUREMENTS[what][1], certificates))


if __name__ == "__main__":
    main()
