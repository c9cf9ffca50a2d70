"""What the operator sees, on a pseudo-terminal and on a pipe."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from glottis.console import Console


class Terminal:
    """A pseudo-terminal; `read_until` gives what was written to it."""

    def __init__(self) -> None:
        try:
            self._master, slave = pty.openpty()
        except OSError as fault:
            pytest.skip(f"this machine gives no pseudo-terminals: {fault}")
        self.stream = os.fdopen(slave, "w")
        self._seen = ""

    def read_until(self, text: str) -> str:
        deadline = time.monotonic() + 10
        os.set_blocking(self._master, False)
        while text not in self._seen:
            assert time.monotonic() < deadline, self._seen
            try:
                self._seen += os.read(self._master, 65536).decode()
            except BlockingIOError:
                time.sleep(0.01)
        return self._seen

    def close(self) -> None:
        os.close(self._master)
        with contextlib.suppress(OSError):  # what a paused terminal did not take
            self.stream.close()


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal()
    yield terminal
    terminal.close()


def console_on(stream: TextIO, folder: Path, **environ: str) -> Console:
    return Console(["one", "longer"], folder, shows_output=True, environ=environ, stream=stream, results=stream)


def test_what_is_asked_for_is_for_a_person_only_on_a_terminal(terminal: Terminal, tmp_path: Path) -> None:
    on_terminal = console_on(terminal.stream, tmp_path)
    with (tmp_path / "journal").open("w") as file:
        in_a_file = console_on(file, tmp_path)

        assert on_terminal.is_for_a_person
        assert not in_a_file.is_for_a_person
        in_a_file.close()
    on_terminal.close()


def test_a_terminal_gets_colour_and_a_moving_line_that_goes_away(terminal: Terminal, tmp_path: Path) -> None:
    console = console_on(terminal.stream, tmp_path)

    with console.waiting_for("one", "loading"):
        terminal.read_until("one: loading")
    console.output("one", "hello")
    seen = terminal.read_until("hello")
    console.close()

    assert "\x1b[36mone    |\x1b[0m hello" in seen
    assert "one: loading\r\x1b[2K" in seen


def test_no_colour_is_asked_for_with_no_color(terminal: Terminal, tmp_path: Path) -> None:
    console = console_on(terminal.stream, tmp_path, NO_COLOR="1")

    console.output("one", "hello")
    seen = terminal.read_until("hello")
    console.close()

    assert "one    | hello" in seen


def test_a_pipe_gets_plain_lines(tmp_path: Path) -> None:
    screen = io.StringIO()
    console = console_on(screen, tmp_path)

    with console.waiting_for("longer", "loading"):
        console.event("one", "ended", is_bad=True)
    console.close()

    assert screen.getvalue() == "longer | loading ...\none    | ended\n"


def test_a_terminal_that_is_paused_holds_nobody_up_and_loses_no_line_of_the_logs(terminal: Terminal, tmp_path: Path) -> None:
    console = console_on(terminal.stream, tmp_path)

    def write_much() -> None:
        for number in range(20_000):
            console.output("one", f"line {number}")

    writer = threading.Thread(target=write_much)
    writer.start()
    writer.join(timeout=20)

    assert not writer.is_alive()
    assert (tmp_path / "one.log").read_text().endswith("line 19999\n")
    assert "lines left out here" in terminal.read_until("lines left out here")
