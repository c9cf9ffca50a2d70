"""Reports over real tables, filled as the aggregator fills them."""

from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio

from contracts.events import UsageEvent
from contracts.prices import PriceBook
from control_plane.aggregator.pricing import PriceIndex
from control_plane.aggregator.rows import usage_rows
from control_plane.aggregator.store import Store
from control_plane.clickhouse.connection import ClickHouse
from control_plane.reports.question import question
from control_plane.reports.service import Reports, ReportsUnavailable
from tests.kit.usage import NOW_MS, attribution, price, usage_event

Count = Callable[[Sequence[UsageEvent]], None]
HOUR_MS = 3_600_000
PRICES = PriceIndex(
    PriceBook(
        revision=1,
        prices=(
            price("characters", "0.5"),
            price("requests", "0.1", model="by-request"),
            price("characters", "2", workspace="other"),
        ),
    )
)


@pytest.fixture
def count(clickhouse_address: ClickHouse) -> Count:
    """Stores events as the aggregator does."""

    def store(events: Sequence[UsageEvent]) -> None:
        tables = Store(clickhouse_address)
        batch = usage_rows(events, PRICES)
        tables.insert_usage(batch.rows)
        tables.recompute(batch.touched)
        tables.close()

    return store


@pytest_asyncio.fixture
async def reports(clickhouse_address: ClickHouse) -> AsyncIterator[Reports]:
    """Reports over the test's database."""
    made = Reports(clickhouse_address)
    yield made
    await made.close()


async def answer(reports: Reports, workspace: str = "acme", **changes: Any) -> dict[str, Any]:
    """Return a report as JSON. Any: it is JSON, and the question has parts of several types."""
    now = datetime.fromtimestamp(NOW_MS / 1000, UTC)
    parts: dict[str, Any] = {"by": [], "bucket": "", "start": "", "end": "", "filters": {}, "now": now}
    return (await reports.usage(question(workspace, **{**parts, **changes}))).as_json()


async def test_usage_by_user_and_model(reports: Reports, count: Count) -> None:
    bob = attribution(principal="bob", principal_name="Bob", model="sonic-3")
    spoken = attribution(operation="stt", model="ink-2")
    count(
        [
            usage_event("r1", units={"characters": 10, "audio_out_ms": 900}),
            usage_event("r2", units={"audio_in_ms": 700}, to=spoken),
            usage_event("r3", to=bob),
        ]
    )
    report = await answer(reports, by=["user", "model"])
    assert [(row["user_name"], row["model"], row["units"], row["cost"], row["unpriced"]) for row in report["rows"]] == [
        ("Ann", "ink-2", {"audio_in_ms": 700}, {}, {"audio_in_ms": 700}),
        ("Ann", "kokoro-82m", {"characters": 10, "audio_out_ms": 900}, {"USD": "5"}, {}),
        ("Bob", "sonic-3", {"characters": 10}, {"USD": "5"}, {}),
    ]
    assert report["total"]["exchanges"] == 3


async def test_usage_is_right_after_any_number_of_recomputations(reports: Reports, count: Count) -> None:
    for _ in range(3):
        count([usage_event("r1"), usage_event("r2")])
    assert (await answer(reports))["total"] == {
        "units": {"characters": 20},
        "cost": {"USD": "10"},
        "unpriced": {},
        "exchanges": 2,
        "events": 2,
    }


async def test_a_workspace_sees_nothing_of_another(reports: Reports, count: Count) -> None:
    count([usage_event("r1"), usage_event("r2", to=attribution(workspace="other"))])
    for by in (["user"], ["exchange"]):
        report = await answer(reports, "other", by=by)
        assert (len(report["rows"]), report["total"]["cost"]) == (1, {"USD": "20"})
    assert (await answer(reports, "third", by=["user"]))["rows"] == []


async def test_buckets_cut_time(reports: Reports, count: Count) -> None:
    count([usage_event("r1", at_ms=NOW_MS - 2 * HOUR_MS), usage_event("r2"), usage_event("r3")])
    rows = (await answer(reports, bucket="hour"))["rows"]
    hour = datetime.fromtimestamp(NOW_MS // 1000 // 3600 * 3600, UTC)
    assert [(row["time"], row["units"]["characters"]) for row in rows] == [
        ((hour - timedelta(hours=2)).strftime("%Y-%m-%dT%H:%M:%SZ"), 10),
        (hour.strftime("%Y-%m-%dT%H:%M:%SZ"), 20),
    ]
    assert len((await answer(reports, bucket="month"))["rows"]) in (1, 2)  # two hours ago may be last month


async def test_filters_narrow_and_several_values_widen(reports: Reports, count: Count) -> None:
    models = [usage_event(f"r{model}", to=attribution(model=model)) for model in ("a", "b", "c")]
    count(models)
    report = await answer(reports, by=["model"], filters={"model": ["a", "c"], "team": ["voice"]})
    assert [row["model"] for row in report["rows"]] == ["a", "c"]
    assert (await answer(reports, filters={"team": ["sales"]}))["rows"] == []


async def test_metadata_outcome_and_exchange_are_dimensions(reports: Reports, count: Count) -> None:
    count(
        [
            usage_event("r1", 0, is_final=False, outcome=None, metadata={"customer": "x"}),
            usage_event("r1", 1, metadata={"customer": "x"}),
            usage_event("r2", outcome="client_gone", metadata={"customer": "y"}),
        ]
    )
    report = await answer(reports, by=["metadata.customer", "outcome", "exchange"])
    assert [[*(row[name] for name in report["by"]), row["units"]["characters"]] for row in report["rows"]] == [
        ["x", "completed", "r1", 20],
        ["y", "client_gone", "r2", 10],
    ]


async def test_an_exchange_that_was_taken_back_costs_nothing_and_is_counted(reports: Reports, count: Count) -> None:
    count(
        [
            usage_event("r1", 0, is_final=False, outcome=None, units={"characters": 9}),
            usage_event("r1", 1, units={"characters": -9}, outcome="provider_error"),
        ]
    )
    assert (await answer(reports))["total"] == {
        "units": {"characters": 0},
        "cost": {"USD": "0"},
        "unpriced": {},
        "exchanges": 1,
        "events": 2,
    }


async def test_sums_of_money_are_exact(reports: Reports, count: Count) -> None:
    count([usage_event(f"r{number}", units={"requests": 1}, to=attribution(model="by-request")) for number in range(1000)])
    assert (await answer(reports))["total"]["cost"] == {"USD": "100"}


async def test_reports_are_unavailable_where_clickhouse_is_not_configured_or_away(clickhouse_address: ClickHouse) -> None:
    away = ClickHouse("http://127.0.0.1:9", "glottis", clickhouse_address.user, clickhouse_address.password)
    for address in (None, away):
        with pytest.raises(ReportsUnavailable):
            await answer(Reports(address))
