"""A peer that vanished, on a real connection: its kernel neither takes nor acknowledges what comes, and says nothing.

A socket filter that passes nothing (BPF, `SO_ATTACH_FILTER`) drops every segment before TCP sees it, keepalive probes as
well: what a pulled cable or a lost NAT entry looks like from the other side. It needs no privilege and touches one socket.
"""

import ctypes
import socket
import struct
from typing import Any

_SO_ATTACH_FILTER = 26
_RETURN = 0x06


def go_deaf(sock: Any) -> None:  # Any: a socket, or what a transport gives as one
    """Drop everything that comes for this connected socket from now on."""
    nothing_passes = ctypes.create_string_buffer(struct.pack("HBBI", _RETURN, 0, 0, 0))
    program = struct.pack("H6xP", 1, ctypes.addressof(nothing_passes))
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
