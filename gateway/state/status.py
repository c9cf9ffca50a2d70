"""Tells the control plane what this pod runs: its revision and load, every few seconds and right after each change.

Plain messages on the pod's subject: one that is lost is followed by the next. Read `contracts.events.PodStatus`.
"""

import asyncio
import contextlib
from collections.abc import Callable

import nats.errors

from contracts import codec, subjects
from contracts.events import PodStatus
from gateway.bus import Bus

_EVERY_SECONDS = 5.0


class StatusTeller:
    """Tells the status that `status` returns."""

    def __init__(self, bus: Bus, status: Callable[[], PodStatus]) -> None:
        self._bus = bus
        self._status = status
        self._changed = asyncio.Event()

    def changed(self) -> None:
        """Tell it now, and not at the next round."""
        self._changed.set()

    async def run(self) -> None:
        """Tell until cancelled."""
        while True:
            await self._bus.up()
            await self.tell()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), _EVERY_SECONDS)
            self._changed.clear()

    async def tell(self) -> None:
        """Tell it once, if the bus is there."""
        status = self._status()
        with contextlib.suppress(nats.errors.Error):
            await self._bus.client.publish(subjects.pod_subject(status.pod), codec.encode(status))
