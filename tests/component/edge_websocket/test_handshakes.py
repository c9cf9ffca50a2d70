"""The handshake: what reaches the provider, and what its answer, or ours, looks like to the client."""

import asyncio
import json

import pytest

from contracts.revocations import Revocation
from contracts.snapshot import Grant, Issuer
from gateway.edge import websocket_relay
from policy.providers import cartesia
from tests.doubles.cartesia_websocket import TEXT, client_frame, server_frame, sockets_double
from tests.kit.edge import CREDENTIAL, Answer, Client, Edge, workspace_at
from tests.kit.identities import IDP, idp_token, jwks, signing_key
from tests.kit.sessions import KEY, STT, TTS, dial, handshake, sockets_edge


async def asked(gateway: Edge, target: str = TTS, *headers: str, **changes: str) -> Answer:
    """Send a handshake that is refused; return the answer, after which the connection must end."""
    client = await Client.connect(gateway.port)
    await client.send(handshake(target, *headers, **changes))
    answer = await client.answer()
    assert await client.rest() == b""
    return answer


async def test_the_provider_gets_the_clients_handshake_with_another_host_and_credential() -> None:
    async with sockets_double() as double, sockets_edge(double) as gateway:
        await dial(gateway, TTS, "X-Note: é", "x-odd-Case:  kept ", "Origin: https://page.test", "Cookie: a=b")
        assert double.sockets[0].head == (
            "GET /tts/websocket HTTP/1.1\r\n"
            f"Host: 127.0.0.1:{double.port}\r\n"
            "Upgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {KEY}\r\nSec-WebSocket-Version: 13\r\nCartesia-Version: 2026-08-14\r\n"
            "X-Note: é\r\nx-odd-Case: kept\r\nOrigin: https://page.test\r\n"
            f"Authorization: Bearer {CREDENTIAL}\r\n\r\n"
        ).encode("latin-1")


async def test_a_query_reaches_the_provider_as_it_was_but_for_the_token() -> None:
    async with sockets_double() as double, sockets_edge(double) as gateway:
        query = f"model=ink-whisper&x=1&x=2&keyterm=a+b%20c&access_token={idp_token()}&intent=transcription"
        await dial(gateway, f"/cartesia/stt/websocket?{query}", token="")
        expected = "/stt/websocket?model=ink-whisper&x=1&x=2&keyterm=a+b%20c&intent=transcription"
        assert double.sockets[0].target == expected


async def test_a_doubled_slash_after_the_mount_is_collapsed() -> None:
    async with sockets_double() as double, sockets_edge(double) as gateway:
        client = await dial(gateway, "/cartesia//tts/websocket")

        assert double.sockets[0].head.startswith(b"GET /tts/websocket HTTP/1.1\r\n")
        client.writer.close()


async def test_extensions_are_neither_offered_nor_accepted() -> None:
    async with sockets_double() as double, sockets_edge(double) as gateway:
        client = await dial(gateway, TTS, "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits")
        assert b"xtensions" not in client.head
        assert double.sockets[0].one("Sec-WebSocket-Extensions") is None


async def test_the_providers_101_headers_reach_the_client() -> None:
    async with sockets_double() as double, sockets_edge(double) as gateway:
        double.extra_101 = b"X-Request-ID: up-1\r\nset-cookie: a\r\nset-cookie: b\r\n"
        client = await dial(gateway)
        assert client.head == (
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"
            b"X-Request-ID: up-1\r\nset-cookie: a\r\nset-cookie: b\r\n"
            b"X-Glottis-Request-Id: 00000000-0001-7000-8000-000000000000\r\n\r\n"
        )


async def test_frames_that_come_along_with_the_101_reach_the_client() -> None:
    async with sockets_double() as double, sockets_edge(double) as gateway:
        double.along = server_frame(TEXT, b'{"type": "connected"}')
        client = await dial(gateway, STT)
        assert await client.heard() == {"type": "connected"}


async def test_frames_that_come_along_with_the_handshake_reach_the_provider() -> None:
    async with sockets_double() as double, sockets_edge(double) as gateway:
        early = client_frame(2, bytes(640))
        client = await dial(gateway, STT, early=early)
        assert (await client.heard())["type"] == "transcript"
        assert bytes(double.sockets[0].received) == early


