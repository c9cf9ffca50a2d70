"""How long a gateway's loop is held up at most while a large configuration is applied under load.

`python -m tests.bench.gateway.stalls --sessions 500`: a gateway fed by NATS carries busy sessions (640-byte frames, echoed)
while a snapshot of 100,000 grants comes into force, then one with a single grant less. The gateway runs in a process of its
own with one thing added: a look at the loop's processor time from turn to turn. Processor time, because the machine may have
other users; it is the time for which no session is served.
"""

import argparse
import asyncio
import json
import os
import resource
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import structlog
import uvloop

import gateway.main
from contracts.secret import Secret
from contracts.snapshot import Snapshot
from gateway.app import Gateway
from gateway.settings import Settings
from tests.bench.gateway.memory import Provider
from tests.bench.gateway_state.bookkeeping import large_snapshot
from tests.doubles.cartesia_websocket import BINARY, client_frame
from tests.kit.configuration import ControlPlane, at_revision
from tests.kit.gateway import GatewayProcess, gateway_command, token
from tests.kit.identities import voice_workspace
from tests.kit.processes import Child
from tests.kit.services import NatsAccount, nats_seeds, nats_server, service_folder
from tests.kit.sessions import handshake

TARGET = "/cartesia/stt/websocket?model=ink-whisper&encoding=pcm_s16le&sample_rate=16000"
FRAMES_A_SECOND = 10
GATEWAY_CORE, OTHER_CORE = 0, 1


async def turns() -> None:
    """Print the longest turn of each tenth of a second, and how many turns there were."""
    while True:
        ends, longest, count = time.monotonic() + 0.1, 0.0, 0
        while time.monotonic() < ends:
            began = time.thread_time()
            await asyncio.sleep(0)
            longest, count = max(longest, time.thread_time() - began), count + 1
        sys.stdout.write(json.dumps({"event": "turns", "longest_ms": longest * 1e3, "count": count, "level": "info"}) + "\n")
        sys.stdout.flush()


class Watched(Gateway):
    """The gateway, its turns looked at."""

    async def run(self) -> int:
        watching = asyncio.ensure_future(turns())
        try:
            return await super().run()
        finally:
            watching.cancel()


def serve() -> int:
    """Be the gateway process, watched."""
    gateway.main.Gateway = Watched  # type: ignore[misc]  # the one thing that is added
    return gateway.main.run(Settings.from_env(os.environ))


class Caller(asyncio.Protocol):
    """A client of one session: counts what comes back after its 101."""

    def __init__(self, head: bytes) -> None:
        self._head = head
        self.is_open = False
        self.answers = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        transport.write(self._head)  # type: ignore[attr-defined]  # uvloop's own class

    def data_received(self, data: bytes) -> None:
        if not self.is_open:
            if not data.startswith(b"HTTP/1.1 101"):
                sys.exit(data.decode())
            self.is_open = True
        else:
            self.answers += 1


