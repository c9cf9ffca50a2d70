"""Fuzz every parser: `python -m tests.fuzz [area[/target] …] --seconds 60`, or `make fuzz`.

Each target gets half of its time guided by coverage (`tests.fuzz.guided`) and half by mutation of its seeds and of what the
first half found (`tests.fuzz.loop`). Where atheris has no build for this interpreter, mutation has all of it. Several targets
run side by side, each in a process of its own with bounded memory. What fails is kept in `tests/fuzz/corpus`, printed, and
replayed by the tests; what reaches something new is kept in .cache/fuzz for the next run. Only what a target got wrong fails
a run: one that a slow machine or a signal stopped has found nothing.
"""

import argparse
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from tests.fuzz import http1, loop, policy, session

AREAS: dict[str, ModuleType] = {"policy": policy, "session": session, "http1": http1}
FOUND = Path(__file__).parents[2] / ".cache" / "fuzz"
START_SECONDS = 60
"""for each process to begin and to end"""
MOST_BYTES = 2 * 2**30
"""of address space, for mutation; `tests.fuzz.guided` bounds its own"""
_TOO_SLOW, _TOO_LARGE = 70, 71
"""libFuzzer's exit statuses for an input that took too long or too much memory, as far as it can tell"""
_STOPPED = (-signal.SIGKILL, -signal.SIGTERM)


def guide(area: str, target: str, seeds: list[bytes], found: Path, *, seconds: float, runs: int | None, seed: int) -> bool:
    """Fuzz one target guided by coverage; tell whether nothing failed."""
    name, module = f"{area}/{target}", AREAS[area]
    found.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        begin, failed = Path(folder) / "seeds", Path(folder) / "failed"
        begin.mkdir()
        failed.mkdir()
        for number, data in enumerate(seeds):
            (begin / str(number)).write_bytes(data)
        options = [f"--seconds={max(1, round(seconds))}", f"--runs={-1 if runs is None else runs}", f"--seed={seed}"]
        command = [sys.executable, "-m", "tests.fuzz.guided", area, target, str(begin), str(found), str(failed), *options]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=seconds + START_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            sys.stdout.write(f"{name}: stopped, guided by coverage, as it did not end in time\n")
            return True
        inputs = [file.read_bytes() for file in sorted(failed.iterdir())]
    tried = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    new = re.search(r"new_units_added: +(\d+)", done.stderr)
    if done.returncode == 0 and tried is not None and new is not None:
        sys.stdout.write(f"{name}: {tried[1]} inputs by coverage, {new[1]} reached something new, seed {seed}\n")
        return True
    if done.returncode in _STOPPED or (
        done.returncode in (_TOO_SLOW, _TOO_LARGE) and not any(loop.failure_of(module.TARGETS[target], data) for data in inputs)
    ):
        # A machine that had no time, or a sum of memory over all inputs: no single input does it again.
        sys.stdout.write(f"{name}: stopped, guided by coverage, with status {done.returncode}\n")
        return True
    sys.stdout.write(f"{name}: failed, guided by coverage (seed {seed})\n{(done.stdout + done.stderr)[-4000:]}\n")
    for data in inputs:
        loop.keep(data, module.CORPUS / target)
    return False


def fuzz(name: str, asked: argparse.Namespace) -> int:
    """Fuzz one target in this process; return the exit status."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    area, _, target = name.partition("/")
    module, found, seconds = AREAS[area], asked.found / name, asked.seconds
    seeds = module.seeds_of(target)
    is_clean = True
    if find_spec("atheris") is not None:
        seconds /= 2
        is_clean = guide(area, target, seeds, found, seconds=seconds, runs=asked.runs, seed=asked.seed)
        seeds += [file.read_bytes() for file in sorted(found.iterdir())]
    else:
        sys.stdout.write("atheris has no build for this interpreter: mutation alone\n")
    kept = module.CORPUS / target
    bounds = {"seconds": seconds, "runs": asked.runs, "seed": asked.seed}
    failures = loop.run(name, module.TARGETS[target], seeds, kept, **bounds)
    return int(bool(failures) or not is_clean)


def side_by_side(names: list[str], asked: argparse.Namespace) -> int:
    """Fuzz several targets, each in a process; return the exit status."""
    options = [f"--seconds={asked.seconds}", f"--seed={asked.seed}", f"--found={asked.found}"]
    if asked.runs is not None:
        options.append(f"--runs={asked.runs}")

    def one(name: str) -> tuple[str, bool]:
        command = [sys.executable, "-m", "tests.fuzz", name, *options]
        environment = os.environ | {"PYTHONHASHSEED": "0"}  # or the same seed would not be the same run
        limit = asked.seconds + 2 * START_SECONDS
        try:
            done = subprocess.run(
                command,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=limit,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"{name}: stopped, as it did not end in time\n", True
        if done.returncode in _STOPPED:
            return f"{done.stdout}{name}: stopped by signal {-done.returncode}\n", True
        return done.stdout, done.returncode == 0

    are_clean = True
    with ThreadPoolExecutor(asked.jobs) as pool:
        for said, is_clean in pool.map(one, names):
            sys.stdout.write(said)
            sys.stdout.flush()
            are_clean &= is_clean
    return int(not are_clean)


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz what the command line names, or everything; return the exit status."""
    names = [f"{area}/{target}" for area, module in AREAS.items() for target in module.TARGETS]
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz every parser.")
    parser.add_argument("targets", nargs="*", help=f"an area, or of {', '.join(names)}")
    parser.add_argument("--seconds", type=float, default=60, help="for each target")
    parser.add_argument("--runs", type=int, help="no more inputs than this in each half of a target")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--found", type=Path, default=FOUND, help="where what reaches something new is kept")
    parser.add_argument("--jobs", type=int, default=2, help="targets side by side")
    asked = parser.parse_args(arguments)
    chosen = [name for name in names if not asked.targets or {name, name.partition("/")[0]} & set(asked.targets)]
    if unknown := [word for word in asked.targets if word not in names and word not in AREAS]:
        parser.error(f"there is no target {', '.join(unknown)}")
    return fuzz(chosen[0], asked) if len(chosen) == 1 else side_by_side(chosen, asked)


if __name__ == "__main__":
    sys.exit(main())
