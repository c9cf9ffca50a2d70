"""Bytes that two servers could cut into requests differently end with a refusal, and never reach the provider."""

import asyncio
import json

import pytest

from gateway.edge.context import Limits
from tests.doubles.cartesia import CartesiaDouble, answers
from tests.kit.edge import JSON_BODY, Client, Edge, alice, edge, request, speak
from tests.kit.waiting import until

HEAD = (
    f"POST /cartesia/tts/bytes HTTP/1.1\r\nHost: gw.test\r\nContent-Type: application/json\r\nAuthorization: Bearer {alice()}\r\n"
)
HIDDEN = b"GET /cartesia/hidden HTTP/1.1\r\nHost: gw.test\r\n\r\n"


@pytest.mark.parametrize(
    "lines",
    [
        "Content-Length: 6\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 6\r\n",
        "Content-Length: 6\r\nContent-Length: 5\r\n",
        "Content-Length: 6\r\nContent-Length: 6\r\n",
        "Content-Length: 6, 6\r\n",
        "Content-Length: +6\r\n",
        "Content-Length: 0x6\r\n",
        "Content-Length: 6 6\r\n",
        "Content-Length : 6\r\n",
        "Transfer-Encoding: gzip, chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding:\tchunked, identity\r\n",
        "Transfer-Encoding : chunked\r\n",
        "Transfer-Encoding:\x0bchunked\r\n",
        "Foo: bar\r\n Transfer-Encoding: chunked\r\n",
        "Foo: bar\nTransfer-Encoding: chunked\r\n",
        "Foo: bar\rTransfer-Encoding: chunked\r\n",
        "Foo: bar\x00\r\n",
        "Foo\r\n",
        "Host: other.test\r\n",
    ],
)
async def test_an_ambiguous_head_is_refused_and_the_connection_closed(
    client: Client, double: CartesiaDouble, gateway: Edge, lines: str
) -> None:
    await client.send(HEAD.encode() + lines.encode("latin-1") + b"\r\n0\r\n\r\n" + HIDDEN)

    answer = await client.answer()

    assert answer.status == 400
    assert json.loads(answer.body)["error"]["reason"] in ("head_malformed", "host_invalid")
    assert answer.one(b"Connection") == b"close"
    assert await client.rest() == b""
    assert double.connections == []
    assert [settled.outcome for settled in await gateway.settled()] == ["refused"]


@pytest.mark.parametrize("value", [b"", b"-0", b"+0", b"9" * 19])
async def test_a_length_that_is_none_is_refused_also_where_the_rest_of_the_head_was_seen_before(
    client: Client, double: CartesiaDouble, value: bytes
) -> None:
    """Heads that differ in their length alone are not taken apart again: one without digits looked like the one before it."""
    known = request("GET", "/cartesia/voices", "Content-Length: 0")
    await client.send(known)
    await client.answer()
    await client.send(known.replace(b"Content-Length: 0", b"Content-Length: " + value) + HIDDEN)

    answer = await client.answer()

    assert (answer.status, answer.one(b"Connection")) == (400, b"close")
    assert await client.rest() == b""
    assert bytes(double.connections[0].received).count(b"HTTP/1.1") == 1


@pytest.mark.parametrize(
    "body",
    [
        b"5\nhello\r\n0\r\n\r\n",
        b"5\r\nhello0\r\n\r\n",
        b"5;a\x00\r\nhello\r\n0\r\n\r\n",
        b"0x5\r\nhello\r\n0\r\n\r\n",
        b"+5\r\nhello\r\n0\r\n\r\n",
        b"-5\r\nhello\r\n0\r\n\r\n",
        b" 5\r\nhello\r\n0\r\n\r\n",
        b"5 \r\nhello\r\n0\r\n\r\n",
        b"fffffffffffffffff\r\nhello\r\n0\r\n\r\n",
    ],
)
async def test_an_ambiguous_chunk_is_refused(client: Client, double: CartesiaDouble, body: bytes) -> None:
    await client.send(HEAD.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + body + HIDDEN)

    answer = await client.answer()

    assert (answer.status, answer.one(b"Connection")) == (400, b"close")
    assert await client.rest() == b""
    assert double.connections == []


