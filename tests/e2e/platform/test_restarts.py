"""What survives: a restart of the whole stack, and `kill -9` of the gateway and of NATS while calls are made."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL
from typing import Any

import httpx
import pytest

from tests.kit.stack import RunningStack, stack_in_a_folder

pytestmark = pytest.mark.timeout(600)

RECOVERY_SECONDS = 30.0
TEXT = "Yes."


@pytest.fixture(scope="module")
def stack() -> Iterator[RunningStack]:
    with stack_in_a_folder() as stack:
        stack.start("up")
        stack.wait_for("client = Cartesia(")
        yield stack


@dataclass
class Loop:
    """Calls one after the other until it is left, which waits until they are counted.

    completed: their request ids; successes: when they ended (monotonic); failures: how many were cut short or refused.
    """

    stack: RunningStack
    completed: list[str] = field(default_factory=list)
    successes: list[float] = field(default_factory=list)
    failures: int = 0

    def __post_init__(self) -> None:
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Loop:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        until_all_counted(self.stack, self.completed)

    def next_success(self, after: float, seconds: float) -> float:
        """Return how long after `after` (monotonic) a call that began later was completed."""
        deadline = after + seconds
        while time.monotonic() < deadline:
            if found := [ended for ended in self.successes if ended > after]:
                return found[0] - after
            time.sleep(0.05)
        raise AssertionError(f"no call was completed within {seconds} s; {self.failures} failed")

    def _run(self) -> None:
        token = self.stack.token
        body = {
            "model_id": "kokoro-82m",
            "transcript": TEXT,
            "voice": {"mode": "id", "id": "af_heart"},
            "output_format": {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24000},
        }
        url = f"http://127.0.0.1:{self.stack.ports.http}/cartesia/tts/bytes"
        while not self._stopping.is_set():
            try:
                answer = httpx.post(url, json=body, headers={"Authorization": f"Bearer {token}"}, timeout=60, trust_env=False)
                answer.raise_for_status()
            except httpx.HTTPError:
                self.failures += 1
                self._stopping.wait(0.1)
            else:
                self.completed.append(answer.headers["x-glottis-request-id"])
                self.successes.append(time.monotonic())


def until_all_counted(stack: RunningStack, keys: list[str]) -> dict[str, dict[str, Any]]:
    """Return the usage by exchange once all of these have been counted."""
    deadline = time.monotonic() + 60
    while True:
        rows = {row["exchange"]: row for row in stack.usage(("by", "exchange,outcome")) if row["exchanges"]}
        if set(keys) <= set(rows):
            return rows
        assert time.monotonic() < deadline, f"{len(set(keys) - set(rows))} of {len(keys)} calls are not counted"
        time.sleep(0.2)


def test_calls_recover_from_kill_9_of_gateway_and_nats_and_each_is_counted_once(stack: RunningStack) -> None:
    earlier = {row["exchange"] for row in stack.usage(("by", "exchange"))}
    with Loop(stack) as loop:
        loop.next_success(time.monotonic(), 60)
        for part in ("gateway", "nats"):
            killed = stack.pid(part)
            os.kill(killed, SIGKILL)
            at = time.monotonic()
            while stack.pid(part) == killed:
                assert time.monotonic() - at < RECOVERY_SECONDS
                time.sleep(0.05)
            loop.next_success(time.monotonic(), RECOVERY_SECONDS - (time.monotonic() - at))

    rows = until_all_counted(stack, loop.completed)

    assert {(rows[key]["units"]["characters"], rows[key]["exchanges"], rows[key]["outcome"]) for key in loop.completed} == {
        (len(TEXT), 1, "completed")
    }
    lost = {key: row["outcome"] for key, row in rows.items() if key not in {*loop.completed, *earlier}}
    assert set(lost.values()) <= {"gateway_lost"}
    assert len(lost) <= loop.failures


def test_a_restart_keeps_token_workspace_and_usage(stack: RunningStack) -> None:
    token, before = stack.token, stack.usage(("by", "user,model"))

    assert stack.stop() == 0
    stack.start("up")
    stack.wait_for("client = Cartesia(")

    assert stack.token == token
    assert stack.usage(("by", "user,model")) == before
    with Loop(stack) as loop:
        loop.next_success(time.monotonic(), 60)


def test_a_stack_that_was_killed_leaves_no_process_and_starts_again_with_everything(stack: RunningStack) -> None:
    parts = ["postgres", "nats", "clickhouse", "control-plane", "aggregator", "exporter", "kokoro", "gateway"]
    pids = {part: stack.pid(part) for part in parts}
    before = stack.usage(("by", "user,model"))

    stack.kill()
    deadline = time.monotonic() + 20
    while alive := [part for part, pid in pids.items() if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < deadline, alive
        time.sleep(0.05)
    stack.start("up")
    stack.wait_for("client = Cartesia(")

    assert stack.usage(("by", "user,model")) == before
    with Loop(stack) as loop:
        loop.next_success(time.monotonic(), 60)


def test_a_second_up_on_the_same_folder_is_refused(stack: RunningStack) -> None:
    with stack_in_a_folder() as second:
        second.folder.joinpath("data").symlink_to(stack.data)
        second.ports = stack.ports
        second.start("up")

        assert second.wait(60) == 2
        assert "Another `glottis up` (pid " in second.output
        assert "Traceback" not in second.output
