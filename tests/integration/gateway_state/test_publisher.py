"""The publisher over a real NATS: everything in the spool reaches the stream, whatever happens in between."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import nats.errors
import pytest

import gateway.bus as bus_module
from contracts import subjects
from contracts.events import Attribution
from gateway.bus import Bus, stream_of
from gateway.tasks import Tasks
from gateway.telemetry.batches import Message
from gateway.telemetry.publisher import Publisher
from gateway.telemetry.spool import Spool, spool_files
from gateway.telemetry.spool_command import inspected, replayed
from glottis.embedded.nats import Nats
from policy.usage import Tally
from tests.kit.configuration import ADMIN_PERMISSIONS, ControlPlane, usage_on_stream
from tests.kit.processes import Child
from tests.kit.services import NatsAccount, nats_seeds, nats_server, service_folder
from tests.kit.waiting import until

CAPACITY = 1024 * 1024


def attribution(workspace: str) -> Attribution:
    return Attribution(
        workspace=workspace,
        principal="ada",
        principal_kind="user",
        account="a1",
        provider="cartesia",
        operation="tts",
        endpoint="tts.bytes",
    )


def exchange(spool: Spool, key: str, workspace: str = "w1") -> None:
    tally = Tally(key, attribution(workspace), "pod-1")
    tally.add("characters", 10)
    spool.offer_delta(tally, 1000)
    spool.offer_final(tally, "completed", 2000, tally.owed("completed", None))


@asynccontextmanager
async def publishing(spool: Spool, account: NatsAccount) -> AsyncIterator[Publisher]:
    tasks = Tasks()
    bus = Bus(account.url, account.seeds["gateway"], "pod-1")
    bus.start(tasks)
    publisher = Publisher(spool, stream_of(bus))
    tasks.keep("publisher", publisher.run)
    yield publisher
    await tasks.stop()
    await bus.close()


async def test_every_event_reaches_the_stream_and_leaves_the_spool(nats_account: NatsAccount, tmp_path: Path) -> None:
    client = await nats_account.connect()
    await ControlPlane(client).prepare()
    spool = Spool.open(tmp_path, CAPACITY, "one")
    for number in range(700):
        exchange(spool, f"r{number}")

    async with publishing(spool, nats_account) as publisher:
        assert await publisher.flush(20)

    events = await usage_on_stream(client)
    assert [event.id for event in events] == [f"r{number}:1" for number in range(700)]
    assert spool.used == 0
    await client.close()


async def test_each_workspace_has_its_subject(nats_account: NatsAccount, tmp_path: Path) -> None:
    client = await nats_account.connect()
    await ControlPlane(client).prepare()
    spool = Spool.open(tmp_path, CAPACITY, "one")
    exchange(spool, "r1", "w1")
    exchange(spool, "r2", "w2")

    async with publishing(spool, nats_account) as publisher:
        assert await publisher.flush(20)

    streams = client.jetstream()
    found = [(await streams.get_msg(subjects.USAGE_STREAM, number)).subject for number in (1, 2)]
    assert sorted(str(subject) for subject in found) == ["glottis.usage.w1", "glottis.usage.w2"]
    await client.close()


async def test_the_stream_drops_what_a_successor_publishes_again(nats_account: NatsAccount, tmp_path: Path) -> None:
    client = await nats_account.connect()
    await ControlPlane(client).prepare()
    spool = Spool.open(tmp_path, CAPACITY, "one")
    exchange(spool, "r1")
    async with publishing(spool, nats_account) as publisher:
        assert await publisher.flush(20)
    [ring] = spool.rings
    ring.ring.release(0, 0)  # as if the process had died between the stream's answer and its own note of it
    ring.ring.close()

    async with publishing(Spool.open(tmp_path, CAPACITY, "two"), nats_account) as publisher:
        assert await publisher.flush(20)

    assert [event.id for event in await usage_on_stream(client)] == ["r1:1"]
    await client.close()


async def test_events_wait_for_a_stream_that_is_not_there_yet(nats_account: NatsAccount, tmp_path: Path) -> None:
    client = await nats_account.connect()
    spool = Spool.open(tmp_path, CAPACITY, "one")
    exchange(spool, "r1")

    async with publishing(spool, nats_account) as publisher:
        assert not await publisher.flush(0.3)
        await ControlPlane(client).prepare()
        assert await publisher.flush(20)

    assert [event.id for event in await usage_on_stream(client)] == ["r1:1"]
    await client.close()


@pytest.fixture
def killable() -> Iterator[tuple[NatsAccount, Nats, Child]]:
    seeds = nats_seeds()
    with service_folder("nats") as folder, nats_server(folder, {"GLOTTIS": seeds}) as (server, child):
        yield NatsAccount("GLOTTIS", server.url, seeds), server, child


async def test_nothing_is_lost_while_nats_is_killed_and_restarted(
    killable: tuple[NatsAccount, Nats, Child], tmp_path: Path
) -> None:
    account, server, child = killable
    client = await account.connect()
    await ControlPlane(client).prepare()
    spool = Spool.open(tmp_path, CAPACITY, "one")

    async with publishing(spool, account) as publisher:
        for number in range(300):
            exchange(spool, f"r{number}")
            if number == 100:
                await until(lambda: spool.unpublished == 0)
                child.kill()
            if number == 200:
                child.start()
        await child.until(lambda: server.is_ready(account.seeds["admin"], ADMIN_PERMISSIONS))
        assert await publisher.flush(20)

    client = await account.connect()
    told = {event.id: event.units for event in await usage_on_stream(client)}
    assert told == {f"r{number}:1": {"requests": 1, "characters": 10} for number in range(300)}
    await client.close()


async def test_a_message_sent_on_a_lost_connection_is_given_up_when_another_stands(
    killable: tuple[NatsAccount, Nats, Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    account, _, child = killable
    client = await account.connect()
    await ControlPlane(client).prepare()
    monkeypatch.setattr(bus_module, "_REQUEST_SECONDS", 600.0)
    tasks = Tasks()
    bus = Bus(account.url, account.seeds["gateway"], "pod-1")
    bus.start(tasks)
    await bus.up()
    os.kill(child.pid, signal.SIGSTOP)

    async def sent() -> None:
        await stream_of(bus)(Message(subjects.usage_subject("w1"), "one", b"", 0))

    said = bus.client.stats["out_msgs"]
    waiting = tasks.start("publish", sent())
    await until(lambda: bus.client.stats["out_msgs"] > said)
    child.kill()
    child.start()

    with pytest.raises(nats.errors.ConnectionReconnectingError):
        async with asyncio.timeout(30):
            await waiting
    await tasks.stop()
    await bus.close()
    await client.close()


async def test_replay_publishes_what_a_dead_gateway_left_and_removes_its_file(nats_account: NatsAccount, tmp_path: Path) -> None:
    client = await nats_account.connect()
    await ControlPlane(client).prepare()
    dead = Spool.open(tmp_path, CAPACITY, "dead")
    exchange(dead, "r1")
    open_one = Tally("r2", attribution("w1"), "pod-1")
    dead.offer_delta(open_one, 1000)
    [ring] = dead.rings
    ring.ring.close()
    [before] = inspected(tmp_path)

    published = await replayed(tmp_path, nats_account.url, nats_account.seeds["gateway"], 20)

    assert (before.usage_events, before.open_keys, before.is_alive) == (2, 1, False)
    assert published == 3
    assert [event.outcome for event in await usage_on_stream(client)] == ["completed", None, "gateway_lost"]
    assert spool_files(tmp_path) == []
    await client.close()


async def test_replay_leaves_a_living_gateways_file_alone(nats_account: NatsAccount, tmp_path: Path) -> None:
    client = await nats_account.connect()
    await ControlPlane(client).prepare()
    living = Spool.open(tmp_path, CAPACITY, "living")
    exchange(living, "r1")

    published = await replayed(tmp_path, nats_account.url, nats_account.seeds["gateway"], 20)

    assert published == 0
    assert [file.is_alive for file in inspected(tmp_path)] == [True]
    await client.close()
