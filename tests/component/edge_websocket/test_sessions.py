"""Open sessions over real sockets: which bytes pass, how each side's end reaches the other."""

import asyncio
import gc
import random

import pytest

from gateway.edge.context import Limits
from gateway.edge.protocol import EdgeProtocol
from gateway.edge.websocket_relay import Relay
from policy.session import Session
from tests.doubles.cartesia_websocket import (
    BINARY,
    CLOSE,
    PING,
    PONG,
    TEXT,
    Socket,
    SocketsDouble,
    client_frame,
    close_payload,
    listen,
    server_frame,
    sockets_double,
)
from tests.kit.sessions import STT, TTS, dial, sockets_edge
from tests.kit.tallies import final_of
from tests.kit.waiting import until


async def test_a_text_is_spoken_and_its_context_settled() -> None:
    async with sockets_double() as double, sockets_edge(double) as gateway:
        client = await dial(gateway)
        await client.speak("c1", "Hello there")
        assert [(await client.heard())["type"] for _ in range(3)] == ["chunk", "chunk", "done"]
        await client.hang_up()
        [settled] = await gateway.settled()
        [context] = gateway.recorder.contexts
        assert (settled.outcome, settled.closed_by, settled.close_code, settled.contexts) == ("completed", "client", 1000, 1)
        assert (context.outcome, context.characters, context.model) == ("completed", 11, "sonic-3")
        assert len(gateway.context.open) == 0


def session_parts() -> list[object]:
    return [kept for kept in gc.get_objects() if type(kept) in (EdgeProtocol, Relay, Session)]


async def test_an_ended_session_leaves_nothing_for_the_garbage_collector() -> None:
    async with sockets_double() as double, sockets_edge(double) as gateway:
        gc.disable()
        try:
            kept = session_parts()  # of other tests
            before = {id(part) for part in kept}
            client = await dial(gateway)
            await client.speak("c1", "Hello there")
            await client.hang_up()
            await gateway.settled()
            await until(lambda: all(id(part) in before for part in session_parts()))
        finally:
            gc.enable()


@pytest.mark.parametrize(
    ("opcode", "payload"),
    [
        (BINARY, b""),
        (TEXT, b""),
        (BINARY, b"\x00\xff"),
        (BINARY, b"{}"),
        (TEXT, "héllo \U0001f600".encode()),
        (BINARY, bytes(125)),
        (BINARY, bytes(126)),
        (BINARY, bytes(65535)),
        (BINARY, bytes(65536)),
    ],
)
async def test_a_message_keeps_its_opcode_and_its_bytes(opcode: int, payload: bytes) -> None:
    async with sockets_double() as double, sockets_edge(double) as gateway:
        client = await dial(gateway, STT, "X-Double: echo")
        await client.send(opcode, payload)
        found = await client.frame()
        assert found is not None
        assert (found.opcode, found.payload, found.is_final) == (opcode, payload, True)


@pytest.mark.parametrize("size", [2 * 1024 * 1024, 16 * 1024 * 1024])
async def test_a_large_message_passes_both_ways(size: int) -> None:
    async with sockets_double() as double, sockets_edge(double) as gateway:
        client = await dial(gateway, STT, "X-Double: echo")
        payload = random.Random(1).randbytes(size)
        sending = asyncio.ensure_future(client.send(BINARY, payload))
        async with asyncio.timeout(20):
            found = await client.frame()
        await sending
        assert found is not None
        assert found.payload == payload


async def test_fragments_stay_fragments_with_pings_between_them() -> None:
    async with sockets_double() as double, sockets_edge(double) as gateway:
        client = await dial(gateway, STT, "X-Double: listen")
        sent = (
            client_frame(BINARY, b"one", is_final=False)
            + client_frame(PING, b"beat")
            + client_frame(0, b"", is_final=False)
            + client_frame(0, b"two")
        )
        await client.send_raw(sent)
        await until(lambda: len(double.sockets[0].frames) == 4)
        assert bytes(double.sockets[0].received) == sent


async def test_any_reads_of_any_frames_reach_the_other_side_byte_for_byte() -> None:
    source = random.Random(7)
    async with sockets_double() as double, sockets_edge(double) as gateway:
        client = await dial(gateway, STT, "X-Double: listen")
        sent = b"".join(
            client_frame(source.choice((TEXT, BINARY, PING, PONG)), source.randbytes(source.choice((0, 5, 90, 125))))
            + client_frame(BINARY, source.randbytes(source.choice((126, 640, 70_000))))
            for _ in range(40)
        )
        at = 0
        while at < len(sent):
            size = source.choice((1, 2, 3, 7, 640, 5000))
            await client.send_raw(sent[at : at + size])
            at += size
            await asyncio.sleep(0)
        await until(lambda: len(double.sockets[0].received) == len(sent))
        assert bytes(double.sockets[0].received) == sent