@pytest.mark.parametrize(
    ("status", "extra"),
    [
        ("429 Too Many Requests", "Retry-After: 7\r\n"),
        ("401 Unauthorized", 'WWW-Authenticate: Bearer realm="c"\r\n'),
        ("402 Payment Required", "x-should-retry: false\r\n"),
        ("503 Service Unavailable", ""),
    ],
)
async def test_a_providers_refusal_reaches_the_client_as_http(status: str, extra: str) -> None:
    async with sockets_double() as double, sockets_edge(double) as gateway:
        body = b'{"error_code":"concurrency_limited","title":"Too many","request_id":"r"}'
        head = (
            f"HTTP/1.1 {status}\r\nX-Request-ID: up-1\r\n{extra}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        )
        double.answers["refuse"] = head.encode() + b"\r\n" + body
        answer = await asked(gateway, TTS, "X-Double: refuse")
        assert (f"{answer.status} {answer.reason.decode()}", answer.body) == (status, body)
        assert answer.one(b"x-request-id") == b"up-1"
        for line in extra.splitlines():
            name, _, value = line.partition(": ")
            assert answer.one(name.encode()) == value.encode()
        [settled] = await gateway.settled()
        assert (settled.outcome, settled.status, settled.upstream_status) == ("provider_error", answer.status, answer.status)


@pytest.mark.parametrize(
    "framed",
    [
        b"HTTP/1.1 429 Slow\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nslow\r\n5\r\n down\r\n0\r\n\r\n",
        b"HTTP/1.1 429 Slow\r\n\r\nslow down",
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 429 Slow\r\nContent-Length: 9\r\n\r\nslow down",
    ],
)
async def test_a_refusals_body_is_whole_however_it_was_framed(framed: bytes) -> None:
    async with sockets_double() as double, sockets_edge(double) as gateway:
        double.answers["refuse"] = framed
        answer = await asked(gateway, TTS, "X-Double: refuse")
        assert (answer.status, answer.body, answer.one(b"content-length")) == (429, b"slow down", b"9")


async def test_a_credential_in_a_refusal_is_masked() -> None:
    async with sockets_double() as double, sockets_edge(double) as gateway:
        body = f"bad key {CREDENTIAL}".encode()
        double.answers["refuse"] = b"HTTP/1.1 401 No\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        answer = await asked(gateway, TTS, "X-Double: refuse")
        assert answer.body == b"bad key " + b"*" * len(CREDENTIAL)


@pytest.mark.parametrize("location", ["https://evil.test/", "//evil.test/", "/\\evil.test/", "https:evil.test"])
async def test_a_redirect_to_another_host_is_refused(location: str) -> None:
    async with sockets_double() as double, sockets_edge(double) as gateway:
        double.answers["away"] = f"HTTP/1.1 307 Go\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode()
        answer = await asked(gateway, TTS, "X-Double: away")
        assert (answer.status, json.loads(answer.body)["error_code"]) == (502, "redirect_refused")


@pytest.mark.parametrize(
    "answer_of_provider",
    [
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: bad\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nSec-WebSocket-Protocol: unasked\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 429 Cut\r\nContent-Length: 100\r\n\r\nshort",
        b"",
    ],
)
async def test_an_answer_that_is_no_handshake_is_a_502(answer_of_provider: bytes) -> None:
    async with sockets_double() as double, sockets_edge(double) as gateway:
        double.answers["bad"] = answer_of_provider
        assert (await asked(gateway, TTS, "X-Double: bad")).status == 502
        [settled] = await gateway.settled()
        assert (settled.outcome, settled.fault_phase, settled.anything_sent) == ("upstream_fault", "response_head", True)


async def test_a_provider_that_does_not_answer_is_a_504(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket_relay, "_ANSWER_SECONDS", 0.2)
    async with sockets_double() as double, sockets_edge(double) as gateway:
        double.answers["silent"] = b""

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        double.serve = silent  # type: ignore[method-assign]
        answer = await asked(gateway)
        assert (answer.status, json.loads(answer.body)["error_code"]) == (504, "upstream_timeout")


async def test_a_provider_that_cannot_be_reached_is_a_502() -> None:
    async with sockets_double() as double:
        pass
    async with sockets_edge(double) as gateway:
        answer = await asked(gateway)
        assert (answer.status, json.loads(answer.body)["error_code"]) == (502, "upstream_unreachable")


async def test_without_a_token_the_provider_sees_nothing() -> None:
    async with sockets_double() as double, sockets_edge(double) as gateway:
        answer = await asked(gateway, token="")
        assert (answer.status, answer.one(b"www-authenticate")) == (401, b'Bearer realm="glottis"')
        assert answer.one(b"x-should-retry") == b"false"
        assert double.sockets == []


@pytest.mark.parametrize(
    ("target", "status", "reason"),
    [
        ("/cartesia/stt/websocket?model=ink-9", 403, "model_not_granted"),
        ("/cartesia/agents/stream/a1", 403, "operation_not_granted"),
        ("/cartesia/some/future/socket", 403, "operation_not_granted"),
        ("/cartesia/@nobody/tts/websocket", 403, "account_not_granted"),
    ],
)
async def test_what_is_not_granted_is_refused_at_the_handshake(target: str, status: int, reason: str) -> None:
    async with sockets_double() as double, sockets_edge(double) as gateway:
        answer = await asked(gateway, target)
        assert (answer.status, json.loads(answer.body)["error_code"]) == (status, reason)
        assert double.sockets == []


async def test_a_path_that_the_profile_does_not_list_is_relayed_where_that_is_granted() -> None:
    grant = Grant(id="g1", workspace="w1", account="a-eu", subject="team:voice", operations=("unlisted",))
    async with sockets_double() as double:
        snapshot = workspace_at(double.origin, grants=(grant,))
        async with sockets_edge(double, snapshot=snapshot) as gateway:
            client = await dial(gateway, "/cartesia/some/future/socket?a=1")
            await client.send(TEXT, b"\xf0\x9f\x98\x80")
            assert (await client.message()).payload == b"\xf0\x9f\x98\x80"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (f"Sec-WebSocket-Key: {KEY}", "Sec-WebSocket-Key: short"),
        (f"Sec-WebSocket-Key: {KEY}\r\n", ""),
        ("Sec-WebSocket-Version: 13", "Sec-WebSocket-Version: 12"),
        (f"Sec-WebSocket-Key: {KEY}", f"Sec-WebSocket-Key: {KEY}\r\nSec-WebSocket-Key: {KEY}"),
    ],
)
async def test_a_handshake_that_is_none_is_a_400_that_names_the_version(old: str, new: str) -> None:
    async with sockets_double() as double, sockets_edge(double) as gateway:
        client = await Client.connect(gateway.port)
        await client.send(handshake().replace(old.encode(), new.encode()))
        answer = await client.answer()
        assert (answer.status, json.loads(answer.body)["error_code"]) == (400, "upgrade_refused")
        assert double.sockets == []


