"""The gateway as a whole: a real process, fed by a real NATS or by a file, called with the official SDK."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import cartesia
import httpx
import pytest
import pytest_asyncio
import websockets
from nats.aio.msg import Msg

from contracts import codec, subjects
from contracts.events import PodStatus, SessionsHeard
from contracts.exchanges import span_events
from contracts.revocations import Revocation
from glottis.embedded.nats import Nats
from tests.doubles.cartesia import WAV, CartesiaDouble
from tests.doubles.cartesia_websocket import sockets_double
from tests.kit.configuration import ADMIN_PERMISSIONS, at_revision
from tests.kit.gateway import CREDENTIAL, Fed, fed, gateway_command, gateway_process, sdk, speak, token
from tests.kit.identities import jwks, signing_key
from tests.kit.processes import Child
from tests.kit.services import NatsAccount, nats_seeds, nats_server, service_folder
from tests.kit.waiting import until

GATEWAY_YAML = """
version: 1
workspace: {{id: w1}}
issuers:
  - {{name: i-own, kind: glottis, issuer: "https://glottis.test", audiences: [glottis], jwks: "file:jwks.json"}}
teams: [{{name: lab}}]
service_accounts: [{{name: agent, teams: [lab]}}]
accounts:
  - name: cartesia-us
    provider: cartesia
    origin: {origin}
    credential: env:CARTESIA_KEY
    collaborators: [{{subject: "team:lab"}}]
    models: [{{name: sonic-turbo, type: text-to-speech}}]
