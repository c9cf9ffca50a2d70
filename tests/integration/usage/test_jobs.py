"""Re-pricing and erasure, done by a running aggregator."""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from contracts.events import UsageEvent
from contracts.prices import PriceBook
from control_plane.aggregator.jobs import Jobs, erase
from control_plane.aggregator.metrics import Metrics
from control_plane.aggregator.prices import Prices
from control_plane.aggregator.pricing import PriceIndex
from control_plane.aggregator.rows import usage_rows
from control_plane.aggregator.store import Store
from control_plane.clickhouse import jobs
from control_plane.clickhouse.connection import ClickHouse
from control_plane.clickhouse.jobs import Job, JobKind
from tests.integration.usage.conftest import Tables
from tests.kit.usage import (
    NOW_MS,
    TestBus,
    Worker,
    all_usage_acknowledged,
    attribution,
    price,
    running,
    span_event,
    until,
    usage_event,
)

MakeAggregator = Callable[[], Worker]
NOW = datetime.fromtimestamp(NOW_MS // 1000, UTC)


async def done(tables: Tables, **changes: Any) -> Job:
    """Ask for a job and wait until it is done. Any: fields of several types."""
    fields: dict[str, Any] = {
        "workspace": "acme",
        "id": "j1",
        "start": NOW - timedelta(days=30),
        "end": datetime.now(UTC) + timedelta(seconds=1),
        "subject": "",
        "asked_by": "owner",
        "asked_at": datetime.now(UTC),
    }
    client = tables.address.open()
    asked = jobs.write(client, Job(**{**fields, **changes}), time.time_ns(), state="asked")

    async def is_done() -> bool:
        return jobs.jobs_of(client, asked.workspace, asked.id)[0].state == "done"

    await until(is_done, f"job {asked.id} to be done", 40)
    (found,) = jobs.jobs_of(client, asked.workspace, asked.id)
    client.close()
    return found


async def test_a_time_is_priced_anew(bus: TestBus, tables: Tables, aggregator: MakeAggregator) -> None:
    old = NOW_MS - 3 * 3_600_000
    async with running(aggregator()) as worker:
        await bus.publish_prices(1, price("characters", "1"))
        await bus.publish_usage(
            usage_event("r1", at_ms=old, units={"characters": 10, "audio_out_ms": 2000}),
            usage_event("r2"),
            usage_event("r3", to=attribution(workspace="other")),
        )
        await all_usage_acknowledged(bus)
        await bus.publish_prices(2, price("characters", "3"), price("audio_out_ms", "0.5", currency="EUR"))

        async def is_taken() -> bool:
            return '"revision": 2' in worker.output or "revision=2" in worker.output

        await until(is_taken, "the second price book")
        job = await done(tables, kind="reprice", end=NOW - timedelta(hours=1))
        assert job.detail == {"slots": 1, "events": 1, "changed": 1, "price_revision": 2}
        again = await done(tables, id="j2", kind="reprice", end=NOW - timedelta(hours=1))
        assert again.detail == {"slots": 1, "events": 1, "changed": 0, "price_revision": 2}
    rows = tables.rows("SELECT key, costs, price_revision FROM usage_events FINAL ORDER BY key")
    assert rows == [
        ("r1", {"characters": Decimal(30), "audio_out_ms": Decimal(1)}, 2),
        ("r2", {"characters": Decimal(10)}, 1),
        ("r3", {}, 1),
    ]
    assert tables.quantity() == 20
    newest = "SELECT workspace, slot, max(version) FROM usage_rollups GROUP BY workspace, slot"
    assert tables.rows(
        "SELECT currency, sum(cost) FROM usage_rollups FINAL WHERE workspace = 'acme' AND currency != ''"
        f" AND (workspace, slot, version) IN ({newest}) GROUP BY currency ORDER BY currency"
    ) == [("EUR", Decimal(1)), ("USD", Decimal(40))]


async def test_an_erased_subject_is_gone_and_its_usage_stays(bus: TestBus, tables: Tables, aggregator: MakeAggregator) -> None:
    ann = attribution(token="jti-ann")
    bob = attribution(principal="bob", principal_name="Bob")
    await bus.publish_prices(1, price("characters", "1"))
    async with running(aggregator()), running(aggregator()):
        await bus.publish_usage(
            usage_event("r1", to=ann, metadata={"customer": "canary"}),
            usage_event("r2", to=bob),
            usage_event("r3", to=attribution(workspace="other")),
        )
        await bus.publish_spans(
            span_event("r1", **{"glottis.principal.id": "ann"}), span_event("r2", **{"glottis.principal.id": "bob"})
        )
        await all_usage_acknowledged(bus)

        async def has_spans() -> bool:
            return tables.rows("SELECT count() FROM spans FINAL") == [(6,)]

        await until(has_spans, "the spans")
        job = await done(tables, kind="erase", subject="ann")
        assert job.detail == {"events": 1, "spans": 3}
        # It comes again, and one that was under way comes late.
        await bus.publish_usage(usage_event("r1", to=ann, metadata={"customer": "canary"}), usage_event("late", to=ann))
        await bus.publish_spans(span_event("r1", **{"glottis.principal.id": "ann"}))
        await bus.publish_usage(usage_event("r4", to=ann, at_ms=int(time.time() * 1000) + 2000))
        await all_usage_acknowledged(bus)
    rows = tables.rows("SELECT key, principal, principal_name, token, metadata FROM usage_events FINAL ORDER BY workspace, key")
    assert rows == [
        ("late", "erased", "", "", {}),
        ("r1", "erased", "", "", {}),
        ("r2", "bob", "Bob", "", {}),
        ("r4", "ann", "Ann", "jti-ann", {}),
        ("r3", "ann", "Ann", "", {}),
    ]
    assert tables.quantity() == 40
    newest = "SELECT workspace, slot, max(version) FROM usage_rollups GROUP BY workspace, slot"
    assert tables.rows(
        "SELECT principal, sum(quantity) FROM usage_rollups FINAL WHERE workspace = 'acme' AND unit = 'characters'"
        f" AND (workspace, slot, version) IN ({newest}) GROUP BY principal ORDER BY principal"
    ) == [("ann", 10), ("bob", 10), ("erased", 20)]
    assert tables.rows("SELECT DISTINCT request_id FROM spans") == [("r2",)]


async def test_an_erasure_that_is_done_twice_spares_what_came_after_it(clickhouse_address: ClickHouse, tables: Tables) -> None:
    store = Store(clickhouse_address)
    job = Job("acme", "j1", "erase", NOW - timedelta(days=1), NOW, "ann", "owner", NOW)

    def count(*events: UsageEvent) -> None:
        batch = usage_rows(events, PriceIndex(PriceBook(revision=1)))
        store.insert_usage(batch.rows)
        store.recompute(batch.touched)

    count(usage_event("before", at_ms=NOW_MS - 1000))
    assert erase(store, job, lambda _: None)["events"] == 1
    count(usage_event("after", at_ms=NOW_MS + 1000))
    assert erase(store, job, lambda _: None)["events"] == 0
    store.close()
    assert tables.rows("SELECT key, principal FROM usage_events FINAL ORDER BY key") == [("after", "ann"), ("before", "erased")]
    assert tables.quantity() == 20


@pytest.mark.parametrize("steps_before", [0, 1, 2, 3])
def test_an_erasure_counts_and_forgets_whichever_step_of_a_recomputation_it_comes_between(
    clickhouse_address: ClickHouse, tables: Tables, steps_before: int
) -> None:
    store = Store(clickhouse_address)
    prices = PriceIndex(PriceBook(revision=1))
    first = usage_rows([usage_event("before", at_ms=NOW_MS - 1000)], prices)
    store.insert_usage(first.rows)
    store.recompute(first.touched)
    other = usage_rows([usage_event("other", at_ms=NOW_MS - 900, to=attribution(principal="bob"))], prices)
    touched = sorted(other.touched)
    version = 0

    def step(number: int) -> None:
        nonlocal version
        if number == 0:
            store.insert_usage(other.rows)
        elif number == 1:
            version = store.next_version(touched)
        else:
            store.write_generation(touched, version)

    for number in range(steps_before):
        step(number)
    job = Job("acme", "j1", "erase", NOW - timedelta(days=1), NOW + timedelta(days=1), "ann", "owner", NOW)
    erase(store, job, lambda _: None)
    for number in range(steps_before, 3):
        step(number)
    store.close()
    assert tables.quantity() == 20
    assert tables.rows("SELECT DISTINCT principal FROM usage_rollups WHERE principal != '' ORDER BY principal") == [
        ("bob",),
        ("erased",),
    ]
    assert tables.rows("SELECT key, principal FROM usage_events FINAL ORDER BY key") == [("before", "erased"), ("other", "bob")]


def idle_jobs(clickhouse: ClickHouse) -> Jobs:
    """The jobs of an aggregator that does none of them by itself."""
    return Jobs(clickhouse, Prices(Metrics()))


def test_a_workspaces_jobs_are_done_one_after_another(clickhouse_address: ClickHouse) -> None:
    client = clickhouse_address.open()
    long_ago = NOW - timedelta(minutes=5)

    def ask(workspace: str, job_id: str, asked_at: datetime, kind: JobKind = "reprice") -> Job:
        job = Job(workspace, job_id, kind, NOW - timedelta(days=1), NOW, "ann", "owner", asked_at)
        return jobs.write(client, job, time.time_ns(), state="asked")

    first = ask("acme", "j1", long_ago)
    ask("acme", "j2", long_ago + timedelta(seconds=1), "erase")
    ask("other", "j3", long_ago + timedelta(seconds=2))
    looking = idle_jobs(clickhouse_address)

    def found() -> str | None:
        job = looking.next_job()
        return None if job is None else job.id

    assert found() == "j1"
    running_now = jobs.write(client, first, time.time_ns(), state="running")
    assert found() == "j3", "j2 would change what j1 has read and is about to write back"
    jobs.write(client, running_now, time.time_ns(), state="done")
    assert found() == "j2"
    client.close()


async def test_an_erasure_is_heard_of_while_a_long_job_is_done(clickhouse_address: ClickHouse) -> None:
    busy = idle_jobs(clickhouse_address)
    client = clickhouse_address.open()
    listening = asyncio.ensure_future(busy.listen())
    await asyncio.wait_for(busy.known.wait(), 30)
    assert busy.erasures.applied([usage_event("r1")])[0].to.principal == "ann"
    job = Job("acme", "j1", "erase", NOW - timedelta(days=1), NOW + timedelta(days=1), "ann", "owner", NOW)
    jobs.write(client, job, time.time_ns(), state="asked")

    async def is_heard() -> bool:
        return busy.erasures.applied([usage_event("r1")])[0].to.principal == "erased"

    await until(is_heard, "the erasure")  # nothing else of the aggregator runs: a job in hand holds nobody up
    listening.cancel()
    client.close()
