"""Waiting for a fact, with a deadline; the suite never sleeps and hopes."""

import asyncio
from collections.abc import Callable


async def until(fact: Callable[[], bool], seconds: float = 5.0) -> None:
    """Return as soon as the fact holds. Raises TimeoutError if it does not in time."""
    async with asyncio.timeout(seconds):
        while not fact():  # the fact is about something that sets no event
            await asyncio.sleep(0.005)
