"""Publication under faults: nothing lost, nothing half-applied, and the revision converges by itself.

Servers that are killed here are this file's own; replicas are separate application objects with their own connections.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from contracts.subjects import CONFIG_BUCKET, MANIFEST_KEY, REVOCATIONS_BUCKET, ROLES
from control_plane.publish.bus import Bus
from glottis.embedded.nats import Nats
from glottis.embedded.postgres import Postgres
from migrations.postgres import upgrade
from tests.kit.control_plane import (
    APPLICATION_ROLE,
    RunningControlPlane,
    bootstrap,
    make_settings,
    serving,
    watching,
)
from tests.kit.processes import Child, free_port
from tests.kit.services import (
    PASSWORD,
    NatsAccount,
    PostgresDatabase,
    nats_seeds,
    nats_server,
    postgres_server,
    service_folder,
)

pytestmark = pytest.mark.timeout(240)


@dataclass(frozen=True)
class Installation:
    """Servers of this test's own, and the control plane on them."""

    running: RunningControlPlane
    postgres: tuple[Postgres, Child]
    nats: tuple[Nats, Child]


@pytest.fixture
def servers() -> Iterator[tuple[tuple[Postgres, Child], tuple[Nats, Child], NatsAccount]]:
    """A Postgres and a NATS that may be killed."""
    seeds = nats_seeds()
    with (
        service_folder("fault") as folder,
        postgres_server(folder, durable=True) as postgres,
        nats_server(folder, {"GLOTTIS": seeds}) as nats,
    ):
        yield postgres, nats, NatsAccount("GLOTTIS", nats[0].url, seeds)


@asynccontextmanager
async def installed(servers: Any, folder: Path) -> AsyncIterator[Installation]:
    """Serve a control plane on the servers."""
    postgres, nats, account = servers
    await postgres[0].ensure_database("glottis", PASSWORD, PASSWORD)
    database = PostgresDatabase(
        "glottis",
        postgres[0].url(APPLICATION_ROLE, PASSWORD, "glottis"),
        postgres[0].url("glottis_owner", PASSWORD, "glottis"),
        postgres[0].url("postgres", PASSWORD, "glottis"),
    )
    await upgrade(database.owner_url, APPLICATION_ROLE)
    port = free_port()
    settings, fleet = make_settings(folder, database, account, port)
    async with serving(settings) as app:
        url = f"http://127.0.0.1:{port}"
        token = await bootstrap(url)
        running = RunningControlPlane(url, token, "acme", settings, fleet, database, account, app)
        yield Installation(running, postgres, nats)


async def make_team(client: httpx.AsyncClient, name: str, deadline_seconds: float = 30) -> None:
    """Make a team, trying again while something is away, as an operator would; with a key, so that it is made once."""
    deadline = time.monotonic() + deadline_seconds
    while True:
        try:
            answer = await client.post("/teams", json={"name": name}, headers={"Idempotency-Key": name})
            if answer.status_code == 201:
                return
            assert answer.status_code == 503, answer.text
            assert answer.json()["reason"] == "database_unavailable"
        except httpx.TransportError:
            pass
        assert time.monotonic() < deadline, f"{name} could not be made"
        await asyncio.sleep(0.1)


async def test_changes_made_while_the_bus_is_away_are_published_when_it_is_back(servers: Any, tmp_path: Path) -> None:
    async with installed(servers, tmp_path) as installation:
        running, (nats, child) = installation.running, installation.nats
        async with running.client() as client:
            await make_team(client, "before")
            child.kill()
            for number in range(5):
                await make_team(client, f"during-{number}")
            token = (await client.post("/tokens", json={"principal": "user:ada"})).json()
            await client.delete(f"/tokens/{token['id']}")
            child.start()
            await child.until(lambda: nats.is_ready(running.nats.seeds["gateway"], ROLES["gateway"]))
            async with watching(running) as watcher:
                await watcher.until(lambda snapshot: len(snapshot.teams) == 6, "every team is published", 30)
                await watcher.until_revoked(f"acme.token.{token['id']}", 30)


async def test_a_bus_that_lost_its_disk_is_filled_anew(servers: Any, tmp_path: Path) -> None:
    async with installed(servers, tmp_path) as installation:
        running, (nats, child) = installation.running, installation.nats
        async with running.client() as client:
            await make_team(client, "voice")
            token = (await client.post("/tokens", json={"principal": "user:ada"})).json()
            await client.delete(f"/tokens/{token['id']}")
            async with watching(running) as watcher:
                snapshot = await watcher.until(lambda snapshot: len(snapshot.teams) == 1, "the team is published")
            admin = await running.nats.connect()
            for bucket in (CONFIG_BUCKET, REVOCATIONS_BUCKET):
                await admin.jetstream().delete_stream(f"KV_{bucket}")
            await admin.close()
            child.stop()
            child.start()
            await child.until(lambda: nats.is_ready(running.nats.seeds["gateway"], ROLES["gateway"]))
            async with watching(running) as watcher:
                again = await watcher.until(lambda snapshot: len(snapshot.teams) == 1, "the team is published again", 60)
                await watcher.until_revoked(f"acme.token.{token['id']}", 60)
        assert again.revision > snapshot.revision


