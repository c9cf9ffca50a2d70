"""The intake's dealing with what ClickHouse refuses: found by halving, set aside, and in nobody's way."""

import asyncio
from collections.abc import Sequence

from clickhouse_connect.driver.exceptions import DatabaseError, DataError, OperationalError

from contracts.events import UsageEvent
from contracts.subjects import AGGREGATOR_INBOX, USAGE_CONSUMER, USAGE_STREAM
from control_plane.aggregator.intake import Intake, Sort
from control_plane.aggregator.metrics import Metrics
from control_plane.aggregator.rows import usage_parts
from control_plane.aggregator.settings import Settings
from control_plane.aggregator.store import Store
from control_plane.clickhouse.connection import ClickHouse, is_bad_data
from control_plane.worker.bus import Bus, BusSettings
from tests.integration.usage.conftest import Tables
from tests.kit.services import NatsAccount
from tests.kit.usage import NOW_MS, TestBus, all_usage_acknowledged, usage_event


async def test_rows_that_clickhouse_refuses_are_set_aside_and_the_others_are_stored(
    bus: TestBus, nats_account: NatsAccount, clickhouse_address: ClickHouse, tables: Tables
) -> None:
    stored: list[str] = []

    def store(events: Sequence[UsageEvent]) -> None:
        if any(event.key.startswith("poison") for event in events):
            raise DataError("as the test wants it")
        stored.extend(event.key for event in events)

    settings = Settings(
        bus=BusSettings(nats_account.url, nats_account.seeds["aggregator"], AGGREGATOR_INBOX),
        clickhouse=clickhouse_address,
        listen=("127.0.0.1", 0),
        ack_wait_seconds=5,
    )
    draining = asyncio.Event()
    connection = Bus(settings.bus, "aggregator")
    await connection.connect()
    sort = Sort(USAGE_STREAM, USAGE_CONSUMER, lambda data: usage_parts(data, NOW_MS), store)
    intake = Intake(sort, connection, Store(clickhouse_address), settings, Metrics(), draining)
    work = asyncio.ensure_future(intake.run())
    await bus.publish_usage_batch([usage_event("r1"), usage_event("poison-1"), usage_event("r2"), usage_event("r3")])
    await bus.publish_usage_batch([usage_event("poison-2"), usage_event("r4")])
    await all_usage_acknowledged(bus)
    draining.set()
    await work
    await connection.close()
    assert sorted(stored) == ["r1", "r2", "r3", "r4"]
    assert tables.rows("SELECT sequence, part, reason FROM set_aside ORDER BY sequence, part") == [
        (1, 1, "refused_by_store"),
        (2, 0, "refused_by_store"),
    ]


def test_only_errors_about_the_rows_are_final() -> None:
    final = [
        DataError("bad value"),
        DatabaseError("Received ClickHouse exception, code: 53, server response: Code: 53. DB::Exception: Type mismatch"),
        DatabaseError("Code: 407. DB::Exception: Decimal math overflow"),
    ]
    passing = [
        OperationalError("Connection refused"),
        DatabaseError("Received ClickHouse exception, code: 164, server response: Code: 164. DB::Exception: Readonly"),
        DatabaseError("Code: 241. DB::Exception: Memory limit exceeded"),
        DatabaseError("Code: 60. DB::Exception: Table does not exist"),
        DatabaseError("Code: 516. DB::Exception: Authentication failed"),
    ]
    assert [is_bad_data(error) for error in final] == [True, True, True]
    assert [is_bad_data(error) for error in passing] == [False] * 5
