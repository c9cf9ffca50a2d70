"""Peers of HTTP exchanges that vanished, that do not read, or that read slowly, on real connections."""

import asyncio
import json
import socket

from gateway.edge.context import Limits
from gateway.edge.protocol import EdgeProtocol
from tests.doubles.cartesia import CartesiaDouble, Connection, Received, answers
from tests.kit.deafness import go_deaf
from tests.kit.edge import Client, Edge, edge, request, speak
from tests.kit.waiting import until

MOST_SECONDS = 60.0
"""before a vanished peer has to be known; ten on a machine with time"""


async def client_vanished(*, is_busy: bool) -> tuple[str, str, str, dict[str, int]]:
    """Let a client vanish while it waits for the next event of a stream, which comes or does not."""
    async with CartesiaDouble() as double, edge(double.origin) as gateway:
        client = await gateway.client()
        await client.send(speak("X-Double: first-then-wait", target="/cartesia/tts/sse"))
        await client.until(b"event: chunk")
        go_deaf(client.writer.get_extra_info("socket"))
        if is_busy:
            await double.connections[0].send(b"5\r\ndata:\r\n")
        await until(lambda: bool(gateway.recorder.settled), seconds=MOST_SECONDS)
        [settled] = gateway.recorder.settled
        await until(lambda: not gateway.server.server_state.connections)
        client.close()
        assert settled.tally is not None
        return settled.closed_by, settled.outcome, settled.reason, settled.tally.totals


async def test_a_client_that_vanished_is_given_up_and_pays_for_what_was_sent() -> None:
    quiet, busy = await asyncio.gather(client_vanished(is_busy=False), client_vanished(is_busy=True))

    assert quiet[:3] == ("client", "client_gone", "")
    assert busy[:3] == ("client", "client_gone", "half_open")
    assert quiet[3]["characters"] == busy[3]["characters"] == 6


async def provider_vanished_before_its_answer() -> tuple[int, str, str, str]:
    async with CartesiaDouble() as double, edge(double.origin) as gateway:
        client = await gateway.client()
        await client.send(speak("X-Double: silent"))
        await until(lambda: len(double.requests) == 1)
        go_deaf(double.connections[0].writer.get_extra_info("socket"))
        answer = await client.answer(seconds=MOST_SECONDS)
        [settled] = gateway.recorder.settled
        client.close()
        return answer.status, json.loads(answer.body)["error_code"], settled.outcome, settled.fault_phase


async def provider_vanished_in_its_answer() -> tuple[bool, str, str, str]:
    async with CartesiaDouble() as double, edge(double.origin) as gateway:
        client = await gateway.client()
        await client.send(speak("X-Double: first-then-wait", target="/cartesia/tts/sse"))
        await client.until(b"event: chunk")
        go_deaf(double.connections[0].writer.get_extra_info("socket"))
        rest = await client.rest(seconds=MOST_SECONDS)
        [settled] = gateway.recorder.settled
        client.close()
        return rest.endswith(b"0\r\n\r\n"), settled.reason, settled.outcome, settled.fault_phase


async def provider_vanished_in_an_upload() -> tuple[int, str, str, str]:
    async with CartesiaDouble() as double, edge(double.origin) as gateway:
        double.reads_bodies = False
        client = await gateway.client()
        await client.send(request("GET", "/cartesia/voices", "X-Double: silent", "Content-Length: 2000") + bytes(500))
        await until(lambda: len(double.connections[0].received if double.connections else b"") > 500)
        go_deaf(double.connections[0].writer.get_extra_info("socket"))
        await client.send(bytes(500))
        answer = await client.answer(seconds=MOST_SECONDS)
        [settled] = gateway.recorder.settled
        client.close()
        return answer.status, json.loads(answer.body)["error_code"], settled.outcome, settled.fault_phase


async def provider_vanished_between_two_requests() -> tuple[int, str, int]:
    """The second one goes into the dead connection; it is a GET, so it is tried once more."""
    async with CartesiaDouble() as double, edge(double.origin) as gateway:
        client = await gateway.client()
        await client.send(request("GET", "/cartesia/voices"))
        await client.answer()
        go_deaf(double.connections[0].writer.get_extra_info("socket"))
        await client.send(request("GET", "/cartesia/voices"))
        answer = await client.answer(seconds=MOST_SECONDS)
        client.close()
        return answer.status, gateway.recorder.settled[1].outcome, len(double.connections)


async def test_a_provider_that_vanished_is_a_fault_in_whichever_phase() -> None:
    before, within, upload, between = await asyncio.gather(
        provider_vanished_before_its_answer(),
        provider_vanished_in_its_answer(),
        provider_vanished_in_an_upload(),
        provider_vanished_between_two_requests(),
    )

    assert before == (502, "upstream_gone", "upstream_fault", "response_head")
    assert within == (False, "upstream_gone", "upstream_fault", "response_body")
    assert upload == (502, "upstream_gone", "upstream_fault", "response_head")
    assert between == (200, "completed", 2)


