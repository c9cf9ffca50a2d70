"""How long a committed change takes to reach every watcher, small and at scale; and what a large workspace costs.

Run: python -m tests.bench.control_plane.propagation [--changes 200] [--watchers 20]. Starts its own Postgres (durable) and
NATS; the watchers have a gateway's rights, each its own connection, and count a change as there when the manifest's
signature was checked and every chunk that they lacked was fetched and decoded. Beside them runs one whole pod state (feed,
index, disk), which has it when it is in force. The clock starts before COMMIT is sent.

What is measured: control plane, watchers and pod share one process and one core, which does twenty pods' fetching one after
the other; real pods do that at the same time. `first_manifest` is what the control plane and the bus take alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import structlog

from contracts import codec, manifest
from contracts.snapshot import Chunk
from contracts.subjects import CONFIG_BUCKET, MANIFEST_KEY, chunk_key
from migrations.postgres import upgrade
from tests.kit.control_plane import APPLICATION_ROLE, RunningControlPlane, bootstrap, make_settings, serving, until
from tests.kit.pods import Pod
from tests.kit.processes import free_port
from tests.kit.services import (
    PASSWORD,
    NatsAccount,
    PostgresDatabase,
    nats_seeds,
    nats_server,
    postgres_server,
    service_folder,
)

USERS, TEAMS, ACCOUNTS, GRANTS = 10_000, 1_000, 1_000, 100_000


class BenchWatcher:
    """One watcher. `seen`: team names of the marker records that it has, and when each came."""

    def __init__(self, running: RunningControlPlane) -> None:
        self._running = running
        self._chunks: dict[str, bytes] = {}
        self.seen: dict[str, float] = {}
        self.heard: dict[str, float] = {}
        """when the manifest came that led to it"""
        self.revision = 0
        self.news = asyncio.Event()

    async def follow(self) -> None:
        client = await self._running.nats.connect("gateway")
        bucket = await client.jetstream().key_value(CONFIG_BUCKET)
        watcher = await bucket.watch(MANIFEST_KEY)
        async for entry in watcher:
            if entry is None or entry.value is None:
                continue
            heard = time.perf_counter()
            opened = manifest.opened(entry.value, [self._running.fleet.manifest_public])
            missing = [name for name in opened.chunks if name not in self._chunks]
            for start in range(0, len(missing), 32):
                names = missing[start : start + 32]
                found = await asyncio.gather(*(bucket.get(chunk_key(name)) for name in names))
                self._chunks.update({name: one.value or b"" for name, one in zip(names, found, strict=True)})
            now = time.perf_counter()
            for name in missing:
                for team in codec.decode(self._chunks[name], Chunk).teams:
                    if team.name.startswith("marker-"):
                        self.seen.setdefault(team.name, now)
                        self.heard.setdefault(team.name, heard)
            self._chunks = {name: self._chunks[name] for name in opened.chunks}
            self.revision = opened.revision
            self.news.set()


async def change(connection: asyncpg.Connection, name: str) -> float:
    """Rename the marker team and return when COMMIT was sent."""
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("SELECT set_config('glottis.workspace', 'acme', true)")
    await connection.execute("UPDATE teams SET name = $1, version = version + 1 WHERE id = 'marker'", name)
    started = time.perf_counter()
    await transaction.commit()
    return started


class BenchPod:
    """A pod's whole state beside the watchers. `seen`: marker names, and when each was in force."""

    def __init__(self, running: RunningControlPlane, folder: Path) -> None:
        self.pod = Pod(running.nats.url, running.nats.seeds["gateway"], running.fleet.manifest_public, folder)
        self.seen: dict[str, float] = {}
        self.pod.store.subscribe(self._note)

    def _note(self) -> None:
        marker = self.pod.store.world.index.teams.get(("acme", "marker"))
        if marker is not None:
            self.seen.setdefault(marker.name, time.perf_counter())


def percentiles(samples: list[float]) -> dict[str, float]:
    """Return the figures of samples in milliseconds."""
    samples = sorted(samples)
    return {
        "p50_ms": round(statistics.median(samples), 1),
        "p99_ms": round(samples[min(len(samples) - 1, int(len(samples) * 0.99))], 1),
        "max_ms": round(samples[-1], 1),
    }


async def propagation(
    running: RunningControlPlane, watchers: list[BenchWatcher], pod: BenchPod, changes: int, label: str
) -> dict[str, Any]:
    """Return milliseconds from commit to the last watcher, over many changes."""
    connection = await asyncpg.connect(running.database.url)
    last, first, in_force = [], [], []
    for number in range(changes):
        name = f"marker-{label}-{number}"
        started = await change(connection, name)
        everybody = [watcher.seen for watcher in watchers] + [pod.seen]
        await until(lambda: all(name in seen for seen in everybody), name, 60)  # noqa: B023  (awaited at once)
        last.append((max(watcher.seen[name] for watcher in watchers) - started) * 1000)
        first.append((min(watcher.heard[name] for watcher in watchers) - started) * 1000)
        in_force.append((pod.seen[name] - started) * 1000)
    await connection.close()
    return {
        "changes": changes,
        "watchers": len(watchers),
        "last_watcher": percentiles(last),
        "first_manifest": percentiles(first),
        "pod_in_force": percentiles(in_force),
    }


