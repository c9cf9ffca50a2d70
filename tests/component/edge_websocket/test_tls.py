"""Sessions over TLS on both sides: a connection that can only be ended whole."""

import asyncio
import datetime
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_asyncio

from glottis.certificates import Certificates, ensure_certificates
from tests.doubles.cartesia_websocket import BINARY, CLOSE, Socket, SocketsDouble, close_payload, sockets_double
from tests.kit.edge import Edge
from tests.kit.sessions import STT, TTS, ClientSocket, connect, handshake, sockets_edge


class Secured(NamedTuple):
    """An edge and a double behind TLS, and a context that trusts both."""

    gateway: Edge
    double: SocketsDouble
    trust: ssl.SSLContext

    async def dial(self, target: str, *headers: str) -> ClientSocket:
        """Open a session."""
        client = await connect(self.gateway.tls_port, self.trust)
        await client.send_raw(handshake(target, *headers))
        assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        return client


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    folder: Path = tmp_path_factory.mktemp("tls")
    return ensure_certificates(folder, datetime.datetime.now(datetime.UTC))


def server_context(certificates: Certificates) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.server, certificates.server_key)
    return context


@pytest_asyncio.fixture
async def secured(certificates: Certificates) -> AsyncIterator[Secured]:
    async with sockets_double(server_context(certificates)) as double:
        double.scheme = "https"
        authority = certificates.authority.read_bytes()
        async with sockets_edge(double, tls=server_context(certificates), ca_pem=authority) as gateway:
            yield Secured(gateway, double, ssl.create_default_context(cafile=str(certificates.authority)))


async def test_a_text_is_spoken(secured: Secured) -> None:
    client = await secured.dial(TTS)
    await client.speak("c1", "Hello there")
    assert [(await client.heard())["type"] for _ in range(3)] == ["chunk", "chunk", "done"]
    assert await client.hang_up(4001, "client bye") is not None
    assert secured.double.sockets[0].frames[-1].payload == close_payload(4001, "client bye")
    [settled] = await secured.gateway.settled()
    assert (settled.outcome, settled.close_code) == ("completed", 4001)


async def test_a_large_message_passes_both_ways(secured: Secured) -> None:
    client = await secured.dial(STT, "X-Double: echo")
    sending = asyncio.ensure_future(client.send(BINARY, bytes(3_000_000)))
    async with asyncio.timeout(20):
        found = await client.frame()
    await sending
    assert found is not None
    assert found.payload == bytes(3_000_000)


@pytest.mark.parametrize("target", [TTS, STT])
async def test_a_providers_close_reaches_the_client(secured: Secured, target: str) -> None:
    async def closes(_: SocketsDouble, socket: Socket) -> None:
        await socket.close(4408, "tenant quota")

    secured.double.scripts["closes"] = closes
    client = await secured.dial(target, "X-Double: closes")
    assert await client.closed(2) == (4408, "tenant quota")
    assert await asyncio.wait_for(client.reader.read(), 5) == b""
    [settled] = await secured.gateway.settled()
    assert settled.close_code == 4408


async def test_a_provider_that_breaks_off_ends_the_client_without_a_close_frame(secured: Secured) -> None:
    async def breaks(_: SocketsDouble, socket: Socket) -> None:
        await socket.say(type="last words")
        socket.writer.close()

    secured.double.scripts["breaks"] = breaks
    client = await secured.dial(STT, "X-Double: breaks")
    assert await client.heard() == {"type": "last words"}
    assert await asyncio.wait_for(client.frame(), 5) is None
    client.writer.close()
    [settled] = await secured.gateway.settled()
    assert (settled.closed_by, settled.close_code) == ("provider", 1006)


async def test_a_client_that_hangs_up_ends_the_provider_without_a_close_frame(secured: Secured) -> None:
    client = await secured.dial(STT, "X-Double: listen")
    client.writer.close()
    async with asyncio.timeout(5):
        await secured.double.sockets[0].gone.wait()
    assert CLOSE not in [frame.opcode for frame in secured.double.sockets[0].frames]
    [settled] = await secured.gateway.settled()
    assert (settled.closed_by, settled.outcome) == ("client", "client_gone")
