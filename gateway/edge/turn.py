"""What is put off to the end of a turn of the event loop: the writes of sessions and exchanges (docs/adr/0076).

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
"""what may wait in all sessions and exchanges together; 48 and 96 KB measured alike, 24 and less worse, no limit no better"""
_COPIED_BYTES: Final = 16 * 1024
"""pieces that come to no more are joined, larger ones are given to the transport as they are"""


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
            except Exception:  # the edge of one session or exchange: the others' bytes are not its own
                _log.exception("a write failed at the end of a turn")


class Outgoing:
    """What one transport is given at the end of a turn, in order; whoever closes it, or writes itself, flushes first."""

    __slots__ = ("_pieces", "_transport", "_turn")

    def __init__(self, transport: asyncio.Transport, turn: Turn) -> None:
        self._transport = transport
        self._turn = turn
        self._pieces: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Write this at the end of the turn, after what waits already."""
        pieces = self._pieces
        if not pieces:
            self._turn.at_its_end(self.flush)  # made for each turn: kept, it would be a cycle
        pieces.append(data)
        self._turn.grew(len(data))

    def flush(self) -> None:
        """Write now what waits."""
        pieces = self._pieces
        if not pieces:
            return
        self._pieces = []
        if len(pieces) == 1:
            self._transport.write(pieces[0])
        elif sum(map(len, pieces)) <= _COPIED_BYTES:
            self._transport.write(b"".join(pieces))
        else:
            self._transport.writelines(pieces)

    def drop(self) -> None:
        """Forget what waits: the transport is gone."""
        self._pieces = []
