"""`glottis control-plane` as a process: it starts, says what is wrong, and ends in good order."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx

from tests.kit.control_plane import environment_of
from tests.kit.processes import free_port
from tests.kit.services import NatsAccount, PostgresDatabase

ROOT = str(Path(__file__).parents[3])


async def started(environ: dict[str, str]) -> asyncio.subprocess.Process:
    """Start the process."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "glottis",
        "control-plane",
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ROOT, "GLOTTIS_LOG_FORMAT": "json", **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


async def ready(url: str, process: asyncio.subprocess.Process, status: int) -> None:
    """Return when /readyz answers with the status."""
    deadline = time.monotonic() + 30
    async with httpx.AsyncClient(trust_env=False) as client:
        while True:
            try:
                if (await client.get(f"{url}/readyz")).status_code == status:
                    return
            except httpx.TransportError:
                assert process.returncode is None, (await process.communicate())[0].decode()
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)


async def test_it_serves_until_it_is_asked_to_end_and_exits_0(
    migrated_database: PostgresDatabase, nats_account: NatsAccount, tmp_path: Path
) -> None:
    environ, _ = environment_of(tmp_path, migrated_database, nats_account, free_port())
    process = await started(environ)
    await ready(environ["GLOTTIS_PUBLIC_URL"], process, 200)
    process.send_signal(signal.SIGTERM)
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()


async def test_a_database_that_was_not_migrated_is_not_ready(
    postgres_database: PostgresDatabase, nats_account: NatsAccount, tmp_path: Path
) -> None:
    environ, _ = environment_of(tmp_path, postgres_database, nats_account, free_port())
    process = await started(environ)
    await ready(environ["GLOTTIS_PUBLIC_URL"], process, 503)
    process.send_signal(signal.SIGTERM)
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    assert b'"event": "database is not migrated"' in output.replace(b'":"', b'": "')


async def test_a_port_in_use_is_told(migrated_database: PostgresDatabase, nats_account: NatsAccount, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        environ, _ = environment_of(tmp_path, migrated_database, nats_account, taken.getsockname()[1])
        process = await started(environ)
        output, _ = await process.communicate()
    assert process.returncode == 1
    assert b"Address already in use" in output


async def test_a_missing_setting_is_told_with_status_2(tmp_path: Path) -> None:
    process = await started({})
    output, _ = await process.communicate()
    assert process.returncode == 2
    assert b"GLOTTIS_PUBLIC_URL is not set" in output
