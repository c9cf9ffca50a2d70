"""Start children in order, keep them alive, stop them in reverse order. Knows processes, not what they are for.

A `Part` says how one child is prepared, started and found ready. A part that ends by itself is started again, later and
later, with a line that everyone sees; parts that were ready before keep serving meanwhile. Nothing outlives the
supervisor: each child is a session of its own that is ended as a whole, and dies with us if we are killed (see
`processes.py`). Output goes to `console.py`; what the parts are is in `stack.py`.
"""

from __future__ import annotations

import asyncio
import collections
import os
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from glottis.console import Console
from glottis.errors import SetupError
from glottis.ports import listens_itself
from glottis.processes import Command
from glottis.tasks import Tasks

_READY_POLL_SECONDS: Final = 0.05
_FIRST_PAUSE_SECONDS: Final = 0.5
_LONGEST_PAUSE_SECONDS: Final = 15.0
# A part that ran for so long is sound again: its next pause is a short one.
_SOUND_AFTER_SECONDS: Final = 60.0
_LAST_LINES: Final = 15
_LONGEST_LINE_BYTES: Final = 64 * 1024
_LAST_OUTPUT_SECONDS: Final = 2.0
# SIGHUP: the terminal was closed.
_STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def _nothing() -> None:
    pass


async def _at_once() -> bool:
    return True


