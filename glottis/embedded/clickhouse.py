"""ClickHouse for one machine: `glottis clickhouse` as a child process. Why it is so: docs/adr/0012."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from glottis.processes import Command

HOST: Final = "127.0.0.1"
USER: Final = "glottis"


@dataclass(frozen=True, slots=True)
class Clickhouse:
    """One ClickHouse: home: folder for its data; password_file: holds the password of `USER`."""

    home: Path
    port: int
    password_file: Path
    environment: Mapping[str, str]

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def command(self) -> Command:
        """Return the command that runs the server in the foreground, its log on stderr."""
        return Command(
            arguments=(sys.executable, "-P", "-m", "glottis", "clickhouse"),
            environment={
                **self.environment,
                "GLOTTIS_CLICKHOUSE_LISTEN": f"{HOST}:{self.port}",
                "GLOTTIS_CLICKHOUSE_DATA_DIR": str(self.home),
                "GLOTTIS_CLICKHOUSE_USER": USER,
                "GLOTTIS_CLICKHOUSE_PASSWORD_FILE": str(self.password_file),
            },
            folder=self.home.parent,
        )

    async def is_ready(self) -> bool:
        """Return whether the server answers `GET /ping`."""
        return await answers_ok(HOST, self.port, "/ping")


async def answers_ok(host: str, port: int, path: str, timeout_seconds: float = 2.0) -> bool:
    """Return whether plain HTTP `GET path` is answered with status 200."""
    try:
        async with asyncio.timeout(timeout_seconds):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
            status_line = await reader.readline()
            writer.close()
    except (OSError, TimeoutError):
        return False
    return status_line.split(b" ")[1:2] == [b"200"]
