"""Log lines: one event a line, from every logger, and never in the way."""

from __future__ import annotations

import io
import json
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from gateway.telemetry import logs
from gateway.telemetry.lines import JsonLines, LineWriter


@pytest.fixture(autouse=True)
def unconfigured() -> Iterator[None]:
    """Leave logging as it was for other tests."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def written(stream: io.BytesIO, writer: logs.LineWriter) -> list[dict[str, Any]]:
    writer.close()
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_one_json_object() -> None:
    stream = io.BytesIO()
    writer = logs.configure("json", logging.INFO, stream)

    structlog.get_logger("x").warning("bus lost", servers=2)
    logging.getLogger("uvicorn.error").warning("it said %s", "this")

    [ours, theirs] = written(stream, writer)
    assert (ours["event"], ours["servers"], ours["level"]) == ("bus lost", 2, "warning")
    assert (theirs["event"], theirs["level"]) == ("it said this", "warning")


def test_a_trace_stays_on_its_line() -> None:
    stream = io.BytesIO()
    writer = logs.configure("json", logging.INFO, stream)

    try:
        raise ValueError("broken")
    except ValueError:
        structlog.get_logger("x").exception("loop failed")

    [line] = written(stream, writer)
    assert "ValueError: broken" in line["exception"]


def test_the_line_of_an_exchange_has_the_same_form() -> None:
    stream = io.BytesIO()
    writer = logs.configure("json", logging.INFO, stream)

    logs.line_logger(writer, "json", logging.INFO)("exchange settled", {"status": 200})
    structlog.get_logger("x").info("exchange settled", status=200)

    [fast, slow] = written(stream, writer)
    assert fast.keys() == slow.keys()
    assert (fast["event"], fast["status"], fast["level"]) == ("exchange settled", 200, "info")
    assert len(fast["time"]) == len(slow["time"])


def test_lines_of_exchanges_tell_the_millisecond_in_which_they_were_made() -> None:
    stream = io.BytesIO()
    writer = LineWriter(stream)
    times = iter([1_764_489_599.9994, 1_764_489_599.9999, 1_764_489_600.0, 1_764_489_600.25])
    lines = JsonLines(writer, lambda: next(times))

    for _ in range(4):
        lines.write("exchange settled", {})

    assert [line["time"] for line in written(stream, writer)] == [
        "2025-11-30T07:59:59.999+00:00",
        "2025-11-30T07:59:59.999+00:00",
        "2025-11-30T08:00:00.000+00:00",
        "2025-11-30T08:00:00.250+00:00",
    ]


def test_a_quiet_level_writes_no_line_for_an_exchange() -> None:
    stream = io.BytesIO()
    writer = logs.configure("json", logging.WARNING, stream)

    logs.line_logger(writer, "json", logging.WARNING)("exchange settled", {"status": 200})

    assert written(stream, writer) == []


class Stalled(io.RawIOBase):
    """A reader that stopped reading."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def write(self, _: Any) -> int:
        self.go_on.wait(30)
        return 0


def test_a_stalled_reader_costs_lines_and_not_time() -> None:
    stalled = Stalled()
    writer = logs.LineWriter(stalled)  # type: ignore[arg-type]  # a raw stream is enough

    for _ in range(50_000):
        writer.write(b"x")

    assert writer.dropped >= 50_000 - 2 * 20_000
    stalled.go_on.set()
    writer.close()
