"""What is put off to the end of a turn of the event loop: the writes of sessions (docs/adr/0076).

A turn reads all sockets that are ready. A write wakes the process at its other end, which costs as much as the write; one
after the other they find it awake, and the kernel's code in the processor's caches. Knows nothing of what it calls. Read
next: `gateway.edge.websocket_relay`.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

_log = structlog.get_logger("gateway.edge")

_MOST_BYTES: Final = 64 * 1024
"""what may wait in all sessions together; 48 and 96 KB measured alike, 24 and less worse, no limit no better"""


class Turn:
    """What is to be done when the sockets that were ready have been read."""

    __slots__ = ("_bytes", "_is_called", "_waiting")

    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] = []
        self._bytes = 0
        self._is_called = False  # the loop will call when it has read what there is

    def at_its_end(self, write: Callable[[], None]) -> None:
        """Call it before the loop waits for its sockets again, or earlier: see `grew`."""
        self._waiting.append(write)
        if not self._is_called:
            self._is_called = True
            asyncio.get_running_loop().call_soon(self._ended)

    def grew(self, size: int) -> None:
        """Note that so many bytes more are to be written; what has come to much is written now."""
        self._bytes += size
        if self._bytes > _MOST_BYTES:
            self._write()

    def _ended(self) -> None:
        self._is_called = False
        self._write()

    def _write(self) -> None:
        self._bytes = 0
        waiting, self._waiting = self._waiting, []
        for write in waiting:
            try:
                write()
            except Exception:  # the edge of one session: the others' bytes are not its own
                _log.exception("a session failed at the end of a turn")
