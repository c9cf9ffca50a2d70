"""Bytes in motion: pipelines, pressure from both sides, large uploads, drain."""

import asyncio
import os
import resource
import signal

import pytest

from gateway.edge.context import Limits
from gateway.server import DrainSettings
from tests.doubles.cartesia import WAV, CartesiaDouble, Connection, Received
from tests.kit.edge import JSON_BODY, Client, Edge, edge, request, speak
from tests.kit.waiting import until


async def test_pipelined_requests_are_answered_in_order(client: Client, double: CartesiaDouble) -> None:
    bodies = [JSON_BODY.replace(b"Hello.", b"%d" % number) for number in range(40)]
    await client.send(b"".join(speak("X-Double: echo", body=body) for body in bodies))

    assert [(await client.answer()).body for _ in bodies] == bodies
    assert len(double.connections) == 1


async def test_a_head_that_comes_byte_by_byte_is_read(client: Client) -> None:
    for byte in speak():
        await client.send(bytes([byte]))
        await asyncio.sleep(0)

    assert (await client.answer()).body == WAV


async def test_an_empty_line_between_requests_is_skipped(client: Client) -> None:
    await client.send(speak() + b"\r\n" + speak())

    assert (await client.answer()).body == WAV
    assert (await client.answer()).body == WAV


async def test_more_than_one_empty_line_before_a_request_is_refused(client: Client) -> None:
    """To skip them one by one held every other connection up: a megabyte of them for a second."""
    await client.send(b"\r\n\r\n" + speak())

    answer = await client.answer()

    assert (answer.status, answer.one(b"Connection")) == (400, b"close")
    assert await client.rest() == b""


async def test_heads_that_differ_a_little_are_each_read_anew(client: Client, double: CartesiaDouble) -> None:
    for extra in ("X-A: 1", "X-A: 2", "X-A: 2", "x-a: 2"):
        await client.send(speak(extra))
        await client.answer()
    await client.send(speak("X-A: 2", body=JSON_BODY + b" "))
    await client.answer()

    assert [received.one("X-A") for received in double.requests] == ["1", "2", "2", "2", "2"]
    assert double.requests[3].all("x-a") == ["2"]
    assert double.requests[4].body == JSON_BODY + b" "
    assert [received.one("Content-Length") for received in double.requests[3:]] == [str(len(JSON_BODY)), str(len(JSON_BODY) + 1)]


@pytest.mark.parametrize("line", ["CONTENT-LENGTH: 0", "Content-Length:0", "Content-length: 0"])
async def test_a_length_in_an_odd_spelling_arrives_with_every_request(client: Client, double: CartesiaDouble, line: str) -> None:
    for _ in range(3):
        await client.send(request("GET", "/cartesia/voices", line))
        await client.answer()

    assert [line.encode() in received.head for received in double.requests] == [True, True, True]


async def test_a_slow_reader_holds_its_own_provider_up_and_nobody_else(gateway: Edge, double: CartesiaDouble) -> None:
    sent = 0
    chunk = os.urandom(2**16)

    async def flood(double: CartesiaDouble, connection: Connection, received: Received) -> bool:
        nonlocal sent
        await connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (2**16 * 1000))
        for _ in range(1000):
            await connection.send(chunk)
            sent += len(chunk)
        return True

    double.scripts["flood"] = flood
    slow = await gateway.client()
    slow.writer.transport.pause_reading()
    await slow.send(request("GET", "/cartesia/voices", "X-Double: flood"))
    before = -1
    while sent != before:
        before = sent
        await asyncio.sleep(0.1)

    other = await gateway.client()
    await other.send(speak())

    assert (await other.answer(seconds=2)).body == WAV
    assert sent < 2**16 * 500
    slow.close()
    other.close()


async def test_a_client_that_reads_nothing_is_given_up(double: CartesiaDouble) -> None:
    async def flood(double: CartesiaDouble, connection: Connection, received: Received) -> bool:
        await connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % 2**30)
        while not connection.writer.is_closing():
            await connection.send(bytes(2**20))
        return False

    double.scripts["flood"] = flood
    async with edge(double.origin, limits=Limits(stall_seconds=0.2)) as gateway:
        client = await gateway.client()
        client.writer.transport.pause_reading()
        await client.send(request("GET", "/cartesia/voices", "X-Double: flood"))

        (settled,) = await gateway.settled()

        assert (settled.outcome, settled.reason) == ("client_gone", "stalled")
        client.close()


