"""A process that is told to end while its NATS is away ends: what nats-py still has to send is not worth a fault."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeAlias

import pytest
import uvloop
from nats.aio.client import Client

import control_plane.publish.bus as publishing
import control_plane.worker.bus as working
from contracts.secret import Secret
from contracts.subjects import EXPORTER_INBOX
from gateway.bus import Bus
from gateway.tasks import Tasks
from tests.kit.processes import Child
from tests.kit.services import nats_seeds, nats_server, service_folder
from tests.kit.waiting import until

Close: TypeAlias = Callable[[], Awaitable[None]]
Seeds: TypeAlias = dict[str, Secret]


@pytest.fixture
def killable() -> Iterator[tuple[str, Seeds, Child]]:
    seeds = nats_seeds()
    with service_folder("nats") as folder, nats_server(folder, {"GLOTTIS": seeds}) as (server, child):
        yield server.url, seeds, child


@asynccontextmanager
async def gateway_bus(url: str, seeds: Seeds) -> AsyncIterator[tuple[Client, Close]]:
    tasks = Tasks()
    bus = Bus(url, seeds["gateway"], "pod-1")
    bus.start(tasks)
    await bus.up()
    yield bus.client, bus.close
    await tasks.stop()


@asynccontextmanager
async def control_plane_bus(url: str, seeds: Seeds) -> AsyncIterator[tuple[Client, Close]]:
    async def nothing() -> None: ...

    bus = await publishing.Bus.connected(publishing.BusSettings(url, seeds["control-plane"]), nothing)
    yield bus._client, bus.close


@asynccontextmanager
async def worker_bus(url: str, seeds: Seeds) -> AsyncIterator[tuple[Client, Close]]:
    bus = working.Bus(working.BusSettings(url, seeds["exporter"], EXPORTER_INBOX), "exporter")
    await bus.connect()
    yield bus.client, bus.close


@pytest.mark.parametrize("connected", [gateway_bus, control_plane_bus, worker_bus])
@pytest.mark.parametrize("loop_factory", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_a_bus_closes_while_its_server_is_away_and_something_is_still_to_be_sent(
    killable: tuple[str, Seeds, Child],
    connected: Callable[[str, Seeds], AbstractAsyncContextManager[tuple[Client, Close]]],
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    url, seeds, child = killable

    async def closes() -> None:
        async with connected(url, seeds) as (client, close):
            await asyncio.to_thread(child.kill)
            await until(lambda: client.is_reconnecting, 10)
            await client.publish("anything", b"said to nobody")

            await close()

            assert client.is_closed

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(closes())
