"""docs/usage.md's worked example: the page's own numbers, run from the event to the invoice line."""

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

from contracts.events import Attribution
from contracts.prices import Price
from control_plane.clickhouse.connection import ClickHouse
from control_plane.reports.question import question
from control_plane.reports.service import Reports
from glottis.commands.usage import table
from policy.usage import Tally
from tests.integration.usage.conftest import Tables
from tests.kit.usage import NOW_MS, TestBus, Worker, all_usage_acknowledged, running

PAGE = (Path(__file__).parents[3] / "docs" / "usage.md").read_text(encoding="utf-8")


async def test_the_worked_example_of_the_page(
    bus: TestBus, tables: Tables, aggregator: Callable[[], Worker], clickhouse_address: ClickHouse
) -> None:
    dear = Price(workspace="acme", provider="cartesia", model="sonic-3", unit="characters", price="0.000038")
    cheaper = Price(
        workspace="acme",
        provider="cartesia",
        account="cartesia-eu",
        model="sonic-3",
        unit="characters",
        price="0.000031",
        effective_ms=1_780_272_000_000,  # 2026-06-01
    )
    await bus.publish_prices(12, dear, cheaper)
    to = Attribution(
        workspace="acme", principal="ann", principal_kind="user", principal_name="Ann", team="voice", team_name="Voice",
        account="cartesia-eu", account_name="Cartesia EU", provider="cartesia", model="sonic-3", operation="tts",
        endpoint="tts.websocket",
    )  # fmt: skip
    tally = Tally("01a2f3.1", to, "pod-1")
    tally.add("characters", 39)
    first = tally.delta(NOW_MS)
    tally.add("audio_out_ms", 2840)
    last = tally.final("completed", NOW_MS + 3000)
    assert first is not None
    for event in (first, last):
        units = ", ".join(f"`{unit}` {quantity}" for unit, quantity in sorted(event.units.items()))
        assert f"| `{event.id}` | {units} |" in PAGE

    async with running(aggregator()):
        await bus.publish_usage_batch([first, last])
        await all_usage_acknowledged(bus)
    assert tables.rows("SELECT seq, costs['characters'], price_revision FROM usage_events FINAL ORDER BY seq") == [
        (0, Decimal("0.001209"), 12),
        (1, Decimal(0), 12),
    ]
    reports = Reports(clickhouse_address)
    now = datetime.fromtimestamp(NOW_MS / 1000 + 60, UTC)

    async def report(*by: str) -> tuple[list[str], str]:
        asked = question("acme", by=by, bucket="", start="", end="", filters={}, now=now)
        answer = await reports.usage(asked)
        return table(answer.as_json()), answer.as_csv()

    lines, _ = await report("user", "model")
    _, csv_text = await report("team", "account", "model")
    await reports.close()
    assert "\n".join(lines) in PAGE
    assert csv_text.replace("\r\n", "\n") in PAGE