async def test_idle_connections_of_clients_and_providers_that_vanished_are_closed() -> None:
    async with CartesiaDouble() as double, edge(double.origin) as gateway:
        client = await gateway.client()
        await client.send(request("GET", "/cartesia/voices"))
        await client.answer()
        origin = gateway.context.upstreams.origin_of(next(iter(gateway.world.index.accounts.values())))
        assert (origin.idle_count, len(gateway.server.server_state.connections)) == (1, 1)

        go_deaf(client.writer.get_extra_info("socket"))
        go_deaf(double.connections[0].writer.get_extra_info("socket"))

        await until(lambda: origin.idle_count == 0 and not gateway.server.server_state.connections, seconds=MOST_SECONDS)
        client.close()


async def floods(double: CartesiaDouble, connection: Connection, received: Received) -> bool:
    """Send a gigabyte, as fast as it is taken."""
    await connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % 2**30)
    while not connection.writer.is_closing():
        await connection.send(bytes(2**18))
    return False


async def test_a_client_that_reads_slowly_is_no_client_that_reads_nothing() -> None:
    """Its kernel frees its buffer a little at a time; ours tells only once a third of its own, a megabyte, is free."""
    async with CartesiaDouble() as double, edge(double.origin, limits=Limits(stall_seconds=3)) as gateway:
        double.scripts["floods"] = floods
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
        sock.connect(("127.0.0.1", gateway.port))
        reader, writer = await asyncio.open_connection(sock=sock, limit=4096)
        client = Client(reader, writer)
        await client.send(request("GET", "/cartesia/voices", "X-Double: floods"))
        for _ in range(40):
            await asyncio.sleep(0.2)  # the pace of a listener
            await reader.readexactly(8192)

        assert gateway.recorder.settled == []
        client.close()
        (settled,) = await gateway.settled()
        assert (settled.outcome, settled.reason) == ("client_gone", "")


async def test_a_provider_that_reads_nothing_is_given_up() -> None:
    async with CartesiaDouble() as double, edge(double.origin, limits=Limits(stall_seconds=0.2)) as gateway:
        double.reads_bodies = False

        async def dawdles(double: CartesiaDouble, connection: Connection, received: Received) -> bool:
            connection.writer.transport.pause_reading()
            await double.go.wait()
            return False

        double.scripts["dawdles"] = dawdles
        client = await gateway.client()
        client.writer.write(request("GET", "/cartesia/voices", "X-Double: dawdles", f"Content-Length: {2**26}"))
        client.writer.write(bytes(2**26))

        answer = await client.answer(seconds=MOST_SECONDS)
        (settled,) = await gateway.settled()

        assert (answer.status, json.loads(answer.body)["error_code"]) == (504, "upstream_timeout")
        assert (settled.outcome, settled.fault_phase) == ("upstream_fault", "send")
        client.close()


async def test_a_connection_whose_last_answer_filled_a_slow_clients_buffer_serves_the_next_client(
    gateway: Edge, double: CartesiaDouble
) -> None:
    double.scripts["large"] = answers(b"HTTP/1.1 200 OK\r\nContent-Length: 32768\r\n\r\n" + bytes(2**15))
    slow = await gateway.client()
    slow.writer.transport.pause_reading()
    [connection] = gateway.server.server_state.connections
    assert isinstance(connection, EdgeProtocol)
    while not connection.flow.write_paused:
        settled = len(gateway.recorder.settled)
        await slow.send(request("GET", "/cartesia/voices", "X-Double: large"))
        await gateway.settled(settled + 1)

    other = await gateway.client()
    await other.send(request("GET", "/cartesia/voices", "X-Double: large"))

    assert len((await other.answer()).body) == 2**15
    assert len(double.connections) == 1
    slow.close()
    other.close()


async def test_requests_in_line_wait_for_a_client_that_does_not_take_its_answers(gateway: Edge, double: CartesiaDouble) -> None:
    count, size = 2000, 2**15

    async def large(double: CartesiaDouble, connection: Connection, received: Received) -> bool:
        await connection.answer("200 OK", body=bytes(size))
        return True

    double.scripts["large"] = large
    client = await gateway.client()
    client.writer.transport.pause_reading()
    client.writer.write(request("GET", "/cartesia/voices", "X-Double: large") * count)
    seen = [0]
    while len(seen) < 10 or len(set(seen[-10:])) > 1:  # until every buffer between is full
        seen.append(len(double.requests))
        await asyncio.sleep(0.1)

    assert 0 < seen[-1] < count / 2
    client.writer.transport.resume_reading()
    for _ in range(count):
        assert len((await client.answer()).body) == size
    client.close()
