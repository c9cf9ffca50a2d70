"""A worker's side of NATS: a connection that outlives the server's restarts, durable pull consumers, watched keys.

nats-py 2.16 needs care: its key-value watch stays deaf for 19 s after a server crash, so `watch` starts a new one at each
reconnection; a hung server is noticed only by short pings; a denied permission looks like a time-out, and its text comes
to `error_cb` alone. Knows no event. Read next: `contracts.subjects`, which names everything here.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import nats.errors
import structlog
from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.client import JetStreamContext
from nats.js.kv import KeyValue

from contracts.secret import Secret

_log = structlog.get_logger()

_RETRY_SECONDS = 0.5
_WATCH_POLL_SECONDS = 1.0
"""how soon a watch notices that it was cut off; updates themselves come at once"""
_WATCH_TIMEOUT_SECONDS = 2
"""of a request that makes a watch: one that was lost with its connection must not cost more"""
_WATCH_LEASE_SECONDS = 30
"""after which the server forgets a watch whose client is gone; nats-py's default of 5 min leaves a trail of them"""

Fault = (nats.errors.Error, OSError, asyncio.TimeoutError)
"""what any request over the bus may fail with while the server is away"""


@dataclass(frozen=True)
class BusSettings:
    """url: of the server; seed: the nkey seed of this process's user, None where the server asks for none; inbox: the
    prefix that the role's permissions name; tls: how to check the server's certificate where the url says `tls://`, None:
    by the system's authorities."""

    url: str
    seed: Secret | None
    inbox: str
    tls: ssl.SSLContext | None = None


class Bus:
    """One connection. Made by `connect`; every method waits out an absence of the server."""

    def __init__(self, settings: BusSettings, process: str) -> None:
        self._settings = settings
        self._process = process
        self._reconnected = asyncio.Event()
        self.client = Client()
        self.closed = asyncio.Event()
        """set when nats-py has given up for good (wrong key): the process must end and be started anew"""

    @property
    def is_connected(self) -> bool:
        return self.client.is_connected

    @property
    def jetstream(self) -> JetStreamContext:
        return self.client.jetstream(timeout=5)

    async def connect(self) -> None:
        """Return once connected, however long that takes. Raises nats.errors.Error if the server refuses our key."""
        seed = self._settings.seed
        await self.client.connect(
            self._settings.url,
            name=self._process,
            nkeys_seed_str=None if seed is None else seed.reveal().decode(),
            inbox_prefix=self._settings.inbox.encode(),
            tls=self._settings.tls,
            max_reconnect_attempts=-1,
            reconnect_time_wait=_RETRY_SECONDS,  # type: ignore[arg-type]  # seconds; only its annotation says int
            connect_timeout=2,
            ping_interval=2,
            max_outstanding_pings=2,
            error_cb=self._on_error,
            disconnected_cb=self._on_disconnect,
            reconnected_cb=self._on_reconnect,
            closed_cb=self._on_close,
        )
        _log.info("bus connected", process=self._process)

    async def close(self) -> None:
        """Send what is pending (acknowledgements) and close."""
        try:
            await self.client.flush(timeout=2)
        except Fault:
            pass  # what was not acknowledged is delivered again
        # nats-py writes what is buffered to the lost connection when it is closed between two of them.
        with contextlib.suppress(*Fault, RuntimeError):
            await self.client.close()

    async def consume(
        self,
        stream: str,
        consumer: str,
        *,
        ack_wait_seconds: float,
        max_ack_pending: int,
        forgotten_after_seconds: float | None = None,
    ) -> JetStreamContext.PullSubscription:
        """Return a durable pull consumer of the stream, made if it is not there; waits until the stream exists.

        forgotten_after_seconds: the server drops the consumer, with what waits for it, once nobody has asked for so long;
        None: never.
        """
        config = ConsumerConfig(
            durable_name=consumer,
            deliver_policy=DeliverPolicy.ALL,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=ack_wait_seconds,
            max_deliver=-1,  # nothing is given up by the server: the reader sets aside what it cannot take
            max_ack_pending=max_ack_pending,
            inactive_threshold=forgotten_after_seconds,
        )
        is_told = False
        while True:
            try:
                await self.jetstream.add_consumer(stream, config)
                return await self.jetstream.pull_subscribe_bind(consumer=consumer, stream=stream)
            except Fault as error:
                if not is_told:
                    _log.warning("stream not ready, will retry", stream=stream, error=type(error).__name__)
                    is_told = True
                await asyncio.sleep(_RETRY_SECONDS)

    async def watch(self, bucket: str, key: str, on_value: Callable[[bytes | None], Awaitable[None]]) -> None:
        """Call `on_value` with what the key holds (None: nothing) now and at each change, for ever.

        A value may be given twice: after a reconnection it is read anew.
        """
        while True:
            self._reconnected.clear()
            try:
                store = await self.client.jetstream(timeout=_WATCH_TIMEOUT_SECONDS).key_value(bucket)
                watcher = await store.watch(key, inactive_threshold=_WATCH_LEASE_SECONDS)
            except Fault as error:
                _log.debug("watch not ready, will retry", bucket=bucket, key=key, error=type(error).__name__)
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            try:
                await self._follow(watcher, on_value)
            finally:
                try:
                    await watcher.stop()  # type: ignore[no-untyped-call]
                except Fault:
                    pass  # it was the old connection's: the server forgets it after its lease

    async def _follow(self, watcher: KeyValue.KeyWatcher, on_value: Callable[[bytes | None], Awaitable[None]]) -> None:
        """Pass on updates until the connection was made anew. The first update is None where the key holds nothing."""
        is_first = True
        while not self._reconnected.is_set():
            try:
                entry = await watcher.updates(timeout=_WATCH_POLL_SECONDS)  # type: ignore[no-untyped-call]
            except nats.errors.TimeoutError:
                continue
            if entry is not None:
                await on_value(None if entry.operation in ("DEL", "PURGE") else entry.value)
            elif is_first:
                await on_value(None)
            is_first = False

    async def _on_error(self, error: Exception) -> None:
        _log.warning("bus error", process=self._process, error=f"{type(error).__name__}: {error}")

    async def _on_disconnect(self) -> None:
        _log.warning("bus disconnected", process=self._process)

    async def _on_reconnect(self) -> None:
        _log.info("bus reconnected", process=self._process)
        self._reconnected.set()

    async def _on_close(self) -> None:
        self.closed.set()
