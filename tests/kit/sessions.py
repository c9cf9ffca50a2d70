"""WebSocket sessions through a real edge: `sockets_edge(double)` serves, `dial(...)` opens one and gives its raw end."""

import asyncio
import base64
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from typing import Any

from gateway.edge.websocket_relay import take_over
from policy.usage import SettledContext
from tests.doubles.cartesia_websocket import CLOSE, TEXT, Frame, Socket, SocketsDouble, client_frame, close_payload
from tests.kit.edge import Edge, KeptRecorder, edge
from tests.kit.identities import idp_token

KEY = base64.b64encode(b"the sample nonce").decode()

TTS = "/cartesia/tts/websocket"
STT = "/cartesia/stt/websocket?model=ink-whisper&encoding=pcm_s16le&sample_rate=16000"


class SessionRecorder(KeptRecorder):
    """Keeps contexts as well, and all events in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.contexts: list[SettledContext] = []

    def settle_context(self, context: SettledContext) -> None:
        """Keep what was settled."""
        self.contexts.append(context)


@contextlib.asynccontextmanager
async def sockets_edge(double: SocketsDouble, **settings: Any) -> AsyncIterator[Edge]:
    """Serve an edge whose Cartesia account is at the double."""
    async with edge(double.origin, recorder=SessionRecorder(), **settings) as running:
        running.context.take_over = take_over
        yield running


class ClientSocket(Socket):
    """A client's raw end of a session."""

    async def send(self, opcode: int, payload: bytes) -> None:
        """Send a masked frame."""
        await self.send_raw(client_frame(opcode, payload))

    async def say(self, **message: object) -> None:
        """Send a JSON message."""
        await self.send(TEXT, json.dumps(message).encode())

    async def speak(self, context: str | None, text: str, model: str = "sonic-3", **more: object) -> None:
        """Send a text of a context."""
        named = {} if context is None else {"context_id": context}
        await self.say(**{"model_id": model, "transcript": text, "voice": {"mode": "id", "id": "v1"}, **named, **more})

    async def heard(self, seconds: float = 5.0) -> dict[str, Any]:
        """Return the next message, decoded from JSON."""
        async with asyncio.timeout(seconds):
            found = await self.message()
        assert found is not None, "the connection ended"
        assert found.opcode == TEXT, found
        decoded: dict[str, Any] = json.loads(found.payload)
        return decoded

    async def closed(self, seconds: float = 5.0) -> tuple[int, str] | None:
        """Read on to the close frame and answer it; return (code, reason), None for an end without one."""
        async with asyncio.timeout(seconds):
            while (found := await self.frame()) is not None:
                if found.opcode == CLOSE:
                    with contextlib.suppress(ConnectionError):
                        await self.send(CLOSE, found.payload)
                    return int.from_bytes(found.payload[:2], "big") if found.payload else 1005, found.payload[2:].decode()
        return None

    async def hang_up(self, code: int = 1000, reason: str = "") -> Frame | None:
        """Close, read on to the answer, end the connection; return the close frame that answered."""
        await self.send(CLOSE, close_payload(code, reason))
        async with asyncio.timeout(5):
            while (found := await self.frame()) is not None and found.opcode != CLOSE:
                pass
        self.writer.close()
        return found


def handshake(target: str = TTS, *headers: str, token: str | None = None, version: str = "2026-08-14") -> bytes:
    """Return a handshake's head."""
    lines = [
        f"GET {target} HTTP/1.1",
        "Host: gw.test",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {KEY}",
        "Sec-WebSocket-Version: 13",
        *([f"Cartesia-Version: {version}"] if version else []),
        *([f"Authorization: Bearer {token or idp_token()}"] if token != "" else []),
        *headers,
    ]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"


async def connect(port: int, tls: ssl.SSLContext | None = None) -> ClientSocket:
    """Open a connection without a handshake."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=tls, server_hostname="localhost" if tls else None, limit=2**24
    )
    return ClientSocket(reader, writer)


async def dial(running: Edge, target: str = TTS, *headers: str, early: bytes = b"", **changes: Any) -> ClientSocket:
    """Open a session; its `head` is the 101. Raises AssertionError for another answer."""
    client = await connect(running.port)
    await client.send_raw(handshake(target, *headers, **changes) + early)
    async with asyncio.timeout(5):
        client.head = await client.reader.readuntil(b"\r\n\r\n")
    assert client.head.startswith(b"HTTP/1.1 101 "), client.head
    return client
