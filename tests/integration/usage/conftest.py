"""A bus with its streams, a migrated ClickHouse database, and an aggregator of one's own."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from control_plane.clickhouse.connection import ClickHouse
from control_plane.clickhouse.schema import migrate
from tests.kit.services import ClickhouseDatabase, NatsAccount
from tests.kit.usage import TestBus, Worker, aggregator_worker


@pytest.fixture
def clickhouse_address(clickhouse_database: ClickhouseDatabase) -> ClickHouse:
    """The test's database, with our tables."""
    address = ClickHouse(
        clickhouse_database.url, clickhouse_database.name, clickhouse_database.user, clickhouse_database.password
    )
    migrate(address)
    return address


@dataclass(frozen=True)
class Tables:
    """Looks into the tables, with SQL of its own: nothing is shared with what is tested."""

    address: ClickHouse

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """Any: a row holds whatever was selected."""
        client = self.address.open()
        try:
            return [tuple(row) for row in client.query(statement).result_rows]
        finally:
            client.close()

    def quantity(self, unit: str = "characters", workspace: str = "acme") -> int:
        """Return the sum over the newest generation of each slot, read without FINAL and without window functions."""
        newest = "SELECT workspace, slot, max(version) FROM usage_rollups GROUP BY workspace, slot"
        rows = self.rows(
            f"SELECT sum(quantity) FROM (SELECT DISTINCT * FROM usage_rollups) WHERE unit = '{unit}'"
            f" AND workspace = '{workspace}' AND (workspace, slot, version) IN ({newest})"
        )
        return int(rows[0][0])


@pytest.fixture
def tables(clickhouse_address: ClickHouse) -> Tables:
    """The test's tables."""
    return Tables(clickhouse_address)


@pytest_asyncio.fixture
async def bus(nats_account: NatsAccount) -> AsyncIterator[TestBus]:
    """A bus with streams and bucket, empty."""
    client = await nats_account.connect()
    made = TestBus(client)
    await made.make()
    yield made
    await client.close()


@pytest.fixture
def aggregator(
    nats_account: NatsAccount, clickhouse_database: ClickhouseDatabase, clickhouse_address: ClickHouse, tmp_path: Path
) -> Callable[[], Worker]:
    """Makes aggregators, not started, of the role's own bus user."""
    return lambda: aggregator_worker(
        nats_account.url,
        nats_account.seeds["aggregator"],
        clickhouse_address,
        clickhouse_database.password_file,
        tmp_path,
    )