async def test_bare_line_feeds_are_refused_at_once(client: Client) -> None:
    await client.send(b"GET /livez HTTP/1.1\nHost: gw.test\n\n")

    assert (await client.answer(seconds=2)).status == 400


async def test_chunk_extensions_and_trailers_do_not_travel(client: Client, double: CartesiaDouble) -> None:
    chunk = b'%x;a=1;b="\r\n' % len(JSON_BODY)
    await client.send(speak("Transfer-Encoding: chunked", body=b"") + chunk + JSON_BODY + b"\r\n0;x\r\nX-Sum: 1\r\n\r\n")

    assert (await client.answer()).status == 200
    assert double.requests[0].body == JSON_BODY
    assert b";" not in double.requests[0].raw_body
    assert b"X-Sum" not in double.connections[0].received


async def test_a_body_that_looks_like_a_request_stays_a_body(client: Client, double: CartesiaDouble) -> None:
    await client.send(request("GET", "/cartesia/voices", body=HIDDEN) + request("GET", "/cartesia/voices?second=1"))

    assert (await client.answer()).status == 200
    assert (await client.answer()).status == 200
    assert [(received.target, received.body) for received in double.requests] == [("/voices", HIDDEN), ("/voices?second=1", b"")]


async def test_an_upgrade_to_another_protocol_is_ignored_and_its_body_still_a_body(
    client: Client, double: CartesiaDouble
) -> None:
    upgrade = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__")
    await client.send(request("GET", "/cartesia/voices", *upgrade, body=HIDDEN) + request("GET", "/cartesia/voices?second=1"))

    assert (await client.answer()).status == 200
    assert (await client.answer()).status == 200
    assert [received.target for received in double.requests] == ["/voices", "/voices?second=1"]
    assert double.requests[0].all("Upgrade") == double.requests[0].all("HTTP2-Settings") == []


async def test_a_connect_request_is_refused(client: Client) -> None:
    await client.send(b"CONNECT api.cartesia.ai:443 HTTP/1.1\r\nHost: api.cartesia.ai:443\r\n\r\n")

    assert (await client.answer()).status == 400


async def test_an_http_2_preface_is_refused(client: Client) -> None:
    await client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")

    assert (await client.answer()).status == 400


async def test_tls_on_the_plain_port_is_refused_at_once(client: Client, double: CartesiaDouble) -> None:
    """Some SDKs dial sockets with `wss://` whatever the base URL is; see the recordings `tts_ws_http_base`."""
    await client.send(bytes.fromhex("1603010158010001540303"))

    answer = await client.answer(seconds=2)

    assert (answer.status, json.loads(answer.body)["error"]["reason"]) == (400, "head_malformed")
    assert b"plain HTTP" in answer.body
    assert double.connections == []


async def test_more_than_the_answer_said_is_not_taken_for_the_next_answer(client: Client, double: CartesiaDouble) -> None:
    await client.send(request("GET", "/cartesia/voices", "X-Double: more-than-length"))
    first = await client.answer()
    await client.send(request("GET", "/cartesia/voices"))
    second = await client.answer()

    assert first.body == b"ok"
    assert second.body.startswith(b'{"data"')
    assert len(double.connections) == 2


async def test_an_answer_keeps_its_length_also_where_connection_names_it(client: Client, double: CartesiaDouble) -> None:
    double.scripts["named"] = answers(
        b"HTTP/1.1 200 OK\r\nConnection: Content-Length, X-A\r\nX-A: 1\r\nContent-Length: 2\r\n\r\nok"
    )
    await client.send(request("GET", "/cartesia/voices", "X-Double: named") + request("GET", "/cartesia/voices"))

    first = await client.answer(seconds=2)
    second = await client.answer(seconds=2)

    assert (first.body, first.one(b"X-A"), first.one(b"Content-Length")) == (b"ok", None, b"2")
    assert second.body.startswith(b'{"data"')


