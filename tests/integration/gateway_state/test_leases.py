"""A single-use token has one open session at a time, over all pods; what cannot be told is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import cartesia
import nats
import pytest
import pytest_asyncio
from nats.js.errors import KeyWrongLastSequenceError

from contracts import subjects
from contracts.secret import Secret
from gateway.bus import Bus
from gateway.state.leases import IN_USE, UNAVAILABLE, Lease, Leases
from gateway.tasks import Tasks
from policy.route import Caller
from tests.doubles.cartesia import CartesiaDouble
from tests.doubles.cartesia_websocket import SocketsDouble, sockets_double
from tests.kit.configuration import ControlPlane, at_revision
from tests.kit.gateway import Fed, fed, speak, token
from tests.kit.identities import voice_workspace
from tests.kit.processes import Child
from tests.kit.services import NatsAccount, nats_seeds, nats_server, service_folder
from tests.kit.waiting import until

DEADLINE = 15.0


class Pod:
    """A pod's leases, without the pod."""

    def __init__(self, url: str, seed: Secret) -> None:
        self.tasks = Tasks()
        self.bus = Bus(url, seed, "pod-1")
        self.ended: list[tuple[str, str]] = []
        self.skew = 0.0
        clock = asyncio.get_running_loop().time
        self.leases = Leases(self.bus, self.tasks, lambda: clock() + self.skew, lambda *end: self.ended.append(end))

    async def stop(self) -> None:
        await self.tasks.stop()
        await self.bus.close()


@asynccontextmanager
async def pods(account: NatsAccount, count: int) -> AsyncIterator[list[Pod]]:
    running = [Pod(account.url, account.seeds["gateway"]) for _ in range(count)]
    for pod in running:
        pod.bus.start(pod.tasks)
        await asyncio.wait_for(pod.bus.up(), DEADLINE)
    try:
        yield running
    finally:
        for pod in running:
            await pod.stop()


@pytest_asyncio.fixture
async def control_plane(nats_account: NatsAccount) -> AsyncIterator[ControlPlane]:
    control_plane = ControlPlane(await nats_account.connect())
    await control_plane.prepare()
    yield control_plane
    await control_plane.client.close()


def caller(token_id: str = "t1", parent: str | None = None) -> Caller:
    issuers = {issuer.id: issuer for issuer in voice_workspace().issuers}
    return Caller(
        workspace="w1",
        principal="agent",
        kind="service_account",
        name="Agent",
        teams=(),
        issuer=issuers["i-own"],
        token_id=token_id,
        parent_token_id=parent,
        issued_at=0.0,
        expires_at=1.0,
        is_single_use=True,
    )


async def taken(pod: Pod, holder: str, token_id: str = "t1") -> Lease:
    lease = await pod.leases.take(caller(token_id), holder)
    assert isinstance(lease, Lease), lease
    return lease


@pytest.mark.usefixtures("control_plane")
async def test_a_second_session_of_the_token_is_refused_on_every_pod_until_the_first_ends(nats_account: NatsAccount) -> None:
    async with pods(nats_account, 2) as (one, other):
        lease = await taken(one, "r1")
        refused = [await pod.leases.take(caller(), "r2") for pod in (one, other)]
        another = await other.leases.take(caller("t2"), "r3")

        lease.release()
        again = await other.leases.take(caller(), "r4")

    assert refused == [IN_USE, IN_USE]
    assert isinstance(another, Lease)
    assert isinstance(again, Lease)


@pytest.mark.usefixtures("control_plane")
async def test_of_many_that_ask_at_once_exactly_one_gets_the_lease(nats_account: NatsAccount) -> None:
    async with pods(nats_account, 3) as running:
        asked = [pod.leases.take(caller(), f"r{number}") for number, pod in enumerate(running * 5)]
        answers = await asyncio.gather(*asked)

    assert sum(isinstance(answer, Lease) for answer in answers) == 1
    assert [answer for answer in answers if not isinstance(answer, Lease)] == [IN_USE] * 14


