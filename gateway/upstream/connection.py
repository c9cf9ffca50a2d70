"""One TCP or TLS connection to a provider, as asyncio sees it.

Moves bytes and knows nothing of HTTP: while a receiver is set, everything that happens on the connection is told to it.
An idle connection has none; whatever arrives then makes the connection unusable. Read next: `gateway.upstream.origin`.
"""

import asyncio
import select
from collections.abc import Callable
from typing import Final, Protocol, cast


class Receiver(Protocol):
    """Whoever uses a connection for one exchange."""

    def upstream_data(self, data: bytes) -> None:
        """Take bytes that the provider sent."""

    def upstream_lost(self, error: Exception | None) -> None:
        """The connection is gone; None: the provider ended it in order."""

    def upstream_full(self) -> None:
        """The provider reads slower than we write: stop, until `upstream_writable`."""

    def upstream_writable(self) -> None:
        """What was written has mostly left."""


_SESSION_LOOKS: Final = 2
"""how often a connection is asked for its TLS session: when it is warm, where TLS 1.3 has none yet, and after its first answer"""


class UpstreamConnection(asyncio.Protocol):
    """A connection to one origin. `receiver`: the exchange that uses it, None while idle."""

    __slots__ = ("_is_tls", "_on_lost", "_poll", "born_at", "idle_since", "is_lost", "receiver", "session_looks", "transport")

    def __init__(self, on_lost: Callable[["UpstreamConnection"], None], now: float) -> None:
        self._on_lost = on_lost
        self.born_at = now
        self.idle_since = now
        self.receiver: Receiver | None = None
        self.is_lost = False
        self.session_looks = _SESSION_LOOKS

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport, and a way to look at its socket without reading."""
        self.transport = cast(asyncio.Transport, transport)  # create_connection over a stream socket makes no other kind
        self._is_tls = transport.get_extra_info("ssl_object") is not None
        self._poll = select.poll()
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN | select.POLLRDHUP)

    def is_usable(self) -> bool:
        """Tell whether an idle connection can carry a request: open, and with nothing waiting to be read.

        The event loop may not have seen yet that the provider closed; a POST sent into such a connection could not be
        repeated. Unasked bytes are as bad: they would be taken for the next answer.
        """
        return not (self.is_lost or self.transport.is_closing() or self._poll.poll(0))

    def data_received(self, data: bytes) -> None:
        """Hand on what the provider sent; an answer that nobody asked for ends the connection."""
        if self.receiver is not None:
            self.receiver.upstream_data(data)
        else:
            self.transport.abort()

    def eof_received(self) -> bool | None:
        """Let the transport close itself: providers do not half-close."""
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave the pool, and tell the receiver."""
        self.is_lost = True
        self._on_lost(self)
        receiver, self.receiver = self.receiver, None
        if receiver is not None:
            receiver.upstream_lost(exc)

    def pause_writing(self) -> None:
        """Tell the receiver that the provider is slow."""
        if self.receiver is not None:
            self.receiver.upstream_full()

    def resume_writing(self) -> None:
        """Tell the receiver that the provider caught up."""
        if self.receiver is not None:
            self.receiver.upstream_writable()

    def abort(self) -> None:
        """Cut the connection; its receiver hears nothing more."""
        self.receiver = None
        self.transport.abort()
