"""What long work shows while it goes on, and where it shows nothing."""

from __future__ import annotations

import io
import threading

import pytest

from glottis.progress import CLEAR_LINE, Progress, progress


class Terminal(io.StringIO):
    """A stream that says it is a terminal, and tells when a line was drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.is_drawn = threading.Event()

    def isatty(self) -> bool:
        return True

    def flush(self) -> None:
        self.is_drawn.set()


def test_work_of_unknown_length_shows_how_long_it_has_taken() -> None:
    assert Progress("Applying workspace.yaml").line(12.3) == "⠸ Applying workspace.yaml (12 s)"


def test_work_of_known_length_shows_a_bar() -> None:
    shown = Progress("Republishing")
    shown.note("pods that run it")
    shown.at(3, 4)
    assert shown.line(2.0) == "⠋ Republishing: pods that run it ██████████████████░░░░░░ 3 of 4 (2 s)"


def test_a_terminal_sees_the_line_and_is_left_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    with progress("Exporting the workspace", terminal):
        assert terminal.is_drawn.wait(10)
    assert " Exporting the workspace (0 s)" in terminal.getvalue()
    assert terminal.getvalue().endswith(CLEAR_LINE)


def test_a_pipe_sees_nothing() -> None:
    pipe = io.StringIO()
    with progress("Exporting the workspace", pipe) as shown:
        shown.note("half of it")
    assert pipe.getvalue() == ""
