"""The HTTP side: ClickHouse's interface as clickhouse-connect speaks it, over an `Engine`. No SQL knowledge in here.

Reference: ClickHouse docs, "HTTP interface". Each request runs on a thread of a small pool, step by step, so that a
slow reader holds a query back and a reader that leaves ends it. Errors are ClickHouse's own: text, code header, status.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import json
import secrets
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar, cast
from urllib.parse import parse_qsl

import structlog
from fastapi import Request

from contracts.secret import Secret
from glottis.clickhouse.encoding import Packer, Plain, packer, unpacker
from glottis.clickhouse.engine import UNKNOWN_EXCEPTION, Engine, ExternalTable, Query, QueryFault, Running
from glottis.clickhouse.statement import InlineInsert, inline_insert

log = structlog.get_logger(__name__)

_Result = TypeVar("_Result")
# ASGI's own shapes; Any because its messages are.
_Scope = dict[str, Any]
_Message = dict[str, Any]
_Receive = Callable[[], Any]
_Send = Callable[[_Message], Any]

AUTHENTICATION_FAILED: Final = 516
QUERY_IS_TOO_LARGE: Final = 35
NOT_IMPLEMENTED: Final = 48
CANNOT_DECOMPRESS: Final = 271

# Query parameters that steer the interface; every other one is a setting of the query, or `param_…`.
_INTERFACE: Final = frozenset(
    {
        "query",
        "database",
        "default_format",
        "user",
        "password",
        "session_id",
        "session_timeout",
        "session_check",
        "query_id",
        "quota_key",
        "compress",
        "decompress",
        "wait_end_of_query",
        "client_protocol_version",
        "role",
        "buffer_size",
        "stacktrace",
        "enable_http_compression",
        "send_progress_in_http_headers",
        "http_headers_progress_interval_ms",
        "cancel_http_readonly_queries_on_client_close",
    }
)
# ClickHouse, HTTPHandler: exceptionCodeToHTTPStatus.
_STATUS: Final[Mapping[int, int]] = {
    194: 401,  # REQUIRED_PASSWORD
    **dict.fromkeys((192, 193, 516), 403),  # UNKNOWN_USER, WRONG_PASSWORD, AUTHENTICATION_FAILED
    **dict.fromkeys((6, 26, 27, 36, 38, 41, 43, 53, 62, 69, 70, 72, 117, 130, 131, 386), 400),  # does not parse or fit
    **dict.fromkeys((16, 46, 47, 50, 56, 60, 63, 73, 81, 84, 115), 404),  # unknown this and that
    35: 413,  # QUERY_IS_TOO_LARGE
    48: 501,  # NOT_IMPLEMENTED
    159: 408,  # TIMEOUT_EXCEEDED
}
_STATEMENT_LIMIT_BYTES: Final = 16 * 1024 * 1024
# An insert's head is looked for in this much of a body.
_HEAD_LIMIT_BYTES: Final = 256 * 1024
_IN_MEMORY_BYTES: Final = 8 * 1024 * 1024
_THREADS: Final = 16


class Server:
    """The ASGI application. user, password: the account; uploads: folder for bodies too large for memory."""

    def __init__(self, engine: Engine, user: str, password: Secret, uploads: Path) -> None:
        self._engine = engine
        self._account = f"{user}:".encode() + password.reveal()
        self._uploads = uploads
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="query")

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        if request.url.path in ("/ping", "/replicas_status"):
            await _answer(send, 200, {}, b"Ok.\n")
            return
        parameters = dict(parse_qsl(request.url.query, keep_blank_values=True))
        query_id = parameters.get("query_id") or str(uuid.uuid4())
        headers = {
            "X-ClickHouse-Query-Id": query_id,
            "X-ClickHouse-Timezone": self._engine.timezone,
            "X-ClickHouse-Server-Display-Name": "glottis",
        }
        started = time.perf_counter()
        running: Running | None = None
        try:
            self._authenticate(request, parameters)
            query = await self._query(request, parameters)
            running = await self._on_thread(lambda: self._engine.start(query))
            await self._relay(request, receive, send, parameters, headers, running, started)
        except QueryFault as fault:
            log.info("query failed", code=fault.code, query_id=query_id)
            body = f"{fault.text} (version {self._engine.version})\n".encode()
            headers["X-ClickHouse-Exception-Code"] = str(fault.code)
            await _answer(send, _STATUS.get(fault.code, 500), headers, body)
        finally:
            if running is not None:
                self._threads.submit(running.close)

    def _authenticate(self, request: Request, parameters: Mapping[str, str]) -> None:
        user = parameters.get("user") or request.headers.get("X-ClickHouse-User") or "default"
        password = parameters.get("password") or request.headers.get("X-ClickHouse-Key") or ""
        shown = f"{user}:{password}".encode()
        scheme, _, value = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "basic":
            try:
                shown = base64.b64decode(value, validate=True)
            except binascii.Error:
                shown = b""
        if not hmac.compare_digest(shown, self._account):
            raise QueryFault.named(
                AUTHENTICATION_FAILED,
                "AUTHENTICATION_FAILED",
                f"{user}: Authentication failed: password is incorrect, or there is no user with such name",
            )

    async def _query(self, request: Request, parameters: Mapping[str, str]) -> Query:
        if parameters.get("compress") == "1" or parameters.get("decompress") == "1":
            raise QueryFault.named(
                NOT_IMPLEMENTED, "NOT_IMPLEMENTED", "Only HTTP content encodings are supported, not compress=1"
            )
        everything = dict(parameters)
        tables: tuple[ExternalTable, ...] = ()
        sql = parameters.get("query", "").encode()
        insert: InlineInsert | None = None
        data: BinaryIO | None = None
        if request.headers.get("Content-Type", "").startswith("multipart/form-data"):
            fields, files = await _form(request)
            everything |= fields
            sql = sql or fields.get("query", "").encode()
            tables = tuple(
                ExternalTable(
                    name=name,
                    structure=everything[f"{name}_structure"],
                    format=everything.get(f"{name}_format", "TabSeparated"),
                    data=file,
                )
                for name, file in files.items()
                if f"{name}_structure" in everything
            )
        else:
            sql, insert, data = await self._statement(request, sql)
        about_tables = {f"{table.name}_{what}" for table in tables for what in ("structure", "format", "types")}
        return Query(
            sql=sql,
            insert=insert,
            data=data,
            database=everything.get("database", "") or request.headers.get("X-ClickHouse-Database", ""),
            settings={
                name: value
                for name, value in everything.items()
                if name not in _INTERFACE and name not in about_tables and not name.startswith("param_")
            },
            parameters={name.removeprefix("param_"): value for name, value in everything.items() if name.startswith("param_")},
            tables=tables,
            default_format=everything.get("default_format") or request.headers.get("X-ClickHouse-Format", "TabSeparated"),
            session_id=everything.get("session_id", ""),
            session_timeout_seconds=_seconds(everything.get("session_timeout", "60")),
            session_must_exist=everything.get("session_check") == "1",
            is_read_only=request.method in ("GET", "HEAD"),
            may_stream=everything.get("wait_end_of_query") != "1",
        )

    async def _statement(self, request: Request, sql: bytes) -> tuple[bytes, InlineInsert | None, BinaryIO | None]:
        # The statement of a request and, for an insert, a file with its rows. The body continues the query parameter.
        unpacking = unpacker(request.headers.get("Content-Encoding", ""))
        if unpacking is None:
            raise QueryFault.named(NOT_IMPLEMENTED, "NOT_IMPLEMENTED", "This Content-Encoding is not supported")
        text = bytearray(sql + b"\n" if sql else b"")
        insert: InlineInsert | None = None
        data: BinaryIO | None = None
        async for packed in request.stream():
            try:
                piece = unpacking.unpack(packed)
            except ValueError as error:
                raise _unreadable_body() from error
            if data is not None:
                data.write(piece)
                continue
            # Looked at anew with each piece, because a piece may end in the middle of the format's name.
            if len(text) <= _HEAD_LIMIT_BYTES:
                insert = inline_insert(bytes((text + piece)[:_HEAD_LIMIT_BYTES]))
            text += piece
            if insert is not None and insert.data_offset < len(text):
                data = self._upload()
                data.write(text[insert.data_offset :])
            elif len(text) > _STATEMENT_LIMIT_BYTES:
                raise QueryFault.named(
                    QUERY_IS_TOO_LARGE, "QUERY_IS_TOO_LARGE", f"Max query size ({_STATEMENT_LIMIT_BYTES} bytes) exceeded"
                )
        if not unpacking.is_whole:
            raise _unreadable_body()
        if data is not None:
            data.seek(0)
            return b"", insert, data
        return bytes(text), inline_insert(bytes(text)), None

    def _upload(self) -> BinaryIO:
        # cast: a spooled file is one in all but name.
        return cast(BinaryIO, tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES, dir=str(self._uploads)))

    async def _relay(
        self,
        request: Request,
        receive: _Receive,
        send: _Send,
        parameters: Mapping[str, str],
        headers: dict[str, str],
        running: Running,
        started: float,
    ) -> None:
        encoding: str | None = None
        packing: Packer = Plain()
        if parameters.get("enable_http_compression") == "1":
            encoding, packing = packer(request.headers.get("Accept-Encoding", ""))
        tag = secrets.token_hex(8)
        summary = {**running.summary, "elapsed_ns": int((time.perf_counter() - started) * 1e9)}
        headers |= {
            "X-ClickHouse-Summary": json.dumps({name: str(value) for name, value in summary.items()}),
            "X-ClickHouse-Exception-Tag": tag,
        }
        if running.format is not None:
            headers["X-ClickHouse-Format"] = running.format
        first = await self._on_thread(running.next_piece)
        if not first:
            # No rows in a format without head, or no result set at all: an empty body, never an empty frame.
            await self._on_thread(running.close)
            await _answer(send, 200, headers, b"")
            return
        if encoding is not None:
            headers["Content-Encoding"] = encoding
        await send({"type": "http.response.start", "status": 200, "headers": _raw(headers)})
        async with asyncio.TaskGroup() as tasks:
            departure = tasks.create_task(_disconnected(receive))
            piece: bytes | None = first
            try:
                while piece is not None and not departure.done():
                    if packed := packing.pack(piece):
                        await send({"type": "http.response.body", "body": packed, "more_body": True})
                    piece = await self._on_thread(running.next_piece)
            except QueryFault as fault:
                # As ClickHouse does once the status is out: a marked block, then the connection is cut. Returning
                # without the last body message makes uvicorn cut it.
                log.info("query failed", code=fault.code, query_id=headers["X-ClickHouse-Query-Id"])
                block = packing.pack(_exception_block(fault.text, tag)) + packing.finish()
                await send({"type": "http.response.body", "body": block, "more_body": True})
                return
            finally:
                departure.cancel()
        # Before the end is told: the client's next request may be of the same session.
        await self._on_thread(running.close)
        await send({"type": "http.response.body", "body": packing.finish(), "more_body": False})

    async def _on_thread(self, step: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, step)


def _unreadable_body() -> QueryFault:
    return QueryFault.named(CANNOT_DECOMPRESS, "CANNOT_DECOMPRESS", "The body does not match its Content-Encoding")


async def _form(request: Request) -> tuple[dict[str, str], dict[str, BinaryIO]]:
    form = await request.form(max_part_size=_STATEMENT_LIMIT_BYTES)
    fields = {name: value for name, value in form.items() if isinstance(value, str)}
    files = {name: value.file for name, value in form.items() if not isinstance(value, str)}
    return fields, files


async def _disconnected(receive: _Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _answer(send: _Send, status: int, headers: Mapping[str, str], body: bytes) -> None:
    raw = _raw({**headers, "Content-Length": str(len(body))})
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


def _raw(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers.items()]


def _exception_block(text: str, tag: str) -> bytes:
    message = text.encode() + b"\n"
    marker = tag.encode()
    length = str(len(message)).encode()
    return b"__exception__\r\n" + marker + b"\r\n" + message + length + b" " + marker + b"\r\n__exception__\r\n"


def _seconds(text: str) -> float:
    try:
        return max(1.0, min(float(text), 3600.0))
    except ValueError:
        raise QueryFault.named(UNKNOWN_EXCEPTION, "UNKNOWN_EXCEPTION", "session_timeout is not a number") from None
