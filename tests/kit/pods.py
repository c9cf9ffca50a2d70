"""A gateway's state without the gateway: the feed of one pod, for tests of what reaches pods and what they hold on to."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from contracts.secret import Secret
from gateway.bus import Bus
from gateway.state.feed import Feed, Observer
from gateway.state.last_known_good import LastKnownGood
from gateway.state.snapshot import SnapshotStore
from gateway.tasks import Tasks


class Pod:
    """A gateway's state, without the gateway."""

    def __init__(self, url: str, seed: Secret, manifest_key: bytes, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self.refused: list[str] = []
        self.tasks = Tasks()
        self.store = SnapshotStore(3600, clock)
        self.bus = Bus(url, seed, "pod-1")
        observer = Observer(on_refused=self.refused.append)
        self.feed = Feed(self.bus, self.store, LastKnownGood(folder), (manifest_key,), clock, observer, self.tasks)

    async def start(self) -> None:
        await self.feed.load()
        self.bus.start(self.tasks)
        self.feed.start()

    async def stop(self) -> None:
        await self.tasks.stop()
        await self.bus.close()
