"""What reaches the provider, and what comes back, is what it would have been without the gateway."""

import asyncio
import hashlib
import os

import pytest

from contracts.snapshot import Grant
from policy.providers.profile import OPERATIONS
from tests.doubles.cartesia import EVENTS, WAV, CartesiaDouble, Connection, Received, answers, dead_origin
from tests.kit.edge import CREDENTIAL, JSON_BODY, Client, Edge, alice, edge, request, speak, workspace_at

LLHTTPS_METHODS = frozenset(
    [
        "ACL",
        "BIND",
        "CHECKOUT",
        "CONNECT",
        "COPY",
        "DELETE",
        "GET",
        "HEAD",
        "LINK",
        "LOCK",
        "M-SEARCH",
        "MERGE",
        "MKACTIVITY",
        "MKCALENDAR",
        "MKCOL",
        "MOVE",
        "NOTIFY",
        "OPTIONS",
        "PATCH",
        "POST",
        "PROPFIND",
        "PROPPATCH",
        "PURGE",
        "PUT",
        "QUERY",
        "REBIND",
        "REPORT",
        "SEARCH",
        "SOURCE",
        "SUBSCRIBE",
        "TRACE",
        "UNBIND",
        "UNLINK",
        "UNLOCK",
        "UNSUBSCRIBE",
    ]
)


async def test_a_judged_body_reaches_the_provider_as_it_came(client: Client, double: CartesiaDouble) -> None:
    """Public report 29: numbers, order, blanks and escapes of the JSON are the caller's."""
    body = (
        b'{ "b":1.0,  "n":12345678901234567890.10 , "model_id" :"sonic-3","transcript":"\\u00e9 \xf0\x9f\x98\x80","voice":"v" }'
    )
    await client.send(speak(body=body))

    answer = await client.answer()

    assert (answer.status, answer.body) == (200, WAV)
    assert double.requests[0].body == body


async def test_the_head_keeps_order_case_and_duplicates_and_carries_one_credential(
    client: Client, double: CartesiaDouble
) -> None:
    await client.send(
        request(
            "GET",
            "/cartesia/voices?b=2&a=1&a=3&api_key=" + alice() + "&c=%2F+%20",
            "x-LOWER: 1",
            "Accept-Encoding: br;q=1.0, gzip",
            "X-Twice: a",
            "X-Twice: b",
            "X-Note: \xe9",
            "Cookie: session=1",
            "Forwarded: for=1.2.3.4",
            "X-Forwarded-For: 1.2.3.4",
            "x-forwarded-HOST: evil",
            "X-Glottis-Anything: 1",
            "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "Connection: keep-alive, X-Hop",
            "X-Hop: gone",
            "Keep-Alive: timeout=5",
            "TE: trailers",
            "Cartesia-Version: 2025-04-16",
            f"X-API-Key: {alice()}",
        )
    )

    assert (await client.answer()).status == 200
    assert double.requests[0].head == (
        b"GET /voices?b=2&a=1&a=3&c=%2F+%20 HTTP/1.1\r\n"
        b"Host: 127.0.0.1:" + str(double.port).encode() + b"\r\n"
        b"x-LOWER: 1\r\n"
        b"Accept-Encoding: br;q=1.0, gzip\r\n"
        b"X-Twice: a\r\n"
        b"X-Twice: b\r\n"
        b"X-Note: \xe9\r\n"
        b"Cartesia-Version: 2025-04-16\r\n"
        b"Authorization: Bearer " + CREDENTIAL.encode() + b"\r\n\r\n"
    )


async def test_the_callers_token_and_the_credential_stay_on_their_own_sides(client: Client, double: CartesiaDouble) -> None:
    await client.send(speak())
    answer = await client.answer()

    assert alice().encode() not in bytes(double.connections[0].received)
    assert CREDENTIAL.encode() not in answer.body + repr(answer.headers).encode()


