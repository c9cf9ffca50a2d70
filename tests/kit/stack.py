"""The whole stack of `glottis up` or `glottis demo` as its own process, on ports and in a folder of its own.

What is tested is the program that people run: started by its command line, watched through what it prints, asked
through its APIs, ended by signals.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import Signals
from typing import Any

from glottis.client import ControlPlane
from glottis.ports import Ports
from glottis.processes import Command
from tests.kit.processes import Child
from tests.kit.services import service_folder

# Assembling the model, migrating, and loading the model on a machine that others use as well.
START_SECONDS = 300.0


class RunningStack:
    """One `glottis up` or `glottis demo`; folder: its working folder, with `data` and `demo` in it."""

    def __init__(self, folder: Path, ports: Ports) -> None:
        self.folder = folder
        self.ports = ports
        self._child: Child | None = None
        self._runs = 0

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def output(self) -> str:
        assert self._child is not None
        return self._child.output

    @property
    def control_plane(self) -> ControlPlane:
        return ControlPlane.find({}, self.data)

    @property
    def base_url(self) -> str:
        return f"https://127.0.0.1:{self.ports.https}/cartesia"

    @property
    def authority(self) -> Path:
        return self.data / "certificates" / "authority.pem"

    @property
    def token(self) -> str:
        token: str = json.loads((self.data / "caller.json").read_text())["token"]
        return token

    def pid(self, part: str) -> int:
        """The pid that the supervisor last named for a part."""
        return int(re.findall(rf"^{part} +\| ready in \S+ s, pid (\d+)$", self.output, re.MULTILINE)[-1])

    def usage(self, *query: tuple[str, str]) -> list[dict[str, Any]]:
        """The rows of a usage report (Any: JSON)."""
        rows: list[dict[str, Any]] = self.control_plane.json("GET", "/api/v1/usage", query)["rows"]
        return rows

    def start(self, command: str, *arguments: str) -> None:
        self._runs += 1
        options = ("--data-dir", "data", "--port-base", str(self.ports.http))
        self._child = Child(
            Command(
                arguments=(sys.executable, "-m", "glottis", command, *options, *arguments),
                environment={
                    **_way_to_the_registries(),
                    "PATH": os.environ["PATH"],
                    "HOME": str(Path.home()),
                    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                    # The speech model is the machine's, shared with the tests of Kokoro: put together once.
                    "GLOTTIS_KOKORO_CACHE_DIR": os.environ.get("GLOTTIS_KOKORO_CACHE_DIR")
                    or str(Path.home() / ".cache" / "glottis" / "kokoro"),
                },
                folder=self.folder,
                stop_signal=Signals.SIGINT,
                death_signal=Signals.SIGTERM,
            ),
            self.folder / f"output-{self._runs}",
        )
        self._child.start()

    def wait_for(self, text: str, seconds: float = START_SECONDS) -> None:
        """Return when the stack has printed this; fail with what it printed if it ends or takes too long."""

        async def is_printed() -> bool:
            return text in self.output

        assert self._child is not None
        asyncio.run(self._child.until(is_printed, seconds))

    def stop(self) -> int:
        """Ctrl-C; return the exit status."""
        assert self._child is not None
        return self._child.stop(60)

    def kill(self) -> None:
        """`kill -9` of the supervisor."""
        assert self._child is not None
        self._child.kill()

    def wait(self, seconds: float) -> int:
        """Return the exit status of a stack that ends by itself."""
        assert self._child is not None
        return self._child.wait(seconds)


@contextmanager
def stack_in_a_folder() -> Iterator[RunningStack]:
    """A stack that is not started yet; whatever runs at the end is stopped."""
    with service_folder("stack") as folder:
        stack = RunningStack(folder, Ports.from_base(_free_base()))
        try:
            yield stack
        finally:
            if stack._child is not None:
                stack._child.stop(60)


def _way_to_the_registries() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if name.lower().startswith("npm_config_") or name in ("NODE_EXTRA_CA_CERTS", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY")
    }


def _free_base() -> int:
    # Ten consecutive ports that are free now, below the range that the kernel gives to clients.
    for base in range(20_000 + os.getpid() % 1000 * 10, 32_000, 10):
        probes = []
        try:
            for port in range(base, base + 10):
                probe = socket.socket()
                probes.append(probe)
                probe.bind(("127.0.0.1", port))
            return base
        except OSError:
            continue
        finally:
            for probe in probes:
                probe.close()
    raise AssertionError("no ten consecutive ports are free")
