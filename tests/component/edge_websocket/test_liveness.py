"""Peers that do not read, and peers that vanished, seen in the kernel's own record of real connections."""

import asyncio
import socket

from gateway.edge.context import Limits
from gateway.liveness import Watch, keep_alive
from tests.doubles.cartesia_websocket import BINARY, Socket, SocketsDouble, sockets_double
from tests.kit.deafness import go_deaf
from tests.kit.sessions import STT, dial, sockets_edge
from tests.kit.waiting import until


async def test_a_peer_that_takes_nothing_is_stalled_and_one_that_has_nothing_to_take_is_not() -> None:
    listening = socket.create_server(("127.0.0.1", 0))  # nobody accepts: the kernel takes what its buffers hold
    sock = socket.create_connection(listening.getsockname())
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=sock)
    watch = Watch(0.0)
    assert watch.look(transport, 120, 0.0) == "alive"
    assert watch.look(transport, 120, 500.0) == "alive"
    transport.write(bytes(32 * 1024 * 1024))
    sizes = [0]
    while len(sizes) < 10 or len(set(sizes[-10:])) > 1:  # until the kernel's buffers are full
        sizes.append(transport.get_write_buffer_size())
        await asyncio.sleep(0.05)
    assert watch.look(transport, 120, 501.0) == "alive"
    assert watch.look(transport, 120, 620.0) == "alive"
    assert watch.look(transport, 120, 621.0) == "stalled"
    assert watch.look(transport, 0, 900.0) == "alive"
    transport.abort()
    listening.close()


async def test_quiet_connections_are_probed_within_ten_seconds() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    sock = socket.create_connection(listening.getsockname())
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=sock)
    keep_alive(sock)
    idle = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
    interval = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL)
    count = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT)
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert idle + interval * count <= 10
    transport.abort()
    listening.close()


async def test_a_client_that_never_reads_ends_its_session_with_its_own_reason() -> None:
    async def floods(_: SocketsDouble, socket: Socket) -> None:
        while not socket.gone.is_set():
            await socket.send(BINARY, bytes(65_536))
            if socket.writer.is_closing():
                return

    async with sockets_double() as double, sockets_edge(double, limits=Limits(stall_seconds=30)) as gateway:
        double.scripts["floods"] = floods
        client = await dial(gateway, STT, "X-Double: floods")
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]  # StreamReader has no public way to stop
        [relay] = list(gateway.context.open)
        await until(lambda: relay._is_client_full)  # type: ignore[attr-defined]

        async def time_passes() -> None:
            while not gateway.recorder.settled:
                gateway.now += 20
                await asyncio.sleep(1)

        await asyncio.wait_for(time_passes(), 20)
        [settled] = gateway.recorder.settled
        assert (settled.closed_by, settled.reason, settled.outcome) == ("client", "stalled", "client_gone")
        client.writer.transport.abort()


async def vanished(side: str, *, is_busy: bool) -> tuple[str, str, str]:
    """Let one side of a session vanish, quiet or with data under way to it; return who, how and why it ended."""

    async def speaks(double: SocketsDouble, socket: Socket) -> None:
        await socket.send(BINARY, bytes(1000))
        await double.go.wait()
        await socket.send(BINARY, bytes(1000))

    async with sockets_double() as double, sockets_edge(double) as gateway:
        double.scripts["speaks"] = speaks
        client = await dial(gateway, STT, "X-Double: speaks")
        assert await client.frame() is not None
        there = client if side == "client" else double.sockets[0]
        go_deaf(there.writer.get_extra_info("socket"))
        if is_busy and side == "client":
            double.go.set()
        elif is_busy:
            await client.send(BINARY, bytes(1000))
        if side == "provider":
            async with asyncio.timeout(60):
                while await client.frame() is not None:
                    pass
            client.writer.close()
        await until(lambda: bool(gateway.recorder.settled), seconds=60)
        [settled] = gateway.recorder.settled
        client.writer.transport.abort()
        return settled.closed_by, settled.outcome, settled.reason


async def test_a_peer_that_vanished_is_found_dead_on_either_side_quiet_or_with_data_under_way() -> None:
    cases = [("client", False), ("client", True), ("provider", False), ("provider", True)]
    assert await asyncio.gather(*(vanished(side, is_busy=is_busy) for side, is_busy in cases)) == [
        ("client", "client_gone", ""),
        ("client", "client_gone", "half_open"),
        ("provider", "upstream_fault", ""),
        ("provider", "upstream_fault", "half_open"),
    ]