async def test_an_answer_keeps_reason_phrase_headers_and_adds_the_request_id(client: Client, double: CartesiaDouble) -> None:
    double.scripts["odd"] = answers(
        b"HTTP/1.1 202 All  Right\r\nset-cookie: a=1\r\nSet-Cookie: b=2\r\nX-hop: 1\r\nConnection: x-hop\r\n"
        b"Content-Encoding: gzip\r\nContent-Length: 3\r\nServer: up\r\n\r\n\x1f\x8b\x00"
    )
    await client.send(request("GET", "/cartesia/voices", "X-Double: odd"))

    head = await client.until(b"\r\n\r\n")

    assert head == (
        b"HTTP/1.1 202 All  Right\r\nset-cookie: a=1\r\nSet-Cookie: b=2\r\n"
        b"Content-Encoding: gzip\r\nContent-Length: 3\r\nServer: up\r\n"
        b"X-Glottis-Request-Id: 00000000-0001-7000-8000-000000000000\r\n\r\n"
    )
    assert await client._exactly(3) == b"\x1f\x8b\x00"


@pytest.mark.parametrize("kind", ["application/octet-stream", "audio/wav", "application/x-ndjson", "application/json"])
@pytest.mark.parametrize("is_chunked", [False, True])
async def test_a_body_on_an_endpoint_that_is_not_judged_is_opaque(double: CartesiaDouble, kind: str, is_chunked: bool) -> None:
    """Public report 28."""
    body = os.urandom(100_000)
    head = request("PATCH", "/cartesia/voices/v1", f"Content-Type: {kind}", "X-Double: echo", body=body)[: -len(body)]
    wire = head + body
    if is_chunked:
        head = head.replace(b"Content-Length: 100000", b"Transfer-Encoding: chunked")
        wire = head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    manager = Grant(id="g9", workspace="w1", account="a-eu", subject="user:u-alice", role="manager")
    async with edge(double.origin, snapshot=workspace_at(double.origin, plus_grants=(manager,))) as gateway:
        client = await gateway.client()
        await client.send(wire)

        answer = await client.answer()

        assert hashlib.sha256(double.requests[0].body).digest() == hashlib.sha256(body).digest()
        assert hashlib.sha256(answer.body).digest() == hashlib.sha256(body).digest()
        client.close()


async def test_a_chunked_upload_arrives_chunked_and_whole(client: Client, double: CartesiaDouble) -> None:
    head = speak("Transfer-Encoding: chunked", body=b"")
    half = len(JSON_BODY) // 2
    await client.send(head + b"%x;ext=1\r\n%b\r\n" % (half, JSON_BODY[:half]))
    await client.send(b"%x\r\n%b\r\n0\r\nX-Trailer: 1\r\n\r\n" % (len(JSON_BODY) - half, JSON_BODY[half:]))

    assert (await client.answer()).status == 200
    received = double.requests[0]
    assert received.body == JSON_BODY
    assert received.raw_body == b"%x\r\n%b\r\n0\r\n\r\n" % (len(JSON_BODY), JSON_BODY)
    assert received.all("Content-Length") == []
    assert received.all("X-Trailer") == []


async def test_a_chunked_answer_keeps_its_payload_and_loses_extensions_and_trailers(client: Client) -> None:
    await client.send(speak("X-Double: chunked"))

    answer = await client.answer()

    assert answer.body == WAV[:3000]
    assert answer.all(b"Transfer-Encoding") == [b"chunked"]
    assert answer.all(b"Trailer") == []


async def test_an_answer_without_length_reaches_an_http_1_1_client_chunked(client: Client) -> None:
    await client.send(speak("X-Double: until-close"))

    answer = await client.answer()

    assert (answer.body, answer.all(b"Transfer-Encoding")) == (WAV, [b"chunked"])


async def test_an_http_1_0_client_gets_a_plain_answer_that_ends_with_the_connection(client: Client) -> None:
    await client.send(speak("X-Double: chunked").replace(b"HTTP/1.1", b"HTTP/1.0", 1))

    answer = await client.rest()

    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"ransfer-" not in head
    assert b"Connection: close" in head
    assert body == WAV[:3000]


async def test_an_http_1_0_client_that_asks_for_it_keeps_its_connection(client: Client) -> None:
    for _ in range(2):
        await client.send(speak("Connection: keep-alive").replace(b"HTTP/1.1", b"HTTP/1.0", 1))
        answer = await client.answer()
        assert (answer.body, answer.all(b"Connection")) == (WAV, [b"keep-alive"])


