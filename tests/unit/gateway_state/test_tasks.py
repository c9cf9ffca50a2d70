"""Tasks: loops survive their faults, and everything ends when it is told to."""

from __future__ import annotations

import asyncio

import pytest

from gateway.tasks import Tasks, cancelled
from tests.kit.waiting import until


async def test_a_loop_that_fails_is_counted_and_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.tasks._RESTART_PAUSE_SECONDS", (0.0,))
    faults: list[str] = []
    tasks = Tasks(faults.append)
    starts = 0

    async def loop() -> None:
        nonlocal starts
        starts += 1
        if starts < 3:
            raise ValueError("broken")
        await asyncio.Event().wait()

    tasks.keep("feed", loop)
    await until(lambda: starts == 3)

    assert faults == ["feed", "feed"]
    await tasks.stop()


async def test_a_loop_that_ends_is_not_started_again() -> None:
    tasks = Tasks()
    starts = 0

    async def loop() -> None:
        nonlocal starts
        starts += 1

    await tasks.keep("once", loop)

    assert starts == 1


async def test_a_task_that_loses_a_cancellation_is_cancelled_again() -> None:
    # What asyncio.wait_for did to the feed's check on Python 3.11: the pod never stopped.
    lost = 0

    async def deaf() -> None:
        nonlocal lost
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                lost += 1
                if lost == 2:
                    raise

    task = asyncio.ensure_future(deaf())
    await asyncio.sleep(0)

    async with asyncio.timeout(5):
        await cancelled(task)

    assert (task.cancelled(), lost) == (True, 2)
