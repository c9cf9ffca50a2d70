"""The aggregator while NATS or ClickHouse is killed under it: nothing is lost, nothing counts twice."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import nats
import pytest

from contracts.secret import Secret
from control_plane.clickhouse.connection import ClickHouse
from control_plane.clickhouse.schema import migrate
from tests.integration.usage.conftest import Tables
from tests.kit.processes import Child
from tests.kit.services import ADMIN, PASSWORD, clickhouse_server, nats_seeds, nats_server, service_folder
from tests.kit.usage import TestBus, Worker, aggregator_worker, all_usage_acknowledged, price, running, until, usage_event


@dataclass(frozen=True)
class Stack:
    """Servers of this test's own, which it may kill."""

    nats: Child
    nats_url: str
    seeds: dict[str, Secret]
    clickhouse: Child
    address: ClickHouse
    worker: Worker

    async def bus(self) -> TestBus:
        """Connect as admin; the connection outlives a restart."""
        seed = self.seeds[ADMIN].reveal().decode()
        client = await nats.connect(
            self.nats_url, nkeys_seed_str=seed, inbox_prefix=b"_INBOX_admin", max_reconnect_attempts=-1, reconnect_time_wait=1
        )
        return TestBus(client)


@contextmanager
def stack(folder: Path, tmp_path: Path) -> Iterator[Stack]:
    """Start both servers."""
    seeds = nats_seeds()
    with ExitStack() as servers:
        nats_, nats_child = servers.enter_context(nats_server(folder, {"TEST": seeds}))
        clickhouse, clickhouse_child = servers.enter_context(clickhouse_server(folder))
        address = ClickHouse(clickhouse.url, "usage", "glottis", PASSWORD)
        migrate(address)
        worker = aggregator_worker(nats_.url, seeds["aggregator"], address, clickhouse.password_file, tmp_path)
        yield Stack(nats_child, nats_.url, seeds, clickhouse_child, address, worker)


@pytest.fixture
def own_servers(tmp_path: Path) -> Iterator[Stack]:
    """Servers of this test's own."""
    with service_folder("usage") as folder, stack(folder, tmp_path) as made:
        yield made


async def test_counts_stay_exact_when_clickhouse_is_killed_and_comes_back(own_servers: Stack) -> None:
    bus = await own_servers.bus()
    await bus.make()
    await bus.publish_prices(1, price("characters", "1"))
    async with running(own_servers.worker):
        for number in range(10):
            await bus.publish_usage_batch(usage_event(f"before{number}-{part}") for part in range(100))
        await all_usage_acknowledged(bus)
        await asyncio.to_thread(own_servers.clickhouse.kill)
        for number in range(10):
            await bus.publish_usage_batch(usage_event(f"during{number}-{part}") for part in range(100))

        async def is_refused() -> bool:
            return "cannot store, will retry" in own_servers.worker.output

        await until(is_refused, "the aggregator to notice that ClickHouse is away")
        own_servers.clickhouse.start()
        await bus.publish_usage(usage_event("after"))
        await all_usage_acknowledged(bus, 60)
    await bus.client.close()
    assert Tables(own_servers.address).quantity() == 20 * 100 * 10 + 10


async def test_counts_stay_exact_when_nats_is_killed_and_comes_back(own_servers: Stack) -> None:
    bus = await own_servers.bus()
    await bus.make()
    await bus.publish_prices(1, price("characters", "1"))
    async with running(own_servers.worker):
        for number in range(10):
            await bus.publish_usage_batch(usage_event(f"before{number}-{part}") for part in range(100))
        await bus.client.close()
        await asyncio.to_thread(own_servers.nats.kill)
        own_servers.nats.start()
        bus = await own_servers.bus()
        await bus.publish_prices(2, price("characters", "2"))

        async def knows_the_new_prices() -> bool:
            return '"revision": 2' in own_servers.worker.output or "revision=2" in own_servers.worker.output

        # A request that was lost with the connection costs its whole time-out, and there may be several.
        await until(knows_the_new_prices, "the price book that was published after the restart")
        await bus.publish_usage(usage_event("after"))
        await all_usage_acknowledged(bus, 60)
    await bus.client.close()
    tables = Tables(own_servers.address)
    assert tables.quantity() == 10 * 100 * 10 + 10
    assert tables.rows("SELECT price_revision FROM usage_events WHERE key = 'after'") == [(2,)]
