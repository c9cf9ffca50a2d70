"""The whole way of usage, from a caller's socket to the rollups, over processes and wires that a test may break.

A gateway, NATS, an aggregator, ClickHouse and an exporter, each a process; wires between them; callers that speak without
end, each call with a text of its own; a provider that remembers what it was sent. `FAULTS` names what can be done to it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import httpx
import yaml

from control_plane.clickhouse.connection import ClickHouse
from control_plane.clickhouse.schema import migrate
from glottis.embedded.nats import Nats
from tests.doubles.cartesia import CartesiaDouble
from tests.doubles.otlp import OtlpReceiver, http_receiver
from tests.doubles.wire import Mode, Wire, wire_to
from tests.kit.configuration import ADMIN_PERMISSIONS
from tests.kit.gateway import Fed, fed, token
from tests.kit.processes import Child, free_port
from tests.kit.services import PASSWORD, NatsAccount, clickhouse_server, nats_seeds, nats_server, service_folder
from tests.kit.usage import TestBus, Worker, aggregator_worker, price, running, until

CALLERS = 3
_BREATH_SECONDS = 0.02
_SPOOL_BYTES = 32 * 1024 * 1024
"""what comes in while the bus is silent: a spool that fills loses events, and says so"""
WORKSPACE = "w1"


def text_of(number: int) -> str:
    """The text of a call: its length depends on its number."""
    return f"Call {number}." + "a" * (number % 7)


@dataclass
class Traffic:
    """Callers that speak without end. `failed`: calls that failed though their gateway lived all the while, and how."""

    url: str
    done: set[int] = field(default_factory=set)
    failed: dict[int, str] = field(default_factory=dict)
    is_over: bool = False
    gateway_lives: int = 0
    """odd while the gateway is away; a call may fail if it began or ended then, or another life lies between"""
    _number: int = 0

    async def run(self) -> None:
        """Speak until over."""
        key = token()
        async with httpx.AsyncClient(base_url=self.url, trust_env=False, timeout=30) as client:
            while not self.is_over:
                self._number += 1
                await self._call(client, key, self._number)

    async def _call(self, client: httpx.AsyncClient, key: str, number: int) -> None:
        life = self.gateway_lives
        try:
            answer = await client.post(
                "/cartesia/tts/bytes",
                json={
                    "model_id": "sonic-turbo",
                    "transcript": text_of(number),
                    "voice": {"mode": "id", "id": "v1"},
                    "output_format": {"container": "wav"},
                },
                headers={"X-API-Key": key, "X-Glottis-Metadata": json.dumps({"call": str(number)})},
            )
            how = "" if answer.status_code == 200 else f"{answer.status_code} {answer.text[:200]}"
        except httpx.HTTPError as error:
            how = type(error).__name__
        if not how:
            self.done.add(number)
        elif life == self.gateway_lives and life % 2 == 0:
            self.failed[number] = how
        await asyncio.sleep(_BREATH_SECONDS)


@dataclass
class Chain:
    """All of it, running."""

    pod: Fed
    provider: CartesiaDouble
    nats: Nats
    account: NatsAccount
    nats_child: Child
    clickhouse_child: Child
    address: ClickHouse
    aggregator: Worker
    exporter: Worker
    receiver: OtlpReceiver
    gateway_wire: Wire
    workers_wire: Wire
    clickhouse_wire: Wire
    traffic: Traffic
    callers: list[asyncio.Future[None]] = field(default_factory=list)

    async def silence(self) -> None:
        """Let every caller finish the call that it is in, and make no other."""
        self.traffic.is_over = True
        await asyncio.gather(*self.callers)

    async def kill(self, child: Child, away_seconds: float) -> None:
        """End a process as `kill -9` does, and start it again after a while."""
        is_gateway = child is self.pod.gateway.child
        if is_gateway:
            self.traffic.gateway_lives += 1
        await asyncio.to_thread(child.kill)
        await asyncio.sleep(away_seconds)
        child.start()
        if is_gateway:
            await self.pod.ready()
            self.traffic.gateway_lives += 1
        elif child is self.nats_child:
            await child.until(lambda: self.nats.is_ready(self.account.seeds["admin"], ADMIN_PERMISSIONS))

    async def break_wire(self, wire: Wire, mode: Mode, seconds: float) -> None:
        """Let a wire misbehave for a while."""
        wire.mode = mode
        await asyncio.sleep(seconds)
        wire.mode = ""

    async def break_receiver(self, fault: str, seconds: float) -> None:
        """Let the OTLP receiver misbehave for a while."""
        self.receiver.fault = fault
        await asyncio.sleep(seconds)
        self.receiver.fault = ""

    async def goes_on(self) -> None:
        """Wait until callers are served."""
        before = len(self.traffic.done)

        async def is_so() -> bool:
            return len(self.traffic.done) > before + CALLERS

        await until(is_so, "calls to be served", 60)


Fault = Callable[[Chain], Awaitable[None]]

FAULTS: dict[str, Fault] = {
    "kill-gateway": lambda chain: chain.kill(chain.pod.gateway.child, 0.2),
    "kill-nats": lambda chain: chain.kill(chain.nats_child, 0.5),
    "kill-aggregator": lambda chain: chain.kill(chain.aggregator.child, 0.2),
    "kill-clickhouse": lambda chain: chain.kill(chain.clickhouse_child, 0.5),
    "kill-exporter": lambda chain: chain.kill(chain.exporter.child, 0.2),
    "partition-gateway": lambda chain: chain.break_wire(chain.gateway_wire, "silent", 6),
    "partition-workers": lambda chain: chain.break_wire(chain.workers_wire, "silent", 6),
    "slow-clickhouse": lambda chain: chain.break_wire(chain.clickhouse_wire, "slow", 4),
    "read-only-clickhouse": lambda chain: chain.break_wire(chain.clickhouse_wire, "read-only", 2),
    "silent-clickhouse": lambda chain: chain.break_wire(chain.clickhouse_wire, "silent", 3),
    "otlp-refuses": lambda chain: chain.break_receiver("refuse", 1),
    "otlp-hangs": lambda chain: chain.break_receiver("hang", 3),
    "otlp-garbage": lambda chain: chain.break_receiver("garbage", 1),
}


@asynccontextmanager
async def running_chain(folder: Path) -> AsyncIterator[Chain]:
    """Start everything; callers speak from then on, until `traffic.is_over`. folder: of the test's own."""
    seeds = nats_seeds()
    async with AsyncExitStack() as parts:
        servers = parts.enter_context(ExitStack())
        home = servers.enter_context(service_folder("chain"))
        nats, nats_child, clickhouse_port, password_file, clickhouse_child = await asyncio.to_thread(
            _start_servers, servers, home, seeds
        )
        nats_port = int(nats.url.rpartition(":")[2])
        provider = await parts.enter_async_context(CartesiaDouble())
        gateway_wire = await parts.enter_async_context(wire_to(nats_port))
        workers_wire = await parts.enter_async_context(wire_to(nats_port))
        clickhouse_wire = await parts.enter_async_context(wire_to(clickhouse_port))
        receiver, endpoint = servers.enter_context(http_receiver())
        account = NatsAccount("GLOTTIS", nats.url, seeds)
        port = free_port()
        pod = await parts.enter_async_context(
            fed(
                account,
                folder,
                provider.origin,
                GLOTTIS_GATEWAY_LISTEN=f"127.0.0.1:{port}",
                GLOTTIS_NATS_URL=f"nats://127.0.0.1:{gateway_wire.port}",
                GLOTTIS_GATEWAY_SPOOL_BYTES=str(_SPOOL_BYTES),
            )
        )
        await TestBus(pod.control_plane.client).publish_prices(
            1, price("characters", "1", workspace=WORKSPACE, provider="cartesia")
        )
        bus_url = f"nats://127.0.0.1:{workers_wire.port}"
        clickhouse = ClickHouse(f"http://127.0.0.1:{clickhouse_wire.port}", "usage", "glottis", PASSWORD)
        direct = ClickHouse(f"http://127.0.0.1:{clickhouse_port}", "usage", "glottis", PASSWORD)
        await asyncio.to_thread(migrate, direct)
        aggregator = aggregator_worker(bus_url, seeds["aggregator"], clickhouse, password_file, folder)
        exporter = _exporter(bus_url, seeds["exporter"].reveal(), endpoint, folder)
        await parts.enter_async_context(running(aggregator))
        await parts.enter_async_context(running(exporter))
        chain = Chain(
            pod, provider, nats, account, nats_child, clickhouse_child, direct, aggregator, exporter, receiver, gateway_wire,
            workers_wire, clickhouse_wire, Traffic(f"http://127.0.0.1:{port}"),
        )  # fmt: skip
        chain.callers += [asyncio.ensure_future(chain.traffic.run()) for _ in range(CALLERS)]
        try:
            yield chain
        finally:
            await chain.silence()