async def load(callers: list[Caller]) -> None:
    """Send on every session, evenly over time."""
    frame = client_frame(BINARY, bytes(640))
    share = max(1, len(callers) * FRAMES_A_SECOND // 100)
    at, due = 0, time.monotonic()
    while True:
        for _ in range(share):
            callers[at].transport.write(frame)  # type: ignore[attr-defined]  # uvloop's own class
            at = (at + 1) % len(callers)
        due += 0.01
        await asyncio.sleep(max(0.0, due - time.monotonic()))


def workspace_of(base: Snapshot, origin: str, control_plane: ControlPlane, revision: int) -> Snapshot:
    """Return a workspace in which alice's sessions are granted, at this revision."""
    own = voice_workspace()
    account = msgspec.structs.replace(own.accounts[1], origin=origin)
    with_credential = control_plane.with_credential(account, Secret("sk_real"))
    return at_revision(
        base,
        revision,
        accounts=(with_credential, *(one for one in base.accounts if one.id != account.id)),
        principals=(*own.principals, *(one for one in base.principals if one not in own.principals)),
        teams=(*own.teams, *(one for one in base.teams if one not in own.teams)),
        models=(
            msgspec.structs.replace(own.models[1], account=account.id),
            *(one for one in base.models if one not in own.models),
        ),
        grants=(*own.grants, *(one for one in base.grants if one not in own.grants)),
    )


async def measure(account: NatsAccount, folder: Path, sessions: int) -> None:
    """Run everything and print."""
    loop = asyncio.get_running_loop()
    provider = await loop.create_server(Provider, "127.0.0.1", 0, backlog=1000)
    origin = f"http://127.0.0.1:{provider.sockets[0].getsockname()[1]}"
    control_plane = ControlPlane(await account.connect())
    await control_plane.prepare()
    await control_plane.publish(workspace_of(voice_workspace(), origin, control_plane, 1))
    large = workspace_of(large_snapshot(), origin, control_plane, 2)
    smaller = at_revision(large, 3, grants=large.grants[:-1])
    seed = folder / "seed"
    seed.write_bytes(account.seeds["gateway"].reveal())
    variables = control_plane.key_files(folder) | {
        "GLOTTIS_NATS_URL": account.url,
        "GLOTTIS_NATS_SEED_FILE": str(seed),
        "GLOTTIS_GATEWAY_SPOOL_DIR": str(folder / "spool"),
        "GLOTTIS_GATEWAY_STATE_DIR": str(folder / "state"),
        "GLOTTIS_ALLOWED_PRIVATE_ORIGINS": origin,
    }
    watched = (*taskset(GATEWAY_CORE), sys.executable, "-m", "tests.bench.gateway.stalls", "--serve")
    command = replace(gateway_command(folder, variables), arguments=watched)
    with Child(command, folder / "gateway.log") as child:
        pod = GatewayProcess(child)
        await child.until(pod.is_ready)
        port = int(pod.url.rpartition(":")[2])
        head = handshake(TARGET, token=token())
        callers = []
        for _ in range(sessions):
            _, caller = await loop.create_connection(lambda: Caller(head), "127.0.0.1", port)
            callers.append(caller)
        while not all(caller.is_open for caller in callers):
            await asyncio.sleep(0.05)
        loading = asyncio.ensure_future(load(callers))
        phases = {"nothing new": None, "100,000 grants": large, "one grant less": smaller}
        for what, snapshot in phases.items():
            if snapshot is not None:
                await control_plane.publish_chunks(snapshot)
            await asyncio.sleep(2.0)
            seen, answered, began = len(pod.events("turns")), sum(caller.answers for caller in callers), time.monotonic()
            if snapshot is not None:
                await control_plane.publish_revisions(snapshot, [snapshot.revision])
                while await pod.metric("glottis_gateway_config_revision") != snapshot.revision:
                    await asyncio.sleep(0.1)
            applied = time.monotonic() - began
            await asyncio.sleep(5.0)
            longest = sorted((line["longest_ms"] for line in pod.events("turns")[seen:]), reverse=True)
            rate = (sum(caller.answers for caller in callers) - answered) / (time.monotonic() - began)
            sys.stdout.write(
                f"{what:16} in force after {applied:5.2f} s; longest turns {', '.join(f'{ms:.1f}' for ms in longest[:3])} ms; "
                f"{rate:.0f} round trips/s over {sessions} sessions\n"
            )
            sys.stdout.flush()
        loading.cancel()
        for caller in callers:
            caller.transport.abort()  # type: ignore[attr-defined]  # uvloop's own class
    provider.close()
    await control_plane.client.close()


def taskset(core: int) -> tuple[str, ...]:
    """Return what pins a command to a core, where there is more than one."""
    return ("taskset", "-c", str(core)) if (os.cpu_count() or 1) > 1 else ()


def main() -> int:
    """Measure, or with `--serve` be the gateway."""
    parser = argparse.ArgumentParser(description="The longest turn of a gateway's loop while a large configuration is applied.")
    parser.add_argument("--sessions", type=int, default=500)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    seeds = nats_seeds()
    with (
        tempfile.TemporaryDirectory(prefix="glottis-bench-") as folder,
        service_folder("nats") as nats_folder,
        nats_server(nats_folder, {"GLOTTIS": seeds}) as (server, child),
    ):
        if taskset(0):
            os.sched_setaffinity(child.pid, {OTHER_CORE})
            os.sched_setaffinity(0, {OTHER_CORE})
        uvloop.run(measure(NatsAccount("GLOTTIS", server.url, seeds), Path(folder), options.sessions))
    return 0


if __name__ == "__main__":
    sys.exit(main())
