"""The fuzzers, and a short run of each: always with the same seed and number of inputs. The long one is `make fuzz`."""

import base64
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.fuzz import loop
from tests.fuzz.__main__ import AREAS, main

HOW = ("coverage", "mutation") if find_spec("atheris") is not None else ("mutation",)


@pytest.mark.parametrize("area", AREAS)
def test_every_target_of_an_area_takes_three_hundred_inputs_in_both_ways(area: str, tmp_path: Path) -> None:
    bounds = ["--runs", "300", "--seconds", "60", "--seed", "1", "--found", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", area, *bounds], capture_output=True, text=True, timeout=110, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    ran = re.findall(rf"^{area}/(\w+): [1-9]\d* inputs by (\w+)", done.stdout, re.MULTILINE)
    assert ran == [(target, how) for target in AREAS[area].TARGETS for how in HOW]


def test_what_fails_is_kept_and_printed_once_for_each_exception(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fails(data: bytes) -> None:
        if len(data) > 3:
            raise ValueError("too long")

    failures = loop.run("area/target", fails, [b"abcd"], tmp_path / "area" / "target", seconds=60, runs=50, seed=1)

    [file] = (tmp_path / "area" / "target").iterdir()
    assert failures == 1
    assert len(file.read_bytes()) > 3
    assert f"area/target/{file.name}, base64: {base64.b64encode(file.read_bytes()).decode()}\n" in capsys.readouterr().out


def test_an_input_that_its_target_does_not_come_back_from_is_a_failure() -> None:
    def hangs(_: bytes) -> None:
        while True:
            pass

    assert loop.failure_of(hangs, b"", seconds=0.05) == "TookTooLong "
    assert loop.failure_of(len, b"") == ""


def test_a_run_that_is_stopped_for_its_time_has_found_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tests.fuzz.__main__.START_SECONDS", 0)

    assert main(["http1", "--seconds", "0.01"]) == 0
    assert capsys.readouterr().out.count("stopped, as it did not end in time") == 3
