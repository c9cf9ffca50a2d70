"""Child processes of the tests: started from the same `Command`s that `glottis up` starts, ended for certain.

Synchronous, so that session fixtures can use it whatever event loop a test runs on. Waiting is always for a fact with
a deadline. Servers for whole sessions are in `services.py`.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from signal import Signals
from types import TracebackType

from glottis.processes import Command


def free_port() -> int:
    """Return a TCP port on loopback that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Child:
    """One running `Command`, its output in a file. A context manager: leaving it ends the process."""

    def __init__(self, command: Command, log: Path) -> None:
        self._command = command
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Child:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def output(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def start(self) -> None:
        assert self._process is None, "still running"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command.arguments,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                **self._command.start_options(),
            )

    def stop(self, deadline_seconds: float = 20.0) -> int:
        """Ask for a clean end, insist at the deadline; return the exit status (0 if it was not running)."""
        if self._process is None:
            return 0
        process, self._process = self._process, None
        process.send_signal(self._command.stop_signal)
        try:
            return process.wait(deadline_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def wait(self, deadline_seconds: float) -> int:
        """Return the exit status of a process that ends by itself; fail at the deadline."""
        assert self._process is not None
        status = self._process.wait(deadline_seconds)
        self._process = None
        return status

    def kill(self) -> None:
        """End it as `kill -9` does."""
        assert self._process is not None
        process, self._process = self._process, None
        process.send_signal(Signals.SIGKILL)
        process.wait()

    def wait_until(self, is_ready: Callable[[], Awaitable[bool]], deadline_seconds: float = 30.0) -> None:
        """Return when `is_ready` says so; fail with the process's output if it ends or takes too long.

        Only outside a running event loop (fixtures of a session); inside one, await `until` yourself.
        """
        asyncio.run(self.until(is_ready, deadline_seconds))

    async def until(self, is_ready: Callable[[], Awaitable[bool]], deadline_seconds: float = 30.0) -> None:
        deadline = time.monotonic() + deadline_seconds
        while not await is_ready():
            assert self._process is not None
            status = self._process.poll()
            assert status is None, f"{self._command.arguments[0]} ended with status {status}:\n{self.output[-3000:]}"
            assert time.monotonic() < deadline, f"{self._command.arguments[0]} is not ready:\n{self.output[-3000:]}"
            await asyncio.sleep(0.02)
