"""The command line as a program: what it says of itself, and how it ends when something is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from glottis.errors import SetupError
from glottis.extras import missing_extra


def glottis(*arguments: str, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "glottis", *arguments],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_version_is_the_packages(tmp_path: Path) -> None:
    assert glottis("--version", folder=tmp_path).stdout == "glottis 0.1.0\n"


def test_help_names_every_command_and_imports_none_of_them(tmp_path: Path) -> None:
    shown = glottis("--help", folder=tmp_path)
    imported = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, contextlib, io\n"
            "from glottis.main import glottis\n"
            "with contextlib.redirect_stdout(io.StringIO()):\n"
            "    glottis.main(['--help'], standalone_mode=False)\n"
            "print(sorted({name.partition('.')[0] for name in sys.modules} & {'gateway', 'control_plane', 'asyncpg', 'chdb',"
            " 'fastapi', 'kokoro_backend', 'nats', 'numpy', 'uvicorn'}))",
        ],
        env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=True,
    )

    for command in ("up", "demo", "apply", "tokens", "usage", "gateway", "control-plane", "migrate", "aggregator"):
        assert f"\n  {command} " in shown.stdout
    assert imported.stdout == "[]\n"


def test_an_unknown_command_ends_with_status_2(tmp_path: Path) -> None:
    ended = glottis("upp", folder=tmp_path)

    assert ended.returncode == 2
    assert "No such command 'upp'" in ended.stderr


def test_a_missing_setting_is_two_lines_and_no_trace(tmp_path: Path) -> None:
    ended = glottis("clickhouse", folder=tmp_path)

    assert ended.returncode == 2
    assert ended.stderr.splitlines() == [
        "glottis: GLOTTIS_CLICKHOUSE_DATA_DIR is not set.",
        "         Set it, or let `glottis up` start this process.",
    ]


def test_a_missing_package_is_told_with_the_command_that_brings_it() -> None:
    with pytest.raises(SetupError) as refusal, missing_extra("kokoro", "glottis kokoro"):
        raise ModuleNotFoundError("No module named 'onnxruntime.capi'", name="onnxruntime.capi")

    assert refusal.value.what == "`glottis kokoro` needs the package onnxruntime, which is not installed."
    assert refusal.value.to_do == "Install what it needs: pip install 'glottis[kokoro]'"


def test_a_module_missing_in_our_own_packages_stays_a_defect() -> None:
    with pytest.raises(ModuleNotFoundError), missing_extra("gateway", "glottis gateway"):
        raise ModuleNotFoundError("No module named 'gateway.nothing'", name="gateway.nothing")