async def test_an_upload_of_any_size_passes_with_flat_memory(client: Client, double: CartesiaDouble) -> None:
    """Public report 34; the size is a stand-in for 2 GB, the memory is not: it must not grow with the upload."""
    size = 192 * 2**20
    double.reads_bodies = False
    taken = 0

    async def swallow(double: CartesiaDouble, connection: Connection, received: Received) -> bool:
        nonlocal taken
        taken = len(connection.buffer)
        connection.received.clear()
        while taken < size:
            connection.buffer.clear()
            await connection.more()
            connection.received.clear()
            taken += len(connection.buffer)
        await connection.answer("200 OK", body=b"ok")
        return False

    double.scripts["swallow"] = swallow
    await client.send(request("GET", "/cartesia/voices", "X-Double: swallow", f"Content-Length: {size}"))
    piece = bytes(2**20)
    await client.send(piece * 8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(size // 2**20 - 8):
        await client.send(piece)

    assert (await client.answer(seconds=30)).body == b"ok"
    assert taken == size
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 24 * 1024


async def test_a_provider_that_reads_slowly_holds_the_client_up(client: Client, double: CartesiaDouble) -> None:
    double.reads_bodies = False

    async def dawdle(double: CartesiaDouble, connection: Connection, received: Received) -> bool:
        connection.writer.transport.pause_reading()
        await double.go.wait()
        connection.writer.transport.resume_reading()
        return await connection.exactly(2**26) is not None

    double.scripts["dawdle"] = dawdle
    client.writer.write(request("GET", "/cartesia/voices", "X-Double: dawdle", f"Content-Length: {2**26}"))
    client.writer.write(bytes(2**26))
    left = -1
    while client.writer.transport.get_write_buffer_size() != left:
        left = client.writer.transport.get_write_buffer_size()
        await asyncio.sleep(0.1)

    assert left > 2**25
    double.go.set()


async def test_drain_lets_an_answer_under_way_end_and_takes_nothing_new(double: CartesiaDouble) -> None:
    async with edge(double.origin, drain=DrainSettings(deadline_seconds=5)) as gateway:
        busy, idle = await gateway.client(), await gateway.client()
        await idle.send(request("GET", "/livez"))
        await idle.answer()
        await busy.send(speak("X-Double: first-then-wait"))
        await busy.until(b"event: chunk")

        port = gateway.port
        draining = asyncio.ensure_future(gateway.server.drain())
        assert await idle.rest() == b""
        try:
            await Client.connect(port)
        except ConnectionRefusedError:
            refused = True
        else:
            refused = False
        double.go.set()
        rest = await busy.rest()
        await draining

        assert refused
        assert rest.endswith(b"0\r\n\r\n")
        assert [settled.outcome for settled in gateway.recorder.settled] == ["completed"]


async def test_a_request_that_comes_while_draining_is_the_last_of_its_connection(gateway: Edge, client: Client) -> None:
    gateway.context.is_draining = True
    await client.send(speak())

    answer = await client.answer()

    assert (answer.body, answer.one(b"Connection")) == (WAV, b"close")
    assert await client.rest() == b""


async def test_what_does_not_end_in_time_is_cut(double: CartesiaDouble) -> None:
    async with edge(double.origin, drain=DrainSettings(deadline_seconds=0.1)) as gateway:
        client = await gateway.client()
        await client.send(speak("X-Double: first-then-wait"))
        await client.until(b"event: chunk")

        await gateway.server.drain()

        assert not (await client.rest()).endswith(b"0\r\n\r\n")
        assert [settled.outcome for settled in gateway.recorder.settled] == ["drained"]
        double.go.set()


async def test_a_signal_drains_and_the_exit_status_is_0(double: CartesiaDouble) -> None:
    async with edge(double.origin, drain=DrainSettings(deadline_seconds=2)) as gateway:
        server = gateway.server
        server.close()
        running = asyncio.ensure_future(server.run())
        await until(lambda: server.started and len(server.addresses) > 0)
        os.kill(os.getpid(), signal.SIGTERM)

        assert await asyncio.wait_for(running, 5) == 0


async def test_nothing_is_left_behind_by_aborted_streams(gateway: Edge, double: CartesiaDouble) -> None:
    double.go.set()
    for _ in range(50):
        client = await gateway.client()
        await client.send(speak("X-Double: silent"))
        await until(lambda: len(gateway.context.open) == 1)
        client.close()
        await until(lambda: len(gateway.context.open) == 0)

    await until(lambda: not gateway.server.server_state.connections)
    assert len(gateway.recorder.settled) == 50
    await until(lambda: all(connection.gone.is_set() for connection in double.connections))
