"""The stream of spans into lanes; a message is acknowledged when every lane has settled each of its events.

So a crash repeats what was not delivered, and a receiver that never answers costs its own spans after a bounded time, and
nobody else's. What is held is bounded by `lanes`. Delivery is at least once: a repeated span has the same ids.
"""

import asyncio

import structlog
from nats.aio.msg import Msg
from nats.js.client import JetStreamContext

from contracts import codec
from contracts.events import SpanEvent, encoded_events
from contracts.exchanges import span_event
from contracts.subjects import SPANS_EXPORT_CONSUMER, SPANS_STREAM
from control_plane.exporter.lanes import LARGEST_HELD, Lanes
from control_plane.exporter.metrics import Metrics
from control_plane.exporter.settings import Settings
from control_plane.exporter.spans import is_readable
from control_plane.worker.bus import Bus, Fault

_log = structlog.get_logger()

_MESSAGES_A_FETCH = 100
_IDLE_SECONDS = 1.0
_REBIND_SECONDS = 0.1
_FORGOTTEN_AFTER_SECONDS = 3600
"""the stream keeps a span until every consumer has it: an exporter that was taken out of service must not fill it up"""


class Ticket:
    """A message, and how many settlements it still waits for."""

    def __init__(self, message: Msg, settled: "asyncio.Queue[Ticket]") -> None:
        self.message = message
        self._settled = settled
        self._open = 1  # the reading of the message itself

    def add(self, count: int) -> None:
        """Wait for so many more."""
        self._open += count

    def settle(self) -> None:
        """One of them has come; the last one hands the message to the acknowledger."""
        self._open -= 1
        if self._open == 0:
            self._settled.put_nowait(self)


class Intake:
    """From the stream to the lanes, until told to drain."""

    def __init__(self, bus: Bus, lanes: Lanes, settings: Settings, metrics: Metrics, draining: asyncio.Event) -> None:
        self._bus = bus
        self._lanes = lanes
        self._settings = settings
        self._metrics = metrics
        self._draining = draining
        self._held: set[Ticket] = set()
        self._settled: asyncio.Queue[Ticket] = asyncio.Queue()
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self.is_bound = False

    async def run(self) -> None:
        """Take messages in until draining, then wait until every lane is empty (the process bounds the wait)."""
        while not self._draining.is_set():
            subscription = await self._bus.consume(
                SPANS_STREAM,
                SPANS_EXPORT_CONSUMER,
                ack_wait_seconds=self._settings.ack_wait_seconds,
                max_ack_pending=LARGEST_HELD + _MESSAGES_A_FETCH,
                forgotten_after_seconds=_FORGOTTEN_AFTER_SECONDS,
            )
            self.is_bound = True
            try:
                await self._take_from(subscription)
            except Fault as error:
                _log.warning("cannot fetch, will bind anew", stream=SPANS_STREAM, error=type(error).__name__)
                self.is_bound = False
                await asyncio.sleep(_REBIND_SECONDS)
        await self._is_empty.wait()

    async def acknowledge(self) -> None:
        """Acknowledge what the lanes have settled, for ever."""
        while True:
            ticket = await self._settled.get()
            self._held.discard(ticket)
            self._metrics.held.set(len(self._held))
            try:
                await ticket.message.ack()
            except Fault:
                pass  # it comes again, which is harmless
            if not self._held:
                self._is_empty.set()

    async def keep(self) -> None:
        """Tell the bus that what is held is being worked on, and set the gauges, for ever."""
        while True:
            await asyncio.sleep(self._settings.ack_wait_seconds / 3)
            self._lanes.observe()
            for ticket in list(self._held):
                try:
                    await ticket.message.in_progress()
                except Fault:
                    break

    async def _take_from(self, subscription: JetStreamContext.PullSubscription) -> None:
        while not self._draining.is_set():
            try:
                messages = await subscription.fetch(_MESSAGES_A_FETCH, timeout=_IDLE_SECONDS)
            except TimeoutError:  # also the one of nats-py
                continue
            for message in messages:
                self._take(message)

    def _take(self, message: Msg) -> None:
        ticket = Ticket(message, self._settled)
        self._held.add(ticket)
        self._is_empty.clear()
        self._metrics.held.set(len(self._held))
        for event in self._events(message.data):
            # Counted before it is offered: a full lane settles an older event of this very message at once.
            ticket.add(self._lanes.lanes_of(event.workspace))
            self._lanes.offer(event, ticket.settle)
        ticket.settle()

    def _events(self, data: bytes) -> list[SpanEvent]:
        events: list[SpanEvent] = []
        try:
            payloads = encoded_events(data)
        except codec.Undecodable:
            payloads = (data,)
        for payload in payloads:
            try:
                event = span_event(payload)
            except codec.Undecodable:
                self._metrics.undecodable.inc()
                continue
            if is_readable(event):
                events.append(event)
            else:
                self._metrics.undecodable.inc()
        return events
