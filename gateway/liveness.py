"""Whether the peer of a connection still lives, and whether it still reads: what the kernel knows.

A quiet connection is probed by TCP keepalive. With data under way the kernel does not probe, so its own record (TCP_INFO)
tells: nothing acknowledged for ten seconds is a dead peer, nothing taken for `stall_seconds` a peer that does not read.
Not TCP_USER_TIMEOUT: it kills a living listener that reads at playback speed (docs/adr/0058). Listeners and dialled sockets
are kept alive from the start; who looks is `gateway.edge.protocol` for exchanges, `gateway.edge.websocket_relay` for sessions.
"""

import asyncio
import socket
import struct
from typing import Final, Literal, Protocol, TypeAlias

_KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 4),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
"""4 s of silence, then three probes 2 s apart: a vanished peer is known within 10 s"""

_SILENT_MS: Final = 10_000
_INFO_BYTES: Final = 192
_INFO: Final = struct.Struct("2xB21xI28xI60xQ")
"""of linux/tcp.h's struct tcp_info: retransmits, unacked, last_ack_recv (ms), bytes_acked"""

State: TypeAlias = Literal["alive", "dead", "stalled"]


class Socket(Protocol):
    """A socket, or what an event loop shows of one."""

    def setsockopt(self, level: int, option: int, value: int, /) -> None:
        """Set an option."""


def keep_alive(sock: Socket) -> None:
    """Let the kernel probe a connection whenever it is quiet; what a listening socket accepts inherits it (Linux)."""
    for level, option, value in _KEEPALIVE:
        sock.setsockopt(level, option, value)


def is_silent(info: bytes) -> bool:
    """Tell whether data is under way, sent again, and nothing was acknowledged for ten seconds. info: TCP_INFO's bytes."""
    retransmits, unacknowledged, silent_ms, _ = _INFO.unpack_from(info)
    return bool(retransmits and unacknowledged and silent_ms >= _SILENT_MS)


class Watch:
    """What was seen of one side's connection at the last look."""

    __slots__ = ("_acknowledged", "_since")

    def __init__(self, now: float) -> None:
        self._acknowledged = -1
        self._since = now

    def look(self, transport: asyncio.Transport, stall_seconds: float, now: float) -> State:
        """Look at a connection. now: seconds of the same clock as at the last look; stall_seconds: 0 disables that rule."""
        info = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
        if len(info) < _INFO.size:
            return "alive"
        if is_silent(info):
            return "dead"
        acknowledged: int = _INFO.unpack_from(info)[3]
        if acknowledged != self._acknowledged or not transport.get_write_buffer_size():
            self._acknowledged = acknowledged
            self._since = now
        elif stall_seconds and now - self._since >= stall_seconds:
            return "stalled"
        return "alive"
