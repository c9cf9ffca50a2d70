"""Background tasks: each has a name and somebody who waits for it; one that dies says so in the log."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import structlog

log = structlog.get_logger(__name__)


def start_task(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """Return the started task; the caller keeps it and awaits or cancels it. An exception is logged when it happens."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    task.add_done_callback(_tell)
    return task


async def stop_task(task: asyncio.Task[None]) -> None:
    """Cancel the task and wait until it is gone."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _tell(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("task died", task=task.get_name(), exc_info=error)
