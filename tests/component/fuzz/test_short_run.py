"""A short run of every fuzzer, always with the same seed and the same number of inputs: the long one is `make fuzz`."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.fuzz.__main__ import AREAS

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
