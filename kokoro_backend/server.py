"""The web application and its server: `create_app` is the factory, `serve` runs it until a signal.

The model is loaded on a thread after the socket is open: /ping says 503 until it is warm, and every other route too.
Routes are in `cartesia_api`; ids, the caller key and error shapes are `gate`.
"""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager

import structlog
import uvicorn
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from kokoro_backend import cartesia_api, container_api
from kokoro_backend.backend import Backend
from kokoro_backend.cartesia_messages import error_body
from kokoro_backend.errors import NOT_FOUND, Problem
from kokoro_backend.gate import Gate
from kokoro_backend.sessions import Sessions
from kokoro_backend.tasks import start_task

log = structlog.get_logger()

MAX_MESSAGE_BYTES = 1 << 20
DRAIN_SECONDS = 25
"""SageMaker kills 30 s after SIGTERM."""
_DRAIN_STEP_SECONDS = 0.05


def create_app(
    load: Callable[[], Backend],
    caller_key_digest: bytes | None = None,
    on_load_failure: Callable[[Exception], None] | None = None,
) -> FastAPI:
    """Return the application.

    load: blocking; run on a thread at start. caller_key_digest: SHA-256 of the key that callers must show, None for none.
    on_load_failure: told if `load` raises; the process then has nothing to serve.
    """
    app = FastAPI(lifespan=_lifespan(load, on_load_failure), openapi_url=None, docs_url=None, redoc_url=None)
    app.state.backend = None
    app.state.sessions = Sessions()
    app.include_router(cartesia_api.router)
    app.include_router(container_api.router)
    app.add_api_route("/ping", _ping, methods=["GET"])
    app.add_api_route("/metrics", _metrics, methods=["GET"])
    app.add_exception_handler(HTTPException, _no_route)
    app.add_middleware(Gate, state=app.state, caller_key_digest=caller_key_digest)
    return app


def _lifespan(
    load: Callable[[], Backend], on_load_failure: Callable[[Exception], None] | None
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async def warm() -> None:
            try:
                backend = await asyncio.to_thread(load)
            except Exception as error:  # The edge of a background task: without a model the process has to end, not to wait.
                log.error("model not loaded", exc_info=error)
                if on_load_failure is not None:
                    on_load_failure(error)
                return
            backend.metrics.ready.set(1)
            app.state.backend = backend

        warming = start_task(warm(), name="kokoro load")
        yield
        await asyncio.wait([warming])
        if app.state.backend is not None:
            await asyncio.to_thread(app.state.backend.close)

    return lifespan


async def _ping(request: Request) -> Response:
    """Answer SageMaker's health check, and anybody's: 200 with an empty body once the model is warm."""
    return Response(status_code=200 if request.app.state.backend is not None else 503)


async def _metrics(request: Request) -> Response:
    backend: Backend = request.app.state.backend
    backend.metrics.depth.set(backend.speaker.queue_depth)
    return Response(backend.metrics.exposition(), media_type="text/plain; version=0.0.4")


async def _no_route(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    problem = NOT_FOUND
    if status != 404:
        problem = Problem(status, "method_not_allowed", "Not allowed", "This path does not take that method.")
    body, media_type = error_body(problem, cartesia_api.version_of(request), cartesia_api.request_id_of(request))
    return Response(body, status, media_type=media_type, headers={"x-should-retry": "false"})


class _Server(uvicorn.Server):
    """uvicorn with our signals: SIGTERM and SIGINT drain, and the exit status is 0 after that."""

    def __init__(self, config: uvicorn.Config, sessions: Sessions) -> None:
        super().__init__(config)
        self._sessions = sessions
        self.failure: Exception | None = None

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Take over uvicorn's handling, which raises the signal again after the drain and so exits with 143."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def _stop(self) -> None:
        # A second signal does not wait for open streams.
        self.force_exit = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more connections, let WebSockets finish what they owe, then end the rest as uvicorn does.

        uvicorn itself closes every WebSocket with 1012 at once, in the middle of a word. Both waits share DRAIN_SECONDS.
        """
        for server in self.servers:
            server.close()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + DRAIN_SECONDS
        # As uvicorn itself waits: none of what ends the wait sets an event.
        while self._sessions.owe_answers and not self.force_exit and loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_DRAIN_STEP_SECONDS)
        self.config.timeout_graceful_shutdown = max(1, round(deadline - loop.time()))
        await super().shutdown(sockets)

    def fail(self, error: Exception) -> None:
        """End the process: it has no model."""
        self.failure = error
        self.should_exit = True


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a bound TCP socket that sends small frames at once. Raises OSError.

    The protocol is named, since asyncio switches Nagle's algorithm off only where it is: otherwise each message that ends
    in a small frame waits 40 ms for the peer's delayed acknowledgement.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    return listener


async def serve(host: str, port: int, load: Callable[[], Backend], caller_key_digest: bytes | None) -> Exception | None:
    """Serve until a signal; return why the model could not be loaded, or None after an orderly end."""
    servers: list[_Server] = []
    app = create_app(load, caller_key_digest, on_load_failure=lambda error: servers[0].fail(error))
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        ws="websockets-sansio",
        ws_max_size=MAX_MESSAGE_BYTES,
        # Audio does not compress, and base64 of it hardly; it would only cost time to first audio.
        ws_per_message_deflate=False,
        ws_ping_interval=30,
        ws_ping_timeout=60,
        access_log=False,
        server_header=False,
        log_config=None,
    )
    server = _Server(config, app.state.sessions)
    servers.append(server)
    with listening_socket(host, port) as listener:
        bound_host, bound_port = listener.getsockname()[:2]
        log.info("listening", host=bound_host, port=bound_port)
        await server.serve(sockets=[listener])
    return server.failure
