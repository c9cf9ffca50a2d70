"""Logs: one event a line, JSON or console, written by a thread of its own so that a stalled reader stops no exchange.

`configure` is called once, by `main`. structlog and the standard library's loggers (uvicorn, nats-py, httpx) end in the
same lines. No field may hold a token, credential or transcript; `gateway.telemetry.recorder` writes the line of an exchange.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, BinaryIO, TypeAlias

import orjson
import structlog
from structlog.typing import EventDict, WrappedLogger

LogFormat: TypeAlias = str
"""`json` or `console`"""
Fields: TypeAlias = dict[str, str | int | float | bool]

_FLUSH_SECONDS = 0.05
_LINES_WAITING = 20_000


class LineWriter:
    """Takes lines from any thread at once and writes them in its own; beyond a bound it drops and counts."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._lines: deque[bytes] = deque()
        self._is_stopping = threading.Event()
        self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="log writer", daemon=True)
        self._thread.start()

    def write(self, line: bytes) -> None:
        """Take one line, without its end."""
        if len(self._lines) >= _LINES_WAITING:
            self.dropped += 1
            return
        self._lines.append(line)

    def close(self, deadline_seconds: float = 2.0) -> None:
        """Write what waits, as far as the deadline allows."""
        self._is_stopping.set()
        self._thread.join(deadline_seconds)

    def _run(self) -> None:
        # Woken by the clock and not by each line: a thread that wakes takes the interpreter from the event loop.
        while not self._is_stopping.wait(_FLUSH_SECONDS):
            self._flush()
        self._flush()

    def _flush(self) -> None:
        lines = []
        while self._lines:
            lines.append(self._lines.popleft())
        if not lines:
            return
        lines.append(b"")
        try:
            self._stream.write(b"\n".join(lines))
            self._stream.flush()
        except (OSError, ValueError):  # the reader is gone; there is nobody left to tell
            self.dropped += len(lines) - 1


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
    second, prefix = 0, ""
    begins: dict[str, bytes] = {}

    def write(event: str, fields: Fields) -> None:
        nonlocal second, prefix
        now = time.time()
        if int(now) != second:
            second = int(now)
            prefix = time.strftime("%Y-%m-%dT%H:%M:%S.", time.gmtime(second))
        milliseconds = int((now - second) * 1000)
        begin = begins.get(event)
        if begin is None:
            begin = begins[event] = orjson.dumps({"event": event})[:-1] + b","
        fields["level"] = "info"
        fields["time"] = f"{prefix}{milliseconds:03d}+00:00"
        writer.write(begin + orjson.dumps(fields)[1:])

    return write


def _json(event: EventDict, **_: object) -> bytes:
    return orjson.dumps(event, default=repr)


def _add_time(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    event["time"] = datetime.now(UTC).isoformat(timespec="milliseconds")
    return event
