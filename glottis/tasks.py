"""The one way to start a task in this package: it has a name, somebody keeps it, and its failure is heard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Tasks:
    """The tasks of one owner. on_failure: called with the exception that a task ended with."""

    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        self._on_failure = on_failure
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run `work` beside the caller. name: for debugging."""
        task = asyncio.create_task(work, name=name)  # noqa: TID251  # this is the helper
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def cancel(self) -> None:
        """Cancel what still runs and wait for its end."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def finish(self, seconds: float) -> None:
        """Wait for what still runs; cancel it after `seconds`."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        await self.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(error)