async def test_an_http_1_0_client_that_is_not_told_otherwise_may_read_to_the_end_of_its_connection(client: Client) -> None:
    refused = speak("Connection: keep-alive", body=b"{}").replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    await client.send(refused)

    answer = await client.answer()

    assert (answer.status, answer.all(b"Connection")) == (400, [])
    assert await client.rest() == b""


async def test_the_first_event_leaves_before_the_next_one_came(client: Client, double: CartesiaDouble) -> None:
    """Public reports 31 and 32."""
    await client.send(speak("X-Double: first-then-wait", target="/cartesia/tts/sse"))

    first = await client.until(EVENTS[0], seconds=2)
    double.go.set()
    rest = await client.until(b"0\r\n\r\n")

    assert first.endswith(b"%x\r\n%b" % (len(EVENTS[0]), EVENTS[0]))
    assert rest == b"\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(EVENTS[2]), EVENTS[2])


@pytest.mark.parametrize("kind", ["audio/wav", "audio/mpeg", "audio/aac", "audio/basic; rate=8000", "application/octet-stream"])
async def test_audio_of_any_kind_leaves_before_the_rest_of_it_was_made(client: Client, double: CartesiaDouble, kind: str) -> None:
    """Public reports 31 and 37."""

    async def slowly(double: CartesiaDouble, connection: Connection, received: Received) -> bool:
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nX-Accel-Buffering: no\r\nContent-Length: {len(WAV)}\r\n\r\n"
        await connection.send(head.encode() + WAV[:1000])
        await double.go.wait()
        await connection.send(WAV[1000:])
        return True

    double.scripts["slowly"] = slowly
    await client.send(speak("X-Double: slowly"))

    head = await client.until(b"\r\n\r\n", seconds=10)
    first = await client._exactly(1000)
    double.go.set()
    rest = await client._exactly(len(WAV) - 1000)

    assert f"Content-Type: {kind}\r\nX-Accel-Buffering: no\r\n".encode() in head
    assert first + rest == WAV


async def test_head_has_the_length_and_no_body(client: Client, double: CartesiaDouble) -> None:
    """Public report 36."""
    await client.send(request("HEAD", "/cartesia/voices") + request("GET", "/cartesia/voices"))

    head = await client.answer("HEAD")
    after = await client.answer()

    assert (head.status, head.one(b"Content-Length"), head.body) == (200, b"57", b"")
    assert after.body.startswith(b'{"data"')
    assert [received.method for received in double.requests] == ["HEAD", "GET"]


async def test_204_and_304_have_no_body_and_the_connection_goes_on(client: Client) -> None:
    await client.send(request("GET", "/cartesia/voices", "X-Double: 304", 'If-None-Match: "x"'))
    not_modified = await client.answer()
    await client.send(request("GET", "/cartesia/voices"))

    assert (not_modified.status, not_modified.one(b"Content-Length"), not_modified.one(b"ETag")) == (304, b"57", b'"x"')
    assert (await client.answer()).status == 200


@pytest.mark.parametrize("method", ["OPTIONS", "PROPFIND", "REPORT", "PURGE", "SEARCH", "M-SEARCH", "QUERY", "LINK"])
async def test_any_method_is_matched_and_not_refused_for_its_name(client: Client, double: CartesiaDouble, method: str) -> None:
    await client.send(request(method, "/cartesia/voices"))

    answer = await client.answer()

    # OPTIONS belongs to its path's operation; the others are `unlisted`, which alice was not granted
    assert answer.status == (200 if method == "OPTIONS" else 403)
    if method == "OPTIONS":
        assert double.requests[0].method == "OPTIONS"


