"""What binds on an open session: revocation, withdrawn grants, operators, drain, the account rule."""

import asyncio
import json

import msgspec
import pytest

from contracts.revocations import Revocation
from contracts.snapshot import Grant, Snapshot, Team, Workspace
from gateway.upstream.origin import PoolSettings
from policy.index import index_of
from policy.world import World
from tests.doubles.cartesia_websocket import BINARY, PING, PONG, TEXT, Socket, SocketsDouble, client_frame, sockets_double
from tests.kit.edge import CREDENTIAL, Edge, workspace_at
from tests.kit.sessions import STT, TTS, ClientSocket, dial, sockets_edge
from tests.kit.waiting import until


def revoke(gateway: Edge) -> None:
    """Revoke alice's token, and have open exchanges judge themselves, as the pod does."""
    gateway.world.revocations.add(Revocation(workspace="w1", kind="token", target="t1", at_ms=0))
    for exchange in gateway.context.open:
        exchange.world_changed(gateway.now)


async def holds_back(double: SocketsDouble, socket: Socket) -> None:
    """Answer a text only when the test says so."""
    await socket.message()
    await socket.say(type="chunk", data="AAAA", done=False, context_id="c1")
    await double.go.wait()
    await socket.say(type="chunk", data="BBBB", done=False, context_id="c1")
    await socket.say(type="done", done=True, context_id="c1")
    while await socket.frame() is not None:
        pass


async def test_a_revocation_ends_idle_and_listening_sessions_at_once() -> None:
    async with sockets_double() as double, sockets_edge(double) as gateway:
        speaking, listening = await dial(gateway, TTS), await dial(gateway, STT)
        revoke(gateway)
        assert await speaking.closed(1) == (1008, "token_revoked: The token was revoked")
        assert await listening.closed(1) == (1008, "token_revoked: The token was revoked")
        settled = await gateway.settled(2)
        assert {(one.outcome, one.reason, one.closed_by) for one in settled} == {("ended", "token_revoked", "gateway")}


async def test_after_a_revocation_audio_of_text_already_sent_drains_and_no_more_text_passes() -> None:
    async with sockets_double() as double, sockets_edge(double) as gateway:
        double.scripts["holds"] = holds_back
        client = await dial(gateway, TTS, "X-Double: holds")
        await client.speak("c1", "Hello")
        assert (await client.heard())["data"] == "AAAA"
        revoke(gateway)
        sent = len(double.sockets[0].received)
        await client.speak("c1", "Not this")
        await client.speak("c2", "Nor this")
        double.go.set()
        assert [(await client.heard())["type"] for _ in range(2)] == ["chunk", "done"]
        assert await client.closed(1) == (1008, "token_revoked: The token was revoked")
        assert b"this" not in bytes(double.sockets[0].received[sent:])


async def test_a_withdrawn_model_is_refused_at_the_next_text() -> None:
    async with sockets_double() as double, sockets_edge(double) as gateway:
        client = await dial(gateway)
        await client.speak("c1", "Hello")
        assert [(await client.heard())["type"] for _ in range(3)][-1] == "done"
        snapshot = workspace_at(double.origin)
        models = tuple(model for model in snapshot.models if model.name != "sonic-3")
        gateway.world = World(index_of(workspace_at(double.origin, models=models)), gateway.world.revocations, gateway.world.keys)
        for exchange in gateway.context.open:
            exchange.world_changed(gateway.now)
        await client.speak("c2", "Hello")
        assert (await client.heard())["error_code"] == "model_not_granted"


HOWS = ("text", "binary", "fragments", "key twice")


