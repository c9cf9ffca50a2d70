"""The life of a worker process: start, work until SIGTERM or a task fails, drain, exit status.

`main` of each worker gives its setup as a coroutine; signals, the bus and the order of the end are here once. Knows no
event. Read next: `control_plane.aggregator.main`.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable

import structlog

from control_plane.worker.bus import Bus
from control_plane.worker.ops import OpsListener
from control_plane.worker.tasks import Tasks

_log = structlog.get_logger()

Setup = Callable[[Tasks, asyncio.Event], Awaitable[list["asyncio.Task[None]"]]]
"""starts the worker's tasks; returns those that end by themselves once the event (draining) is set"""


async def live(name: str, bus: Bus, ops: OpsListener, listen: tuple[str, int], setup: Setup, drain_seconds: float) -> int:
    """Run a worker; return its exit status: 0 after a drain, 1 if it cannot go on or the port is taken."""
    draining = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, draining.set)
    tasks = Tasks()
    try:
        port = ops.start(*listen)
    except OSError as error:
        _log.error("cannot listen", process=name, host=listen[0], port=listen[1], error=error.strerror)
        return 1
    _log.info("listening", process=name, host=listen[0], port=port)
    try:
        if not await _first(bus.connect(), draining):
            return 0  # told to stop before the bus was there: nothing was begun
        finishing = await setup(tasks, draining)
        await _any(draining, tasks.ended, bus.closed)
        if finishing and draining.is_set():
            _, late = await asyncio.wait(finishing, timeout=drain_seconds)
            _log.info("drained", process=name, is_complete=not late)
        return _status(name, tasks, bus, is_asked=draining.is_set())
    finally:
        await tasks.stop()
        await bus.close()
        ops.stop()


def _status(name: str, tasks: Tasks, bus: Bus, *, is_asked: bool) -> int:
    if tasks.failure is not None:
        _log.error("task failed", process=name, exc_info=tasks.failure)
        return 1
    if bus.closed.is_set() and not is_asked:
        _log.error("bus refused us for good: check the seed file against the server's users", process=name)
        return 1
    return 0


async def _first(work: Awaitable[None], stop: asyncio.Event) -> bool:
    """Wait for the work unless told to stop first; return whether the work was done."""
    task = asyncio.ensure_future(work)
    waiting = asyncio.ensure_future(stop.wait())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if task.done():
        task.result()
        return True
    task.cancel()
    return False


async def _any(*events: asyncio.Event) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
