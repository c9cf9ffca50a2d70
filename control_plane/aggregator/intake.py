"""A stream into ClickHouse: fetch, decode, store, acknowledge, in this order, so that a crash anywhere repeats a batch.

Repeating is harmless (`store`). What cannot be stored is set aside and never blocks the rest. What ClickHouse cannot take
now is tried again for as long as it takes, and the bus is told that the work goes on. Knows no event: `Sort` does.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Generic

import structlog
from clickhouse_connect.driver.exceptions import ClickHouseError
from nats.aio.msg import Msg
from nats.js.client import JetStreamContext
from urllib3.exceptions import HTTPError

from control_plane.aggregator.metrics import Metrics
from control_plane.aggregator.rows import E, Part
from control_plane.aggregator.settings import Settings
from control_plane.aggregator.store import Store
from control_plane.clickhouse.connection import is_bad_data
from control_plane.worker.bus import Bus, Fault

_log = structlog.get_logger()

_MESSAGES_A_FETCH = 100
_LARGEST_BATCH_BYTES = 4 * 1024 * 1024
"""of encoded events: some 10,000 of them; a message holds up to 1 MiB"""
_LARGEST_PENDING = 2_000
"""messages that all aggregators together may hold unacknowledged"""
_IDLE_SECONDS = 1.0
_FIRST_BACKOFF_SECONDS = 0.1
_LONGEST_BACKOFF_SECONDS = 5.0
_ASIDE_AT_ONCE = 100_000
"""of 400 bytes each; more than that waits for the next start"""
STORE_FAULTS = (ClickHouseError, HTTPError, OSError)


@dataclass(frozen=True)
class Sort(Generic[E]):
    """A kind of event: where it comes from, what is in a message of it, how a batch is stored (blocks)."""

    stream: str
    consumer: str
    parts: Callable[[bytes], list[Part[E]]]
    store: Callable[[Sequence[E]], None]


class Intake(Generic[E]):
    """One sort of event, from its stream to ClickHouse, until told to drain."""

    def __init__(
        self, sort: Sort[E], bus: Bus, store: Store, settings: Settings, metrics: Metrics, draining: asyncio.Event
    ) -> None:
        self._sort: Sort[E] = sort
        self._bus = bus
        self._store = store
        self._settings = settings
        self._metrics = metrics
        self._draining = draining
        self.is_bound = False
        self.is_storing = True
        """False while ClickHouse refuses: not ready, but live"""

    async def run(self) -> None:
        """Work until draining; the batch in hand is finished first. Ends early only by cancellation."""
        await self._take_back()
        while not self._draining.is_set():
            subscription = await self._bus.consume(
                self._sort.stream,
                self._sort.consumer,
                ack_wait_seconds=self._settings.ack_wait_seconds,
                max_ack_pending=_LARGEST_PENDING,
            )
            self.is_bound = True
            try:
                await self._take_from(subscription)
            except Fault as error:
                self._metrics.faults.labels(self._sort.stream, "fetch").inc()
                _log.warning("cannot fetch, will bind anew", stream=self._sort.stream, error=type(error).__name__)
                self.is_bound = False
                await asyncio.sleep(_FIRST_BACKOFF_SECONDS)

    async def watch_backlog(self) -> None:
        """Keep the gauge of waiting events up to date, for ever."""
        while True:
            try:
                info = await self._bus.jetstream.consumer_info(self._sort.stream, self._sort.consumer)
                self._metrics.waiting.labels(self._sort.stream).set((info.num_pending or 0) + (info.num_ack_pending or 0))
            except Fault:
                pass  # the gauge keeps its last value; connection and readiness tell the rest
            await asyncio.sleep(5)

    async def _take_from(self, subscription: JetStreamContext.PullSubscription) -> None:
        while not self._draining.is_set():
            messages = await self._fetch(subscription)
            if messages:
                started = time.monotonic()
                await self._settle(messages)
                self._metrics.batch_seconds.labels(self._sort.stream).observe(time.monotonic() - started)
                oldest = min(message.metadata.timestamp for message in messages)
                lag = (datetime.now(UTC) - oldest).total_seconds()
                self._metrics.lag_seconds.labels(self._sort.stream).set(max(0.0, lag))

    async def _fetch(self, subscription: JetStreamContext.PullSubscription) -> list[Msg]:
        """Return what came within the linger time of the first message, at most a batch; nothing if none came."""
        messages: list[Msg] = []
        deadline: float | None = None
        while sum(len(message.data) for message in messages) < _LARGEST_BATCH_BYTES:
            wait = _IDLE_SECONDS if deadline is None else deadline - time.monotonic()
            if wait <= 0:
                break
            try:
                messages += await subscription.fetch(_MESSAGES_A_FETCH, timeout=wait)
            except TimeoutError:  # also the one of nats-py
                break
            deadline = deadline or time.monotonic() + self._settings.linger_seconds
        return messages

    async def _settle(self, messages: list[Msg]) -> None:
        """Store every event or set it aside, then acknowledge."""
        good: list[tuple[Msg, Part[E]]] = []
        bad: list[tuple[Msg, Part[E]]] = []
        for message in messages:
            for part in self._sort.parts(message.data):
                (bad if part.event is None else good).append((message, part))
        keeping = asyncio.ensure_future(self._keep(messages))
        try:
            bad += await self._refused(good)
            await self._set_aside(bad)
        finally:
            keeping.cancel()
        self._metrics.stored.labels(self._sort.stream).inc(len(good))
        try:
            for message in messages:
                await message.ack()
            await self._bus.client.flush(timeout=5)
        except Fault:
            pass  # acknowledgements that were lost bring the batch back, which is harmless

    async def _refused(self, good: list[tuple[Msg, Part[E]]]) -> list[tuple[Msg, Part[E]]]:
        """Store what can be stored; return the events that ClickHouse can never take, found by halving."""
        if not good or await self._stored([part.event for _, part in good if part.event is not None]):
            return []
        if len(good) == 1:
            message, part = good[0]
            return [(message, Part(part.place, part.payload, None, "refused_by_store"))]
        half = len(good) // 2
        return await self._refused(good[:half]) + await self._refused(good[half:])

    async def _set_aside(self, bad: list[tuple[Msg, Part[E]]]) -> None:
        if not bad:
            return
        stream = self._sort.stream
        rows = [
            [stream, meta.sequence.stream, part.place, message.subject, part.reason, meta.timestamp, part.payload]
            for message, part in bad
            if (meta := message.metadata)
        ]
        await self._until_done(lambda: self._store.set_aside(rows))
        for message, part in bad:
            _log.error(
                "event set aside", stream=stream, sequence=message.metadata.sequence.stream, part=part.place, reason=part.reason,
                bytes=len(part.payload),
            )  # fmt: skip
            self._metrics.set_aside.labels(stream, part.reason).inc()

    async def _stored(self, events: Sequence[E]) -> bool:
        """Store a batch, however long it takes; False if one of its rows can never be stored."""
        try:
            await self._until_done(lambda: self._sort.store(events))
        except ClickHouseError as error:
            if is_bad_data(error):
                return False
            raise
        return True

    async def _until_done(self, work: Callable[[], None]) -> None:
        """Do blocking work in a thread, again and again until it succeeds. Raises only what can never succeed."""
        backoff = _FIRST_BACKOFF_SECONDS
        while True:
            try:
                await asyncio.to_thread(work)
            except STORE_FAULTS as error:
                if isinstance(error, ClickHouseError) and is_bad_data(error):
                    raise
                self.is_storing = False
                self._metrics.faults.labels(self._sort.stream, "store").inc()
                _log.warning(
                    "cannot store, will retry", stream=self._sort.stream, error=type(error).__name__, wait_seconds=backoff
                )
                await asyncio.sleep(backoff)
                backoff = min(2 * backoff, _LONGEST_BACKOFF_SECONDS)
            else:
                self.is_storing = True
                return

    async def _keep(self, messages: list[Msg]) -> None:
        """Tell the bus, again and again, that the messages are being worked on, so that it keeps them ours."""
        while True:
            await asyncio.sleep(self._settings.ack_wait_seconds / 3)
            for message in messages:
                if not message.is_acked:
                    try:
                        await message.in_progress()
                    except Fault:
                        break  # the bus is away; it delivers again, which is harmless

    async def _take_back(self) -> None:
        """Count what was set aside because a newer release wrote it and this one knows its schema."""
        stream = self._sort.stream
        aside: list[tuple[int, int, bytes]] = []
        await self._until_done(lambda: aside.extend(self._store.aside_of_newer_releases(stream, _ASIDE_AT_ONCE)))
        places: list[tuple[int, int]] = []
        events: list[E] = []
        for sequence, place, payload in aside:
            for part in self._sort.parts(payload):
                if part.event is not None:
                    places.append((sequence, place))
                    events.append(part.event)
        if not events:
            return
        if not await self._stored(events):
            _log.error("events stay aside: ClickHouse refuses their rows", stream=stream, count=len(events))
            return
        await self._until_done(lambda: self._store.forget_aside(stream, places))
        _log.info("events taken back", stream=stream, count=len(events), still_aside=len(aside) - len(events))