async def test_pings_of_the_client_are_answered_by_the_provider() -> None:
    async with sockets_double() as double, sockets_edge(double) as gateway:
        client = await dial(gateway, TTS)
        await client.send(PING, b"are you there")
        found = await client.frame()
        assert found is not None
        assert (found.opcode, found.payload) == (PONG, b"are you there")
        assert [frame.opcode for frame in double.sockets[0].frames] == [PING]


async def test_pings_of_the_provider_are_answered_by_the_client() -> None:
    async def pings(double: SocketsDouble, socket: Socket) -> None:
        await socket.send(PING, b"beat")
        await socket.frame()

    async with sockets_double() as double, sockets_edge(double) as gateway:
        double.scripts["pings"] = pings
        client = await dial(gateway, TTS, "X-Double: pings")
        found = await client.frame()
        assert found is not None
        assert (found.opcode, found.payload) == (PING, b"beat")
        await client.send(PONG, b"beat")
        await until(lambda: len(double.sockets[0].frames) == 1)
        assert double.sockets[0].frames[0].opcode == PONG


# ---- ends


def closes(double: SocketsDouble, code: int, reason: str) -> None:
    """Give the double the script `closes`."""

    async def script(_: SocketsDouble, socket: Socket) -> None:
        await socket.close(code, reason)

    double.scripts["closes"] = script


@pytest.mark.parametrize("target", [TTS, STT])
@pytest.mark.parametrize(
    ("code", "reason", "outcome", "why"),
    [
        (1000, "connection idle timeout", "completed", "provider_idle"),
        (1001, "", "completed", ""),
        (1008, "policy", "upstream_fault", ""),
        (1011, "boom", "upstream_fault", ""),
        (4408, "tenant quota", "completed", ""),
    ],
)
async def test_a_providers_close_reaches_the_client_with_code_and_reason(
    target: str, code: int, reason: str, outcome: str, why: str
) -> None:
    async with sockets_double() as double, sockets_edge(double) as gateway:
        closes(double, code, reason)
        client = await dial(gateway, target, "X-Double: closes")
        assert await client.closed(0.5) == (code, reason)
        assert await client.reader.read() == b""
        [settled] = await gateway.settled()
        assert (settled.closed_by, settled.close_code, settled.outcome, settled.reason) == ("provider", code, outcome, why)
        assert double.sockets[0].frames[-1].payload == close_payload(code, reason)


@pytest.mark.parametrize("target", [TTS, STT])
async def test_a_clients_close_reaches_the_provider_with_code_and_reason(target: str) -> None:
    async with sockets_double() as double, sockets_edge(double) as gateway:
        client = await dial(gateway, target)
        answer = await client.hang_up(4001, "client bye")
        assert double.sockets[0].frames[-1].payload == close_payload(4001, "client bye")
        assert answer is not None
        assert answer.payload == close_payload(4001, "client bye")


async def test_a_close_without_a_code_stays_one() -> None:
    async with sockets_double() as double, sockets_edge(double) as gateway:
        client = await dial(gateway, STT)
        await client.send(CLOSE, b"")
        found = await client.frame()
        assert found is not None
        assert (found.opcode, found.payload) == (CLOSE, b"")
        assert double.sockets[0].frames[-1].raw[1] == 0x80


@pytest.mark.parametrize("target", [TTS, STT])
@pytest.mark.parametrize("way", ["reset", "close"])
async def test_a_provider_that_breaks_off_ends_the_client_without_a_close_frame(target: str, way: str) -> None:
    async def breaks(_: SocketsDouble, socket: Socket) -> None:
        await socket.send_raw(server_frame(TEXT, b'{"type": "last words"}') + b"\x81\x7e\x01")
        await asyncio.sleep(0.05)  # a reset throws away what was not read yet
        if way == "reset":
            socket.reset()
        else:
            socket.writer.close()

    async with sockets_double() as double, sockets_edge(double) as gateway:
        double.scripts["breaks"] = breaks
        client = await dial(gateway, target, "X-Double: breaks")
        assert await client.heard() == {"type": "last words"}
        assert await client.frame() is None
        client.writer.close()
        [settled] = await gateway.settled()
        assert (settled.closed_by, settled.close_code, settled.outcome) == ("provider", 1006, "upstream_fault")


