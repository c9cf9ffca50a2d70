"""The one place where the gateway starts tasks: each has a name, and somebody who waits for it.

Whoever needs the end of a short piece of work awaits what `start` returns; loops that live as long as the process are given
to `keep`, which logs and counts a fault and starts the loop again after a pause. `stop` ends all and waits.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import structlog

_T = TypeVar("_T")

_log = structlog.get_logger("gateway.tasks")

_RESTART_PAUSE_SECONDS = (0.1, 0.5, 2.0, 5.0)
_CANCEL_AGAIN_SECONDS = 0.2
_LONG_RUN_SECONDS = 60.0
"""a loop that ran for so long starts again with the first pause"""


class Tasks:
    """The running tasks of one gateway process. `on_fault`: told the name of a loop that failed, for the counter."""

    def __init__(self, on_fault: Callable[[str], None] = lambda _: None) -> None:
        self._on_fault = on_fault
        self._running: set[asyncio.Task[Any]] = set()  # Any: tasks of every result

    def start(self, name: str, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Start work whose end the caller awaits, or that reports its own faults; a reference is kept until it ends."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def keep(self, name: str, loop: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        """Start a loop that lives as long as the process; a fault is logged with its trace, counted, and survived."""
        return self.start(name, self._kept(name, loop))

    async def _kept(self, name: str, loop: Callable[[], Coroutine[Any, Any, None]]) -> None:
        clock = asyncio.get_running_loop().time
        attempt = 0
        while True:
            started = clock()
            try:
                await loop()
            except Exception:  # the edge of a background loop: what it misses is in the log, and the others go on
                _log.exception("background loop failed", loop=name)
                self._on_fault(name)
            else:
                return
            if clock() - started > _LONG_RUN_SECONDS:
                attempt = 0
            await asyncio.sleep(_RESTART_PAUSE_SECONDS[min(attempt, len(_RESTART_PAUSE_SECONDS) - 1)])
            attempt += 1

    async def stop(self) -> None:
        """Cancel every task and wait until all have ended."""
        await cancelled(*self._running)


async def cancelled(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until they have ended, however they take it.

    Asked again and again: before Python 3.12 `asyncio.wait_for` loses a cancellation that comes together with its result
    (python/cpython issue 86296), and nats-py waits in this way for each answer.
    """
    waiting = {task for task in tasks if not task.done()}
    while waiting:
        for task in waiting:
            task.cancel()
        _, waiting = await asyncio.wait(waiting, timeout=_CANCEL_AGAIN_SECONDS)
