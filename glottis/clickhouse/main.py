"""The process `glottis clickhouse`: opens the engine, listens, leaves on SIGTERM. Read `server.py` for what it serves."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
import uvicorn

from glottis.clickhouse.engine import Engine
from glottis.clickhouse.server import Server
from glottis.clickhouse.settings import Settings
from glottis.errors import SetupError

log = structlog.get_logger(__name__)

_DRAIN_SECONDS = 10
# clickhouse-connect keeps connections for long; the side that closes last loses a request.
_KEEP_ALIVE_SECONDS = 300


class _Server(uvicorn.Server):
    """uvicorn's server, but a signal is the clean end that it asks for: not raised again after the drain."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.handle_exit)
        yield


def run(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT. Does not return after a clean end: the engine can crash while it is torn down.

    Raises SetupError if the data folder or the port cannot be had.
    """
    uploads = settings.folder / "uploads"
    try:
        uploads.mkdir(parents=True, exist_ok=True, mode=0o700)
        engine = Engine(settings.folder / "engine")
    except OSError as fault:
        raise SetupError(
            f"Cannot write ClickHouse's folder {settings.folder}: {fault.strerror}.",
            "Free space there, or name another folder.",
        ) from fault
    except RuntimeError as error:
        raise SetupError(
            f"The ClickHouse engine cannot open {settings.folder}.",
            "Another process may hold it: one process a data folder. Stop that one first.",
        ) from error
    listener = _listen(settings.host, settings.port)
    log.info("listening", address="{}:{}".format(*listener.getsockname()[:2]), version=engine.version)
    server = _Server(
        uvicorn.Config(
            Server(engine, settings.user, settings.password, uploads),
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=_DRAIN_SECONDS,
        )
    )
    server.run(sockets=[listener])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _listen(host: str, port: int) -> socket.socket:
    try:
        listener = socket.create_server((host, port), backlog=256)
        # asyncio leaves Nagle's algorithm on for listeners made by hand (a small answer cost 40 ms); accepted sockets inherit
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as fault:
        raise SetupError(
            f"Cannot listen on {host}:{port}: {fault.strerror}.",
            "Stop the program that uses the port, or choose another.",
        ) from fault
    return listener