@pytest.mark.parametrize("target", [TTS, STT])
async def test_a_client_that_hangs_up_ends_the_provider_without_a_close_frame(target: str) -> None:
    async with sockets_double() as double, sockets_edge(double) as gateway:
        client = await dial(gateway, target, "X-Double: listen")
        client.reset()
        async with asyncio.timeout(2):
            await double.sockets[0].gone.wait()
        assert double.sockets[0].frames == []
        [settled] = await gateway.settled()
        assert (settled.closed_by, settled.close_code, settled.outcome) == ("client", 1006, "client_gone")


async def test_a_client_that_ends_its_direction_still_hears_the_answer() -> None:
    async def answers_late(_: SocketsDouble, socket: Socket) -> None:
        await socket.frame()
        await socket.frame()  # the end of the client's direction
        await socket.send(TEXT, b'{"type": "late"}')

    async with sockets_double() as double, sockets_edge(double) as gateway:
        double.scripts["late"] = answers_late
        client = await dial(gateway, STT, "X-Double: late")
        await client.send(BINARY, bytes(640))
        client.writer.write_eof()
        assert await client.heard() == {"type": "late"}
        assert await client.frame() is None


@pytest.mark.parametrize(("target", "limit"), [(TTS, 1000), (STT, 2000)])
async def test_a_client_that_sends_more_than_the_limit_is_told_1009(target: str, limit: int) -> None:
    limits = Limits(judged_message_bytes=1000, message_bytes=2000)
    async with sockets_double() as double, sockets_edge(double, limits=limits) as gateway:
        client = await dial(gateway, target, "X-Double: listen")
        await client.send(BINARY, bytes(limit + 1))
        closed = await client.closed()
        assert closed is not None
        assert closed[0] == 1009
        await until(lambda: len(double.sockets[0].frames) > 0)
        assert double.sockets[0].frames[0].payload[:2] == (1001).to_bytes(2, "big")
        assert double.sockets[0].frames[0].is_masked


async def test_a_message_limit_of_0_is_none() -> None:
    async with sockets_double() as double, sockets_edge(double, limits=Limits(message_bytes=0)) as gateway:
        client = await dial(gateway, STT, "X-Double: echo")
        await client.send(BINARY, bytes(100_000))
        found = await client.frame()
        assert found is not None
        assert found.payload == bytes(100_000)


async def test_a_provider_that_sends_more_than_the_limit_is_told_1009() -> None:
    async def shouts(_: SocketsDouble, socket: Socket) -> None:
        await socket.send(BINARY, bytes(2001))
        await socket.frame()

    async with sockets_double() as double, sockets_edge(double, limits=Limits(message_bytes=2000)) as gateway:
        double.scripts["shouts"] = shouts
        client = await dial(gateway, STT, "X-Double: shouts")
        closed = await client.closed()
        assert closed is not None
        assert closed[0] == 1011
        await until(lambda: len(double.sockets[0].frames) > 0)
        assert double.sockets[0].frames[0].payload[:2] == (1009).to_bytes(2, "big")


@pytest.mark.parametrize("target", [TTS, STT])
async def test_broken_framing_ends_both_sides_with_1002(target: str) -> None:
    async with sockets_double() as double, sockets_edge(double) as gateway:
        client = await dial(gateway, target, "X-Double: listen")
        await client.send_raw(server_frame(TEXT, b"not masked"))
        closed = await client.closed()
        assert closed is not None
        assert closed[0] == 1002
        await until(lambda: len(double.sockets[0].frames) > 0)
        assert double.sockets[0].frames[0].payload[:2] == (1002).to_bytes(2, "big")


@pytest.mark.parametrize("target", [TTS, STT])
@pytest.mark.parametrize("code", [999, 1004, 1005, 1006, 1015, 5000])
async def test_a_close_code_that_must_not_travel_does_not_and_1002_says_so(target: str, code: int) -> None:
    async with sockets_double() as double, sockets_edge(double) as gateway:
        client = await dial(gateway, target, "X-Double: listen")
        await client.send(CLOSE, close_payload(code))
        closed = await client.closed()
        assert closed is not None
        assert closed[0] == 1002
        await until(lambda: len(double.sockets[0].frames) > 0)
        assert [frame.payload[:2] for frame in double.sockets[0].frames] == [(1002).to_bytes(2, "big")]


@pytest.mark.parametrize("target", [TTS, STT])
async def test_a_providers_close_code_that_must_not_travel_does_not_either(target: str) -> None:
    async def lies(_: SocketsDouble, socket: Socket) -> None:
        await socket.send_raw(server_frame(TEXT, b'{"type": "last words"}') + server_frame(CLOSE, close_payload(1006)))
        await socket.frame()

    async with sockets_double() as double, sockets_edge(double) as gateway:
        double.scripts["lies"] = lies
        client = await dial(gateway, target, "X-Double: lies")
        assert await client.heard() == {"type": "last words"}
        closed = await client.closed()
        assert closed is not None
        assert closed[0] == 1002
        assert await client.frame() is None