@pytest.mark.usefixtures("control_plane")
async def test_a_client_that_goes_while_its_lease_is_asked_for_leaves_none_behind(nats_account: NatsAccount) -> None:
    async with pods(nats_account, 1) as [pod]:
        asking = asyncio.ensure_future(pod.leases.take(caller(), "r1"))
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

        assert isinstance(await pod.leases.take(caller(), "r2"), Lease)


async def test_a_lease_that_is_kept_outlives_its_age_and_one_that_nobody_keeps_is_free_again(
    nats_account: NatsAccount, control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = control_plane.client.jetstream()
    info = await streams.stream_info(f"KV_{subjects.LEASES_BUCKET}")
    assert info.config.max_age == subjects.SESSION_LEASE_SECONDS
    info.config.max_age, info.config.duplicate_window = 2, 1
    await streams.update_stream(info.config)
    monkeypatch.setattr("gateway.state.leases._KEEP_SECONDS", 0.2)
    async with pods(nats_account, 2) as (living, dead):
        await taken(living, "r1", "kept")
        await taken(dead, "r2", "left")
        keeping = living.tasks.keep("keep", living.leases.keep)

        async with asyncio.timeout(DEADLINE):
            while not isinstance(await living.leases.take(caller("left"), "r3"), Lease):
                pass  # each try waits by itself
        kept = await dead.leases.take(caller("kept"), "r4")

        assert not keeping.done()
    assert kept == IN_USE
    assert living.ended == []


async def test_a_session_whose_lease_another_took_is_ended(
    nats_account: NatsAccount, control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.state.leases._KEEP_SECONDS", 0.1)
    bucket = await control_plane.client.jetstream().key_value(subjects.LEASES_BUCKET)
    async with pods(nats_account, 1) as [pod]:
        lease = await taken(pod, "r1")
        pod.tasks.keep("keep", pod.leases.keep)
        await bucket.put(lease.key, b"another")

        await until(lambda: bool(pod.ended), DEADLINE)

    assert pod.ended == [("r1", "token_in_use")]


async def test_a_lease_that_the_server_lost_is_taken_up_again(
    nats_account: NatsAccount, control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.state.leases._KEEP_SECONDS", 0.1)
    streams = control_plane.client.jetstream()
    bucket = await streams.key_value(subjects.LEASES_BUCKET)
    async with pods(nats_account, 1) as [pod]:
        lease = await taken(pod, "r1")
        before = lease.revision
        pod.tasks.keep("keep", pod.leases.keep)
        await streams.purge_stream(f"KV_{subjects.LEASES_BUCKET}")

        await until(lambda: lease.revision > before, DEADLINE)
        with pytest.raises(KeyWrongLastSequenceError):
            await bucket.create(lease.key, b"another")

    assert pod.ended == []


@pytest.fixture
def killable() -> Iterator[tuple[NatsAccount, Child]]:
    seeds = nats_seeds()
    with service_folder("nats") as folder, nats_server(folder, {"GLOTTIS": seeds}) as (server, child):
        yield NatsAccount("GLOTTIS", server.url, seeds), child


async def test_without_the_bus_no_session_opens_and_an_open_one_ends_before_its_lease_is_free(
    killable: tuple[NatsAccount, Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.state.leases._KEEP_SECONDS", 0.1)
    account, child = killable
    control_plane = ControlPlane(await account.connect())
    await control_plane.prepare()
    await control_plane.client.close()
    async with pods(account, 1) as [pod]:
        lease = await taken(pod, "r1")
        child.kill()
        await until(lambda: not pod.bus.is_up, DEADLINE)
        refused = await pod.leases.take(caller("t2"), "r2")
        pod.tasks.keep("keep", pod.leases.keep)
        pod.skew = subjects.SESSION_LEASE_SECONDS

        await until(lambda: bool(pod.ended), DEADLINE)

    assert refused == UNAVAILABLE
    assert pod.ended == [(lease.holder, "single_use_unavailable")]


# ---- through a gateway


def single_use(**changes: object) -> str:
    return token(**{"kind": "browser", "is_single_use": True, "jti": "only-one", **changes})


@asynccontextmanager
async def socket(pod: Fed, key: str) -> AsyncIterator[cartesia.resources.tts.AsyncTTSResourceConnection]:
    base = pod.gateway.url.replace("http", "ws") + "/cartesia"
    client = cartesia.AsyncCartesia(base_url=pod.gateway.url + "/cartesia", websocket_base_url=base, api_key=key, max_retries=0)
    async with client, client.tts.websocket_connect() as open_socket:
        yield open_socket


@pytest_asyncio.fixture
async def double() -> AsyncIterator[SocketsDouble]:
    async with sockets_double() as double:
        yield double


async def keys(pod: Fed) -> set[str]:
    bucket = await pod.control_plane.client.jetstream().key_value(subjects.LEASES_BUCKET)
    try:
        return set(await bucket.keys())
    except nats.js.errors.NoKeysError:
        return set()


async def test_a_single_use_token_opens_its_next_session_when_the_first_has_ended(
    nats_account: NatsAccount, double: SocketsDouble, tmp_path: Path
) -> None:
    async with fed(nats_account, tmp_path, double.origin) as pod:
        async with socket(pod, single_use()):
            assert await keys(pod) == {subjects.session_lease_key("w1", "only-one")}
            with pytest.raises(Exception, match="403"):
                async with socket(pod, single_use()):
                    pass
            with pytest.raises(cartesia.PermissionDeniedError) as refused:
                await speak(pod.gateway, key=single_use())
        async with socket(pod, single_use()):
            pass
        async with asyncio.timeout(DEADLINE):
            while await keys(pod):
                await asyncio.sleep(0.05)

    assert len(double.sockets) == 2
    assert json.loads(refused.value.response.content)["error_code"] == "token_in_use"


async def test_an_access_token_shares_the_one_session_of_its_single_use_parent(
    nats_account: NatsAccount, double: SocketsDouble, tmp_path: Path
) -> None:
    async with fed(nats_account, tmp_path, double.origin) as pod:
        await pod.control_plane.publish(at_revision(pod.control_plane.with_access_tokens(pod.snapshot, "w1"), 2))
        await until(lambda: pod.gateway.events("configuration in force")[-1]["revision"] == 2, DEADLINE)
        parent = single_use()
        client = cartesia.AsyncCartesia(base_url=pod.gateway.url + "/cartesia", api_key=parent, max_retries=0)
        async with client:
            child = (await client.access_token.create(grants={"tts": True}, expires_in=60)).token
        async with socket(pod, parent):
            with pytest.raises(Exception, match="403"):
                async with socket(pod, child):
                    pass

    assert len(double.sockets) == 1


async def test_calls_of_a_single_use_token_one_after_the_other_are_served_and_reading_takes_no_lease(
    nats_account: NatsAccount, tmp_path: Path
) -> None:
    async with CartesiaDouble() as provider, fed(nats_account, tmp_path, provider.origin) as pod:
        for _ in range(5):
            await speak(pod.gateway, key=single_use())
        async with cartesia.AsyncCartesia(base_url=pod.gateway.url + "/cartesia", api_key=single_use(), max_retries=0) as client:
            await asyncio.gather(*(client.voices.get("v1") for _ in range(5)))

    assert len(provider.requests) == 10


async def test_ordinary_tokens_ask_nothing_of_the_bus(nats_account: NatsAccount, double: SocketsDouble, tmp_path: Path) -> None:
    async with fed(nats_account, tmp_path, double.origin) as pod, socket(pod, token()), socket(pod, token()):
        found = await keys(pod)

    assert found == set()
    assert len(double.sockets) == 2
