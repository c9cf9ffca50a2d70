"""SIGKILL at random points of a write loses nothing that was committed and invents nothing."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_every_committed_record_is_read_back_once_after_a_thousand_kills(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)

    victim = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("spool_victim.py")), str(tmp_path), "1000", str(seed)],
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )

    assert (victim.stdout.strip(), victim.stderr) == ("1000 kills survived", ""), f"seed {seed}"