# ---- in-band


async def test_a_refused_context_is_told_and_the_others_go_on() -> None:
    async with sockets_double() as double, sockets_edge(double) as gateway:
        client = await dial(gateway)
        await client.speak("bad", "Hello", model="sonic-9")
        error = await client.heard()
        assert (error["type"], error["context_id"], error["error_code"], error["done"]) == (
            "error",
            "bad",
            "model_not_granted",
            True,
        )
        await client.speak("good", "Hello")
        assert (await client.heard())["context_id"] == "good"
        assert b"sonic-9" not in bytes(double.sockets[0].received)


async def test_a_providers_error_is_relayed_and_its_context_costs_nothing() -> None:
    async def limited(double: SocketsDouble, socket: Socket) -> None:
        await socket.message()
        await socket.say(type="error", status_code=429, error_code="concurrency_limited", context_id="c1", done=True)
        await listen(double, socket)

    async with sockets_double() as double, sockets_edge(double) as gateway:
        double.scripts["limited"] = limited
        client = await dial(gateway, TTS, "X-Double: limited")
        await client.speak("c1", "Hello")
        assert (await client.heard())["error_code"] == "concurrency_limited"
        await client.hang_up()
        await gateway.settled()
        [context] = gateway.recorder.contexts
        assert (context.outcome, context.reason) == ("provider_error", "concurrency_limited")
        final = final_of(context.tally, context.outcome, 0)
        assert (final.totals, final.units) == ({}, {"requests": -1, "characters": -5})


# ---- flow


async def test_a_client_that_does_not_read_stops_the_provider_and_nobody_else() -> None:
    async def floods(_: SocketsDouble, socket: Socket) -> None:
        for _count in range(4000):
            await socket.send(BINARY, bytes(16_384))
        await socket.close(1000)

    async with sockets_double() as double, sockets_edge(double) as gateway:
        double.scripts["floods"] = floods
        slow = await dial(gateway, STT, "X-Double: floods")
        slow.reader._transport.pause_reading()  # type: ignore[attr-defined]  # StreamReader has no public way to stop
        quick = await dial(gateway, STT)
        for _ in range(20):
            await quick.send(BINARY, bytes(640))
            assert (await quick.heard())["type"] == "transcript"
        [relay] = [relay for relay in gateway.context.open if relay._is_client_full]  # type: ignore[attr-defined]
        assert relay._transport.get_write_buffer_size() < 1024 * 1024  # type: ignore[attr-defined]
        slow.reader._transport.resume_reading()  # type: ignore[attr-defined]
        heard = 0
        async with asyncio.timeout(30):
            while (found := await slow.frame()) is not None and found.opcode != CLOSE:
                heard += len(found.payload)
        assert heard == 4000 * 16_384


async def test_a_client_that_does_not_read_our_errors_has_to_stop_sending_what_they_answer() -> None:
    refused = client_frame(TEXT, b"{}")
    async with sockets_double() as double, sockets_edge(double) as gateway:
        client = await dial(gateway, TTS)
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        sending = asyncio.ensure_future(client.send_raw(refused * 1_000_000))
        [relay] = list(gateway.context.open)
        await until(lambda: relay._is_client_full and not relay._transport.is_reading(), 20)  # type: ignore[attr-defined]
        assert not sending.done()
        client.reader._transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(20_000):
            assert (await client.heard())["type"] == "error"
        sending.cancel()
        client.reset()


async def test_a_provider_that_does_not_read_stops_the_client() -> None:
    async def sulks(double: SocketsDouble, socket: Socket) -> None:
        await socket.frame()
        socket.reader._transport.pause_reading()  # type: ignore[attr-defined]
        await sulk.wait()
        socket.reader._transport.resume_reading()  # type: ignore[attr-defined]
        while await socket.frame() is not None:
            pass

    sulk = asyncio.Event()
    async with sockets_double() as double, sockets_edge(double) as gateway:
        double.scripts["sulks"] = sulks
        client = await dial(gateway, STT, "X-Double: sulks")
        sent = client_frame(BINARY, bytes(60_000)) * 400
        sending = asyncio.ensure_future(client.send_raw(sent))
        [relay] = list(gateway.context.open)
        await until(lambda: relay._is_upstream_full)  # type: ignore[attr-defined]
        assert not sending.done()
        sulk.set()
        await until(lambda: len(double.sockets[0].received) == len(sent), 20)
        await sending
