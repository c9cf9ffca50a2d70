"""Spans: from the bus into ClickHouse, and found again."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from contracts.subjects import SPANS_STORE_CONSUMER, SPANS_STREAM
from control_plane.aggregator.rows import span_rows
from control_plane.aggregator.store import Store
from control_plane.clickhouse.connection import ClickHouse
from control_plane.reports.question import QuestionRefused
from control_plane.reports.service import Reports
from control_plane.reports.spans import SpanQuestion, span_question
from tests.integration.usage.conftest import Tables
from tests.kit.usage import NOW_MS, TestBus, Worker, running, span_event, until


def ask(workspace: str = "acme", **changes: Any) -> SpanQuestion:
    """Ask for everything of the last day; any part can be another."""
    now = datetime.fromtimestamp(NOW_MS / 1000 + 1, UTC)
    parts: dict[str, Any] = {"start": "", "end": "", "filters": {}, "only_errors": False, "least_ms": 0, "now": now}
    return span_question(workspace, **{**parts, **changes})


@pytest.fixture
def reports(clickhouse_address: ClickHouse) -> Reports:
    """Reports over three exchanges: two of Ann's (one slow to speak), one of another workspace."""
    store = Store(clickhouse_address)
    events = [
        span_event(
            "r1", **{"glottis.principal.id": "ann", "gen_ai.request.model": "sonic-3", "glottis.first_audio_seconds": 0.1}
        ),
        span_event("r2", at_ms=NOW_MS - 60_000, **{"glottis.principal.id": "ann", "glottis.first_audio_seconds": 0.3, "x": "1"}),
        span_event("r3", workspace="other"),
    ]
    for _ in range(2):
        store.insert_spans([row for event in events for row in span_rows(event)])
    store.close()
    return Reports(clickhouse_address)


async def test_spans_are_stored_once_however_often_they_come(
    bus: TestBus, tables: Tables, aggregator: Callable[[], Worker]
) -> None:
    event = span_event("r1", **{"glottis.first_audio_seconds": 0.25})
    async with running(aggregator()):
        await bus.publish_spans(event, event)

        async def is_acknowledged() -> bool:
            info = await bus.client.jetstream().consumer_info(SPANS_STREAM, SPANS_STORE_CONSUMER)
            return info.num_pending == 0 and info.num_ack_pending == 0

        async def is_bound() -> bool:
            return SPANS_STORE_CONSUMER in {info.name for info in await bus.client.jetstream().consumers_info(SPANS_STREAM)}

        await until(is_bound, "the aggregator's consumer")
        await until(is_acknowledged, "the spans to be acknowledged")
    rows = tables.rows("SELECT request_id, name, kind, duration_ns, attributes FROM spans FINAL ORDER BY start")
    assert rows == [
        ("r1", "r1 inbound", "server", 5_000_000, {"glottis.first_audio_seconds": "0.25"}),
        ("r1", "r1 credential", "internal", 4_999_998, {"glottis.first_audio_seconds": "0.25"}),
        ("r1", "r1 outbound", "client", 4_999_996, {"glottis.first_audio_seconds": "0.25"}),
    ]


async def test_spans_are_found_newest_first_by_any_attribute(reports: Reports) -> None:
    names = [span["name"] for span in await reports.spans(ask(filters={"user": ["ann"], "kind": ["server"]}), 10)]
    assert names == ["r1 inbound", "r2 inbound"]
    assert [span["request_id"] for span in await reports.spans(ask(filters={"attribute.x": ["1"]}), 10)] == ["r2"] * 3
    assert len(await reports.spans(ask(filters={"exchange": ["r1"]}), 2)) == 2
    assert await reports.spans(ask(least_ms=6), 10) == []
    assert await reports.spans(ask(only_errors=True), 10) == []


async def test_a_span_tells_its_times_to_the_nanosecond(reports: Reports) -> None:
    (span,) = await reports.spans(ask(filters={"name": ["r1 credential"]}), 10)
    seconds = datetime.fromtimestamp(NOW_MS // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    assert span["start"] == f"{seconds}.{NOW_MS % 1000:03d}000001Z"
    assert span["duration_ms"] == 4.999998
    assert span["parent_id"] == span_event("r1").spans[0].span_id


async def test_a_summary_tells_durations_and_time_to_first_audio_of_exchanges(reports: Reports) -> None:
    (group,) = await reports.span_summary(ask(), ["user"], "")
    assert (group["user"], group["count"], group["errors"]) == ("ann", 2, 0)
    assert group["duration_ms"] == {"p50": 5.0, "p95": 5.0, "p99": 5.0}
    assert 100 <= group["first_audio_ms"]["p50"] <= 300
    assert [group["count"] for group in await reports.span_summary(ask(), [], "", "contexts")] == [0]
    by_model = await reports.span_summary(ask(), ["model"], "minute")
    assert {group["model"] for group in by_model} == {"", "sonic-3"}


async def test_a_workspace_sees_no_span_of_another(reports: Reports) -> None:
    assert {span["request_id"] for span in await reports.spans(ask("other"), 10)} == {"r3"}
    assert [group["count"] for group in await reports.span_summary(ask("other"), [], "")] == [1]
    (nothing,) = await reports.span_summary(ask("third"), [], "")
    assert (nothing["count"], nothing["first_audio_ms"]) == (0, {"p50": None, "p95": None, "p99": None})


def test_what_cannot_be_asked_is_refused() -> None:
    for filters in ({"workspace": ["other"]}, {"attribute.": ["x"]}, {"colour": ["red"]}):
        with pytest.raises(QuestionRefused):
            ask(filters=filters)
    with pytest.raises(QuestionRefused):
        ask().summary([], "week")
    statement, parameters = ask(filters={"attribute.x'] OR 1=1 --": ["v"]}).search(1)
    assert "OR 1=1" not in statement
    assert "x'] OR 1=1 --" in parameters.values()