async def test_a_token_in_a_subprotocol_is_answered_with_ours_and_not_forwarded() -> None:
    async with sockets_double() as double, sockets_edge(double) as gateway:
        client = await dial(gateway, TTS, f"Sec-WebSocket-Protocol: glottis.v1, glottis.auth.{idp_token()}", token="")
        assert b"Sec-WebSocket-Protocol: glottis.v1\r\n" in client.head
        assert double.sockets[0].one("Sec-WebSocket-Protocol") is None


async def test_a_subprotocol_that_the_provider_chose_reaches_the_client() -> None:
    async with sockets_double() as double, sockets_edge(double) as gateway:
        double.extra_101 = b"Sec-WebSocket-Protocol: realtime\r\n"
        client = await dial(gateway, TTS, "Sec-WebSocket-Protocol: realtime, other")
        assert b"Sec-WebSocket-Protocol: realtime\r\n" in client.head
        assert double.sockets[0].one("Sec-WebSocket-Protocol") == "realtime, other"


async def test_a_draining_gateway_takes_no_session() -> None:
    async with sockets_double() as double, sockets_edge(double) as gateway:
        gateway.context.is_draining = True
        answer = await asked(gateway)
        assert (answer.status, json.loads(answer.body)["error_code"]) == (503, "draining")


async def test_a_token_revoked_while_the_provider_is_asked_opens_nothing() -> None:
    async with sockets_double() as double, sockets_edge(double) as gateway:
        served = double.serve

        async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            gateway.world.revocations.add(Revocation(workspace="w1", kind="token", target="t1", at_ms=0))
            await served(reader, writer)

        double.serve = late  # type: ignore[method-assign]
        answer = await asked(gateway)
        assert (answer.status, json.loads(answer.body)["error_code"]) == (401, "token_revoked")


