"""The admin listener of a worker: `/livez`, `/readyz` and `/metrics`, nothing else.

A WSGI server in threads of its own: it answers while the event loop is busy, which is when someone looks. Readiness is
asked of a function, which gives the reasons why not. Never reachable from outside: bind it to the pod's own network.
"""

import json
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from threading import Thread
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

StartResponse = Callable[[str, list[tuple[str, str]]], Any]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 32


class _Handler(WSGIRequestHandler):
    timeout = 10  # seconds for a request to come in: a silent client must not keep a thread

    def log_message(self, format: str, *args: Any) -> None:
        """Stay silent: probes come every few seconds."""

    def address_string(self) -> str:
        return str(self.client_address[0])  # without the reverse DNS look-up of the base class


class OpsListener:
    """Serves in the background from `start` to `stop`. `why_not_ready` returns reasons; none means ready."""

    def __init__(self, registry: CollectorRegistry, why_not_ready: Callable[[], list[str]]) -> None:
        self._registry = registry
        self._why_not_ready = why_not_ready
        self._server: WSGIServer | None = None

    def start(self, host: str, port: int) -> int:
        """Bind and serve; return the bound port. Raises OSError if the address is taken."""
        self._server = make_server(host, port, self._answer, server_class=_Server, handler_class=_Handler)
        Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="ops", daemon=True).start()
        return self._server.server_port

    def stop(self) -> None:
        """Close the listener."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def _answer(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        status, content_type, body = self._page(environ)
        start_response(status, [("Content-Type", content_type), ("Content-Length", str(len(body)))])
        return [body]

    def _page(self, environ: dict[str, Any]) -> tuple[str, str, bytes]:
        path = environ["PATH_INFO"]
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return "405 Method Not Allowed", "text/plain", b"Use GET.\n"
        if path == "/livez":
            return "200 OK", "text/plain", b"live\n"
        if path == "/readyz":
            reasons = self._why_not_ready()
            status = "503 Service Unavailable" if reasons else "200 OK"
            return status, "application/json", json.dumps({"ready": not reasons, "reasons": reasons}).encode() + b"\n"
        if path == "/metrics":
            encode, content_type = choose_encoder(environ.get("HTTP_ACCEPT", ""))
            return "200 OK", content_type, encode(self._registry)
        return "404 Not Found", "text/plain", b"Here are /livez, /readyz and /metrics.\n"
