"""Providers that fail, and clients that leave: each told apart, nothing repeated that could be billed twice."""

import asyncio
import json
import socket
from collections.abc import Callable, Sequence

import pytest

from gateway.edge.context import Limits
from gateway.upstream.connection import UpstreamConnection
from gateway.upstream.origin import PoolSettings
from gateway.upstream.upstreams import Upstreams
from policy.usage import Settled, Tally
from tests.doubles.cartesia import WAV, CartesiaDouble, Connection, Received, answers, dead_origin
from tests.kit.edge import RAW_BODY, Client, Edge, edge, request, speak
from tests.kit.tallies import final_of
from tests.kit.waiting import until


def reason(body: bytes) -> str:
    return str(json.loads(body)["error_code"])


def owed(settled: Settled) -> dict[str, int]:
    """What the exchange's events add up to, as the recorder makes them."""
    assert settled.tally is not None
    return final_of(settled.tally, settled.outcome, 0, is_owed=settled.is_owed).totals


async def test_a_provider_that_nobody_listens_at_is_502_and_costs_nothing() -> None:
    async with dead_origin() as origin, edge(origin) as gateway:
        client = await gateway.client()
        await client.send(speak())

        answer = await client.answer()
        (settled,) = await gateway.settled()

        assert (answer.status, reason(answer.body)) == (502, "upstream_unreachable")
        assert answer.all(b"x-should-retry") == []
        assert (settled.outcome, settled.fault_phase, settled.anything_sent) == ("upstream_fault", "connect", False)
        assert settled.tally is None


async def test_a_provider_that_does_not_answer_in_time_is_504(double: CartesiaDouble) -> None:
    async with edge(double.origin, limits=Limits(response_head_seconds=0.1)) as gateway:
        client = await gateway.client()
        await client.send(speak("X-Double: silent"))

        answer = await client.answer()
        (settled,) = await gateway.settled()

        assert (answer.status, reason(answer.body)) == (504, "upstream_timeout")
        assert (settled.outcome, settled.fault_phase, settled.anything_sent) == ("upstream_fault", "response_head", True)
        assert answer.all(b"x-should-retry") == [b"false"]
        assert owed(settled) == {"requests": 1, "characters": 6}
        await until(lambda: double.connections[0].gone.is_set())


@pytest.mark.parametrize(("script", "told"), [("close", "upstream_gone"), ("not-http", "upstream_protocol")])
async def test_a_provider_that_does_not_answer_as_http_is_502(client: Client, gateway: Edge, script: str, told: str) -> None:
    await client.send(speak(f"X-Double: {script}"))

    answer = await client.answer()
    (settled,) = await gateway.settled()

    assert (answer.status, reason(answer.body)) == (502, told)
    assert (settled.outcome, settled.reason) == ("upstream_fault", told)


@pytest.mark.parametrize("script", ["close", "not-http", "away"])
async def test_text_that_was_sent_is_owed_and_not_sent_again_by_an_sdk(
    client: Client, gateway: Edge, double: CartesiaDouble, script: str
) -> None:
    double.scripts["away"] = answers(b"HTTP/1.1 302 Found\r\nLocation: https://elsewhere.test/\r\nContent-Length: 0\r\n\r\n")
    await client.send(speak(f"X-Double: {script}"))

    answer = await client.answer()
    (settled,) = await gateway.settled()

    assert answer.all(b"x-should-retry") == [b"false"]
    assert owed(settled) == {"requests": 1, "characters": 6}


async def test_a_request_without_text_whose_provider_went_away_may_be_tried_again(client: Client, gateway: Edge) -> None:
    await client.send(request("GET", "/cartesia/voices", "X-Double: close"))

    answer = await client.answer()
    (settled,) = await gateway.settled()

    assert (answer.status, answer.all(b"x-should-retry")) == (502, [])
    assert owed(settled) == {}


