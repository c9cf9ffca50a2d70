"""What an administrator takes away binds on what is already open, on every pod: sockets, streams, byte answers.

Control plane and pods are processes; each test takes something away through the API and watches its own open exchanges.
The times from the commit are recorded as properties of the tests (`--junit-xml` shows them); what is asserted is that it
happens, and in which words.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import websockets

from glottis.embedded.postgres import Postgres
from tests.doubles.cartesia_websocket import Socket, SocketsDouble
from tests.kit.gateway import GatewayProcess
from tests.kit.identities import SigningKey, jwks, signing_key
from tests.kit.installation import Caller, Installation, installed
from tests.kit.services import NatsAccount

pytestmark = pytest.mark.timeout(180)

DEADLINE = 20.0


@pytest.fixture(scope="module")
def installation(postgres: Postgres, migrated_template: str, nats_pool: list[NatsAccount]) -> Iterator[Installation]:
    account = nats_pool.pop()  # not given back: what this installation leaves in it is nobody else's
    with installed(postgres, migrated_template, account, 2, GLOTTIS_GATEWAY_REVOCATION_DRAIN_SECONDS="0.3") as running:
        running.provider.sockets.scripts["holds"] = _holds
        yield running


async def _holds(double: SocketsDouble, socket: Socket) -> None:
    """Answer the first text with one chunk and the rest never; read whatever comes."""
    await socket.message()
    await socket.say(type="chunk", data="AAAA", done=False, context_id="c1")
    while await socket.frame() is not None:
        pass


def _speech(caller: Caller, **more: Any) -> dict[str, Any]:
    return {
        "model_id": caller.model,
        "transcript": "Hello.",
        "voice": {"mode": "id", "id": "v1"},
        "output_format": {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24000},
        **more,
    }


@dataclass
class Open:
    """What one caller has open on one pod, each with something under way but for the idle socket."""

    pod: GatewayProcess
    idle: websockets.ClientConnection
    speaking: websockets.ClientConnection
    events: httpx.Response
    audio: httpx.Response
    keep_alive: httpx.AsyncClient


@asynccontextmanager
async def everything_open(pod: GatewayProcess, caller: Caller, token: str) -> AsyncIterator[Open]:
    """Open two sockets, an event stream and a byte answer."""
    headers = {"X-API-Key": token, "Cartesia-Version": "2026-08-14"}
    address = pod.url.replace("http", "ws") + "/cartesia/tts/websocket"
    async with AsyncExitStack() as stack:
        idle = await stack.enter_async_context(websockets.connect(address, additional_headers=headers, proxy=None))
        holding = headers | {"X-Double": "holds"}
        speaking = await stack.enter_async_context(websockets.connect(address, additional_headers=holding, proxy=None))
        await speaking.send(json.dumps(_speech(caller, context_id="c1")))
        assert json.loads(await speaking.recv())["data"] == "AAAA"
        client = await stack.enter_async_context(
            httpx.AsyncClient(trust_env=False, base_url=f"{pod.url}/cartesia", headers=headers, timeout=DEADLINE)
        )
        streams = []
        for path in ("/tts/sse", "/tts/bytes"):
            request = client.build_request("POST", path, json=_speech(caller), headers={"X-Double": "first-then-wait"})
            streams.append(await client.send(request, stream=True))
            stack.push_async_callback(streams[-1].aclose)
        keep_alive = await stack.enter_async_context(
            httpx.AsyncClient(trust_env=False, base_url=f"{pod.url}/cartesia", headers=headers, timeout=DEADLINE)
        )
        assert (await keep_alive.get("/voices")).status_code == 200
        yield Open(pod, idle, speaking, *streams, keep_alive)


async def _closed(socket: websockets.ClientConnection) -> tuple[int, str]:
    with contextlib.suppress(websockets.ConnectionClosed):
        async with asyncio.timeout(DEADLINE):
            async for _ in socket:
                pass
    return socket.close_code or 0, (socket.close_reason or "").partition(":")[0]


async def _cut(answer: httpx.Response) -> bool:
    """Read on; return whether the answer ends before its end."""
    try:
        async with asyncio.timeout(DEADLINE):
            async for _ in answer.aiter_raw():
                pass
    except httpx.RemoteProtocolError:
        return True
    return False


async def _refused(client: httpx.AsyncClient, caller: Caller) -> str:
    """Ask until it is refused; return the reason."""
    async with asyncio.timeout(DEADLINE):
        while (answer := await client.post("/tts/bytes", json=_speech(caller))).status_code == 200:
            pass
    reason: str = answer.json()["error_code"]
    return reason


Taking = Callable[[Installation, Caller], Awaitable[Any]]


async def _revoke_token(installation: Installation, caller: Caller) -> None:
    await installation.call("DELETE", f"/tokens/{caller.token_id}")


async def _revoke_all(installation: Installation, caller: Caller) -> None:
    await installation.call("POST", f"/service-accounts/{caller.name}/revoke-tokens")


async def _patch(installation: Installation, path: str, **change: Any) -> None:
    async with installation.client() as client:
        answer = await client.patch(path, json=change, headers={"If-Match": "*"})
    assert answer.is_success, answer.text


async def _disable_caller(installation: Installation, caller: Caller) -> None:
    await _patch(installation, f"/service-accounts/{caller.name}", disabled=True)


async def _disable_account(installation: Installation, caller: Caller) -> None:
    await _patch(installation, f"/accounts/{caller.account}", disabled=True)


async def _withdraw_grant(installation: Installation, caller: Caller) -> None:
    subject = f"service_account:{caller.principal_id}"
    await installation.call("DELETE", f"/accounts/{caller.account}/collaborators/{subject}")


async def _delete_account(installation: Installation, caller: Caller) -> None:
    await installation.call("DELETE", f"/accounts/{caller.account}")


@pytest.mark.parametrize(
    ("take", "on_sockets", "on_speaking", "on_requests"),
    [
        (_revoke_token, "token_revoked", "token_revoked", "token_revoked"),
        (_revoke_all, "token_revoked", "token_revoked", "token_revoked"),
        (_disable_caller, "principal_disabled", "principal_disabled", "principal_disabled"),
        (_disable_account, "account_not_granted", "account_not_granted", "account_not_granted"),
        (_withdraw_grant, "account_not_granted", "account_not_granted", "account_not_granted"),
        (_delete_account, "account_not_granted", "account_not_granted", "account_not_granted"),
    ],
    ids=["token", "all tokens", "principal", "account disabled", "grant", "account deleted"],
)
async def test_what_is_taken_away_ends_what_is_open_on_every_pod(
    installation: Installation,
    record_property: Callable[[str, object], None],
    take: Taking,
    on_sockets: str,
    on_speaking: str,
    on_requests: str,
) -> None:
    provider = installation.provider
    provider.hold()
    caller = await installation.caller()
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(everything_open(pod, caller, caller.token)) for pod in installation.gateways]
        sockets = len(provider.sockets.sockets)
        before = [len(socket.frames) for socket in provider.sockets.sockets]

        await take(installation, caller)
        committed = time.monotonic()

        for one in opened:
            assert await _closed(one.idle) == (1008, on_sockets)
        record_property("seconds_from_commit_to_closed_sockets", round(time.monotonic() - committed, 3))
        for one in opened:
            assert await _closed(one.speaking) == (1008, on_speaking)
            assert await _cut(one.events)
            assert await _cut(one.audio)
            assert await _refused(one.keep_alive, caller) == on_requests
        record_property("seconds_from_commit_to_the_end_of_all", round(time.monotonic() - committed, 3))
    # No text passed after the commit: all that the provider heard was our own goodbye.
    assert len(provider.sockets.sockets) == sockets
    heard = [frame for socket, seen in zip(provider.sockets.sockets, before, strict=True) for frame in socket.frames[seen:]]
    assert {frame.opcode for frame in heard} <= {8}


async def test_a_deleted_model_ends_its_contexts_and_answers_and_is_refused_in_band(installation: Installation) -> None:
    installation.provider.hold()
    caller = await installation.caller()
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(everything_open(pod, caller, caller.token)) for pod in installation.gateways]

        await installation.call("DELETE", f"/accounts/{caller.account}/models/{caller.model}")

        for one in opened:
            assert await _cut(one.events)
            assert await _cut(one.audio)
            assert await _refused(one.keep_alive, caller) == "model_not_granted"
            # The session itself names no model and stays; its context has an error and ends after the drain.
            async with asyncio.timeout(DEADLINE):
                while (error := json.loads(await one.speaking.recv())).get("type") != "error":
                    pass
            assert (error["context_id"], error["error_code"]) == ("c1", "model_not_granted")
            assert await _closed(one.speaking) == (1008, "model_not_granted")
            await one.idle.send(json.dumps(_speech(caller, context_id="c2")))
            assert json.loads(await one.idle.recv())["error_code"] == "model_not_granted"


async def test_text_already_sent_may_drain_and_no_more_text_passes(installation: Installation) -> None:
    provider = installation.provider
    provider.hold()
    caller = await installation.caller()
    pod = installation.gateways[0]
    headers = {"X-API-Key": caller.token, "X-Double": "first-then-wait"}
    async with (
        httpx.AsyncClient(trust_env=False, base_url=f"{pod.url}/cartesia", headers=headers, timeout=DEADLINE) as client,
        client.stream("POST", "/tts/sse", json=_speech(caller)) as answer,
    ):
        chunks = answer.aiter_raw()
        first = await anext(chunks)
        await installation.call("DELETE", f"/tokens/{caller.token_id}")
        provider.let_go()
        rest = b"".join([chunk async for chunk in chunks])
        assert await _refused(client, caller) == "token_revoked"

    assert b"chunk" in first
    assert b"done" in rest


async def test_an_administrator_ends_one_session_wherever_it_is_and_the_audit_log_says_who(installation: Installation) -> None:
    caller = await installation.caller()
    headers = {"X-API-Key": caller.token}
    async with AsyncExitStack() as stack:
        sockets = [
            await stack.enter_async_context(
                websockets.connect(
                    pod.url.replace("http", "ws") + "/cartesia/tts/websocket", additional_headers=headers, proxy=None
                )
            )
            for pod in installation.gateways
            for _ in range(2)
        ]
        for doomed in sockets[::2]:
            assert doomed.response is not None
            exchange = doomed.response.headers["X-Glottis-Request-Id"]
            await installation.call("DELETE", f"/sessions/{exchange}", status=202)
            assert await _closed(doomed) == (1008, "ended_by_admin")
            entries = (await installation.call("GET", "/audit?kind=session"))["items"]
            assert ("ada", "end_session", exchange) in [
                (entry["actor_name"], entry["action"], entry["target"]) for entry in entries
            ]
        for other in sockets[1::2]:
            await other.send(json.dumps(_speech(caller, context_id="c1")))
            assert json.loads(await other.recv())["type"] == "chunk"


# ---- tokens of an identity provider


async def _idp(installation: Installation, expiry: str) -> tuple[Caller, SigningKey, dict[str, Any]]:
    """Register an issuer with this policy and a user of it; return its account, key and claims without times."""
    caller = await installation.caller()
    key = signing_key("ES256", f"kid-{caller.name}")
    issuer = f"https://{caller.name}.idp.test"
    await installation.call(
        "POST",
        "/issuers",
        {
            "name": caller.name,
            "issuer": issuer,
            "audiences": ["glottis"],
            "jwks": jwks(key).decode(),
            "expiry": expiry,
            "leeway_seconds": 0,
        },
    )
    await installation.call("POST", "/users", {"name": f"user-{caller.name}", "issuer": caller.name, "subject": "u1"})
    await installation.call(
        "POST", f"/accounts/{caller.account}/collaborators", {"subject": f"user:user-{caller.name}", "role": "user"}
    )
    return caller, key, {"iss": issuer, "aud": "glottis", "sub": "u1"}


async def _admitted(installation: Installation, token: str) -> None:
    """Wait until every pod takes the token."""
    async with httpx.AsyncClient(trust_env=False) as client, asyncio.timeout(DEADLINE):
        for pod in installation.gateways:
            while (await client.get(f"{pod.url}/cartesia/voices", headers={"X-API-Key": token})).status_code != 200:
                await asyncio.sleep(0.02)


async def _opened_before_expiry(
    pod: GatewayProcess, key: SigningKey, claims: dict[str, Any]
) -> tuple[websockets.ClientConnection, str, int]:
    """Return an open speech socket, its token, and when that expires: soon, or later where the machine is that slow."""
    address = pod.url.replace("http", "ws") + "/cartesia/tts/websocket"
    for lifetime in (2, 5, 15):
        expires = int(time.time()) + lifetime
        token = key.token(claims | {"iat": expires - 60, "exp": expires})
        headers = {"X-API-Key": token, "Cartesia-Version": "2026-08-14"}
        with contextlib.suppress(websockets.InvalidStatus):
            return await websockets.connect(address, additional_headers=headers, proxy=None), token, expires
    raise AssertionError("no socket was opened within 15 s")


@pytest.mark.parametrize(("expiry", "grace"), [("hard", 0), ("grace:1", 1), ("finish-session", None)])
async def test_an_issuers_policy_says_what_a_tokens_expiry_does_to_an_open_session(
    installation: Installation, expiry: str, grace: int | None
) -> None:
    caller, key, claims = await _idp(installation, expiry)
    now = int(time.time())
    await _admitted(installation, key.token(claims | {"iat": now, "exp": now + 600}))
    pod = installation.gateways[0]
    socket, token, expires = await _opened_before_expiry(pod, key, claims)
    headers = {"X-API-Key": token, "Cartesia-Version": "2026-08-14"}
    async with (
        socket,
        httpx.AsyncClient(trust_env=False, base_url=f"{pod.url}/cartesia", headers=headers, timeout=DEADLINE) as client,
    ):
        assert await _refused(client, caller) == "token_expired"
        if grace is None:
            await socket.send(json.dumps(_speech(caller, context_id="late")))
            assert json.loads(await socket.recv())["type"] == "chunk"
        else:
            assert await _closed(socket) == (1008, "token_expired")
            assert time.time() >= expires + grace


async def test_revoking_a_user_refuses_the_tokens_that_its_identity_provider_issued_before(installation: Installation) -> None:
    caller, key, claims = await _idp(installation, "finish-session")
    now = int(time.time())
    token = key.token(claims | {"iat": now - 60, "exp": now + 600})
    await _admitted(installation, token)
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(everything_open(pod, caller, token)) for pod in installation.gateways]

        await installation.call("POST", f"/users/user-{caller.name}/revoke-tokens")

        for one in opened:
            assert await _closed(one.idle) == (1008, "principal_revoked")
            assert await _refused(one.keep_alive, caller) == "principal_revoked"
        installation.provider.let_go()
    await _admitted(installation, key.token(claims | {"iat": int(time.time()) + 2, "exp": now + 600}))