async def say(client: ClientSocket, how: str, message: dict[str, object]) -> None:
    """Send a message in one of the ways that a message can be sent."""
    data = json.dumps(message).encode()
    if how == "fragments":
        half = len(data) // 2
        await client.send_raw(client_frame(TEXT, data[:half], is_final=False))
        await client.send(PING, b"between")
        await client.send_raw(client_frame(0, data[half:]))
        return
    if how == "key twice":
        data = b'{"model_id": "sonic-3", "voice": {"mode": "id", "id": "v1"}, ' + data[1:]
    await client.send(BINARY if how == "binary" else TEXT, data)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"model_id": "sonic-9"}, "model_not_granted"),
        ({"model_id": "sonic-turbo"}, "model_not_granted"),
        ({"voice": {"mode": "id", "id": "v9"}}, "voice_not_allowed"),
        ({"voice": {"mode": "embedding", "embedding": [0.1]}}, "voice_not_allowed"),
    ],
    ids=["unknown model", "another team's model", "another voice", "an embedding"],
)
async def test_a_later_message_of_an_admitted_context_is_judged_like_the_first(
    asked: dict[str, object], reason: str, how: str
) -> None:
    async with sockets_double() as double:
        teams = (Team(id="voice", workspace="w1", name="Voice team", allowed_voices=("v1",)),)
        async with sockets_edge(double, snapshot=workspace_at(double.origin, teams=teams)) as gateway:
            client = await dial(gateway)
            await client.speak("c1", "First.", **{"continue": True})
            usual = {"model_id": "sonic-3", "voice": {"mode": "id", "id": "v1"}, "context_id": "c1", "continue": True}
            await say(client, how, usual | {"transcript": "Smuggled."} | asked)
            while (error := await client.heard()).get("type") != "error":
                pass
            await client.speak("c1", "Third.")
            while (await client.heard()).get("type") != "done":
                pass

            heard = b"".join(frame.payload for frame in double.sockets[0].frames)
            assert b"First." in heard
            assert b"Third." in heard
            assert b"Smuggled" not in heard
            expected = "judged_key_twice" if how == "key twice" else reason
            assert (error["error_code"], error["context_id"]) == (expected, "c1")
            settled = [(context.outcome, context.reason) for context in gateway.recorder.contexts]
            assert settled == [("refused", expected), ("completed", "")]


async def test_an_administrator_ends_one_session_and_no_other() -> None:
    async with sockets_double() as double, sockets_edge(double) as gateway:
        ended, other = await dial(gateway), await dial(gateway)
        name = next(line for line in ended.head.split(b"\r\n") if line.startswith(b"X-Glottis-Request-Id")).split(b": ")[1]
        exchange = gateway.context.open.get(name.decode())
        assert exchange is not None
        exchange.end("ended_by_admin", "Incident 42")
        assert await ended.closed(1) == (1008, "ended_by_admin: Incident 42")
        await other.speak("c1", "Hello")
        assert (await other.heard())["type"] == "chunk"


async def test_a_drained_session_finishes_what_is_spoken_and_ends_with_1012() -> None:
    async with sockets_double() as double, sockets_edge(double) as gateway:
        double.scripts["holds"] = holds_back
        client, idle = await dial(gateway, TTS, "X-Double: holds"), await dial(gateway, TTS)
        await client.speak("c1", "Hello")
        assert (await client.heard())["data"] == "AAAA"
        draining = asyncio.ensure_future(gateway.server.drain())
        assert await idle.closed(1) == (1012, "draining: This gateway is shutting down")
        double.go.set()
        assert [(await client.heard())["type"] for _ in range(2)] == ["chunk", "done"]
        assert await client.closed(1) == (1012, "draining: This gateway is shutting down")
        client.writer.close()
        idle.writer.close()
        await asyncio.wait_for(draining, 5)
        assert {settled.outcome for settled in gateway.recorder.settled} == {"drained"}
        assert [context.outcome for context in gateway.recorder.contexts] == ["completed"]