def _says_nothing(_: str) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One child.

    prepare: run before each start; is_ready: asked until it says yes; once_ready: run after that, each time.
    port: what `is_ready` asks. A yes counts only where the child itself listens there, and not a program that came first.
    runs_once: a job (migrations) that must end with status 0 before the next part starts.
    starts_first: started before everything else, waited for at its place: it needs nobody and takes long.
    progress: what a line of its output says to people who wait for it, None for most lines.
    stuck: what a line of its output says it cannot do until it is started anew, None for most lines; it is ended then.
    ready_seconds: how long it may take to be ready; stop_seconds: how long it may drain.
    note: what it is doing while it starts, for people who wait.
    """

    name: str
    command: Command
    prepare: Callable[[], None] = lambda: None
    is_ready: Callable[[], Awaitable[bool]] = _at_once
    port: int | None = None
    once_ready: Callable[[], Awaitable[None]] = _nothing
    runs_once: bool = False
    starts_first: bool = False
    progress: Callable[[str], str | None] = _says_nothing
    stuck: Callable[[str], str | None] = _says_nothing
    ready_seconds: float = 60.0
    stop_seconds: float = 15.0
    note: str = ""


@dataclass(slots=True)
class _Child:
    part: Part
    stop_signal: int = signal.SIGTERM
    process: asyncio.subprocess.Process | None = None
    last_lines: collections.deque[str] = field(default_factory=lambda: collections.deque(maxlen=_LAST_LINES))


class Supervisor:
    """Runs the parts. One `run` a supervisor."""

    def __init__(self, parts: Sequence[Part], console: Console) -> None:
        self._children = [_Child(part) for part in parts]
        self._console = console
        self._stopping = asyncio.Event()
        self._insisting = asyncio.Event()
        self._failure: BaseException | None = None
        self._keepers = Tasks(self._fail)
        # Children write while they drain: their output is read until they are gone.
        self._readers = Tasks(self._fail)

    async def run(self, once_up: Callable[[], Awaitable[None]]) -> None:
        """Start everything, await `once_up`, and stop: when `once_up` returns, or at a signal.

        Raises SetupError if a part could not be started, and whatever `once_up` raises, after stopping what runs. A
        second SIGINT or SIGTERM cuts the drain short.
        """
        loop = asyncio.get_running_loop()
        for number in _STOP_SIGNALS:
            loop.add_signal_handler(number, self._on_signal)
        try:
            self._keepers.start(self._start_all(once_up), "start")
            await self._stopping.wait()
        finally:
            self._stopping.set()
            await self._keepers.cancel()
            await self._stop_all()
            await self._readers.finish(_LAST_OUTPUT_SECONDS)
            for number in _STOP_SIGNALS:
                loop.remove_signal_handler(number)
        if self._failure is not None:
            raise self._failure

    def _on_signal(self) -> None:
        if self._stopping.is_set():
            self._insisting.set()
        self._stopping.set()

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._stopping.set()

    async def _start_all(self, once_up: Callable[[], Awaitable[None]]) -> None:
        early = {child.part.name: await self._prepare_and_spawn(child) for child in self._children if child.part.starts_first}
        for child in self._children:
            await self._start(child, early.get(child.part.name))
            if not child.part.runs_once:
                self._keepers.start(self._keep_alive(child), f"keep {child.part.name} alive")
        await once_up()
        self._stopping.set()

    async def _start(self, child: _Child, process: asyncio.subprocess.Process | None = None) -> None:
        # process: one that was started before its turn.
        part = child.part
        began = time.monotonic()
        with self._console.waiting_for(part.name, part.note):
            process = process or await self._prepare_and_spawn(child)
            if part.runs_once:
                status = await process.wait()
                if status != 0:
                    raise self._did_not_start(child, f"ended with {_ending(status)}")
            else:
                await self._until_ready(child, process, began)
            await part.once_ready()
        seconds = time.monotonic() - began
        self._console.event(
            part.name, f"done in {seconds:.1f} s" if part.runs_once else f"ready in {seconds:.1f} s, pid {process.pid}"
        )

    async def _prepare_and_spawn(self, child: _Child) -> asyncio.subprocess.Process:
        await asyncio.to_thread(child.part.prepare)
        return await self._spawn(child)

    async def _spawn(self, child: _Child) -> asyncio.subprocess.Process:
        command = child.part.command
        child.stop_signal = command.stop_signal
        try:
            child.process = await asyncio.create_subprocess_exec(
                *command.arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                **command.start_options(),
            )
        except OSError as fault:
            raise SetupError(
                f"Cannot start {child.part.name} ({command.arguments[0]}): {fault.strerror}.",
                "Install Glottis anew: make clean install",
            ) from fault
        self._readers.start(self._pass_on_output(child, child.process), f"output of {child.part.name}")
        return child.process

    async def _until_ready(self, child: _Child, process: asyncio.subprocess.Process, began: float) -> None:
        port = child.part.port
        while not await child.part.is_ready() or (port is not None and listens_itself(process.pid, port) is False):
            if process.returncode is not None:
                raise self._did_not_start(child, f"ended with {_ending(process.returncode)} while it started")
            if time.monotonic() - began > child.part.ready_seconds:
                raise self._did_not_start(child, f"was not ready within {child.part.ready_seconds:.0f} s")
            await asyncio.sleep(_READY_POLL_SECONDS)

    def _did_not_start(self, child: _Child, how: str) -> SetupError:
        said = "".join(f"\n    {line}" for line in child.last_lines) or " nothing."
        return SetupError(
            f"{child.part.name} {how}.", f"It said last:{said}\n  All of it: {self._console.log_file(child.part.name)}"
        )

    async def _keep_alive(self, child: _Child) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while child.process is not None:
            began = time.monotonic()
            status = await child.process.wait()
            _end_session(child.process.pid)
            if time.monotonic() - began > _SOUND_AFTER_SECONDS:
                pause = _FIRST_PAUSE_SECONDS
            self._console.event(child.part.name, f"ended with {_ending(status)}; starting it again in {pause:g} s", is_bad=True)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
            try:
                await self._start(child)
            except SetupError as error:
                self._console.event(child.part.name, error.what, is_bad=True)
                _end_session(child.process.pid)
            except Exception as error:  # whatever `once_ready` met: this loop must go on, and tries again
                self._console.event(child.part.name, f"could not be taken up again: {type(error).__name__}", is_bad=True)
                _end_session(child.process.pid)

    async def _pass_on_output(self, child: _Child, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        rest = b""
        while piece := await process.stdout.read(_LONGEST_LINE_BYTES):
            *lines, rest = (rest + piece).split(b"\n")
            if len(rest) > _LONGEST_LINE_BYTES:
                lines, rest = [*lines, rest], b""
            for line in lines:
                self._output(child, process, line)
        if rest:
            self._output(child, process, rest)

    def _output(self, child: _Child, process: asyncio.subprocess.Process, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip("\r")
        child.last_lines.append(text)
        self._console.output(child.part.name, text)
        if said := child.part.progress(text):
            self._console.progress(child.part.name, said)
        if (said := child.part.stuck(text)) and process.returncode is None:
            self._console.event(child.part.name, said, is_bad=True)
            _signal(process.pid, child.stop_signal)

    async def _stop_all(self) -> None:
        for child in reversed(self._children):
            process = child.process
            if process is None or process.returncode is not None:
                continue
            with self._console.waiting_for(child.part.name, "stopping", is_brief=True):
                _signal(process.pid, child.stop_signal)
                await self._ended_or_insisted(process, child.part.stop_seconds)
                if process.returncode is None:
                    why = "was not waited for" if self._insisting.is_set() else "did not stop in time"
                    self._console.event(child.part.name, f"{why} and was killed", is_bad=True)
                _end_session(process.pid)
                await process.wait()
            self._console.event(child.part.name, f"stopped with {_ending(process.returncode or 0)}")

    async def _ended_or_insisted(self, process: asyncio.subprocess.Process, seconds: float) -> None:
        waits = [asyncio.ensure_future(process.wait()), asyncio.ensure_future(self._insisting.wait())]
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()


def _ending(status: int) -> str:
    if status >= 0:
        return f"status {status}"
    return f"signal {-status} ({signal.Signals(-status).name})"


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def _end_session(pid: int) -> None:
    # The child leads its own group: what it started and left behind goes with it.
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
