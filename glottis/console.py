"""What the operator sees of the children: one line each, prefixed; and a log file each, whatever is shown.

A terminal that is paused (Ctrl-S, a pager) must not stop the children by a full pipe: lines are printed by a thread
from a bounded queue, and what does not fit is counted, not waited for. Colour and a moving progress line only on a
terminal.
"""

from __future__ import annotations

import logging
import logging.handlers
import queue
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TextIO

from glottis.progress import CLEAR_LINE, SPIN_SECONDS, SPINNER

_LOG_FILE_BYTES: Final = 5 * 1024 * 1024
_QUEUED_LINES: Final = 2000
_COLOURS: Final = (36, 33, 35, 32, 34, 96, 93, 95, 92, 94)
_RED: Final = 31


class Console:
    """names: of the parts, for the prefix's width and colours; shows_output: whether children's lines are printed.

    log_folder: gets `<name>.log` for each part, rotated. stream: for what happens; results: for what was asked for.
    """

    def __init__(
        self,
        names: list[str],
        log_folder: Path,
        *,
        shows_output: bool,
        environ: Mapping[str, str],
        stream: TextIO = sys.stderr,
        results: TextIO = sys.stdout,
    ) -> None:
        self._stream = stream
        self._results = results
        self._is_terminal = stream.isatty() and environ.get("TERM") != "dumb"
        self._has_colour = self._is_terminal and not environ.get("NO_COLOR")
        self._shows_output = shows_output
        self._width = max(map(len, names), default=0)
        self._colours = {name: _COLOURS[place % len(_COLOURS)] for place, name in enumerate(names)}
        log_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._log_folder = log_folder
        self._logs = {name: _open_log(self.log_file(name)) for name in names}
        self._lines: queue.Queue[tuple[TextIO, str] | None] = queue.Queue(_QUEUED_LINES)
        self._left_out = 0
        self._progress = ""
        self._printer = threading.Thread(target=self._print_lines, name="console", daemon=True)
        self._printer.start()

    @property
    def is_for_a_person(self) -> bool:
        """Whether what was asked for is shown on a terminal, not kept in a file or a journal."""
        return self._results.isatty()

    def log_file(self, name: str) -> Path:
        """Return the file that holds everything a part has said."""
        return self._log_folder / f"{name}.log"

    def output(self, name: str, line: str) -> None:
        """A line that a child wrote."""
        self._logs[name].info("%s", line)
        if self._shows_output:
            self._put(f"{self._prefix(name)} {line}")

    def event(self, name: str, text: str, *, is_bad: bool = False) -> None:
        """Something that the supervisor says of a part."""
        self._logs[name].info("--- %s", text)
        self._put(f"{self._prefix(name)} {self._painted(text, _RED) if is_bad else text}")

    def progress(self, name: str, text: str) -> None:
        """What a line of a child's output means; for those who do not see the line itself."""
        if not self._shows_output:
            self._put(f"{self._prefix(name)} {text}")

    def say(self, text: str) -> None:
        """Something that the operator asked for: an address, a table. Waits until there is room for it."""
        self._lines.put((self._results, text))

    @contextmanager
    def waiting_for(self, name: str, note: str, *, is_brief: bool = False) -> Iterator[None]:
        """Show that `name` is being waited for; note: what it does, "" for nothing worth saying.

        is_brief: not worth a line where there is no moving one.
        """
        if self._is_terminal:
            self._progress = f"{name}: {note}" if note else name
        elif note and not is_brief:
            self._put(f"{self._prefix(name)} {note} ...")
        try:
            yield
        finally:
            self._progress = ""

    def close(self) -> None:
        """Print what is queued and close the log files."""
        self._lines.put(None)
        self._printer.join(timeout=5)
        for log in self._logs.values():
            for handler in log.handlers:
                handler.close()

    def _prefix(self, name: str) -> str:
        return self._painted(f"{name:{self._width}} |", self._colours.get(name, _COLOURS[0]))

    def _painted(self, text: str, colour: int) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self._has_colour else text

    def _put(self, line: str) -> None:
        try:
            self._lines.put_nowait((self._stream, line))
        except queue.Full:
            self._left_out += 1

    def _print_lines(self) -> None:
        # The only place that writes to the streams.
        began = time.monotonic()
        is_progress_shown = False
        while True:
            try:
                item = self._lines.get(timeout=SPIN_SECONDS if self._is_terminal else None)
            except queue.Empty:
                is_progress_shown = self._spin(time.monotonic() - began, is_progress_shown)
                continue
            if is_progress_shown:
                _write(self._stream, CLEAR_LINE)
                is_progress_shown = False
            if item is None:
                return
            left_out, self._left_out = self._left_out, 0
            if left_out:
                _write(self._stream, f"... {left_out} lines left out here; they are in {self._log_folder}\n")
            stream, text = item
            _write(stream, f"{text}\n")

    def _spin(self, seconds: float, is_shown: bool) -> bool:
        progress = self._progress
        if not progress:
            if is_shown:
                _write(self._stream, CLEAR_LINE)
            return False
        wheel = SPINNER[int(seconds / SPIN_SECONDS) % len(SPINNER)]
        line = f"{wheel} {progress}"[: shutil.get_terminal_size().columns - 1]
        _write(self._stream, f"{CLEAR_LINE}{line}")
        return True


def _write(stream: TextIO, text: str) -> None:
    # A stream that is gone (a closed pipe) is nobody's loss.
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError):
        pass


class _LogFile(logging.handlers.RotatingFileHandler):
    """A log file that a full disk does not turn into a trace on the terminal: the parts themselves say that it is full."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # the base class's name
        del record


def _open_log(file: Path) -> logging.Logger:
    log = logging.Logger(f"part {file.stem}", logging.INFO)
    handler = _LogFile(file, maxBytes=_LOG_FILE_BYTES, backupCount=1, encoding="utf-8", errors="replace")
    handler.setFormatter(logging.Formatter("%(message)s"))
    log.addHandler(handler)
    return log
