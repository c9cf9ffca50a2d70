"""Lines of the log on their way out: the thread that writes them, and the line of an exchange, made without structlog.

Knows nothing of levels and loggers; both are part of the hot path (docs/adr/0075). Read next: `gateway.telemetry.logs`.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import BinaryIO, Final, TypeAlias

import orjson

Fields: TypeAlias = dict[str, str | int | float | bool]

_FLUSH_SECONDS: Final = 0.05
_LINES_WAITING: Final = 20_000


class LineWriter:
    """Takes lines from any thread at once and writes them in its own; beyond a bound it drops and counts."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._lines: deque[bytes] = deque()
        self._is_stopping = threading.Event()
        self.dropped = 0
        self._writing = threading.Thread(target=self._run, name="log writer", daemon=True)
        self._writing.start()

    def write(self, line: bytes) -> None:
        """Take one line, without its end."""
        if len(self._lines) >= _LINES_WAITING:
            self.dropped += 1
            return
        self._lines.append(line)

    def close(self, deadline_seconds: float = 2.0) -> None:
        """Write what waits, as far as the deadline allows."""
        self._is_stopping.set()
        self._writing.join(deadline_seconds)

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


class JsonLines:
    """Writes info lines as JSON. clock: Unix seconds.

    structlog takes several times as long for a line as all that is in it; there is one an exchange.
    """

    def __init__(self, writer: LineWriter, clock: Callable[[], float]) -> None:
        self._writer = writer
        self._clock = clock
        self._dumps: Callable[[Fields], bytes] = orjson.dumps
        self._second = -1
        self._until_second = ""
        self._ms = -1
        self._time = ""
        self._begins: dict[str, bytes] = {}

    def write(self, event: str, fields: Fields) -> None:
        """Write one line; the fields are its own from then on."""
        now_ms = int(self._clock() * 1000)
        if now_ms != self._ms:  # under load many lines are made in one millisecond
            self._ms = now_ms
            second = now_ms // 1000
            if second != self._second:
                self._second = second
                self._until_second = time.strftime("%Y-%m-%dT%H:%M:%S.", time.gmtime(second))
            self._time = f"{self._until_second}{now_ms % 1000:03d}+00:00"
        begin = self._begins.get(event)
        if begin is None:
            begin = self._begins[event] = orjson.dumps({"event": event})[:-1] + b","
        fields["level"] = "info"
        fields["time"] = self._time
        self._writer.write(begin + self._dumps(fields)[1:])
