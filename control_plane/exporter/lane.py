"""The way to one receiver: a bounded queue, batches, back-off, and an end for what it never takes.

Each lane has a thread of its own, so that a receiver that hangs holds up nobody else. An item leaves its lane in exactly
one of the ways of `Result`, and then tells its message. Read next: `intake`, which fills lanes and acknowledges.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, TypeAlias

import structlog
from opentelemetry.sdk.trace import ReadableSpan

from contracts.events import SpanEvent
from contracts.exports import ExportTarget
from control_plane.exporter.guard import EgressRefused
from control_plane.exporter.metrics import Metrics
from control_plane.exporter.sender import Sender
from control_plane.exporter.settings import Settings
from control_plane.exporter.spans import readable_spans
from control_plane.worker.tasks import Tasks

_log = structlog.get_logger()

Result: TypeAlias = Literal["delivered", "dropped_full", "dropped_failing", "dropped_refused"]

LARGEST_QUEUE = 5_000
"""events; three spans each"""
_LARGEST_BATCH = 200


@dataclass(frozen=True)
class Item:
    """An event on its way, and whom to tell when it has left."""

    event: SpanEvent
    settled: Callable[[], None]


class Lane:
    """One target's lane, from `start` to `stop`; `offer` never waits."""

    def __init__(self, target: ExportTarget, sender: Sender, settings: Settings, metrics: Metrics) -> None:
        self.target = target
        self.is_failing = False
        self._sender = sender
        self._settings = settings
        self._metrics = metrics
        self._queue: deque[Item] = deque()
        self._in_hand: list[Item] = []
        self._has_items = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"otlp-{target.id}")

    def __len__(self) -> int:
        return len(self._queue) + len(self._in_hand)

    def offer(self, item: Item) -> None:
        """Queue an event; if the lane is full the oldest one gives way."""
        if len(self._queue) >= LARGEST_QUEUE:
            self.drop_oldest()
        self._queue.append(item)
        self._has_items.set()

    def drop_oldest(self) -> None:
        """Give up the event that waits longest, if one waits."""
        if self._queue:
            self._leave([self._queue.popleft()], "dropped_full")

    def start(self, tasks: Tasks) -> None:
        """Begin to deliver."""
        self._task = tasks.start(f"lane {self.target.id}", self._run())

    def stop(self) -> list[Item]:
        """End the work without waiting for a receiver that hangs, and return what was not delivered."""
        if self._task is not None:
            self._task.cancel()
        self._thread.submit(self._sender.close)
        self._thread.shutdown(wait=False)
        left = [*self._in_hand, *self._queue]
        self._in_hand = []
        self._queue.clear()
        return left

    async def _run(self) -> None:
        while True:
            await self._has_items.wait()
            self._in_hand = [self._queue.popleft() for _ in range(min(_LARGEST_BATCH, len(self._queue)))]
            if not self._queue:
                self._has_items.clear()
            if self._in_hand:
                await self._deliver()

    async def _deliver(self) -> None:
        spans = [span for item in self._in_hand for span in readable_spans(item.event, self.target.resource_attributes)]
        backoff = self._settings.first_backoff_seconds
        for attempt in range(1, self._settings.attempts + 1):
            try:
                if await self._sent(spans):
                    self._recover()
                    return self._leave_hand("delivered")
            except EgressRefused as error:
                self._fail(attempt, str(error))
                return self._leave_hand("dropped_refused")
            self._fail(attempt, "the receiver did not take the batch")
            if attempt < self._settings.attempts:
                await asyncio.sleep(backoff)
                backoff = min(2 * backoff, self._settings.longest_backoff_seconds)
        return self._leave_hand("dropped_failing")

    async def _sent(self, spans: list[ReadableSpan]) -> bool:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._sender.send, spans)

    def _recover(self) -> None:
        if self.is_failing:
            _log.info("export target recovered", target=self.target.id, name=self.target.name)
        self.is_failing = False

    def _fail(self, attempt: int, why: str) -> None:
        self.is_failing = True
        self._metrics.failures.labels(self.target.protocol).inc()
        _log.warning("export failed", target=self.target.id, name=self.target.name, attempt=attempt, waiting=len(self), why=why)

    def _leave_hand(self, result: Result) -> None:
        items, self._in_hand = self._in_hand, []
        self._leave(items, result)

    def _leave(self, items: list[Item], result: Result) -> None:
        self._metrics.events.labels(self.target.protocol, result).inc(len(items))
        for item in items:
            item.settled()