async def test_a_client_that_gives_up_its_handshake_leaves_nothing_open() -> None:
    async with sockets_double() as double, sockets_edge(double) as gateway:
        asked, gone = asyncio.Event(), asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            asked.set()
            await reader.read()
            gone.set()
            writer.close()

        double.serve = silent  # type: ignore[method-assign]
        client = await Client.connect(gateway.port)
        await client.send(handshake())
        async with asyncio.timeout(5):
            await asked.wait()
        client.close()
        async with asyncio.timeout(5):
            await gone.wait()
        [settled] = await gateway.settled()
        assert (settled.outcome, len(gateway.context.open)) == ("client_gone", 0)


async def test_keys_that_are_not_known_yet_are_fetched_once() -> None:
    async with sockets_double() as double:
        issuer = Issuer(id="i-idp", workspace="w1", issuer=IDP, audiences=("glottis",), jwks_uri="https://idp.test/jwks")
        async with sockets_edge(double, snapshot=workspace_at(double.origin, issuers=(issuer,))) as gateway:
            assert gateway.key_sets is not None
            gateway.key_sets.documents["i-idp"] = jwks(signing_key())
            await dial(gateway)
            assert gateway.key_sets.refreshed == ["i-idp"]


@pytest.mark.parametrize(
    ("document", "status", "reason"),
    [(jwks(signing_key(seed=9, kid="other")), 401, "key_unknown"), (None, 503, "keys_unavailable")],
)
async def test_a_key_that_stays_unknown_is_told_apart_from_keys_that_cannot_be_had(
    document: bytes | None, status: int, reason: str
) -> None:
    async with sockets_double() as double:
        issuer = Issuer(id="i-idp", workspace="w1", issuer=IDP, audiences=("glottis",), jwks_uri="https://idp.test/jwks")
        async with sockets_edge(double, snapshot=workspace_at(double.origin, issuers=(issuer,))) as gateway:
            assert gateway.key_sets is not None
            if document is not None:
                gateway.key_sets.documents["i-idp"] = document
            answer = await asked(gateway)
            assert (answer.status, json.loads(answer.body)["error_code"]) == (status, reason)
            assert double.sockets == []


async def test_every_socket_of_a_profile_is_opened_and_an_unknown_one_where_that_is_granted() -> None:
    """Public report 26."""
    operations = ("tts", "stt", "agents", "unlisted")
    grant = Grant(id="g1", workspace="w1", account="a-eu", subject="team:voice", operations=operations)
    async with sockets_double() as double:
        snapshot = workspace_at(double.origin, grants=(grant,))
        async with sockets_edge(double, snapshot=snapshot) as gateway:
            paths = [endpoint.path for endpoint in cartesia.PROFILE.endpoints if endpoint.is_websocket]
            paths = [path.replace("{id}", "agent_1") for path in [*paths, "/tts/bytes", "/realtime/v2"]]
            for path in paths:
                await dial(gateway, f"/cartesia{path}?model=ink-whisper" if path.startswith("/stt") else f"/cartesia{path}")
            assert [socket.target.partition("?")[0] for socket in double.sockets] == paths
            assert paths == [
                "/tts/websocket",
                "/stt/websocket",
                "/stt/turns/websocket",
                "/agents/stream/agent_1",
                "/tts/bytes",
                "/realtime/v2",
            ]


async def test_a_refusal_is_readable_by_a_client_that_sends_on() -> None:
    async with sockets_double() as double, sockets_edge(double) as gateway:
        client = await Client.connect(gateway.port)
        await client.send(handshake(token="") + client_frame(2, bytes(60_000)))
        for _ in range(20):
            await client.send(client_frame(2, bytes(60_000)))
        assert (await client.answer()).status == 401
        client.close()


async def test_a_callers_trace_is_kept_for_the_spans() -> None:
    async with sockets_double() as double, sockets_edge(double) as gateway:
        parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        client = await dial(gateway, TTS, f"Traceparent: {parent}", "tracestate: a=1")
        await client.hang_up()
        [settled] = await gateway.settled()
        assert (settled.traceparent, settled.tracestate) == (parent.encode(), b"a=1")
        assert double.sockets[0].one("traceparent") is None


async def test_a_session_that_opens_while_the_pod_begins_to_drain_ends_at_once() -> None:
    async with sockets_double() as double, sockets_edge(double) as gateway:
        served = double.serve

        async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            gateway.context.is_draining = True
            await served(reader, writer)

        double.serve = late  # type: ignore[method-assign]
        client = await dial(gateway)
        assert await client.closed(1) == (1012, "draining: This gateway is shutting down")