@pytest.mark.parametrize("method", sorted(LLHTTPS_METHODS - {"CONNECT"}))
async def test_every_method_that_llhttp_knows_reaches_the_provider_where_it_is_granted(
    double: CartesiaDouble, method: str
) -> None:
    """CONNECT names no path; see `test_smuggling`."""
    everything = Grant(id="g9", workspace="w1", account="a-eu", subject="user:u-alice", operations=OPERATIONS)
    async with edge(double.origin, snapshot=workspace_at(double.origin, plus_grants=(everything,))) as gateway:
        client = await gateway.client()
        await client.send(request(method, "/cartesia/voices/v1", "X-Double: echo", body=b"a body"))

        answer = await client.answer(method)

        assert (answer.status, answer.body) == (200, b"" if method == "HEAD" else b"a body")
        assert [(received.method, received.body) for received in double.requests] == [(method, b"a body")]
        client.close()


async def test_a_doubled_slash_after_the_mount_is_collapsed_and_trailing_slashes_stay(
    client: Client, double: CartesiaDouble
) -> None:
    for target in ("/cartesia//voices/", "/cartesia/voices/", "/cartesia/voices", "/cartesia/@cartesia-eu/voices/"):
        await client.send(request("GET", target))
        assert (await client.answer()).status == 200

    assert [received.target for received in double.requests] == ["/voices/", "/voices/", "/voices", "/voices/"]


async def test_no_proxy_variable_is_followed_and_no_cookie_kept(
    client: Client, double: CartesiaDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with dead_origin() as nobody:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, nobody)
        for _ in range(2):
            await client.send(request("GET", "/cartesia/voices", "X-Double: two-cookies"))

            assert (await client.answer()).all(b"Set-Cookie") == [b"a=1", b"b=2"]

    assert [received.one("Cookie") for received in double.requests] == [None, None]


async def test_early_hints_are_passed_on(client: Client) -> None:
    await client.send(request("GET", "/cartesia/voices", "X-Double: early-hints"))

    answer = await client.answer()

    assert (answer.interim, answer.status, answer.body) == ([103], 200, b"ok")


async def test_a_large_answer_arrives_whole(client: Client, double: CartesiaDouble) -> None:
    big = os.urandom(8 * 2**20)
    double.scripts["big"] = answers(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(big) + big)
    await client.send(request("GET", "/cartesia/voices", "X-Double: big"))

    answer = await client.answer(seconds=20)

    assert hashlib.sha256(answer.body).digest() == hashlib.sha256(big).digest()


async def test_the_error_of_the_provider_arrives_with_status_body_and_retry_after(client: Client) -> None:
    await client.send(speak("X-Double: 429"))

    answer = await client.answer()

    assert (answer.status, answer.reason, answer.one(b"Retry-After")) == (429, b"Too Many Requests", b"7")
    assert answer.body == b'{"title": "T", "message": "M"}'
    assert answer.one(b"X-Request-ID") == b"req-429"
    assert answer.all(b"x-should-retry") == []


@pytest.mark.parametrize("script", ["leak", "leak-in-pieces"])
async def test_the_credential_in_an_error_answer_is_masked_to_equal_length(client: Client, script: str) -> None:
    await client.send(speak(f"X-Double: {script}"))

    answer = await client.answer()

    everything = answer.body + repr(answer.headers).encode()
    assert CREDENTIAL.encode() not in everything
    assert b"*" * len(CREDENTIAL) in answer.body


@pytest.mark.parametrize("cut", [20, 10_000])
async def test_the_credential_in_an_error_among_events_is_masked_to_equal_length(
    client: Client, double: CartesiaDouble, cut: int
) -> None:
    error = b'event: error\ndata: {"type":"error","message":"' + CREDENTIAL.encode() + b'"}\n\n'

    async def fails(double: CartesiaDouble, connection: Connection, received: Received) -> bool:
        await connection.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for piece in (EVENTS[0] + error[:cut], error[cut:]):
            if piece:
                await connection.send(b"%x\r\n%b\r\n" % (len(piece), piece))
                await asyncio.sleep(0.02)  # two writes must become two reads
        await connection.send(b"0\r\n\r\n")
        return True

    double.scripts["fails"] = fails
    await client.send(speak("X-Double: fails", target="/cartesia/tts/sse"))

    answer = await client.answer()

    assert answer.body == EVENTS[0] + error.replace(CREDENTIAL.encode(), b"*" * len(CREDENTIAL))


