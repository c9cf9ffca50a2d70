"""Sessions are tested on the event loop that the gateway runs on."""

import asyncio
from collections.abc import Callable

import uvloop


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Return uvloop's factory alone."""
    return {"uvloop": uvloop.new_event_loop}