async def test_half_a_provider_message_keeps_our_close_back_until_it_is_whole() -> None:
    async def slowly(double: SocketsDouble, socket: Socket) -> None:
        await socket.send_raw(b"\x81\x05he")
        await double.go.wait()
        await socket.send_raw(b"llo")
        while await socket.frame() is not None:
            pass

    async with sockets_double() as double, sockets_edge(double) as gateway:
        double.scripts["slowly"] = slowly
        client = await dial(gateway, STT, "X-Double: slowly")
        async with asyncio.timeout(5):
            assert await client.reader.readexactly(4) == b"\x81\x05he"
        revoke(gateway)
        double.go.set()
        async with asyncio.timeout(5):
            assert await client.reader.readexactly(4) == b"llo\x88"


# ---- accounts


def two_accounts(eu: SocketsDouble, us: SocketsDouble) -> Snapshot:
    """Return the test workspace with both Cartesia accounts granted, each at a double."""
    snapshot = workspace_at(
        eu.origin,
        plus_grants=(Grant(id="g9", workspace="w1", account="a-us", subject="team:voice"),),
        workspaces=(Workspace(id="w1", name="Voice", default_accounts={"cartesia": "a-eu"}),),
    )
    accounts = (msgspec.structs.replace(one, origin=us.origin) if one.id == "a-us" else one for one in snapshot.accounts)
    return msgspec.structs.replace(snapshot, accounts=tuple(accounts))


async def test_a_first_text_of_another_account_is_spoken_there_and_binds_the_socket() -> None:
    async with sockets_double() as eu, sockets_double() as us:
        pool = PoolSettings(warm_connections=0, allowed_private_origins=frozenset({eu.origin, us.origin}))
        async with sockets_edge(eu, snapshot=two_accounts(eu, us), pool=pool) as gateway:
            client = await dial(gateway)
            await client.send(PING, b"beat")
            found = await client.frame()
            assert found is not None
            assert found.opcode == PONG
            await client.speak("c1", "Hello", model="sonic-turbo")
            heard = [await client.message() for _ in range(3)]
            assert [json.loads(message.payload)["type"] for message in heard if message] == ["chunk", "chunk", "done"]
            assert us.sockets[0].one("Authorization") == f"Bearer {CREDENTIAL}-us"
            assert us.sockets[0].target == "/tts/websocket"
            assert [frame.opcode for frame in eu.sockets[0].frames] == [PING]
            await client.speak("c2", "Hello", model="sonic-3")
            while (error := await client.heard()).get("type") != "error":
                pass
            assert (error["context_id"], error["error_code"]) == ("c2", "model_on_another_account")
            await client.hang_up()
            [settled] = await gateway.settled()
            assert settled.route is not None
            assert settled.route.account.id == "a-us"
            await until(eu.sockets[0].gone.is_set)


async def test_another_account_that_refuses_the_session_is_told_in_band_and_then_1008() -> None:
    async with sockets_double() as eu, sockets_double() as us:
        us.answers[""] = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n"
        pool = PoolSettings(warm_connections=0, allowed_private_origins=frozenset({eu.origin, us.origin}))
        async with sockets_edge(eu, snapshot=two_accounts(eu, us), pool=pool) as gateway:
            client = await dial(gateway)
            await client.speak("c1", "Hello", model="sonic-turbo")
            error = await client.heard()
            assert (error["context_id"], error["error_code"]) == ("c1", "upstream_refused")
            closed = await client.closed(1)
            assert closed is not None
            assert closed[0] == 1008


async def test_audio_is_counted_at_the_end_of_a_session() -> None:
    async with sockets_double() as double, sockets_edge(double) as gateway:
        client = await dial(gateway, STT)
        for _ in range(10):
            await client.send(BINARY, bytes(3200))
        await client.send(TEXT, b"close")
        assert await client.closed(2) == (1000, "")
        [settled] = await gateway.settled()
        assert settled.tally is not None
        assert dict(settled.tally.totals) == {"requests": 1, "audio_in_ms": 1000}
        assert (settled.messages_from_client, settled.bytes_from_client) == (11, 32_005)