def _start_servers(servers: ExitStack, home: Path, seeds: Any) -> tuple[Nats, Child, int, Path, Child]:
    """Start NATS and ClickHouse, in a thread of its own: both wait with an event loop of theirs."""
    nats, nats_child = servers.enter_context(nats_server(home, {"GLOTTIS": seeds}))
    clickhouse, clickhouse_child = servers.enter_context(clickhouse_server(home))
    return nats, nats_child, clickhouse.port, clickhouse.password_file, clickhouse_child


def _exporter(nats_url: str, seed: bytes, endpoint: str, folder: Path) -> Worker:
    seed_file = folder / "exporter.nk"
    seed_file.write_bytes(seed)
    targets = folder / "targets.yaml"
    protocol: Literal["http/protobuf"] = "http/protobuf"
    target = {"id": "t1", "name": "receiver", "endpoint": endpoint, "protocol": protocol, "timeout_seconds": 1}
    targets.write_text(yaml.safe_dump([target]))
    environment = {
        "GLOTTIS_NATS_URL": nats_url,
        "GLOTTIS_NATS_SEED_FILE": str(seed_file),
        "GLOTTIS_EXPORTER_LISTEN": f"127.0.0.1:{free_port()}",
        "GLOTTIS_EXPORTER_TARGETS_FILE": str(targets),
        "GLOTTIS_EXPORTER_FIRST_BACKOFF_SECONDS": "0.1",
        "GLOTTIS_EXPORTER_LONGEST_BACKOFF_SECONDS": "0.5",
        "GLOTTIS_EXPORTER_DRAIN_SECONDS": "1",
        "GLOTTIS_FLEET_KEY_FILE": str(folder / "fleet.key"),
        "GLOTTIS_ALLOWED_PRIVATE_ORIGINS": "/".join(endpoint.split("/")[:3]),
    }
    return Worker("control_plane.exporter", environment, folder)
