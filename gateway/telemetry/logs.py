"""Logs: one event a line, JSON or console, written by a thread of its own so that a stalled reader stops no exchange.

`configure` is called once, by `main`. structlog and the standard library's loggers (uvicorn, nats-py, httpx) end in the
same lines. No field may hold a token, credential or transcript; `gateway.telemetry.recorder` writes the line of an exchange.
Read next: `gateway.telemetry.lines`.
"""

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, BinaryIO, TypeAlias

import orjson
import structlog
from structlog.typing import EventDict, WrappedLogger

from gateway.telemetry.lines import Fields, JsonLines, LineWriter

LogFormat: TypeAlias = str
"""`json` or `console`"""


class _LineLogger:
    """What structlog calls at the end of its processors."""

    def __init__(self, writer: LineWriter) -> None:
        self._writer = writer

    def msg(self, line: bytes | str) -> None:
        self._writer.write(line if isinstance(line, bytes) else line.encode(errors="backslashreplace"))

    debug = info = warning = error = critical = exception = msg


class _ThroughStructlog(logging.Handler):
    """Brings records of the standard library's loggers into the same lines."""

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, Any] = {}  # Any: structlog's own type of fields
        if record.exc_info:
            fields["exc_info"] = record.exc_info
        structlog.get_logger(record.name).log(record.levelno, record.getMessage(), **fields)


def configure(log_format: LogFormat, level: int, stream: BinaryIO) -> LineWriter:
    """Set up logging for the process and return the writer, for its count of drops and to close it at the end."""
    writer = LineWriter(stream)
    render = (
        structlog.processors.JSONRenderer(serializer=_json)
        if log_format == "json"
        else structlog.dev.ConsoleRenderer(colors=False)
    )
    structlog.configure(
        processors=[
            _add_time,
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: _LineLogger(writer),
        cache_logger_on_first_use=True,
    )
    root = logging.getLogger()
    root.handlers[:] = [_ThroughStructlog()]
    root.setLevel(max(level, logging.INFO))  # libraries' debug lines may hold what must not be logged
    for name in ("httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.WARNING)
    return writer


def line_logger(writer: LineWriter, log_format: LogFormat, level: int) -> Callable[[str, Fields], None]:
    """Return what writes the info line of an exchange: event and fields, which are its own from then on.

    structlog takes several times as long for a line as all that is in it; there is one an exchange, so JSON goes straight.
    """
    if level > logging.INFO:
        return lambda _, __: None
    if log_format != "json":
        log = structlog.get_logger("gateway.exchange")
        return lambda event, fields: log.info(event, **fields)
    return JsonLines(writer, time.time).write


def _json(event: EventDict, **_: object) -> bytes:
    return orjson.dumps(event, default=repr)


def _add_time(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    event["time"] = datetime.now(UTC).isoformat(timespec="milliseconds")
    return event
