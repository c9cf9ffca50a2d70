"""The supervisor over real child programs: order, readiness, restarts, the clean end and the violent one."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from glottis.console import Console
from glottis.errors import SetupError
from glottis.ports import listens_itself
from glottis.processes import Command
from glottis.supervisor import Part, Supervisor
from tests.kit.processes import free_port

# Notes that it runs, then what ends it; `{name}.pid` is its readiness.
PROGRAM = """
import os, pathlib, signal, sys, time
name, journal = sys.argv[1], pathlib.Path(sys.argv[2])
def note(text):
    with journal.open("a") as file:
        file.write(f"{name} {text}\\n")
def leave(number, frame):
    note("stops")
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
note("starts")
pathlib.Path(f"{journal}.{name}").write_text(str(os.getpid()))
print(f"{name} speaks", flush=True)
while True:
    time.sleep(60)
"""


class Stage:
    """A folder where children note down what happens to them, and a supervisor over them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.journal = folder / "journal"
        self.screen = io.StringIO()

    def program(self, name: str, text: str = PROGRAM) -> Command:
        file = self.folder / f"{name}.py"
        file.write_text(textwrap.dedent(text))
        return Command(arguments=(sys.executable, str(file), name, str(self.journal)), environment={}, folder=self.folder)

    def part(self, name: str, text: str = PROGRAM, **options: object) -> Part:
        async def is_ready() -> bool:
            return self.pid(name) is not None

        return Part(**{"name": name, "command": self.program(name, text), "is_ready": is_ready, **options})  # type: ignore[arg-type]  # the options of one test

    def pid(self, name: str) -> int | None:
        file = Path(f"{self.journal}.{name}")
        text = file.read_text() if file.exists() else ""
        return int(text) if text else None

    @property
    def notes(self) -> list[str]:
        return self.journal.read_text().splitlines() if self.journal.exists() else []

    async def run(self, *parts: Part, once_up: Callable[[], Awaitable[None]], shows_output: bool = True) -> None:
        console = Console(
            [part.name for part in parts],
            self.folder / "logs",
            shows_output=shows_output,
            environ={},
            stream=self.screen,
        )
        try:
            await Supervisor(parts, console).run(once_up)
        finally:
            console.close()


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


async def nothing() -> None:
    pass


