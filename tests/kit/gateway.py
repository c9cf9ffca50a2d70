"""A gateway as it runs in production: a process of its own, started by `glottis gateway`, its addresses read off its log.

`gateway_process` gives the variables that every start needs; a test adds its own. `fed` joins one to a NATS account whose
control plane (`tests.kit.configuration`) has published the small workspace of `tests.kit.identities`, all its accounts at
one origin. `speak` is one call with the official SDK.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cartesia
import httpx
import msgspec

from contracts.events import UsageEvent
from contracts.secret import Secret
from contracts.snapshot import Snapshot
from glottis.processes import Command
from tests.kit.configuration import ControlPlane, at_revision, usage_on_stream
from tests.kit.identities import own_token, voice_workspace
from tests.kit.processes import Child
from tests.kit.services import NatsAccount

ROOT = Path(__file__).parents[2]
CREDENTIAL = "sk_car_real_0123456789abcdef"


@dataclass
class GatewayProcess:
    """A running gateway. `child`: to kill it and start it again; its ports change with every start."""

    child: Child

    def lines(self) -> list[dict[str, Any]]:
        """Return what it logged so far, one mapping a line. Any: fields of every type."""
        whole, _, _ = self.child.output.rpartition("\n")  # the last line may be on its way
        lines = (line for line in whole.splitlines() if line.startswith("{"))
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


def token(**changes: object) -> str:
    """Return a token of the workspace's service account, valid now."""
    now = int(time.time())
    return own_token(**({"iat": now - 60, "exp": now + 600} | changes))


def workspace_at(origin: str, control_plane: ControlPlane) -> Snapshot:
    """The test workspace with every account at this origin."""
    base = voice_workspace()
    accounts = tuple(
        control_plane.with_credential(msgspec.structs.replace(account, origin=origin), Secret(CREDENTIAL))
        for account in base.accounts
    )
    return at_revision(base, 1, accounts=accounts)


@dataclass
class Fed:
    """A gateway fed by NATS, its control plane, and the variables that start it."""

    gateway: GatewayProcess
    control_plane: ControlPlane
    account: NatsAccount
    snapshot: Snapshot
    spool: Path

    async def ready(self) -> None:
        """Wait until it takes work."""
        await self.gateway.child.until(self.gateway.is_ready)

    async def finals(self, count: int) -> list[UsageEvent]:
        """Wait until the stream holds the final events of so many keys; return these. Each key's units add up to its totals."""
        events: dict[str, UsageEvent] = {}
        async with asyncio.timeout(20):
            while sum(event.is_final for event in events.values()) < count:
                await asyncio.sleep(0.05)
                events = {event.id: event for event in await usage_on_stream(self.control_plane.client)}
        finals = [event for event in events.values() if event.is_final]
        for final in finals:
            units: Counter[str] = Counter()
            for event in events.values():
                if event.key == final.key:
                    units.update(event.units)
            assert {unit: quantity for unit, quantity in units.items() if quantity} == final.totals
        return finals


@asynccontextmanager
async def fed(account: NatsAccount, folder: Path, origin: str, **more: str) -> AsyncIterator[Fed]:
    """A gateway that takes work; more: variables of its own."""
    control_plane = ControlPlane(await account.connect())
    await control_plane.prepare()
    snapshot = workspace_at(origin, control_plane)
    await control_plane.publish(snapshot)
    seed = folder / "seed"
    seed.write_bytes(account.seeds["gateway"].reveal())
    variables = control_plane.key_files(folder) | {
        "GLOTTIS_NATS_URL": account.url,
        "GLOTTIS_NATS_SEED_FILE": str(seed),
        "GLOTTIS_GATEWAY_SPOOL_DIR": str(folder / "spool"),
        "GLOTTIS_GATEWAY_SPOOL_BYTES": str(16 * 1024 * 1024),
        "GLOTTIS_GATEWAY_STATE_DIR": str(folder / "state"),
        "GLOTTIS_ALLOWED_PRIVATE_ORIGINS": origin,
        **more,
    }
    with gateway_process(folder, variables) as gateway:
        running = Fed(gateway, control_plane, account, snapshot, folder / "spool")
        await running.ready()
        yield running
    await control_plane.client.close()


def sdk(gateway: GatewayProcess, key: str | None = None) -> cartesia.AsyncCartesia:
    """Return the official client, with the two lines changed that a caller changes."""
    return cartesia.AsyncCartesia(base_url=gateway.url + "/cartesia", api_key=key or token(), max_retries=0)


async def speak(gateway: GatewayProcess, text: str = "Hello.", key: str | None = None) -> bytes:
    """Have a text spoken; return the audio."""
    async with sdk(gateway, key) as client:
        answer = await client.tts.generate(
            model_id="sonic-turbo",
            transcript=text,
            voice={"mode": "id", "id": "v1"},
            output_format={"container": "wav", "encoding": "pcm_s16le", "sample_rate": 24000},
        )
        return await answer.read()
