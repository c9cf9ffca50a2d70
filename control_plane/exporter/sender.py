"""One batch to one OTLP receiver, with opentelemetry-sdk's exporters, over connections that the egress guard has checked.

Blocks. Both exporters are told everything explicitly; they follow no redirect and use no proxy. HTTP connections are
checked at each dial. gRPC dials by itself, so it is given a checked address, and the name only for TLS and `:authority`;
after a failure the next batch resolves anew.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]  # comes with the exporter, without types
import requests
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http import Compression as HttpCompression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import NewConnectionError
from urllib3.util.connection import create_connection

from contracts.exports import ExportTarget
from contracts.secret import Secret
from control_plane.exporter.guard import EgressRefused, Guard
from policy.origins import Origin


class Sender:
    """Sends to one target. headers: secret ones, beside the target's own."""

    def __init__(self, target: ExportTarget, headers: Mapping[str, Secret], guard: Guard) -> None:
        self._target = target
        self._headers = {**target.headers, **{name: value.reveal().decode("latin-1") for name, value in headers.items()}}
        self._guard = guard
        self._exporter: SpanExporter | None = None
        self._ca_file: Path | None = None

    def send(self, spans: Sequence[ReadableSpan]) -> bool:
        """Return whether the receiver took them. Raises EgressRefused if the target must not be dialled."""
        try:
            exporter = self._exporter = self._exporter or self._new_exporter()
            is_sent = exporter.export(spans) is SpanExportResult.SUCCESS
        except EgressRefused:
            self._forget()
            raise
        except OSError:  # the name does not resolve
            is_sent = False
        if not is_sent:
            self._forget()
        return is_sent

    def close(self) -> None:
        """Close connections and remove the temporary file."""
        self._forget()
        if self._ca_file:
            self._ca_file.unlink()
            self._ca_file = None

    def _forget(self) -> None:
        exporter, self._exporter = self._exporter, None
        if exporter is not None:
            exporter.shutdown()

    def _new_exporter(self) -> SpanExporter:
        origin = self._guard.origin_of(self._target.endpoint)
        addresses = self._guard.addresses_of(origin)
        return self._grpc(origin, addresses[0]) if self._target.protocol == "grpc" else self._http(origin)

    def _grpc(self, origin: Origin, address: str) -> SpanExporter:
        is_secure = origin.scheme == "https"
        options: list[tuple[str, Any]] = [  # Any: texts and numbers
            ("grpc.enable_http_proxy", 0),
            ("grpc.default_authority", origin.text.partition("://")[2]),
        ]
        if is_secure:
            options.append(("grpc.ssl_target_name_override", origin.host))
        host = f"[{address}]" if ":" in address else address
        return GrpcExporter(
            endpoint=f"{origin.scheme}://{host}:{origin.port}",
            insecure=not is_secure,
            credentials=grpc.ssl_channel_credentials(self._target.ca_pem) if is_secure else None,
            headers=tuple((name.lower(), value) for name, value in self._headers.items()),
            timeout=self._target.timeout_seconds,
            compression=grpc.Compression.Gzip if self._target.compression == "gzip" else grpc.Compression.NoCompression,
            channel_options=tuple(options),  # type: ignore[arg-type]  # numbers as well as texts, whatever it says
        )

    def _http(self, origin: Origin) -> SpanExporter:
        session = requests.Session()
        session.trust_env = False  # no proxy variables, no netrc
        adapter = _guarded_adapter(self._guard, origin)
        session.mount("https://", adapter)
        session.mount("http://", adapter)
        return HttpExporter(
            endpoint=self._target.endpoint,
            certificate_file=self._ca_path(),
            headers=self._headers,
            timeout=self._target.timeout_seconds,
            compression=HttpCompression.Gzip if self._target.compression == "gzip" else HttpCompression.NoCompression,
            session=session,
        )

    def _ca_path(self) -> str | None:
        if self._target.ca_pem is None:
            return None
        if self._ca_file is None:
            with tempfile.NamedTemporaryFile(prefix="glottis-otlp-ca-", suffix=".pem", delete=False) as file:
                file.write(self._target.ca_pem)
                self._ca_file = Path(file.name)
        return str(self._ca_file)


def _guarded_adapter(guard: Guard, origin: Origin) -> HTTPAdapter:
    """Return an adapter of requests whose connections go only to addresses that the guard allows, asked at each dial."""

    def dial(connection: HTTPConnection) -> Any:  # Any: urllib3 calls it a socket, of either kind
        fault: OSError | None = None
        for address in guard.addresses_of(origin):
            try:
                return create_connection((address, connection.port), connection.timeout, socket_options=connection.socket_options)
            except OSError as error:
                fault = error
        raise NewConnectionError(connection, "cannot connect") from fault

    class Plain(HTTPConnection):
        _new_conn = dial

    class Secure(HTTPSConnection):
        _new_conn = dial

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = Plain

    class SecurePool(HTTPSConnectionPool):
        ConnectionCls = Secure

    class Adapter(HTTPAdapter):
        def send(self, *args: Any, **options: Any) -> requests.Response:  # Any: passed on as they came
            """Refuse redirects: the SDK would take one for a success, and the spans would be gone."""
            response = super().send(*args, **options)
            if 300 <= response.status_code < 400:
                response.close()
                raise requests.TooManyRedirects("the receiver redirects")
            return response

    adapter = Adapter(max_retries=0)
    adapter.poolmanager.pool_classes_by_scheme = {"http": PlainPool, "https": SecurePool}
    return adapter