async def test_changes_go_on_after_the_database_was_killed_and_restarted(servers: Any, tmp_path: Path) -> None:
    async with installed(servers, tmp_path) as installation:
        running, (postgres, child) = installation.running, installation.postgres
        async with running.client() as client, watching(running) as watcher:
            await make_team(client, "before")
            await watcher.until(lambda snapshot: len(snapshot.teams) == 1, "the team is published")
            child.kill()
            answer = await client.get("/teams")
            assert (answer.status_code, answer.json()["reason"]) == (503, "database_unavailable")
            assert answer.headers["retry-after"] == "1"
            async with httpx.AsyncClient(base_url=running.url, trust_env=False) as plain:
                assert (await plain.get("/readyz")).status_code == 503
                assert (await plain.get("/livez")).status_code == 200
            child.start()
            await child.until(postgres.is_ready)
            await make_team(client, "after")
            await watcher.until(lambda snapshot: len(snapshot.teams) == 2, "the change is published", 30)


async def test_two_replicas_publish_as_one_and_one_takes_over(control_plane: RunningControlPlane) -> None:
    second = replace(control_plane.settings, port=free_port())
    async with watching(control_plane) as watcher, serving(second) as app:
        other = replace(control_plane, url=f"http://127.0.0.1:{second.port}")
        async with control_plane.client() as here, other.client() as there:
            await asyncio.gather(*(make_team(client, f"t{n}") for n, client in enumerate([here, there] * 5)))
            await watcher.until(lambda snapshot: len(snapshot.teams) == 10, "changes of both replicas are published")
            assert [control_plane.app.state.publisher.is_leader, app.state.publisher.is_leader] == [True, False]
            # The leader's database session ends, as when its node is gone.
            connection = await asyncpg.connect(control_plane.database.superuser_url)
            await connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'glottis-publisher'"
            )
            await connection.close()
            await make_team(there, "after")
            await watcher.until(lambda snapshot: len(snapshot.teams) == 11, "publishing goes on", 30)


async def test_a_publisher_killed_between_chunks_and_manifest_leaves_the_old_revision_whole(
    control_plane: RunningControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with control_plane.client() as client, watching(control_plane) as watcher:
        await make_team(client, "one")
        before = await watcher.until(lambda snapshot: len(snapshot.teams) == 1, "the first team is published")
        put_manifest = Bus.put_manifest
        died: list[int] = []

        async def die(bus: Bus, value: bytes, last_sequence: int) -> int:
            if len(died) < 3:
                died.append(last_sequence)
                raise OSError("killed here")
            return await put_manifest(bus, value, last_sequence)

        monkeypatch.setattr(Bus, "put_manifest", die)
        await make_team(client, "two")
        after = await watcher.until(lambda snapshot: len(snapshot.teams) == 2, "the second team is published", 30)
    assert len(died) == 3
    assert after.revision > before.revision


async def test_a_publisher_that_lost_its_lock_unawares_cannot_put_an_older_manifest_over_a_newer_one(
    control_plane: RunningControlPlane,
) -> None:
    async with control_plane.client() as client, watching(control_plane) as watcher:
        await make_team(client, "one")
        await watcher.until(lambda snapshot: len(snapshot.teams) == 1, "the first team is published")
        admin = await control_plane.nats.connect()
        bucket = await admin.jetstream().key_value(CONFIG_BUCKET)
        # Another publisher has written meanwhile.
        overtaking = await bucket.put(MANIFEST_KEY, (await bucket.get(MANIFEST_KEY)).value or b"")
        await make_team(client, "two")
        await watcher.until(lambda snapshot: len(snapshot.teams) == 2, "it read everything anew and published", 30)
        assert (await bucket.get(MANIFEST_KEY)).revision > overtaking
        await admin.close()


async def test_a_database_restored_from_before_publishes_above_what_pods_have(control_plane: RunningControlPlane) -> None:
    async with control_plane.client() as client, watching(control_plane) as watcher:
        await make_team(client, "one")
        before = await watcher.until(lambda snapshot: len(snapshot.teams) == 1, "the team is published")
        connection = await asyncpg.connect(control_plane.database.superuser_url)
        await connection.execute("UPDATE publication SET revision = 0")
        await connection.close()
        await client.post("/republish")
        await make_team(client, "two")
        after = await watcher.until(lambda snapshot: len(snapshot.teams) == 2, "the change is published")
    assert after.revision > before.revision


async def test_republish_writes_every_chunk_anew(control_plane: RunningControlPlane) -> None:
    async with control_plane.client() as client:
        await make_team(client, "one")
        async with watching(control_plane) as watcher:
            before = await watcher.until(lambda snapshot: len(snapshot.teams) == 1, "the team is published")
        admin = await control_plane.nats.connect()
        for key in await (await admin.jetstream().key_value(CONFIG_BUCKET)).keys():
            if key.startswith("chunk."):
                await admin.jetstream().purge_stream(f"KV_{CONFIG_BUCKET}", subject=f"$KV.{CONFIG_BUCKET}.{key}")
        await admin.close()
        assert (await client.post("/republish")).status_code == 202
        async with watching(control_plane) as watcher:
            after = await watcher.until(lambda snapshot: snapshot.revision > before.revision, "a new revision", 30)
    assert [team.name for team in after.teams] == ["one"]
