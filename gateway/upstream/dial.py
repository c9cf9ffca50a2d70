"""Opening a TCP connection to a provider: resolve anew, ask the egress guard, try addresses side by side.

Happy eyeballs as in RFC 8305: families take turns, each address gets a quarter of a second before the next one starts
beside it, the first that answers wins. Read next: `gateway.upstream.origin`, which adds TLS and keeps connections.
"""

import asyncio
import errno
import ipaddress
import itertools
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from gateway.liveness import keep_alive
from gateway.tasks import Tasks
from gateway.upstream.faults import UpstreamFault
from policy.origins import is_refused_address

Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""(host, port) -> IP addresses in the resolver's order; raises OSError"""

_ATTEMPT_DELAY_SECONDS = 0.25
"""RFC 8305 §5"""


async def resolve(host: str, port: int) -> Sequence[str]:
    """Return the addresses that the system's resolver knows now; nothing is cached here. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[4][0]) for address in found))


def in_turns(addresses: Sequence[str]) -> list[str]:
    """Return the addresses with the families taking turns, beginning with the resolver's first (RFC 8305 §4)."""
    is_first = [":" in address for address in addresses]
    first = [address for address, v6 in zip(addresses, is_first, strict=True) if v6 == is_first[0]]
    second = [address for address, v6 in zip(addresses, is_first, strict=True) if v6 != is_first[0]]
    return [address for pair in itertools.zip_longest(first, second) for address in pair if address is not None]


async def permitted_addresses(host: str, port: int, *, may_be_private: bool, resolver: Resolve) -> list[str]:
    """Return the addresses to dial, in order. Raises UpstreamFault if there is none, or none that may be dialled."""
    try:
        addresses: Sequence[str] = [str(ipaddress.ip_address(host))]
    except ValueError:
        try:
            addresses = await resolver(host, port)
        except OSError as error:
            raise UpstreamFault("upstream_unreachable", "resolve", detail=type(error).__name__) from error
    if not addresses:
        raise UpstreamFault("upstream_unreachable", "resolve", detail="no address")
    permitted = [address for address in addresses if may_be_private or not is_refused_address(address)]
    if not permitted:
        raise UpstreamFault("upstream_refused_address", "guard", detail="the name resolved to private addresses alone")
    return in_turns(permitted)


async def connected_socket(addresses: Sequence[str], port: int, tasks: Tasks) -> socket.socket:
    """Return a socket connected to the first address that answers. Raises UpstreamFault if none does."""
    if len(addresses) == 1:  # nothing to race with
        try:
            return await _connect(addresses[0], port)
        except OSError as refused:
            raise UpstreamFault("upstream_unreachable", "connect", detail=type(refused).__name__) from refused
    waiting = list(addresses)
    running: set[asyncio.Task[socket.socket]] = set()
    failures: list[OSError] = []
    try:
        while waiting or running:
            if waiting:
                running.add(tasks.start("dial", _connect(waiting.pop(0), port)))
            done, running = await asyncio.wait(
                running, timeout=_ATTEMPT_DELAY_SECONDS if waiting else None, return_when=asyncio.FIRST_COMPLETED
            )
            for attempt in done:
                error = attempt.exception()
                if error is None:
                    done.remove(attempt)
                    running |= done
                    return attempt.result()
                if not isinstance(error, OSError):
                    raise error
                failures.append(error)
    finally:
        for attempt in running:
            attempt.cancel()
            attempt.add_done_callback(_close_late)
    raise UpstreamFault("upstream_unreachable", "connect", detail=", ".join(type(error).__name__ for error in failures))


async def _connect(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(sock)
        # Not the loop's own sock_connect: uvloop's asks a thread to resolve the address again.
        failure = sock.connect_ex((address, port))
        if failure == errno.EINPROGRESS:
            await _writable(sock)
            failure = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if failure:
            raise OSError(failure, os.strerror(failure))
    except BaseException:  # also a cancelled attempt closes its socket
        sock.close()
        raise
    return sock


async def _writable(sock: socket.socket) -> None:
    """Wait until the socket's connection was made, or has failed."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_writer(sock, _tell, ready)
    try:
        await ready
    finally:
        loop.remove_writer(sock)


def _tell(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)


def _close_late(attempt: "asyncio.Task[socket.socket]") -> None:
    """Close the socket of an attempt that won too late."""
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().close()
