"""The gateway's server: listeners, signals, drain, exit status.

uvicorn's own `Server` closes the listener at once when told to stop, forgets connections that were upgraded and exits with
the signal's number; this one keeps all of that in its own hands and uses uvicorn for what it is good at: the protocol and
the app behind it. Knows nothing of configuration: it is given apps, listeners and a context. Read next:
`gateway.edge.protocol`; `gateway.main` composes it.
"""

import asyncio
import errno
import signal
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog
import uvicorn
from uvicorn._types import ASGIApplication
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from gateway.edge.context import EdgeContext
from gateway.edge.protocol import EdgeProtocol
from gateway.liveness import keep_alive

_log = structlog.get_logger("gateway.server")

_WATCH_SECONDS: Final = 1.0
"""how exactly timeouts are kept"""
_BACKLOG: Final = 4096
_HANDSHAKE_SECONDS: Final = 10.0


class ListenFailed(Exception):
    """An address cannot be listened on. The text is one sentence for the operator."""


@dataclass(frozen=True, slots=True)
class Listener:
    """Where to listen. `port` 0 takes a free one; `tls` None means plain HTTP."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None


@dataclass(frozen=True, slots=True)
class DrainSettings:
    """How to stop. Seconds as named."""

    delay_seconds: float = 0.0
    """still accepting after the pod said that it is not ready, so that load balancers notice first"""
    deadline_seconds: float = 25.0
    """for exchanges under way; then they are cut. Below Kubernetes' 30 s with the delay at 0"""


