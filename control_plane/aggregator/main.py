"""The aggregator's process: settings in, exit status out.

Composition only: two intakes (usage, spans), the watched price book, the ops listener. Read next: `intake`.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence

from contracts.events import SpanEvent, UsageEvent
from contracts.subjects import (
    CONFIG_BUCKET,
    PRICES_KEY,
    SPANS_STORE_CONSUMER,
    SPANS_STREAM,
    USAGE_CONSUMER,
    USAGE_STREAM,
)
from control_plane.aggregator import rows
from control_plane.aggregator.intake import Intake, Sort
from control_plane.aggregator.jobs import Jobs
from control_plane.aggregator.metrics import Metrics, unit_label
from control_plane.aggregator.prices import Prices
from control_plane.aggregator.settings import Settings
from control_plane.aggregator.store import Store
from control_plane.worker.bus import Bus
from control_plane.worker.ops import OpsListener
from control_plane.worker.process import live
from control_plane.worker.tasks import Tasks

NAME = "aggregator"


def run(settings: Settings) -> int:
    """Run until SIGTERM or SIGINT; return the exit status."""
    # The library logs each failed request in several lines; what matters is logged where it is tried again.
    logging.getLogger("clickhouse_connect").setLevel(logging.CRITICAL)
    return asyncio.run(Aggregator(settings).live())


class Aggregator:
    """The process's parts, made in `__init__`, started by `live`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._metrics = Metrics()
        self._bus = Bus(settings.bus, NAME)
        self._prices = Prices(self._metrics)
        self._usage_store = Store(settings.clickhouse)
        self._spans_store = Store(settings.clickhouse)
        self._jobs = Jobs(settings.clickhouse, self._prices)
        self._intakes: list[Intake[UsageEvent] | Intake[SpanEvent]] = []

    async def live(self) -> int:
        """Run; return the exit status."""
        ops = OpsListener(self._metrics.registry, self._why_not_ready)
        return await live(NAME, self._bus, ops, self._settings.listen, self._setup, self._settings.drain_seconds)

    async def _setup(self, tasks: Tasks, draining: asyncio.Event) -> list["asyncio.Task[None]"]:
        tasks.start("watch prices", self._bus.watch(CONFIG_BUCKET, PRICES_KEY, self._prices.take))
        usage = Intake(
            Sort(USAGE_STREAM, USAGE_CONSUMER, lambda data: rows.usage_parts(data, _now_ms()), self._store_usage),
            self._bus, self._usage_store, self._settings, self._metrics, draining,
        )  # fmt: skip
        spans = Intake(
            Sort(SPANS_STREAM, SPANS_STORE_CONSUMER, lambda data: rows.span_parts(data, _now_ms()), self._store_spans),
            self._bus, self._spans_store, self._settings, self._metrics, draining,
        )  # fmt: skip
        self._intakes = [usage, spans]
        tasks.start("erasures", self._jobs.listen())
        tasks.start("jobs", self._jobs.work())
        tasks.start("usage backlog", usage.watch_backlog())
        tasks.start("spans backlog", spans.watch_backlog())
        return [
            tasks.start("usage", _after(usage.run, draining, self._prices.known, self._jobs.known)),
            tasks.start("spans", _after(spans.run, draining, self._jobs.known)),
        ]

    def _store_usage(self, events: Sequence[UsageEvent]) -> None:
        batch = rows.usage_rows(self._jobs.erasures.applied(events), self._prices.current)
        self._usage_store.insert_usage(batch.rows)
        self._usage_store.recompute(batch.touched)
        for row in batch.rows:
            units, costs = row[rows.USAGE_COLUMNS.index("units")], row[rows.USAGE_COLUMNS.index("costs")]
            for unit, quantity in units.items():
                if unit not in costs and quantity > 0:
                    self._metrics.unpriced.labels(unit_label(unit)).inc(quantity)

    def _store_spans(self, events: Sequence[SpanEvent]) -> None:
        spans = [row for event in self._jobs.erasures.kept(events) for row in rows.span_rows(event)]
        if spans:
            self._spans_store.insert_spans(spans)

    def _why_not_ready(self) -> list[str]:
        reasons = [] if self._bus.is_connected else ["the event bus does not answer"]
        if not self._prices.known.is_set():
            reasons.append("the price book is not known yet")
        if not self._jobs.known.is_set():
            reasons.append("ClickHouse does not answer, or has not been migrated")
        if len(self._intakes) < 2 or not all(intake.is_bound for intake in self._intakes):
            reasons.append("the event streams are not there yet")
        if not all(intake.is_storing for intake in self._intakes):
            reasons.append("ClickHouse does not take rows")
        return reasons


async def _after(work: Callable[[], Awaitable[None]], draining: asyncio.Event, *known: asyncio.Event) -> None:
    """Work once everything is known that a row depends on: what was stored before would be wrong. Not if told to drain."""
    everything = asyncio.ensure_future(_all_set(known))
    stop = asyncio.ensure_future(_all_set([draining]))
    try:
        await asyncio.wait({everything, stop}, return_when=asyncio.FIRST_COMPLETED)
        if everything.done():
            await work()
    finally:
        everything.cancel()
        stop.cancel()


async def _all_set(events: Iterable[asyncio.Event]) -> None:
    for event in events:
        await event.wait()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
