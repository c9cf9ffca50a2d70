"""Start background tasks by name, and notice when one ends.

asyncio keeps only weak references to tasks, and a task that raised says nothing until it is collected: both lose work
silently. A `TaskGroup` waits for all of its tasks; here the first that ends by itself ends the process's run instead.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any


class Tasks:
    """The tasks of one process. `failed` is set to the first exception that one of them ended with."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()  # Any: what a task returns is nobody's business here
        self.ended = asyncio.Event()
        self.failure: BaseException | None = None

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Start the work; its end by exception sets `ended`."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._on_done)
        return task

    async def stop(self) -> None:
        """Cancel what still runs and wait for it."""
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _on_done(self, task: "asyncio.Task[Any]") -> None:
        self._running.discard(task)
        if task.cancelled() or task.exception() is None:
            return
        self.failure = self.failure or task.exception()
        self.ended.set()
