"""A replica that publishes is killed in the middle of a burst of changes; the other goes on where it was."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from control_plane.settings import Settings
from glottis.processes import Command
from tests.kit.control_plane import RunningControlPlane, bootstrap, environment_of, serving, watching
from tests.kit.processes import Child, free_port
from tests.kit.services import NatsAccount, PostgresDatabase, environment
from tests.kit.waiting import until

pytestmark = pytest.mark.timeout(240)

ROOT = str(Path(__file__).parents[3])
TEAMS = [f"team-{number}" for number in range(40)]


@pytest.mark.parametrize("made_before_the_kill", [1, 15, 30])
async def test_every_change_of_a_burst_is_published_once_when_the_publisher_is_killed_during_it(
    migrated_database: PostgresDatabase, nats_account: NatsAccount, tmp_path: Path, made_before_the_kill: int
) -> None:
    environ, fleet = environment_of(tmp_path, migrated_database, nats_account, free_port())
    whole = {**environment(), **environ, "PYTHONPATH": ROOT}
    command = Command((sys.executable, "-m", "glottis", "control-plane"), whole, tmp_path)
    settings = replace(Settings.from_env(environ), port=free_port())
    with Child(command, tmp_path / "leader.log") as leader:

        async def is_leading() -> bool:
            return "publisher leads" in leader.output

        await leader.until(is_leading)
        async with serving(settings) as app:
            url = f"http://127.0.0.1:{settings.port}"
            token = await bootstrap(url)
            running = RunningControlPlane(url, token, "acme", settings, fleet, migrated_database, nats_account, app)
            assert not app.state.publisher.is_leader
            async with running.client() as client, watching(running) as watcher:
                made: list[str] = []

                async def make(name: str) -> None:
                    answer = await client.post("/teams", json={"name": name})
                    assert answer.status_code == 201, answer.text
                    made.append(name)

                burst = asyncio.gather(*(make(name) for name in TEAMS))
                await until(lambda: len(made) >= made_before_the_kill, 60)
                leader.kill()
                await burst
                after = await watcher.until(lambda snapshot: len(snapshot.teams) >= 40, "every team is published", 60)
                assert sorted(team.name for team in after.teams) == sorted(TEAMS)
                await make("one-more")
                last = await watcher.until(lambda snapshot: len(snapshot.teams) == 41, "the next change is published", 60)
                assert last.revision > after.revision
            assert app.state.publisher.is_leader
