"""Empties the spool into JetStream, batch by batch; what was acknowledged leaves the spool, nothing else does.

A batch is cut from the oldest events of a ring and becomes one message a subject, each with a message id of its own, so
that the stream drops what it already has. A batch that fails is tried again as it was, with back-off, for ever; meanwhile
the spool fills. Knows nothing of what events mean. Read next: `control_plane.aggregator`, which reads the other end.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import nats.errors
import nats.js.errors
import structlog

from gateway.telemetry.batches import Message
from gateway.telemetry.spool import Spool, SpooledRing

_log = structlog.get_logger("gateway.telemetry.publisher")

_EVENTS_A_BATCH = 1024
"""where they have to be read: about a millisecond of the event loop, compiled"""
_LINGER_SECONDS = 0.1
"""a message costs a hundred times what an event in it costs: under load each carries what came in this time"""
_BACK_OFF_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


Stream: TypeAlias = Callable[[Message], Awaitable[None]]
"""the other end: returns when the stream has stored the message"""


class Publisher:
    """Publishes from a spool. `on_published`, `on_failed`: told how many events, and the kind of failure."""

    def __init__(
        self,
        spool: Spool,
        stream: Stream,
        on_published: Callable[[int], None] = lambda _: None,
        on_failed: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._spool = spool
        self._stream = stream
        self._on_published = on_published
        self._on_failed = on_failed
        self._something = asyncio.Event()
        self._is_drained = asyncio.Event()
        self._is_ending = asyncio.Event()

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            for ring in self._spool.rings:
                while await self._publish_batch(ring):
                    pass
            self._spool.tidy()
            if not self._spool.unpublished:  # tidying writes what a dead predecessor left open
                self._is_drained.set()
                self._something.clear()
                self._spool.on_offer = self._something.set
                await self._something.wait()
            await asyncio.sleep(_LINGER_SECONDS)

    async def flush(self, deadline_seconds: float) -> bool:
        """Wait until everything was published or the deadline passed; return whether all was. `run` must be running.

        Until then a failed batch is tried again without the long pauses.
        """
        self._is_drained.clear()
        self._something.set()
        self._is_ending.set()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._is_drained.wait(), deadline_seconds)
        self._is_ending.clear()
        return not self._spool.unpublished

    async def _publish_batch(self, ring: SpooledRing) -> bool:
        """Publish the oldest events; return whether much more than those waits already."""
        batch = ring.take(_EVENTS_A_BATCH)
        if batch is None:
            return False
        messages = batch.messages(ring.ring.path.stem)
        attempt = 0
        while True:
            results = await asyncio.gather(*(self._stream(message) for message in messages), return_exceptions=True)
            faults = [result for result in results if isinstance(result, BaseException)]
            messages = [message for message, result in zip(messages, results, strict=True) if result is not None]
            if not faults:
                break
            for fault in faults:
                if not isinstance(fault, Exception):
                    raise fault
            if attempt == 0:
                _log.warning("events not published, will retry", error=type(faults[0]).__name__, messages=len(messages))
            self._on_failed(_kind_of(faults[0]))
            await self._pause(attempt)
            attempt += 1
        ring.published_to(batch.end)
        self._on_published(batch.events)
        return ring.is_behind

    async def _pause(self, attempt: int) -> None:
        shortest = _BACK_OFF_SECONDS[0]
        pause = _BACK_OFF_SECONDS[min(attempt, len(_BACK_OFF_SECONDS) - 1)] * random.uniform(0.5, 1.5)
        await asyncio.sleep(min(shortest, pause))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._is_ending.wait(), max(0.0, pause - shortest))


def _kind_of(fault: BaseException) -> str:
    if isinstance(fault, nats.js.errors.APIError):
        return "refused"
    if isinstance(fault, TimeoutError | nats.errors.TimeoutError):
        return "timeout"
    return "disconnected"
