"""SIGKILL at random points of a write loses nothing that was committed and invents nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fault.scope import IS_WHOLE_MATRIX, SEED

ROOT = Path(__file__).parents[3]
OFFERS = 1000 if IS_WHOLE_MATRIX else 150
"""a round of the whole spool, with its journal and its successor, costs ten times one of the bare ring"""


@pytest.mark.parametrize(
    ("victim_file", "rounds"), [("spool_victim.py", 1000), ("offer_victim.py", OFFERS)], ids=["ring", "offer"]
)
def test_every_committed_record_is_read_back_once_after_so_many_kills(tmp_path: Path, victim_file: str, rounds: int) -> None:
    victim = subprocess.run(
        [sys.executable, str(Path(__file__).with_name(victim_file)), str(tmp_path), str(rounds), str(SEED)],
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )

    assert (victim.stdout.strip(), victim.stderr) == (f"{rounds} kills survived", ""), f"seed {SEED}"