async def test_an_answer_to_text_that_was_sent_before_the_pod_was_told_to_stop_forbids_a_retry(
    client: Client, gateway: Edge, double: CartesiaDouble
) -> None:
    await client.send(speak("X-Double: silent"))
    await until(lambda: len(double.requests) == 1)
    for exchange in gateway.context.open:
        exchange.abort()

    answer = await client.answer()
    (settled,) = await gateway.settled()

    assert (reason(answer.body), answer.all(b"x-should-retry")) == ("draining", [b"false"])
    assert "may be billed" in json.loads(answer.body)["message"]
    assert owed(settled) == {"requests": 1, "characters": 6}


async def test_a_post_is_not_repeated_on_another_connection(client: Client, double: CartesiaDouble) -> None:
    await client.send(speak())
    await client.answer()
    await client.send(speak("X-Double: close"))

    answer = await client.answer()

    assert answer.status == 502
    assert [received.method for received in double.requests] == ["POST", "POST"]
    assert len(double.connections) == 1


async def test_a_get_on_a_stale_pooled_connection_is_tried_once_more(client: Client, double: CartesiaDouble) -> None:
    double.scripts["once"] = answers(b"", goes_on=False)
    await client.send(request("GET", "/cartesia/voices"))
    await client.answer()

    async def once(double: CartesiaDouble, connection: object, received: object) -> bool:
        double.scripts["once"] = double.default
        return False

    double.scripts["once"] = once
    await client.send(request("GET", "/cartesia/voices", "X-Double: once"))

    answer = await client.answer()

    assert answer.status == 200
    assert [len(connection.requests) for connection in double.connections] == [2, 1]


async def test_a_get_whose_body_was_streamed_is_not_tried_again(client: Client, double: CartesiaDouble) -> None:
    """Its head would go out once more and promise a body that nobody has any more."""
    await client.send(request("GET", "/cartesia/voices"))
    await client.answer()
    await client.send(request("GET", "/cartesia/voices", "X-Double: close", "Content-Length: 5"))
    await until(lambda: double.connections[0].received.count(b"\r\n\r\n") == 2)
    await client.send(b"hello")

    answer = await client.answer()

    assert (answer.status, reason(answer.body)) == (502, "upstream_gone")
    assert [len(connection.requests) for connection in double.connections] == [2]


async def test_a_get_on_a_fresh_connection_is_not_tried_again(client: Client, double: CartesiaDouble) -> None:
    await client.send(request("GET", "/cartesia/voices", "X-Double: close"))

    assert (await client.answer()).status == 502
    assert len(double.requests) == 1


async def test_a_connection_that_the_provider_closed_after_its_answer_is_not_used_again(
    client: Client, double: CartesiaDouble
) -> None:
    for script in ("closes", "closes-unasked", "closes-unasked"):
        await client.send(speak(f"X-Double: {script}"))
        assert (await client.answer()).body == b"ok"
        await until(lambda: all(connection.writer.is_closing() for connection in double.connections))

    await client.send(speak())
    assert (await client.answer()).body == WAV
    assert [len(connection.requests) for connection in double.connections] == [1, 1, 1, 1]


def ends(connection: UpstreamConnection) -> None:
    connection.transport.close()