async def fill(connection: asyncpg.Connection) -> None:
    """Make a large workspace, in one transaction as `apply` would."""
    async with connection.transaction():
        await connection.execute("SET LOCAL statement_timeout = '300s'")
        await connection.execute("SELECT set_config('glottis.workspace', 'acme', true)")
        await connection.execute(
            f"INSERT INTO teams (workspace, id, name, created_at) SELECT 'acme', 't-' || n, 'team-' || n, now() "
            f"FROM generate_series(1, {TEAMS}) n"
        )
        await connection.execute(
            f"INSERT INTO principals (workspace, id, kind, name, created_at) "
            f"SELECT 'acme', 'u-' || n, 'user', 'user-' || n, now() FROM generate_series(1, {USERS}) n"
        )
        await connection.execute(
            f"INSERT INTO memberships SELECT 'acme', 'u-' || n, 't-' || (1 + n % {TEAMS}), 0 FROM generate_series(1, {USERS}) n"
        )
        await connection.execute(
            f"INSERT INTO accounts (workspace, id, name, provider, origin, credential_scheme, priority, forwards_trace_headers, "
            f"region, plan, is_disabled, created_at) SELECT 'acme', 'a-' || n, 'account-' || n, 'cartesia', "
            f"'https://api.cartesia.ai', 'bearer', 100, false, '', '', false, now() FROM generate_series(1, {ACCOUNTS}) n"
        )
        await connection.execute(
            f"INSERT INTO grants (workspace, id, account_id, subject, principal_id, role, operations, created_at) "
            f"SELECT 'acme', 'g-' || n, 'a-' || (1 + n % {ACCOUNTS}), 'user:u-' || (1 + n / {GRANTS // USERS} % {USERS}), "
            f"'u-' || (1 + n / {GRANTS // USERS} % {USERS}), 'user', '{{}}', now() FROM generate_series(0, {GRANTS - 1}) n"
        )


@asynccontextmanager
async def installation() -> AsyncIterator[RunningControlPlane]:
    """A control plane on durable servers of its own."""
    seeds = nats_seeds()
    with service_folder("bench") as folder, tempfile.TemporaryDirectory() as keys:
        # Started before this loop runs anything: the kit waits for readiness with a loop of its own.
        stack = await asyncio.to_thread(_servers, folder, seeds)
        try:
            (postgres, postgres_context), (nats, nats_context) = stack
            await postgres.ensure_database("glottis", PASSWORD, PASSWORD)
            database = PostgresDatabase(
                "glottis",
                postgres.url(APPLICATION_ROLE, PASSWORD, "glottis"),
                postgres.url("glottis_owner", PASSWORD, "glottis"),
                postgres.url("postgres", PASSWORD, "glottis"),
            )
            await upgrade(database.owner_url, APPLICATION_ROLE)
            port = free_port()
            account = NatsAccount("GLOTTIS", nats.url, seeds)
            settings, fleet = make_settings(Path(keys), database, account, port)
            async with serving(settings) as app:
                url = f"http://127.0.0.1:{port}"
                token = await bootstrap(url)
                yield RunningControlPlane(url, token, "acme", settings, fleet, database, account, app)
        finally:
            nats_context.__exit__(None, None, None)
            postgres_context.__exit__(None, None, None)


def _servers(folder: Path, seeds: Any) -> Any:
    postgres_context = postgres_server(folder, durable=True)
    nats_context = nats_server(folder, {"GLOTTIS": seeds})
    return (postgres_context.__enter__()[0], postgres_context), (nats_context.__enter__()[0], nats_context)


async def main(changes: int, count: int) -> dict[str, Any]:
    """Return every figure."""
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="glottis-bench-pod-"))
        running = await stack.enter_async_context(installation())
        connection = await asyncpg.connect(running.database.url)
        async with connection.transaction():
            await connection.execute("SELECT set_config('glottis.workspace', 'acme', true)")
            await connection.execute(
                "INSERT INTO teams (workspace, id, name, created_at) VALUES ('acme', 'marker', 'marker-first', now())"
            )
        publisher = running.app.state.publisher
        await until(lambda: publisher.revision > 0 and publisher.is_leader, "the publisher leads", 30)
        watchers = [BenchWatcher(running) for _ in range(count)]
        tasks = [asyncio.ensure_future(watcher.follow()) for watcher in watchers]
        pod = BenchPod(running, Path(folder))
        await pod.pod.start()
        await until(lambda: all("marker-first" in watcher.seen for watcher in watchers), "the watchers watch", 30)
        figures: dict[str, Any] = {"small": await propagation(running, watchers, pod, changes, "small")}

        started = time.perf_counter()
        await fill(connection)
        committed = time.perf_counter()
        before = publisher.revision
        await until(lambda: publisher.revision > before, "the large workspace is published", 120)
        published = time.perf_counter()
        revision = publisher.revision
        await until(lambda: all(watcher.revision >= revision for watcher in watchers), "every watcher has it", 120)
        figures["fill"] = {
            "records": USERS + TEAMS + ACCOUNTS + GRANTS,
            "transaction_s": round(committed - started, 2),
            "to_manifest_s": round(published - committed, 2),
            "to_last_watcher_s": round(time.perf_counter() - committed, 2),
            "resident_mb_of_this_process": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        }
        figures["large"] = await propagation(running, watchers, pod, changes, "large")
        async with running.client() as client:
            started = time.perf_counter()
            answer = await client.get("/explain", params={"as": "user:user-1"})
            figures["explain_s_at_scale"] = round(time.perf_counter() - started, 2)
            assert answer.status_code == 200, answer.text
        await connection.close()
        await pod.pod.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return figures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=200)
    parser.add_argument("--watchers", type=int, default=20)
    options = parser.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    json.dump(asyncio.run(main(options.changes, options.watchers)), sys.stdout, indent=2)
    sys.stdout.write("\n")
