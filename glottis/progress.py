"""What long work shows while it goes on: a moving line on a terminal's standard error, and nothing anywhere else.

A script, a log or a pipe sees the result alone. Where the share that is done is known there is a bar; where it is not,
there is how long it has taken so far, never a guess.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TextIO

SPINNER: Final = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
SPIN_SECONDS: Final = 0.1
CLEAR_LINE: Final = "\r\x1b[2K"
_BAR_WIDTH: Final = 24


class Progress:
    """What is shown of one piece of work; whoever does it tells how far it is."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._done = 0
        self._total = 0
        self._note = ""

    def at(self, done: int, total: int) -> None:
        """Say that so much is done; total: 0 if it is not known."""
        self._done, self._total = done, total

    def note(self, text: str) -> None:
        """Say what is being done now."""
        self._note = text

    def line(self, seconds: float) -> str:
        """Return the line after so many seconds."""
        wheel = SPINNER[int(seconds / SPIN_SECONDS) % len(SPINNER)]
        note = f": {self._note}" if self._note else ""
        if not self._total:
            return f"{wheel} {self._what}{note} ({seconds:.0f} s)"
        filled = min(_BAR_WIDTH, _BAR_WIDTH * self._done // self._total)
        bar = "█" * filled + "░" * (_BAR_WIDTH - filled)
        return f"{wheel} {self._what}{note} {bar} {self._done} of {self._total} ({seconds:.0f} s)"


@contextmanager
def progress(what: str, stream: TextIO | None = None) -> Iterator[Progress]:
    """Show that work goes on until the end of the block. stream: standard error, if none is given."""
    shown = Progress(what)
    stream = sys.stderr if stream is None else stream
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        yield shown
        return
    is_done = threading.Event()

    def draw() -> None:
        began = time.monotonic()
        while not is_done.wait(SPIN_SECONDS):
            line = shown.line(time.monotonic() - began)[: shutil.get_terminal_size().columns - 1]
            stream.write(f"{CLEAR_LINE}{line}")
            stream.flush()
        stream.write(CLEAR_LINE)
        stream.flush()

    drawing = threading.Thread(target=draw, name="progress", daemon=True)
    drawing.start()
    try:
        yield shown
    finally:
        is_done.set()
        drawing.join()