def speaks_unasked(connection: UpstreamConnection) -> None:
    connection.data_received(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")


def when_text_is_admitted(gateway: Edge, happens: Callable[[], None]) -> None:
    """Have something happen once, after a text was counted and before it leaves: both are in one turn of the loop."""
    admit = gateway.recorder.admit

    def admit_once(tally: Tally, now_ms: int) -> None:
        gateway.recorder.admit = admit  # type: ignore[method-assign]
        gateway.context.turn.at_its_end(happens)
        admit(tally, now_ms)

    gateway.recorder.admit = admit_once  # type: ignore[method-assign]


def pooled_connection(gateway: Edge) -> UpstreamConnection:
    (connection,) = gateway.context.upstreams.origin_of(gateway.world.index.accounts["a-eu"])._idle
    return connection


@pytest.mark.parametrize("what", [ends, speaks_unasked])
async def test_a_connection_that_fails_before_a_request_left_on_it_is_replaced_and_the_text_counted_once(
    client: Client, gateway: Edge, double: CartesiaDouble, what: Callable[[UpstreamConnection], None]
) -> None:
    await client.send(speak())
    await client.answer()
    pooled = pooled_connection(gateway)
    when_text_is_admitted(gateway, lambda: what(pooled))

    await client.send(speak())
    answer = await client.answer()
    _, settled = await gateway.settled(2)

    assert (answer.status, answer.body) == (200, WAV)
    assert [len(connection.requests) for connection in double.connections] == [1, 1]
    assert len(gateway.recorder.admitted) == 2
    assert (settled.outcome, owed(settled)["characters"]) == ("completed", 6)


async def test_text_that_never_left_is_not_owed_and_may_be_sent_again() -> None:
    async with CartesiaDouble() as double, edge(double.origin) as gateway:
        client = await gateway.client()
        await client.send(speak())
        await client.answer()
        pooled = pooled_connection(gateway)
        double.stop_listening()
        when_text_is_admitted(gateway, lambda: ends(pooled))

        await client.send(speak())
        answer = await client.answer()
        _, settled = await gateway.settled(2)

        assert (answer.status, reason(answer.body), answer.all(b"x-should-retry")) == (502, "upstream_unreachable", [])
        assert (settled.outcome, settled.anything_sent, owed(settled)) == ("upstream_fault", False, {})


async def test_text_that_was_counted_leaves_though_its_exchange_is_cut_in_the_same_turn(
    client: Client, gateway: Edge, double: CartesiaDouble
) -> None:
    await client.send(speak())
    await client.answer()
    when_text_is_admitted(gateway, lambda: next(iter(gateway.context.open)).abort())

    await client.send(speak())
    await client.answer()
    _, settled = await gateway.settled(2)

    await until(lambda: len(double.requests) == 2)
    assert (settled.outcome, owed(settled)) == ("drained", {"requests": 1, "characters": 6})


async def test_an_answer_that_came_in_the_turn_in_which_the_client_ended_its_side_reaches_it(
    client: Client, double: CartesiaDouble
) -> None:
    async def answers_as_the_client_ends(_: CartesiaDouble, connection: Connection, __: Received) -> bool:
        connection.writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        client.writer.get_extra_info("socket").shutdown(socket.SHUT_WR)
        return True

    double.scripts["answers-as-the-client-ends"] = answers_as_the_client_ends
    await client.send(speak("X-Double: answers-as-the-client-ends"))

    assert (await client.answer()).body == b"ok"


@pytest.mark.parametrize(("script", "came", "heard_ms"), [("reset-in-body", 1000, 19), ("close-in-chunked-body", 500, 9)])
async def test_an_answer_that_breaks_off_breaks_off_at_the_client(
    client: Client, gateway: Edge, double: CartesiaDouble, script: str, came: int, heard_ms: int
) -> None:
    await client.send(speak(f"X-Double: {script}"))
    await client.until(WAV[:came])
    double.go.set()

    rest = await client.rest()
    (settled,) = await gateway.settled()

    assert b"0\r\n\r\n" not in rest
    assert (settled.outcome, settled.fault_phase, settled.bytes_to_client) == ("upstream_fault", "response_body", came)
    assert owed(settled) == {"requests": 1, "characters": 6, "audio_out_ms": heard_ms}


async def test_a_client_that_hangs_up_ends_the_work_at_the_provider(
    client: Client, gateway: Edge, double: CartesiaDouble
) -> None:
    await client.send(speak("X-Double: first-then-wait", body=RAW_BODY, target="/cartesia/tts/sse"))
    await client.until(b"event: chunk")
    client.close()

    (settled,) = await gateway.settled()
    double.go.set()
    await asyncio.wait_for(double.connections[0].gone.wait(), 5)

    assert (settled.outcome, settled.closed_by) == ("client_gone", "client")
    assert settled.tally is not None
    assert settled.tally.totals == {"requests": 1, "characters": 6, "audio_out_ms": 3}


async def test_a_client_that_hangs_up_before_the_answer_ends_the_work_too(
    client: Client, gateway: Edge, double: CartesiaDouble
) -> None:
    await client.send(speak("X-Double: silent"))
    await until(lambda: len(double.requests) == 1)
    client.close()

    (settled,) = await gateway.settled()

    assert settled.outcome == "client_gone"
    await asyncio.wait_for(double.connections[0].gone.wait(), 5)


async def test_a_client_that_hangs_up_in_its_body_ends_the_upload(client: Client, gateway: Edge, double: CartesiaDouble) -> None:
    await client.send(request("GET", "/cartesia/voices", "Content-Length: 1000") + bytes(10))
    await until(lambda: len(double.requests) == 1)
    client.close()

    (settled,) = await gateway.settled()

    assert settled.outcome == "client_gone"
    await asyncio.wait_for(double.connections[0].gone.wait(), 5)
    assert double.connections[0].requests[0].body == b""


async def test_an_error_of_the_provider_costs_nothing(client: Client, gateway: Edge) -> None:
    await client.send(speak("X-Double: 500"))
    await client.answer()

    (settled,) = await gateway.settled()

    assert (settled.outcome, settled.status) == ("provider_error", 500)
    assert owed(settled) == {}


async def test_an_error_of_the_provider_that_breaks_off_costs_nothing_either(
    client: Client, gateway: Edge, double: CartesiaDouble
) -> None:
    double.scripts["half"] = answers(b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 100\r\n\r\nhalf", goes_on=False)
    await client.send(speak("X-Double: half"))
    await client.rest()

    (settled,) = await gateway.settled()

    assert (settled.outcome, settled.upstream_status) == ("upstream_fault", 500)
    assert owed(settled) == {}


async def test_a_provider_that_answers_before_the_upload_ends_is_heard(client: Client, double: CartesiaDouble) -> None:
    double.reads_bodies = False
    double.scripts["early"] = answers(
        b"HTTP/1.1 413 Content Too Large\r\nConnection: close\r\nContent-Length: 3\r\n\r\nbig", goes_on=True
    )
    await client.send(request("GET", "/cartesia/voices", "X-Double: early", "Content-Length: 100000") + bytes(50_000))

    answer = await client.answer()

    assert (answer.status, answer.body) == (413, b"big")
    assert answer.one(b"Connection") == b"close"
    await client.send(bytes(50_000))
    assert await client.rest() == b""


async def test_a_fault_of_ours_is_500_with_a_request_id_and_no_cause() -> None:
    async def broken(host: str, port: int) -> Sequence[str]:
        raise RuntimeError("secret cause")

    origin = "http://provider.test:8000"
    async with edge(origin) as gateway:
        pool = PoolSettings(allowed_private_origins=frozenset({origin}), warm_connections=0)
        gateway.context.upstreams = Upstreams(pool, gateway.tasks, asyncio.get_running_loop().time, broken)
        client = await gateway.client()
        await client.send(speak())

        answer = await client.answer()

        assert (answer.status, reason(answer.body)) == (500, "internal")
        assert b"secret cause" not in answer.body


async def test_a_burst_is_served_by_warm_connections(double: CartesiaDouble) -> None:
    settings = PoolSettings(allowed_private_origins=frozenset({double.origin}), warm_connections=4)
    async with edge(double.origin, pool=settings) as gateway:
        client = await gateway.client()
        await client.send(speak())
        await client.answer()
        account = next(iter(gateway.world.index.accounts.values()))
        origin = gateway.context.upstreams.origin_of(account)
        origin.sweep()
        await until(lambda: origin.idle_count == 4)
        clients = [await gateway.client() for _ in range(4)]

        await asyncio.gather(*(one.send(speak()) for one in clients))
        await asyncio.gather(*(one.answer() for one in clients))

        assert len(double.connections) == 4