async def test_a_redirect_to_another_host_is_refused_and_not_followed(client: Client, double: CartesiaDouble) -> None:
    await client.send(speak("X-Double: redirect-away"))

    answer = await client.answer()

    assert answer.status == 502
    assert b"redirect_refused" in answer.body
    assert b"evil.test" not in answer.body
    assert answer.one(b"Location") is None
    assert len(double.requests) == 1


@pytest.mark.parametrize("location", ["//evil.test/x", "/\t/evil.test/x", "https:evil.test/x"])
async def test_a_redirect_to_another_host_is_refused_however_it_is_written(
    client: Client, double: CartesiaDouble, location: str
) -> None:
    double.scripts["away"] = answers(f"HTTP/1.1 307 Go\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode())
    await client.send(request("GET", "/cartesia/voices", "X-Double: away"))

    answer = await client.answer()

    assert (answer.status, b"redirect_refused" in answer.body) == (502, True)


async def test_a_redirect_on_the_same_host_is_the_clients_to_follow(client: Client, double: CartesiaDouble) -> None:
    await client.send(request("GET", "/cartesia/voices", "X-Double: redirect-here"))

    answer = await client.answer()

    assert (answer.status, answer.one(b"Location")) == (307, b"/cartesia/voices/")
    assert len(double.requests) == 1


async def test_requests_of_one_connection_may_be_for_the_app_and_for_a_provider(client: Client, gateway: Edge) -> None:
    await client.send(
        request("POST", "/own", body=b"x" * 70_000) + request("GET", "/livez") + speak() + request("GET", "/nowhere")
    )

    assert (await client.answer()).body == b'{"length":70000}'
    assert (await client.answer()).body == b'{"live":true}'
    assert (await client.answer()).body == WAV
    assert (await client.answer()).status == 404


async def test_exchanges_are_settled_with_who_what_and_how_much(client: Client, gateway: Edge) -> None:
    await client.send(speak("traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))
    await client.answer()

    (settled,) = await gateway.settled()

    assert (settled.outcome, settled.status, settled.upstream_status) == ("completed", 200, 200)
    assert settled.caller is not None
    assert settled.caller.principal == "u-alice"
    assert settled.tally is not None
    assert settled.tally.totals == {"requests": 1, "characters": 6, "audio_out_ms": 63}
    assert settled.tally.is_admitted
    assert (settled.bytes_from_client, settled.bytes_to_client) == (len(JSON_BODY), len(WAV))
    assert settled.upstream_request_id == "req-1"
    assert settled.traceparent == b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert len(gateway.context.open) == 0


async def test_the_admission_of_text_is_written_down_before_its_bytes_leave(
    client: Client, gateway: Edge, double: CartesiaDouble
) -> None:
    seen: list[int] = []
    original = gateway.recorder.admit

    def admit(tally: object, now_ms: int) -> None:
        seen.append(len(double.requests))
        original(tally, now_ms)  # type: ignore[arg-type]

    gateway.recorder.admit = admit  # type: ignore[method-assign]
    await client.send(speak())
    await client.answer()

    assert seen == [0]


async def test_batch_recognition_is_measured_by_the_duration_in_its_answer(client: Client, gateway: Edge) -> None:
    form = (
        b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nink-whisper\r\n'
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\nRIFF\r\n--b--\r\n'
    )
    await client.send(request("POST", "/cartesia/stt", "Content-Type: multipart/form-data; boundary=b", body=form))
    assert (await client.answer()).status == 200

    (settled,) = await gateway.settled()

    assert settled.tally is not None
    assert settled.tally.totals == {"requests": 1, "audio_in_ms": 2500}


async def test_sixteen_clients_at_once_get_their_own_answers(gateway: Edge, double: CartesiaDouble) -> None:
    async def one(number: int) -> None:
        client = await gateway.client()
        for turn in range(5):
            body = JSON_BODY.replace(b"Hello.", b"%d-%d" % (number, turn))
            await client.send(speak("X-Double: echo", body=body))
            assert (await client.answer()).body == body
        client.close()

    await asyncio.gather(*(one(number) for number in range(16)))

    assert len(double.connections) <= 16
    assert len(await gateway.settled(80)) == 80
