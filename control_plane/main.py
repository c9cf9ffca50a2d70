"""The control plane's process: waits for its tables, serves, ends in good order.

`run` is what `glottis control-plane` calls. Its exit status: 0 after SIGTERM or SIGINT, 1 if it could not start.
"""

import asyncio
import logging
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
import uvicorn

from control_plane.app import create_app
from control_plane.settings import Settings

log = structlog.get_logger(__name__)


def run(settings: Settings) -> int:
    """Serve until a signal asks to end; return the exit status."""
    try:
        listener = _bound(settings.host, settings.port)
    except OSError as error:
        log.error("cannot listen", address=f"{settings.host}:{settings.port}", problem=error.strerror, help="choose another port")
        return 1
    host, port = listener.getsockname()[:2]
    # Uvicorn's own lines are prose on another logger; ours say the same with fields.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    configuration = uvicorn.Config(
        create_app(settings),
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=10,
    )
    server = _Server(configuration)
    log.info("control plane listens", address=f"{host}:{port}", public_url=settings.public_url)
    with asyncio.Runner(loop_factory=configuration.get_loop_factory()) as runner:
        runner.run(server.serve(sockets=[listener]))
    return 0 if server.started else 1


class _Server(uvicorn.Server):
    """Uvicorn's server, but a signal is a request to end and no more: the stock one raises it again and exits 143."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # asyncio leaves Nagle's algorithm on for listeners made by hand (a small answer cost 40 ms); accepted sockets inherit
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    return listener
