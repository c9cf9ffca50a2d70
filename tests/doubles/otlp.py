"""An OTLP receiver, gRPC and HTTP/protobuf, that can fail in the ways that receivers do.

Built on the generated protocol stubs alone, not on the SDK that the exporter uses. `fault` may be changed at any time:
`""` takes, `refuse` answers 503 / UNAVAILABLE, `bad` answers 400 / INVALID_ARGUMENT, `garbage` answers bytes that are no
OTLP, `redirect` answers 302 (HTTP), `hang` answers nothing until it is changed.
"""

import gzip
import os
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

# Its handlers of fork() have been seen to hang a child between fork and exec: tests start processes beside this server.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

import grpc  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span

_LONGEST_HANG_SECONDS = 60


@dataclass
class Received:
    """What came: spans with their resource, and the headers (metadata) of each request that was taken."""

    spans: list[tuple[dict[str, Any], Span]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    requests: int = 0
    """also those that were not taken"""


class OtlpReceiver:
    """One receiver."""

    def __init__(self) -> None:
        self.fault = ""
        self.received = Received()
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        """Return the names of the spans, in the order in which they came."""
        with self._lock:
            return [span.name for _, span in self.received.spans]

    def take(self, request: trace_service_pb2.ExportTraceServiceRequest, headers: dict[str, str]) -> None:
        """Keep a request's spans."""
        with self._lock:
            self.received.headers.append(headers)
            for resource_spans in request.resource_spans:
                resource = _attributes(resource_spans)
                for scope in resource_spans.scope_spans:
                    self.received.spans += [(resource, span) for span in scope.spans]

    def count(self) -> None:
        """Count a request."""
        with self._lock:
            self.received.requests += 1

    def hang(self) -> None:
        """Wait while the fault is `hang`."""
        deadline = time.monotonic() + _LONGEST_HANG_SECONDS
        while self.fault == "hang" and time.monotonic() < deadline:
            time.sleep(0.02)


@dataclass(frozen=True)
class Tls:
    """A certificate for `localhost` with its key; the certificate is its own authority."""

    certificate: Path
    key: Path


@contextmanager
def http_receiver() -> Iterator[tuple[OtlpReceiver, str]]:
    """A receiver over HTTP; gives it and its endpoint URL."""
    receiver = OtlpReceiver()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.count()
            was_hung = receiver.fault == "hang"
            receiver.hang()
            fault = "refuse" if was_hung else receiver.fault  # whoever asked has given up: what it sent comes again
            if fault == "redirect":
                return self._answer(302, b"", {"Location": f"http://{self.headers['Host']}/elsewhere"})
            if fault:
                return self._answer({"refuse": 503, "bad": 400, "garbage": 200}[fault], b"\xff" * 500, {})
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            request = trace_service_pb2.ExportTraceServiceRequest.FromString(body)
            receiver.take(request, {name.lower(): value for name, value in self.headers.items()})
            return self._answer(200, trace_service_pb2.ExportTraceServiceResponse().SerializeToString(), {})

        def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            try:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except OSError:
                self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield receiver, f"http://127.0.0.1:{server.server_port}/v1/traces"
    finally:
        receiver.fault = ""
        server.shutdown()
        server.server_close()


@contextmanager
def grpc_receiver(tls: Tls | None = None) -> Iterator[tuple[OtlpReceiver, str]]:
    """A receiver over gRPC, with TLS if a certificate is given; gives it and its endpoint URL."""
    receiver = OtlpReceiver()

    class Service(trace_service_pb2_grpc.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802  # Any: generated code without types
            receiver.count()
            was_hung = receiver.fault == "hang"
            receiver.hang()
            codes = {"refuse": grpc.StatusCode.UNAVAILABLE, "bad": grpc.StatusCode.INVALID_ARGUMENT}
            if receiver.fault or was_hung:
                context.abort(codes.get(receiver.fault, grpc.StatusCode.INTERNAL), "as the test wants it")
            receiver.take(request, {str(name): str(value) for name, value in context.invocation_metadata()})
            return trace_service_pb2.ExportTraceServiceResponse()

    server = grpc.server(futures.ThreadPoolExecutor(max_workers=8))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Service(), server)  # type: ignore[no-untyped-call]
    if tls is None:
        port, scheme = server.add_insecure_port("127.0.0.1:0"), "http"
    else:
        pair = (tls.key.read_bytes(), tls.certificate.read_bytes())
        port, scheme = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair])), "https"
    server.start()
    try:
        yield receiver, f"{scheme}://localhost:{port}" if tls else f"{scheme}://127.0.0.1:{port}"
    finally:
        receiver.fault = ""
        server.stop(grace=0).wait()


def _attributes(resource_spans: ResourceSpans) -> dict[str, Any]:
    """Any: an attribute is of several types."""
    return {
        attribute.key: getattr(attribute.value, attribute.value.WhichOneof("value") or "string_value")
        for attribute in resource_spans.resource.attributes
    }
