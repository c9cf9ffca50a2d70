"""Networks that go silent without closing: no change is lost or half made, gateways serve on, the revision converges."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from control_plane.kit import database
from tests.doubles.wire import Wire, wire_to
from tests.kit.control_plane import RunningControlPlane, Watcher, bootstrap, make_settings, serving, watching
from tests.kit.pods import Pod
from tests.kit.processes import free_port
from tests.kit.services import NatsAccount, PostgresDatabase
from tests.kit.waiting import until

pytestmark = pytest.mark.timeout(240)

TEAMS = [f"team-{number}" for number in range(20)]


def through(wire: Wire, url: str) -> str:
    """Return the address with the wire's port in place of its own."""
    return url.replace(f":{urlsplit(url).port}", f":{wire.port}")


@asynccontextmanager
async def control_plane_over(
    folder: Path, postgres: PostgresDatabase, nats: NatsAccount
) -> AsyncIterator[tuple[RunningControlPlane, Wire, Wire]]:
    """A control plane that reaches its database and the bus by a wire each; watchers and pods have none of them."""
    async with (
        wire_to(urlsplit(postgres.url).port or 0) as to_postgres,
        wire_to(urlsplit(nats.url).port or 0) as to_nats,
    ):
        port = free_port()
        settings, fleet = make_settings(
            folder,
            replace(postgres, url=through(to_postgres, postgres.url)),
            replace(nats, url=through(to_nats, nats.url)),
            port,
        )
        async with serving(settings) as app:
            url = f"http://127.0.0.1:{port}"
            token = await bootstrap(url)
            running = RunningControlPlane(url, token, "acme", settings, fleet, postgres, nats, app)
            try:
                yield running, to_postgres, to_nats
            finally:
                # Those that stop say goodbye to both.
                to_postgres.mode = ""
                to_nats.mode = ""


def give_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a silent database given up after 2 s; undone when it speaks again, for a busy machine may be slower than that."""
    monkeypatch.setattr(database, "_SILENCE_SECONDS", 2.0)
    monkeypatch.setattr(database, "_CHECKOUT_SECONDS", 2.0)


async def made(client: httpx.AsyncClient, name: str) -> bool:
    """Ask for a team, by a key that makes a second request for it the same one; tell whether it is made."""
    answer = await client.post("/teams", json={"name": name}, headers={"Idempotency-Key": name})
    if answer.status_code == 201:
        return True
    # A request whose connection went silent may hold its lock a moment longer.
    assert (answer.status_code, answer.json()["reason"]) in ((503, "database_unavailable"), (409, "conflict")), answer.text
    return False


async def until_made(client: httpx.AsyncClient, name: str) -> None:
    async with asyncio.timeout(60):
        while not await made(client, name):
            await asyncio.sleep(0.1)


async def test_changes_made_while_the_bus_is_silent_are_published_when_it_speaks_again(
    migrated_database: PostgresDatabase, nats_account: NatsAccount, tmp_path: Path
) -> None:
    async with (
        control_plane_over(tmp_path, migrated_database, nats_account) as (running, _, to_nats),
        running.client() as client,
        watching(running) as watcher,
    ):
        assert await made(client, "before")
        before = await watcher.until(lambda snapshot: len(snapshot.teams) == 1, "the first team is published", 30)
        to_nats.mode = "silent"
        for name in TEAMS:
            assert await made(client, name)
        token = (await client.post("/tokens", json={"principal": "user:ada"})).json()
        await client.delete(f"/tokens/{token['id']}")
        await until(lambda: not running.app.state.publisher.is_connected, 60)
        assert watcher.snapshot == before
        to_nats.mode = ""
        after = await watcher.until(lambda snapshot: len(snapshot.teams) == 21, "every team is published", 60)
        await watcher.until_revoked(f"acme.token.{token['id']}", 60)
        assert after.revision > before.revision


async def test_a_gateway_that_hears_nothing_serves_on_and_has_the_newest_when_it_hears_again(
    control_plane: RunningControlPlane, tmp_path: Path
) -> None:
    account = control_plane.nats
    async with wire_to(urlsplit(account.url).port or 0) as wire, control_plane.client() as client:
        seed, key = account.seeds["gateway"], control_plane.fleet.manifest_public
        pod = Pod(through(wire, account.url), seed, key, tmp_path / "state")
        await pod.start()
        assert await made(client, "before")
        await until(lambda: len(pod.store.world.index.teams) == 1 and pod.store.is_ready, 30)
        wire.mode = "silent"
        for name in TEAMS:
            assert await made(client, name)
        await until(lambda: not pod.bus.is_up, 60)
        assert pod.store.is_ready
        assert len(pod.store.world.index.teams) == 1
        wire.mode = ""
        await until(lambda: len(pod.store.world.index.teams) == 21, 60)
        assert pod.refused == []
        await pod.stop()


async def test_a_database_that_is_silent_holds_no_request_up_and_every_change_is_made_once(
    migrated_database: PostgresDatabase, nats_account: NatsAccount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        control_plane_over(tmp_path, migrated_database, nats_account) as (running, to_postgres, _),
        running.client() as client,
        watching(running) as watcher,
    ):
        assert await made(client, "before")
        before = await watcher.until(lambda snapshot: len(snapshot.teams) == 1, "the first team is published", 30)
        to_postgres.mode = "silent"
        give_up_soon(monkeypatch)
        assert await asyncio.gather(*(made(client, name) for name in TEAMS[:3])) == [False, False, False]
        assert watcher.snapshot == before
        to_postgres.mode = ""
        monkeypatch.undo()
        for name in TEAMS[:3]:
            await until_made(client, name)
        after = await watcher.until(lambda snapshot: len(snapshot.teams) == 4, "every team is published", 60)
        assert sorted(team.name for team in after.teams) == ["before", *TEAMS[:3]]


@pytest.mark.parametrize("count", [200, 4_000, 8_000])
async def test_a_file_whose_transaction_meets_silence_is_applied_whole_or_not_at_all(
    migrated_database: PostgresDatabase,
    nats_account: NatsAccount,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
) -> None:
    document = {
        "version": 1,
        "workspace": {"id": "acme", "name": "Acme"},
        "teams": [{"name": name} for name in TEAMS],
        "users": [{"name": f"user-{name}", "teams": [name]} for name in TEAMS],
    }
    async with (
        control_plane_over(tmp_path, migrated_database, nats_account) as (running, to_postgres, _),
        running.client() as client,
        watching(running) as watcher,
    ):
        to_postgres.silent_after(count)
        give_up_soon(monkeypatch)
        answer = await client.post("/apply", json={"document": document})
        assert answer.status_code in (200, 503), answer.text
        await until(lambda: to_postgres.mode == "silent", 30)
        to_postgres.mode = ""
        monkeypatch.undo()
        await until_made(client, "after")
        # What was under way when the client gave up may still arrive: only then is it certain what was made.
        async with asyncio.timeout(60):
            while published(watcher) != (there := await names(client)) or "after" not in there:
                await asyncio.sleep(0.1)
        assert set(there) in ({"after"}, {*TEAMS, "after"})
        if answer.status_code == 200:
            assert len(there) == 21


def published(watcher: Watcher) -> list[str]:
    """Return the names of the teams that gateways have."""
    return sorted(team.name for team in watcher.snapshot.teams) if watcher.snapshot is not None else []


async def names(client: httpx.AsyncClient) -> list[str]:
    """Return the names of the teams that the database has."""
    answer = await client.get("/teams", params={"limit": 100})
    return sorted(team["name"] for team in answer.json()["items"]) if answer.status_code == 200 else []
