"""The command line as a program: what it says of itself, and how it ends when something is missing."""

from __future__ import annotations

import os
import socket
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


def test_a_port_in_use_is_told_before_anything_is_made(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        ended = glottis("up", "--data-dir", "data", "--http-port", port, folder=tmp_path)

    assert ended.returncode == 2
    assert f"{port} (http)" in ended.stderr.splitlines()[0]
    assert "--port-base 20000" in ended.stderr.splitlines()[1]
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "data" / "keys").exists()


@pytest.mark.parametrize("command", ["up", "demo"])
def test_one_port_for_http_and_https_is_told_before_anything_is_made(tmp_path: Path, command: str) -> None:
    ended = glottis(command, "--data-dir", "data", "--http-port", "26001", "--https-port", "26001", folder=tmp_path)

    assert ended.returncode == 2
    assert ended.stderr.splitlines()[0] == "glottis: Two listeners cannot share a port: 26001 (http), 26001 (https)."
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("command", ["up", "demo"])
def test_a_folder_that_was_started_on_other_ports_is_refused(tmp_path: Path, command: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "ports.json").write_text("{}")

    ended = glottis(command, "--data-dir", "data", "--port-base", "26000", folder=tmp_path)

    assert ended.returncode == 2
    assert ended.stderr.startswith(f"glottis: {tmp_path / 'data'} keeps the ports of its first start (http 8080, https 8443, ")
    assert "Traceback" not in ended.stderr


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    ended = glottis("up", "--data-dir", "file/data", folder=tmp_path)

    assert ended.returncode == 2
    assert ended.stderr.splitlines()[0].startswith("glottis: Cannot write the data folder ")
    assert "Traceback" not in ended.stderr


def test_an_old_python_is_told_by_the_installer(tmp_path: Path) -> None:
    old_python = tmp_path / "python3"
    old_python.write_text('#!/bin/sh\n[ "$1" = -V ] && echo "Python 3.9.2" && exit 0\nexit 1\n')
    old_python.chmod(0o755)

    ended = subprocess.run(
        ["sh", "deploy/dev/install.sh"],
        env={"PATH": os.environ["PATH"], "PYTHON": str(old_python), "VENV": str(tmp_path / "venv")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ended.returncode == 2
    assert ended.stderr.startswith(f"Python 3.11 or newer is needed; {old_python} is Python 3.9.2.")


def test_a_missing_package_is_told_with_the_command_that_brings_it() -> None:
    with pytest.raises(SetupError) as refusal, missing_extra("kokoro", "glottis kokoro"):
        raise ModuleNotFoundError("No module named 'onnxruntime.capi'", name="onnxruntime.capi")

    assert refusal.value.what == "`glottis kokoro` needs the package onnxruntime, which is not installed."
    assert refusal.value.to_do == "Install what it needs: pip install 'glottis[kokoro]'"


def test_a_module_missing_in_our_own_packages_stays_a_defect() -> None:
    with pytest.raises(ModuleNotFoundError), missing_extra("gateway", "glottis gateway"):
        raise ModuleNotFoundError("No module named 'gateway.nothing'", name="gateway.nothing")
