"""A provider in an event loop of its own: it outlives the loop of each test, and answers HTTP and WebSockets on one origin.

What it received may be read from any thread; what it waits for is set through `let_go`. Its behaviour is that of the two
doubles that it joins (`tests.doubles`), by the header `X-Double` or by the path.
"""

import asyncio
import base64
import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.doubles.cartesia import CartesiaDouble, Connection, Received
from tests.doubles.cartesia_websocket import Script as SocketScript
from tests.doubles.cartesia_websocket import Socket, SocketsDouble


class Provider:
    """The running double. `http`: its requests and scripts; `sockets`: its WebSockets and their scripts."""

    def __init__(self) -> None:
        self.http = CartesiaDouble()
        self.sockets = SocketsDouble()
        self.origin = ""
        self._loop = asyncio.new_event_loop()
        self.http.on_upgrade = self._upgraded

    def let_go(self) -> None:
        """Let what waits go on."""
        for event in (self.http.go, self.sockets.go):
            self._loop.call_soon_threadsafe(event.set)

    def hold(self) -> None:
        """Have scripts wait that wait for the test."""
        for event in (self.http.go, self.sockets.go):
            self._loop.call_soon_threadsafe(event.clear)

    def received(self) -> bytes:
        """Return every byte that ever came, of all connections."""
        http = b"".join(bytes(connection.received) for connection in self.http.connections)
        return http + b"".join(bytes(one.head) + one.spoken for one in map(_Spoken, self.sockets.sockets))

    async def _upgraded(self, _: CartesiaDouble, connection: Connection, request: Received) -> bool:
        socket = Socket(connection.reader, connection.writer, request.head, request.target, request.headers)
        self.sockets.sockets.append(socket)
        name = socket.one("X-Double") or ""
        if name in self.sockets.answers:
            await socket.send_raw(self.sockets.answers[name])
            return False
        key = socket.one("Sec-WebSocket-Key") or ""
        accept = base64.b64encode(hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest())
        await socket.send_raw(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n"
        )
        path = socket.target.partition("?")[0]
        by_path = {"/tts/websocket": "synthesize", "/stt/websocket": "transcribe"}.get(path, "echo")
        script: SocketScript = self.sockets.scripts[name or by_path]
        await script(self.sockets, socket)
        return False

    async def _serve(self, ready: threading.Event, ended: asyncio.Event) -> None:
        async with self.http:
            self.origin = self.http.origin
            ready.set()
            await ended.wait()

    @contextmanager
    def running(self) -> Iterator["Provider"]:
        """Serve until the end of the block."""
        ready, ended = threading.Event(), asyncio.Event()
        thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(ready, ended),), daemon=True)
        thread.start()
        assert ready.wait(10), "the provider does not listen"
        try:
            yield self
        finally:
            self._loop.call_soon_threadsafe(ended.set)
            thread.join(10)
            self._loop.close()


class _Spoken:
    """A WebSocket's head and its frames without masks: nothing hides in a masked payload."""

    def __init__(self, socket: Socket) -> None:
        self.head = socket.head
        self.spoken = b"".join(frame.payload for frame in socket.frames)