"""


@pytest_asyncio.fixture
async def provider() -> AsyncIterator[CartesiaDouble]:
    async with CartesiaDouble() as double:
        yield double


@pytest_asyncio.fixture
async def pod(nats_account: NatsAccount, provider: CartesiaDouble, tmp_path: Path) -> AsyncIterator[Fed]:
    async with fed(nats_account, tmp_path, provider.origin) as running:
        yield running


async def refused_in_the_end(call: Callable[[], Awaitable[object]]) -> cartesia.APIStatusError:
    """Call again and again; return how it was refused."""
    async with asyncio.timeout(10):
        while True:
            try:
                await call()
            except cartesia.APIStatusError as refusal:
                return refusal


async def test_the_official_sdk_speaks_and_the_provider_gets_the_accounts_credential(pod: Fed, provider: CartesiaDouble) -> None:
    audio = await speak(pod.gateway)

    [request] = provider.requests
    assert audio == WAV
    assert request.target == "/tts/bytes"
    assert request.one("Authorization") == f"Bearer {CREDENTIAL}"
    assert b"eyJ" not in request.head


async def test_usage_on_the_stream_equals_the_calls_made(pod: Fed) -> None:
    texts = ["One.", "Two two.", "Three three three."]
    for text in texts:
        await speak(pod.gateway, text)

    finals = await pod.finals(3)
    assert sorted(event.totals["characters"] for event in finals) == [4, 8, 18]
    assert {(event.to.workspace, event.to.principal, event.to.account, event.to.model) for event in finals} == {
        ("w1", "agent", "a-us", "sonic-turbo")
    }
    assert {event.outcome for event in finals} == {"completed"}


async def test_spans_reach_their_stream(pod: Fed) -> None:
    await speak(pod.gateway)
    await pod.finals(1)

    streams = pod.control_plane.client.jetstream()
    message = await streams.get_msg(subjects.SPANS_STREAM, 1)
    [event] = span_events(message.data or b"")
    assert [span.kind for span in event.spans] == ["server", "internal", "client"]
    assert "Hello" not in repr(event)


async def test_a_socket_of_the_sdk_counts_each_context(nats_account: NatsAccount, tmp_path: Path) -> None:
    async with sockets_double() as double, fed(nats_account, tmp_path, double.origin) as pod:
        base = pod.gateway.url.replace("http", "ws") + "/cartesia"
        client = cartesia.AsyncCartesia(
            base_url=pod.gateway.url + "/cartesia", websocket_base_url=base, api_key=token(), max_retries=0
        )
        async with client, client.tts.websocket_connect() as socket:
            for context, text in (("c1", "First one."), ("c2", "Second.")):
                await socket.send(
                    {
                        "model_id": "sonic-turbo",
                        "transcript": text,
                        "voice": {"mode": "id", "id": "v1"},
                        "output_format": {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24000},
                        "context_id": context,
                    }
                )
            done = 0
            while done < 2:
                message = await socket.recv()
                done += message.type == "done"

        finals = await pod.finals(2)
        assert sorted((event.key.rpartition(".")[2], event.totals["characters"]) for event in finals) == [("1", 10), ("2", 7)]


async def test_an_open_socket_is_told_with_its_figures_and_its_end(nats_account: NatsAccount, tmp_path: Path) -> None:
    async with sockets_double() as double, fed(nats_account, tmp_path, double.origin) as pod:
        told: list[SessionsHeard] = []

        async def take(message: Msg) -> None:
            assert b"Nobody" not in message.data
            told.append(codec.decode(message.data, SessionsHeard))

        await pod.control_plane.client.subscribe(subjects.SESSION_SUBJECTS, cb=take)
        base = pod.gateway.url.replace("http", "ws") + "/cartesia"
        client = cartesia.AsyncCartesia(
            base_url=pod.gateway.url + "/cartesia", websocket_base_url=base, api_key=token(), max_retries=0
        )
        async with client, client.tts.websocket_connect() as socket:
            await until(lambda: any(heard.sessions for heard in told), 15)
            await socket.send(
                {
                    "model_id": "sonic-turbo",
                    "transcript": "Nobody hears.",
                    "voice": {"mode": "id", "id": "v1"},
                    "output_format": {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24000},
                    "context_id": "c1",
                }
            )
            await until(lambda: any(session.characters == 13 for heard in told for session in heard.sessions), 20)
        first, last = told[0].sessions[0], [heard.sessions for heard in told if heard.sessions][-1][0]
        assert (first.workspace, first.principal, first.account, first.model, first.characters) == ("w1", "agent", "a-us", "", 0)
        assert (last.exchange, last.model, last.endpoint) == (first.exchange, "sonic-turbo", "tts.websocket")
        await until(lambda: any(first.exchange in heard.ended for heard in told), 15)


async def test_a_revoked_token_is_refused_in_the_end_and_on_an_open_connection(pod: Fed) -> None:
    key = token(jti="doomed")
    async with sdk(pod.gateway, key) as client:
        await client.voices.get("v1")

        await pod.control_plane.revoke(Revocation(workspace="w1", kind="token", target="doomed", at_ms=1))

        refusal = await refused_in_the_end(lambda: client.voices.get("v1"))
    assert refusal.status_code == 401
    assert "revoked" in str(refusal)


async def test_a_withdrawn_grant_refuses_the_next_requests(pod: Fed, provider: CartesiaDouble) -> None:
    await speak(pod.gateway)

    await pod.control_plane.publish(at_revision(pod.snapshot, 2, grants=()))

    refusal = await refused_in_the_end(lambda: speak(pod.gateway))
    assert refusal.status_code == 403


async def test_a_minted_access_token_speaks_until_its_parent_is_revoked(pod: Fed, provider: CartesiaDouble) -> None:
    with_access = pod.control_plane.with_access_tokens(pod.snapshot, "w1")
    await pod.control_plane.publish(at_revision(with_access, 2))
    await until(lambda: pod.gateway.events("configuration in force")[-1]["revision"] == 2)
    async with sdk(pod.gateway, token(jti="parent")) as client:
        minted = (await client.access_token.create(grants={"tts": True}, expires_in=60)).token

    audio = await speak(pod.gateway, key=minted)
    await pod.control_plane.revoke(Revocation(workspace="w1", kind="token", target="parent", at_ms=1))
    refusal = await refused_in_the_end(lambda: speak(pod.gateway, key=minted))

    assert audio == WAV
    assert {request.target for request in provider.requests} == {"/tts/bytes"}
    assert refusal.status_code == 401


async def test_the_pod_says_what_it_runs(pod: Fed) -> None:
    subscription = await pod.control_plane.client.subscribe(subjects.POD_SUBJECTS)

    await pod.control_plane.publish(at_revision(pod.snapshot, 7))

    async with asyncio.timeout(10):
        status = PodStatus(pod="", version="", revision=0, at_ms=0)
        while status.revision != 7:
            status = codec.decode((await subscription.next_msg(10)).data, PodStatus)
    assert (status.pod, status.open_exchanges, status.is_draining) == ("pod-1", 0, False)


async def test_a_killed_gateway_settles_each_exchange_once_and_open_ones_as_lost(pod: Fed, provider: CartesiaDouble) -> None:
    provider.default = provider.scripts["silent"]
    provider.scripts["quick"] = provider.scripts["echo"]
    hanging = [asyncio.ensure_future(speak(pod.gateway, text)) for text in ("Lost one.", "Lost two, longer.")]
    await until(lambda: len(provider.requests) == 2)

    pod.gateway.child.kill()
    await asyncio.gather(*hanging, return_exceptions=True)
    pod.gateway.child.start()
    await pod.ready()

    finals = await pod.finals(2)
    assert sorted((event.outcome, event.totals["characters"]) for event in finals) == [("gateway_lost", 9), ("gateway_lost", 17)]


async def test_sigterm_drains_and_leaves_nothing_behind(pod: Fed, provider: CartesiaDouble) -> None:
    await speak(pod.gateway)

    status = pod.gateway.child.stop()

    assert status == 0
    assert len(await pod.finals(1)) == 1
    assert [path.name for path in pod.spool.iterdir()] == []


async def test_nothing_secret_stands_in_the_log(pod: Fed) -> None:
    key = token()
    await speak(pod.gateway, "A very private sentence.", key)
    await pod.finals(1)
    await until(lambda: len(pod.gateway.events("exchange settled")) == 1)

    log = pod.gateway.child.output
    assert key not in log
    assert key.rpartition(".")[2] not in log
    assert CREDENTIAL not in log
    assert "private sentence" not in log


async def test_a_gateway_runs_from_a_file_alone(provider: CartesiaDouble, tmp_path: Path) -> None:
    (tmp_path / "gateway.yaml").write_text(GATEWAY_YAML.format(origin=provider.origin))
    (tmp_path / "jwks.json").write_bytes(jwks(signing_key("EdDSA", "own")))
    variables = {"CARTESIA_KEY": CREDENTIAL, "GLOTTIS_ALLOWED_PRIVATE_ORIGINS": provider.origin}
    with gateway_process(tmp_path, variables, "--config", str(tmp_path / "gateway.yaml")) as gateway:
        await gateway.child.until(gateway.is_ready)

        audio = await speak(gateway)

        assert audio == WAV
        assert provider.requests[0].one("Authorization") == f"Bearer {CREDENTIAL}"
        assert await gateway.metric("glottis_gateway_usage_total", unit="characters") == 6
        assert gateway.child.stop() == 0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("CARTESIA_KEY", ""), "the file refers to env:CARTESIA_KEY, which is not set"),
        (("GLOTTIS_GATEWAY_LISTEN", "192.0.2.1:80"), "cannot listen on 192.0.2.1:80"),
    ],
)
def test_what_keeps_a_gateway_from_starting_is_said(change: tuple[str, str], sentence: str, tmp_path: Path) -> None:
    (tmp_path / "gateway.yaml").write_text(GATEWAY_YAML.format(origin="https://api.cartesia.ai"))
    (tmp_path / "jwks.json").write_bytes(jwks(signing_key("EdDSA", "own")))
    variables = {"CARTESIA_KEY": CREDENTIAL} | dict([change])
    command = gateway_command(tmp_path, variables, "--config", str(tmp_path / "gateway.yaml"))

    ended = subprocess.run(
        command.arguments, env=dict(command.environment), cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False
    )

    assert ended.returncode == 2
    assert sentence in ended.stderr
    assert "Traceback" not in ended.stderr


async def test_operations_routes_and_unknown_paths(pod: Fed) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        live = await client.get(pod.gateway.url + "/livez")
        unknown = await client.get(pod.gateway.url + "/nothing")
        hidden = await client.get(pod.gateway.url + "/metrics")
        ready = await client.get(pod.gateway.admin_url + "/readyz")
        started = await client.get(pod.gateway.admin_url + "/startupz")
        metrics = await client.get(pod.gateway.admin_url + "/metrics")

    assert (live.status_code, live.json()) == (200, {"live": True})
    assert (unknown.status_code, unknown.json()["error"]["reason"]) == (404, "not_found")
    assert unknown.headers["x-glottis-request-id"] == unknown.json()["error"]["request_id"]
    assert hidden.status_code == 404
    assert (ready.status_code, ready.json()["revision"]) == (200, 1)
    assert started.status_code == 200
    assert "glottis_gateway_config_revision 1.0" in metrics.text


@pytest.fixture
def killable() -> Iterator[tuple[NatsAccount, Nats, Child]]:
    seeds = nats_seeds()
    with service_folder("nats") as folder, nats_server(folder, {"GLOTTIS": seeds}) as (server, child):
        yield NatsAccount("GLOTTIS", server.url, seeds), server, child


async def test_exchanges_go_on_while_nats_is_away_and_their_usage_arrives_afterwards(
    killable: tuple[NatsAccount, Nats, Child], provider: CartesiaDouble, tmp_path: Path
) -> None:
    account, server, child = killable
    async with fed(account, tmp_path, provider.origin) as pod:
        await speak(pod.gateway, "One.")
        await pod.finals(1)

        child.kill()
        for _ in range(3):
            assert await speak(pod.gateway, "Away.") == WAV
        child.start()
        await child.until(lambda: server.is_ready(account.seeds["admin"], ADMIN_PERMISSIONS))
        pod.control_plane.client = await account.connect()

        finals = await pod.finals(4)
        assert [event.totals["characters"] for event in finals] == [4, 5, 5, 5]


async def test_a_gateway_starts_from_its_last_known_good_while_nats_is_away(
    killable: tuple[NatsAccount, Nats, Child], provider: CartesiaDouble, tmp_path: Path
) -> None:
    account, _, child = killable
    async with fed(account, tmp_path, provider.origin) as pod:
        await until(lambda: (tmp_path / "state" / "manifest").exists() and (tmp_path / "state" / "confirmed").exists())
        child.kill()
        pod.gateway.child.kill()

        pod.gateway.child.start()
        await pod.ready()

        assert await speak(pod.gateway) == WAV


async def test_a_revocation_right_after_nats_was_killed_and_restarted_ends_what_is_open(
    killable: tuple[NatsAccount, Nats, Child], tmp_path: Path
) -> None:
    account, server, child = killable
    key = token(jti="doomed")
    async with sockets_double() as double, fed(account, tmp_path, double.origin) as pod:
        address = pod.gateway.url.replace("http", "ws") + "/cartesia/tts/websocket"
        async with websockets.connect(address, additional_headers={"X-API-Key": key}, proxy=None) as socket:
            child.kill()
            child.start()
            await child.until(lambda: server.is_ready(account.seeds["admin"], ADMIN_PERMISSIONS))
            pod.control_plane.client = await account.connect()

            await pod.control_plane.revoke(Revocation(workspace="w1", kind="token", target="doomed", at_ms=1))

            async with asyncio.timeout(15):
                await socket.wait_closed()
            with pytest.raises(websockets.InvalidStatus) as refused:
                await websockets.connect(address, additional_headers={"X-API-Key": key}, proxy=None)

    assert (socket.close_code, socket.close_reason) == (1008, "token_revoked: The token was revoked")
    assert refused.value.response.status_code == 401
