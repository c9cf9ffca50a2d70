"""A gateway as it runs in production: a process of its own, started by `glottis gateway`, its addresses read off its log.

`gateway_process` gives the variables that every start needs; a test adds its own. Fed gateways get their keys from
`tests.kit.configuration`. The process is ended with the test, kindly or by SIGKILL.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from glottis.processes import Command
from tests.kit.processes import Child

ROOT = Path(__file__).parents[2]


@dataclass
class GatewayProcess:
    """A running gateway. `child`: to kill it and start it again; its ports change with every start."""

    child: Child

    def lines(self) -> list[dict[str, Any]]:
        """Return what it logged so far, one mapping a line. Any: fields of every type."""
        lines = (line for line in self.child.output.splitlines() if line.startswith("{"))
        return [json.loads(line) for line in lines]

    def events(self, event: str) -> list[dict[str, Any]]:
        """Return the log lines of one event."""
        return [line for line in self.lines() if line["event"] == event]

    def _port(self, listener: str) -> int:
        port: int = [line for line in self.events("listening") if line["listener"] == listener][-1]["port"]
        return port

    @property
    def url(self) -> str:
        """Return the newest public address."""
        return f"http://127.0.0.1:{self._port('public')}"

    @property
    def admin_url(self) -> str:
        """Return the newest admin address."""
        return f"http://127.0.0.1:{self._port('admin')}"

    async def is_ready(self) -> bool:
        """Tell whether the newest start takes work."""
        starts = len(self.events("starting"))
        if len([line for line in self.events("listening") if line["listener"] == "public"]) < starts or not starts:
            return False
        try:
            async with httpx.AsyncClient(trust_env=False) as client:
                return (await client.get(self.admin_url + "/readyz")).status_code == 200
        except httpx.HTTPError:
            return False

    async def metric(self, name: str, **labels: str) -> float:
        """Return a metric's value; 0.0 if it was never counted."""
        async with httpx.AsyncClient(trust_env=False) as client:
            text = (await client.get(self.admin_url + "/metrics")).text
        for line in text.splitlines():
            is_named = line.startswith(name + ("{" if labels else " "))
            if is_named and all(f'{label}="{value}"' in line for label, value in labels.items()):
                return float(line.rpartition(" ")[2])
        return 0.0


def gateway_command(folder: Path, variables: Mapping[str, str], *arguments: str) -> Command:
    """Return the command that starts a gateway on free ports of loopback."""
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "GLOTTIS_GATEWAY_LISTEN": "127.0.0.1:0",
        "GLOTTIS_GATEWAY_ADMIN_LISTEN": "127.0.0.1:0",
        "GLOTTIS_POD_NAME": "pod-1",
        "GLOTTIS_LOG_FORMAT": "json",
        **variables,
    }
    return Command((sys.executable, "-m", "glottis", "gateway", *arguments), environment, folder)


@contextmanager
def gateway_process(folder: Path, variables: Mapping[str, str], *arguments: str) -> Iterator[GatewayProcess]:
    """Start a gateway; it need not be ready yet. folder: for its log."""
    with Child(gateway_command(folder, variables, *arguments), folder / "gateway.log") as child:
        yield GatewayProcess(child)
