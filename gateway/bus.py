"""The pod's one connection to NATS: always trying, never in the way of an exchange.

Feed, publisher and status share it. It connects in the background and for ever, notices a hung server within seconds, and
tells its users when it came back, because a watch of nats-py 2.16 stays deaf for 19 s after a server was killed
(nats-py issue 510): whoever watches, watches anew. A refused permission arrives here as an error and at the caller as a
timeout, so it is logged here. Read next: `gateway.state.feed`, `gateway.telemetry.publisher`.
"""

import asyncio
import contextlib
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol, cast

import nats.errors
import structlog
from nats.aio.client import Client
from nats.js.client import JetStreamContext

from contracts.secret import Secret
from contracts.subjects import GATEWAY_INBOX
from gateway.tasks import Tasks

_log = structlog.get_logger("gateway.bus")

_RECONNECT_PAUSE_SECONDS = 0.1
_PING_SECONDS = 2
_REQUEST_SECONDS = 5.0


class Bus:
    """The connection.

    seed: the nkey of the pod's user, None where the server asks for none. tls: the server's authorities, None: the system's.
    """

    def __init__(self, url: str, seed: Secret | None, name: str, tls: ssl.SSLContext | None = None) -> None:
        self._url = url
        self._seed = seed
        self._name = name
        self._tls = tls
        self._client = Client()
        self._came_up = asyncio.Condition()
        self._connections = 0
        self._asked: set[asyncio.Timeout] = set()
        self.jetstream: JetStreamContext = self._client.jetstream(timeout=_REQUEST_SECONDS)

    @property
    def client(self) -> Client:
        """Return nats-py's client; it may be down at the moment."""
        return self._client

    @property
    def is_up(self) -> bool:
        """Tell whether the connection stands."""
        return self._client.is_connected

    @property
    def connections(self) -> int:
        """Return how often the connection came up; a change means that watches are to be made anew."""
        return self._connections

    def start(self, tasks: Tasks) -> None:
        """Start connecting, in the background."""
        tasks.keep("bus", self._connect)

    async def up(self) -> int:
        """Wait until the connection stands; return `connections`."""
        async with self._came_up:
            await self._came_up.wait_for(lambda: self.is_up)
        return self._connections

    async def another(self, connections: int) -> None:
        """Wait until the connection came up again since it was counted `connections`."""
        async with self._came_up:
            await self._came_up.wait_for(lambda: self._connections != connections)

    @contextlib.asynccontextmanager
    async def one_connection(self) -> AsyncIterator[None]:
        """Give up what is asked inside once the connection came up anew: a question on the lost one is never answered.

        Raises nats-py's ConnectionReconnectingError then, long before the question's own time is over.
        """
        try:
            async with asyncio.timeout(None) as limit:
                self._asked.add(limit)
                try:
                    yield
                finally:
                    self._asked.discard(limit)
        except TimeoutError:
            if limit.expired():
                raise nats.errors.ConnectionReconnectingError from None
            raise

    async def close(self) -> None:
        """Send what is buffered and close."""
        if self._client.is_connected or self._client.is_reconnecting:
            with contextlib.suppress(nats.errors.Error, TimeoutError):
                await self._client.flush(timeout=1)
            # nats-py writes what is buffered to the lost connection when it is closed between two of them.
            with contextlib.suppress(nats.errors.Error, OSError, RuntimeError, TimeoutError):
                await self._client.close()

    async def _connect(self) -> None:
        # Any: options of different types; nats-py declares whole numbers for a pause that it takes as a float.
        options: dict[str, Any] = {} if self._seed is None else {"nkeys_seed_str": self._seed.reveal().decode().strip()}
        options["reconnect_time_wait"] = _RECONNECT_PAUSE_SECONDS * random.uniform(1, 2)  # a fleet comes back spread out
        while True:
            try:
                await self._client.connect(
                    self._url,
                    name=f"glottis gateway {self._name}",
                    inbox_prefix=GATEWAY_INBOX.encode(),
                    connect_timeout=2,
                    allow_reconnect=True,
                    max_reconnect_attempts=-1,
                    tls=self._tls,
                    ping_interval=_PING_SECONDS,
                    max_outstanding_pings=2,
                    error_cb=self._on_error,
                    disconnected_cb=self._on_disconnected,
                    reconnected_cb=self._on_connected,
                    **options,
                )
            except (nats.errors.Error, OSError, TimeoutError) as fault:
                _log.warning("bus not reached", why=type(fault).__name__)
                await asyncio.sleep(random.uniform(0.5, 1.5))
                continue
            await self._on_connected()
            return

    async def _on_connected(self) -> None:
        _log.info("bus connected")
        now = asyncio.get_running_loop().time()
        asked, self._asked = self._asked, set()  # each once: one that is giving up cannot be told again
        for limit in asked:
            limit.reschedule(now)
        async with self._came_up:
            self._connections += 1
            self._came_up.notify_all()

    async def _on_disconnected(self) -> None:
        _log.warning("bus lost")

    async def _on_error(self, fault: Exception) -> None:
        # nats-py repeats a refused connection on each attempt; the text of a denied permission stands nowhere else.
        level = _log.debug if isinstance(fault, OSError) else _log.warning
        level("bus error", error=type(fault).__name__, why=str(fault)[:300])


class StreamMessage(Protocol):
    """A message for a stream. `id`: the stream drops what it already has."""

    @property
    def subject(self) -> str: ...

    @property
    def id(self) -> str: ...

    @property
    def payload(self) -> bytes | bytearray: ...


def stream_of(bus: Bus) -> Callable[[StreamMessage], Awaitable[None]]:
    """Return what stores one message in its stream, waiting for the connection first. Raises nats-py's errors."""

    async def stored(message: StreamMessage) -> None:
        await bus.up()
        async with bus.one_connection():
            payload = cast(bytes, message.payload)  # nats-py joins it with what stands before it: any buffer will do
            await bus.jetstream.publish(message.subject, payload, headers={"Nats-Msg-Id": message.id})

    return stored
