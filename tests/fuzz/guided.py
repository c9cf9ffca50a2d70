"""One target guided by coverage, in a process of its own, by atheris; started by `tests.fuzz.__main__`.

libFuzzer's loop ends its process, and the code under test has to be instrumented before it is imported: so nothing of it is
imported above. What fails is written to a folder that `tests.fuzz.__main__` looks into.
"""

import argparse
import importlib

import atheris

UNDER_TEST = ["policy", "contracts", "gateway.http1"]
LONGEST_INPUT_BYTES = 16 * 1024
SECONDS_AN_INPUT = 20
"""an input that takes longer has found something as well, or the machine had no time"""
MOST_MEGABYTES = 1024
"""resident; the instrumented code itself takes 150"""


def main() -> None:
    """Fuzz the target that the command line names; the exit status is libFuzzer's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("area")
    parser.add_argument("target")
    parser.add_argument("seeds", help="a folder of inputs to begin with")
    parser.add_argument("found", help="a folder that takes what reaches something new")
    parser.add_argument("failed", help="a folder that takes what fails")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--runs", type=int, default=-1)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with atheris.instrument_imports(include=UNDER_TEST):
        area = importlib.import_module(f"tests.fuzz.{asked.area}")
    options = [
        f"-max_total_time={asked.seconds}",
        f"-runs={asked.runs}",
        f"-seed={asked.seed}",
        f"-max_len={LONGEST_INPUT_BYTES}",
        f"-timeout={SECONDS_AN_INPUT}",
        f"-report_slow_units={SECONDS_AN_INPUT}",
        f"-rss_limit_mb={MOST_MEGABYTES}",
        f"-artifact_prefix={asked.failed}/",
        "-print_final_stats=1",
        "-verbosity=0",
    ]
    atheris.Setup(["guided", *options, asked.found, asked.seeds], area.TARGETS[asked.target])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
