"""Installing the clients that the tests speak with: what a failure tells, and what the locks may hold."""

import re
from pathlib import Path

import pytest

from tests.kit import sdks


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installer that always fails with what the file `says` holds, and counts its runs in `runs`."""
    script = tmp_path / "uv"
    script.write_text('#!/bin/sh\ncd "$(dirname "$0")"; echo x >> runs; cat says >&2; exit 1\n')
    script.chmod(0o755)
    monkeypatch.setattr(sdks, "INSTALLED", tmp_path / "sdks")
    monkeypatch.setattr(sdks, "_uv", lambda: str(script))
    monkeypatch.setattr("time.sleep", lambda _: None)
    return tmp_path


def test_an_install_is_tried_again_and_then_says_what_to_do(broken: Path) -> None:
    (broken / "says").write_text("error: connection timed out")

    with pytest.raises(sdks.NotInstalled, match=r"Could not install py-3\.5\.1 .*run: make sdks\nerror: connection timed out"):
        sdks.folder_of("py-3.5.1")
    assert (broken / "runs").read_text().count("x") == 3


def test_a_file_that_is_not_the_locked_one_is_not_fetched_again(broken: Path) -> None:
    (broken / "says").write_text("error: Hash mismatch for cartesia")

    with pytest.raises(sdks.NotInstalled, match="Hash mismatch"):
        sdks.folder_of("py-3.5.1")
    assert (broken / "runs").read_text().count("x") == 1


@pytest.mark.parametrize("sdk", sdks.SDKS)
def test_a_lock_has_a_hash_for_every_package_and_names_no_registry(sdk: str) -> None:
    [lock] = (sdks.LOCKS / sdk).glob("*lock*")
    text = lock.read_text()
    packages = len(re.findall(r'^\S+==|"node_modules/', text, re.MULTILINE))
    hashed = len(re.findall(r'^\S+==.*\\\n    --hash=sha256:|"integrity": "sha512-', text, re.MULTILINE))

    assert packages == hashed > 1
    assert "://" not in text