async def until(fact: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


async def test_parts_start_in_order_and_stop_in_reverse(stage: Stage) -> None:
    await stage.run(stage.part("one"), stage.part("two"), stage.part("three"), once_up=nothing)

    assert stage.notes == ["one starts", "two starts", "three starts", "three stops", "two stops", "one stops"]


async def test_a_part_starts_only_when_the_one_before_is_ready(stage: Stage) -> None:
    asked: list[list[str]] = []

    async def ready_the_third_time() -> bool:
        await until(lambda: stage.notes)
        asked.append(stage.notes)
        return len(asked) == 3

    await stage.run(stage.part("one", is_ready=ready_the_third_time), stage.part("two"), once_up=nothing)

    assert asked == [["one starts"]] * 3


async def test_a_job_runs_to_its_end_before_the_next_part(stage: Stage) -> None:
    job = stage.part("job", "import pathlib, sys; pathlib.Path(sys.argv[2]).write_text('job ran\\n')", runs_once=True)

    await stage.run(job, stage.part("server"), once_up=nothing)

    assert stage.notes == ["job ran", "server starts", "server stops"]


async def test_a_job_that_fails_stops_what_runs_and_says_why(stage: Stage) -> None:
    job = stage.part("job", "import sys; print('no such table'); sys.exit(3)", runs_once=True)

    with pytest.raises(SetupError) as failure:
        await stage.run(stage.part("server"), job, once_up=nothing)

    assert failure.value.what == "job ended with status 3."
    assert "no such table" in failure.value.to_do
    assert stage.notes == ["server starts", "server stops"]


async def test_a_part_that_ends_while_it_starts_is_told_with_its_last_words(stage: Stage) -> None:
    async def never() -> bool:
        return False

    part = stage.part("server", "import sys; sys.exit('the port is taken')", is_ready=never)

    with pytest.raises(SetupError) as failure:
        await stage.run(part, once_up=nothing)

    assert failure.value.what == "server ended with status 1 while it started."
    assert "the port is taken" in failure.value.to_do
    assert str(stage.folder / "logs" / "server.log") in failure.value.to_do


async def test_a_part_that_is_never_ready_is_given_up_and_ended(stage: Stage) -> None:
    async def never() -> bool:
        return False

    with pytest.raises(SetupError, match="server was not ready within 0 s"):
        await stage.run(stage.part("server", is_ready=never, ready_seconds=0.3), once_up=nothing)

    assert [note for note in stage.notes if note == "server stops"] == ["server stops"]


async def test_an_answer_from_a_program_that_came_first_is_not_taken_for_the_parts(stage: Stage) -> None:
    asked: list[int] = []

    async def somebody_answers() -> bool:
        asked.append(1)
        return True

    tries_and_ends = """
        import socket, sys
        try:
            socket.create_server(("127.0.0.1", int(sys.argv[3])))
        except OSError:
            sys.exit("the port is taken")
    """
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        port = foreign.getsockname()[1]
        command = stage.program("server", tries_and_ends)
        command = replace(command, arguments=(*command.arguments, str(port)))
        with pytest.raises(SetupError, match="server ended with status 1 while it started"):
            await stage.run(Part(name="server", command=command, is_ready=somebody_answers, port=port), once_up=nothing)

    assert asked


async def test_a_part_that_listens_itself_is_ready(stage: Stage) -> None:
    listens = """
        import socket, sys, time
        server = socket.create_server(("127.0.0.1", int(sys.argv[3])))
        while True:
            time.sleep(60)
    """
    port = free_port()
    command = stage.program("server", listens)
    command = replace(command, arguments=(*command.arguments, str(port)))

    async def it_answers() -> bool:
        return listens_itself(os.getpid(), port) is not None

    await stage.run(Part(name="server", command=command, is_ready=it_answers, port=port), once_up=nothing)

    assert "server | ready in" in stage.screen.getvalue()


async def test_a_killed_part_is_started_again_and_its_preparation_repeated(stage: Stage) -> None:
    prepared: list[str] = []

    async def kill_it_once() -> None:
        first = stage.pid("server")
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await until(lambda: stage.pid("server") != first)

    await stage.run(stage.part("server", prepare=lambda: prepared.append("x")), once_up=kill_it_once)

    assert stage.notes == ["server starts", "server starts", "server stops"]
    assert prepared == ["x", "x"]
    assert "ended with signal 9 (SIGKILL); starting it again in 0.5 s" in stage.screen.getvalue()


async def test_a_part_that_says_that_it_is_stuck_is_ended_and_started_again(stage: Stage) -> None:
    stuck_once = """
        import os, pathlib, signal, sys, time
        starts = pathlib.Path(sys.argv[2] + ".starts")
        starts.write_text(starts.read_text() + "x" if starts.exists() else "x")
        pathlib.Path(sys.argv[2] + ".server").write_text(str(os.getpid()))
        if len(starts.read_text()) == 1:
            print("the disk is full", flush=True)
        while True:
            time.sleep(60)
    """

    async def until_started_again() -> None:
        await until(lambda: (stage.folder / "journal.starts").read_text() == "xx")

    await stage.run(
        stage.part("server", stuck_once, stuck=lambda line: "cannot write" if line == "the disk is full" else None),
        once_up=until_started_again,
    )

    assert "server | cannot write\n" in stage.screen.getvalue()


async def test_the_other_parts_keep_running_while_one_is_started_again(stage: Stage) -> None:
    async def kill_it_once() -> None:
        other, first = stage.pid("other"), stage.pid("server")
        assert other is not None
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await until(lambda: stage.pid("server") != first)
        assert stage.pid("other") == other

    await stage.run(stage.part("other"), stage.part("server"), once_up=kill_it_once)

    assert stage.notes.count("other starts") == 1


async def test_a_part_that_does_not_stop_is_killed_with_what_it_started(stage: Stage) -> None:
    stubborn = """
        import os, pathlib, signal, subprocess, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        pathlib.Path(sys.argv[2] + ".helper").write_text(str(helper.pid))
        pathlib.Path(sys.argv[2] + ".server").write_text(str(os.getpid()))
        while True:
            time.sleep(60)
    """

    await stage.run(stage.part("server", stubborn, stop_seconds=0.3), once_up=nothing)

    server, helper = stage.pid("server"), stage.pid("helper")
    assert server is not None
    assert helper is not None
    await until(lambda: not is_alive(server) and not is_alive(helper))
    assert "did not stop in time and was killed" in stage.screen.getvalue()


async def test_a_second_signal_does_not_wait_for_a_part_that_drains(stage: Stage) -> None:
    drains = """
        import os, pathlib, signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: pathlib.Path(sys.argv[2] + ".drains").write_text("1"))
        pathlib.Path(sys.argv[2] + ".server").write_text(str(os.getpid()))
        while True:
            time.sleep(60)
    """

    async def insist() -> None:
        await until(lambda: stage.pid("server"))
        os.kill(os.getpid(), signal.SIGINT)
        await until(lambda: stage.pid("drains"))
        os.kill(os.getpid(), signal.SIGINT)

    async def stay() -> None:
        await asyncio.Event().wait()

    insisting = asyncio.ensure_future(insist())
    await stage.run(stage.part("server", drains, stop_seconds=600), once_up=stay)
    await insisting

    assert "was not waited for and was killed" in stage.screen.getvalue()


async def test_output_is_shown_with_the_parts_name_and_kept_in_its_file(stage: Stage) -> None:
    async def until_spoken() -> None:
        await until(lambda: "two speaks" in (stage.folder / "logs" / "two.log").read_text())

    await stage.run(stage.part("one"), stage.part("two"), once_up=until_spoken)

    assert "one | one speaks\n" in stage.screen.getvalue()
    assert "two speaks\n" in (stage.folder / "logs" / "two.log").read_text()


async def test_output_stays_in_the_files_when_it_is_not_shown(stage: Stage) -> None:
    async def until_spoken() -> None:
        await until(lambda: "one speaks" in (stage.folder / "logs" / "one.log").read_text())

    await stage.run(stage.part("one"), once_up=until_spoken, shows_output=False)

    assert "one speaks" not in stage.screen.getvalue()


async def test_a_part_that_floods_its_output_is_not_held_up(stage: Stage) -> None:
    flood = """
        import pathlib, sys
        for number in range(60000):
            print("line", number)
        print("x" * 300000)
        sys.stdout.flush()
        pathlib.Path(sys.argv[2] + ".flood").write_text("1")
        import time
        time.sleep(600)
    """

    await stage.run(stage.part("flood", flood), once_up=nothing, shows_output=False)

    assert (stage.folder / "logs" / "flood.log").stat().st_size < 6 * 1024 * 1024


async def test_a_part_that_starts_first_is_waited_for_at_its_place(stage: Stage) -> None:
    async def slow_is_there() -> bool:
        return stage.pid("slow") is not None

    await stage.run(
        stage.part("one", is_ready=slow_is_there),
        stage.part("two"),
        stage.part("slow", starts_first=True),
        once_up=nothing,
    )

    assert [note for note in stage.notes if note.endswith("stops")] == ["slow stops", "two stops", "one stops"]


async def test_a_part_that_started_first_and_failed_is_told_at_its_place(stage: Stage) -> None:
    async def never() -> bool:
        return False

    slow = stage.part("slow", "import sys; sys.exit('no model')", starts_first=True, is_ready=never)

    with pytest.raises(SetupError, match="slow ended with status 1 while it started"):
        await stage.run(stage.part("one"), slow, once_up=nothing)

    assert stage.notes == ["one starts", "one stops"]


async def test_progress_is_shown_to_those_who_do_not_see_the_output(stage: Stage) -> None:
    part = stage.part("one", progress=lambda line: "half way" if line == "one speaks" else None)

    async def until_told() -> None:
        await until(lambda: "half way" in stage.screen.getvalue())

    await stage.run(part, once_up=until_told, shows_output=False)

    assert "one | half way\n" in stage.screen.getvalue()


async def test_what_the_work_raises_stops_everything_and_comes_out(stage: Stage) -> None:
    async def fail() -> None:
        raise LookupError("the demo failed")

    with pytest.raises(LookupError, match="the demo failed"):
        await stage.run(stage.part("server"), once_up=fail)

    assert stage.notes == ["server starts", "server stops"]


SUPERVISING = """
import asyncio, pathlib, sys
sys.path[:0] = {path!r}
from glottis.console import Console
from glottis.processes import Command
from glottis.supervisor import Part, Supervisor
folder = pathlib.Path(sys.argv[1])
command = Command((sys.executable, str(folder / "server.py"), "server", str(folder / "journal")), {{}}, folder)
async def is_ready():
    return (folder / "journal.server").exists()
async def stay():
    await asyncio.Event().wait()
console = Console(["server"], folder / "logs", shows_output=True, environ={{}})
asyncio.run(Supervisor([Part(name="server", command=command, is_ready=is_ready)], console).run(stay))
console.close()
"""


@pytest.mark.parametrize(
    ("number", "status", "notes"),
    [
        (signal.SIGTERM, 0, ["server starts", "server stops"]),
        (signal.SIGINT, 0, ["server starts", "server stops"]),
        (signal.SIGKILL, -9, ["server starts"]),
    ],
)
def test_no_child_outlives_the_supervisor(stage: Stage, number: signal.Signals, status: int, notes: list[str]) -> None:
    stage.program("server")
    script = stage.folder / "supervising.py"
    script.write_text(SUPERVISING.format(path=sys.path))
    supervisor = subprocess.Popen([sys.executable, str(script), str(stage.folder)], stderr=subprocess.DEVNULL)
    asyncio.run(until(lambda: stage.pid("server") is not None))

    supervisor.send_signal(number)

    assert supervisor.wait(20) == status
    child = stage.pid("server")
    assert child is not None
    asyncio.run(until(lambda: not is_alive(child)))
    assert stage.notes == notes