def server_tls(certificate: str, key: str) -> ssl.SSLContext:
    """Return the TLS context of a listener: certificate chain and key, PEM files. Raises OSError, ssl.SSLError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    context.load_cert_chain(certificate, key)
    return context


class Server(uvicorn.Server):
    """One gateway process's listeners. `run` serves until a signal and returns the exit status."""

    def __init__(
        self,
        context: EdgeContext,
        app: ASGIApplication,
        listeners: Sequence[Listener],
        *,
        admin_app: ASGIApplication | None = None,
        admin_listener: Listener | None = None,
        drain: DrainSettings | None = None,
        on_drain: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__(_config(app))
        self.context = context
        self._admin_config = _config(admin_app) if admin_app is not None else None
        self._admin_state = ServerState()
        self._listeners = listeners
        self._admin_listener = admin_listener
        self._drain_settings = drain or DrainSettings()
        self._on_drain = on_drain
        self._told_to_stop = asyncio.Event()
        self._told_to_hurry = asyncio.Event()
        self._public: list[asyncio.Server] = []
        self._admin: asyncio.Server | None = None

    async def run(self) -> int:  # type: ignore[override]  # uvicorn's makes its own loop; the composition root has one
        """Listen, serve until SIGTERM or SIGINT (or `stop`), drain; return the exit status. Raises ListenFailed."""
        await self.start()
        try:
            await self._told_to_stop.wait()
            await self.drain()
        finally:
            self.close()
        return 0

    async def start(self) -> None:
        """Open the listeners, the admin one first. Raises ListenFailed."""
        loop = asyncio.get_running_loop()
        for config in (self.config, self._admin_config):
            if config is not None and not config.loaded:
                config.load()
        if self._admin_config is not None and self._admin_listener is not None:
            admin_config = self._admin_config
            self._admin = await self._listen(
                "admin",
                self._admin_listener,
                lambda: HttpToolsProtocol(admin_config, self._admin_state, {}),
            )
        state: dict[str, Any] = {}  # Any: uvicorn's own type
        for listener in self._listeners:
            self._public.append(
                await self._listen("public", listener, lambda: EdgeProtocol(self.context, self.config, self.server_state, state))
            )
        for signum in (signal.SIGTERM, signal.SIGINT):
            try:
                loop.add_signal_handler(signum, self.stop)
            except (NotImplementedError, RuntimeError, ValueError):
                break  # not the main thread: whoever embeds the server calls `stop`
        self.context.tasks.keep("connection deadlines", self._watch)
        self.started = True

    def stop(self) -> None:
        """Begin to drain; called a second time, cut what is still under way."""
        if self._told_to_stop.is_set():
            self._told_to_hurry.set()
        self._told_to_stop.set()

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Return where the public listeners listen, in their order."""
        return [server.sockets[0].getsockname()[:2] for server in self._public]

    @property
    def admin_address(self) -> tuple[str, int] | None:
        """Return where the admin listener listens."""
        return None if self._admin is None else self._admin.sockets[0].getsockname()[:2]

    async def drain(self) -> None:
        """Take nothing new, let what is under way end, cut what does not in time. The admin listener stays to the end."""
        context, settings = self.context, self._drain_settings
        context.is_draining = True
        _log.info("drain begun", exchanges=len(context.open), connections=len(self.server_state.connections))
        if self._on_drain is not None:
            await self._on_drain()
        now = context.clock()
        for exchange in context.open:
            exchange.drain(now)
        await self._hurried(settings.delay_seconds)
        for server in self._public:
            server.close()
        for connection in tuple(self.server_state.connections):
            connection.shutdown()
        await self._until_quiet(settings.deadline_seconds)
        cut = len(context.open)
        for exchange in context.open:
            exchange.abort()
        for task in tuple(self.server_state.tasks):
            task.cancel()
        await asyncio.sleep(0)
        _log.info("drain ended", cut=cut)

    def close(self) -> None:
        """Close listeners and what connections are left."""
        for server in (*self._public, *((self._admin,) if self._admin is not None else ())):
            server.close()
        self._public, self._admin = [], None
        for state in (self.server_state, self._admin_state):
            for connection in tuple(state.connections):
                connection.transport.close()
        self.context.upstreams.close()

    async def _listen(self, kind: str, listener: Listener, factory: Callable[[], asyncio.Protocol]) -> asyncio.Server:
        try:
            server = await asyncio.get_running_loop().create_server(
                factory,
                host=listener.host,
                port=listener.port,
                ssl=listener.tls,
                backlog=_BACKLOG,
                ssl_handshake_timeout=_HANDSHAKE_SECONDS if listener.tls is not None else None,
            )
        except socket.gaierror as error:
            raise ListenFailed(f"cannot listen on {listener.host}:{listener.port}: the host name is not known here") from error
        except OSError as error:
            cause = {
                errno.EADDRINUSE: "the port is in use; stop the other program or choose another port",
                errno.EACCES: "ports below 1024 need privileges; choose another port",
                errno.EADDRNOTAVAIL: "no network interface of this machine has that address",
            }.get(error.errno or 0, "the system refused it")
            raise ListenFailed(f"cannot listen on {listener.host}:{listener.port}: {cause}") from error
        for listening in server.sockets:
            keep_alive(listening)
        host, port = server.sockets[0].getsockname()[:2]
        _log.info("listening", listener=kind, host=host, port=port, scheme="https" if listener.tls is not None else "http")
        return server

    async def _watch(self) -> None:
        """Let every connection look at the time, once a second."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            now = loop.time()
            for connection in tuple(self.server_state.connections):
                if isinstance(connection, EdgeProtocol):
                    connection.tick(now)

    async def _hurried(self, seconds: float) -> None:
        """Wait, unless a second signal asks to hurry."""
        try:
            await asyncio.wait_for(self._told_to_hurry.wait(), seconds)
        except TimeoutError:
            pass

    async def _until_quiet(self, seconds: float) -> None:
        """Wait until nothing is under way, at most so long."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while (len(self.context.open) or self.server_state.connections) and not self._told_to_hurry.is_set():
            if loop.time() >= deadline:
                return
            await asyncio.sleep(0.02)


def _config(app: ASGIApplication) -> uvicorn.Config:
    """Return uvicorn's configuration with everything off that would touch the wire or the log behind our back."""
    return uvicorn.Config(
        app,
        http=HttpToolsProtocol,
        ws="none",
        lifespan="off",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        log_config=None,
    )
