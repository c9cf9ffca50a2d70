"""The process as the image runs it: its own package alone in a folder, `serve`, a health check, speech, SIGTERM, status 0."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from glottis.processes import Command
from kokoro_backend.settings import Settings
from tests.kit.processes import Child

ROOT = Path(__file__).parents[3]
KEY = "a caller key of the image's test"

# The model is loaded from files that another test may be cutting at this moment.
pytestmark = pytest.mark.timeout(600)


def image_command(folder: Path, *arguments: str, **changes: str) -> Command:
    """Return the image's entry point with nothing of the checkout but what its Dockerfile copies."""
    shutil.copytree(ROOT / "kokoro_backend", folder / "kokoro_backend", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "key").write_text(KEY)
    environment = {
        "PATH": os.environ["PATH"],
        # In front of the checkout, which an editable install puts on the path as well.
        "PYTHONPATH": str(folder),
        "GLOTTIS_KOKORO_LISTEN": "0.0.0.0:0",
        "GLOTTIS_KOKORO_KEY_FILE": str(folder / "key"),
        "GLOTTIS_KOKORO_CACHE_DIR": str(Settings.from_env(os.environ).cache),
        "GLOTTIS_KOKORO_ENGINE": "tone",
    }
    return Command((sys.executable, "-m", "kokoro_backend", *arguments), {**environment, **changes}, folder)


def logged(child: Child, event: str) -> dict[str, Any] | None:
    lines = [json.loads(line) for line in child.output.splitlines() if line.startswith("{")]
    return next((line for line in lines if line["event"] == event), None)


async def test_serve_is_healthy_when_warm_speaks_to_who_has_the_key_and_ends_with_zero(tmp_path: Path) -> None:
    with Child(image_command(tmp_path, "serve"), tmp_path / "log") as child:

        async def is_listening() -> bool:
            return logged(child, "listening") is not None

        await child.until(is_listening, 60)
        line = logged(child, "listening")
        assert line is not None
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{line['port']}", timeout=30) as client:

            async def is_warm() -> bool:
                return (await client.get("/ping")).status_code == 200

            await child.until(is_warm, 300)
            refused = await client.post("/invocations", json={"text": "Hello."})
            spoken = await client.post("/invocations", json={"text": "Hello."}, headers={"X-API-Key": KEY})
        assert refused.status_code == 401
        assert spoken.status_code == 200
        assert spoken.content[:4] == b"RIFF"
        assert child.stop(60) == 0


@pytest.mark.parametrize(
    ("arguments", "changes", "said"),
    [
        (("train",), {}, "usage: python -m kokoro_backend [serve]"),
        (("serve",), {"GLOTTIS_KOKORO_KEY_FILE": ""}, "GLOTTIS_KOKORO_KEY_FILE is not set"),
    ],
    ids=["another argument", "no key outside loopback"],
)
def test_what_it_cannot_be_started_with_is_said_in_a_sentence(
    tmp_path: Path, arguments: tuple[str, ...], changes: dict[str, str], said: str
) -> None:
    with Child(image_command(tmp_path, *arguments, **changes), tmp_path / "log") as child:
        assert child.wait(120) == 2
        assert said in child.output
        assert "Traceback" not in child.output
