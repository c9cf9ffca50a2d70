"""Fuzz every parser: `python -m tests.fuzz [area[/target] …] --seconds 60`, or `make fuzz`.

Each target gets half of its time guided by coverage (`tests.fuzz.guided`) and half by mutation of its seeds and of what the
first half found (`tests.fuzz.loop`). Where atheris has no build for this interpreter, mutation has all of it. What fails is
kept in `tests/fuzz/corpus` and replayed by the tests; what reaches something new is kept in .cache/fuzz for the next run.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from tests.fuzz import http1, loop, policy, session

AREAS: dict[str, ModuleType] = {"policy": policy, "session": session, "http1": http1}
FOUND = Path(__file__).parents[2] / ".cache" / "fuzz"
START_SECONDS = 60
"""for the process of a guided run to begin and to end"""


def guide(area: str, target: str, seeds: list[bytes], found: Path, *, seconds: float, runs: int | None, seed: int) -> bool:
    """Fuzz one target guided by coverage; tell whether nothing failed."""
    found.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for number, data in enumerate(seeds):
            (Path(folder) / str(number)).write_bytes(data)
        options = [f"--seconds={max(1, round(seconds))}", f"--runs={-1 if runs is None else runs}", f"--seed={seed}"]
        done = subprocess.run(
            [sys.executable, "-m", "tests.fuzz.guided", area, target, folder, str(found), *options],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds + START_SECONDS,
            check=False,
        )
    tried = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    new = re.search(r"new_units_added: +(\d+)", done.stderr)
    if done.returncode or tried is None or new is None:
        sys.stdout.write(f"{area}/{target}: failed, guided by coverage (seed {seed})\n{(done.stdout + done.stderr)[-4000:]}\n")
        return False
    sys.stdout.write(f"{area}/{target}: {tried[1]} inputs by coverage, {new[1]} reached something new, seed {seed}\n")
    return True


def main() -> int:
    """Fuzz what the command line names, or everything; return the exit status."""
    names = [f"{area}/{target}" for area, module in AREAS.items() for target in module.TARGETS]
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz every parser.")
    parser.add_argument("targets", nargs="*", help=f"an area, or of {', '.join(names)}")
    parser.add_argument("--seconds", type=float, default=60, help="for each target")
    parser.add_argument("--runs", type=int, help="no more inputs than this in each half of a target")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--found", type=Path, default=FOUND, help="where what reaches something new is kept")
    asked = parser.parse_args()
    chosen = [name for name in names if not asked.targets or {name, name.partition("/")[0]} & set(asked.targets)]
    if unknown := [word for word in asked.targets if word not in names and word not in AREAS]:
        parser.error(f"there is no target {', '.join(unknown)}")
    is_guided = find_spec("atheris") is not None
    if not is_guided:
        sys.stdout.write("atheris has no build for this interpreter: mutation alone\n")
    has_failed = False
    for name in chosen:
        area, _, target = name.partition("/")
        module, found, seconds = AREAS[area], asked.found / name, asked.seconds
        seeds = module.seeds_of(target)
        if is_guided:
            seconds /= 2
            is_clean = guide(area, target, seeds, found, seconds=seconds, runs=asked.runs, seed=asked.seed)
            has_failed |= not is_clean
            seeds += [file.read_bytes() for file in sorted(found.iterdir())]
        kept = module.CORPUS / target
        bounds = {"seconds": seconds, "runs": asked.runs, "seed": asked.seed}
        has_failed |= bool(loop.run(name, module.TARGETS[target], seeds, kept, **bounds))
        sys.stdout.flush()
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())