async def test_an_answer_with_both_framings_is_a_fault(client: Client) -> None:
    await client.send(speak("X-Double: both-framings", "Cartesia-Version: 2026-08-14"))

    answer = await client.answer()

    assert (answer.status, json.loads(answer.body)["error_code"]) == (502, "upstream_protocol")


async def test_a_limit_of_0_is_none(double: CartesiaDouble) -> None:
    limits = Limits(header_count=0, head_seconds=0, keep_alive_seconds=0, body_bytes=0, body_idle_seconds=0)
    asked = request("GET", "/cartesia/voices", *(f"X-{n}: 1" for n in range(300)), body=b"hello")
    own = request("POST", "/own", body=b"hello")
    parts = [(asked[:at], asked[at:]) for at in (0, 10, len(asked) - 2)] + [(own[:-2], own[-2:])]
    async with edge(double.origin, limits=limits) as gateway:
        clients = [await gateway.client() for _ in parts]
        for client, (first, _) in zip(clients, parts, strict=True):
            await client.send(first)
        connections = gateway.server.server_state.connections
        await until(lambda: len(connections) == len(parts))
        # a deadline that had been set would have passed by the second look
        await until(lambda: all(connection._ticks > 1 for connection in connections))  # type: ignore[union-attr]
        for client, (_, rest) in zip(clients, parts, strict=True):
            await client.send(rest)

        assert [(await client.answer()).status for client in clients] == [200, 200, 200, 200]


async def test_a_head_over_the_limit_is_431(double: CartesiaDouble) -> None:
    async with edge(double.origin, limits=Limits(head_bytes=2000)) as gateway:
        client = await gateway.client()
        await client.send(request("GET", "/cartesia/voices", "X-Big: " + "a" * 3000))
        assert (await client.answer()).status == 431

        endless = await gateway.client()
        await endless.send(b"GET /" + b"a" * 3000)
        assert (await endless.answer()).status == 431


async def test_more_headers_than_the_limit_are_431(double: CartesiaDouble) -> None:
    async with edge(double.origin, limits=Limits(header_count=20)) as gateway:
        client = await gateway.client()
        await client.send(request("GET", "/cartesia/voices", *(f"X-{n}: 1" for n in range(30))))

        assert (await client.answer()).status == 431


async def test_a_head_that_does_not_end_in_time_is_408(double: CartesiaDouble) -> None:
    async with edge(double.origin, limits=Limits(head_seconds=0.1)) as gateway:
        client = await gateway.client()
        await client.send(b"GET /cartesia/voices HTTP/1.1\r\nHost: ")

        assert (await client.answer()).status == 408


async def test_a_body_that_stalls_is_408(double: CartesiaDouble) -> None:
    async with edge(double.origin, limits=Limits(body_idle_seconds=0.1)) as gateway:
        client = await gateway.client()
        await client.send(speak("Content-Length: 100", body=b"") + b"{")

        answer = await client.answer()

        assert (answer.status, answer.one(b"Connection")) == (408, b"close")


async def test_an_idle_connection_is_closed(double: CartesiaDouble) -> None:
    async with edge(double.origin, limits=Limits(keep_alive_seconds=0.1)) as gateway:
        client = await gateway.client()
        await client.send(speak())
        await client.answer()

        assert await client.rest() == b""


async def test_an_address_with_too_many_connections_is_told_so(double: CartesiaDouble) -> None:
    async with edge(double.origin, limits=Limits(connections_per_address=2)) as gateway:
        clients = [await gateway.client() for _ in range(2)]
        await clients[0].send(request("GET", "/livez"))
        await clients[0].answer()
        third = await gateway.client()

        assert (await third.answer()).status == 503
        connections = gateway.server.server_state.connections
        [refused] = [connection for connection in connections if connection._lingers_until]  # type: ignore[union-attr]
        await third.send(b"still here")
        assert refused.deadline <= refused._lingers_until <= asyncio.get_running_loop().time() + 5  # type: ignore[union-attr]
        clients[0].close()
        clients[1].close()
