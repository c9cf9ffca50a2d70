"""The database by itself: migrations, row-level security, the outbox's triggers, the append-only log."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
import pytest_asyncio
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import create_async_engine

from control_plane.app import SCHEMA_REVISION
from control_plane.tables import metadata
from migrations.postgres import MigrationFailed, current_revision, newest_revision, upgrade
from migrations.postgres.upgrade import async_url
from tests.kit.control_plane import APPLICATION_ROLE
from tests.kit.services import PostgresDatabase

SYSTEM_TABLES = {"alembic_version", "publication", "signing_keys", "owner_secrets"}


@pytest_asyncio.fixture
async def migrated(migrated_database: PostgresDatabase) -> PostgresDatabase:
    """A database of this release."""
    return migrated_database


@pytest_asyncio.fixture
async def application(migrated: PostgresDatabase) -> AsyncIterator[asyncpg.Connection]:
    """A connection as the application's role."""
    connection = await asyncpg.connect(migrated.url)
    yield connection
    await connection.close()


async def make_workspace(connection: asyncpg.Connection, name: str) -> None:
    """Insert a workspace with a team, as its own transaction would."""
    async with connection.transaction():
        await connection.execute("SELECT set_config('glottis.workspace', $1, true)", name)
        await connection.execute("INSERT INTO workspaces (workspace, name, created_at) VALUES ($1, $1, now())", name)
        await connection.execute(
            "INSERT INTO teams (workspace, id, name, created_at) VALUES ($1, $1 || '-team', 'voice', now())", name
        )


async def in_acme(connection: asyncpg.Connection, statement: str) -> None:
    """Run a statement in a transaction of workspace acme."""
    async with connection.transaction():
        await connection.execute("SELECT set_config('glottis.workspace', 'acme', true)")
        await connection.execute(statement)


async def test_migrations_lead_to_exactly_the_tables_that_the_code_describes(migrated: PostgresDatabase) -> None:
    def differences(connection: Connection) -> list[Any]:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        return list(compare_metadata(context, metadata))

    engine = create_async_engine(async_url(migrated.owner_url))
    async with engine.connect() as connection:
        found = await connection.run_sync(differences)
    await engine.dispose()
    assert found == []


async def test_migrating_twice_changes_nothing(migrated: PostgresDatabase) -> None:
    assert await upgrade(migrated.owner_url, APPLICATION_ROLE) == newest_revision()
    assert await current_revision(migrated.url) == newest_revision()


def test_the_code_asks_for_the_newest_migration() -> None:
    assert newest_revision() == SCHEMA_REVISION


async def test_two_migrations_at_once_run_one_after_the_other(postgres_database: PostgresDatabase) -> None:
    reached = await asyncio.gather(*(upgrade(postgres_database.owner_url, APPLICATION_ROLE) for _ in range(2)))
    assert reached == [newest_revision()] * 2


async def test_a_role_name_that_would_be_sql_is_refused(postgres_database: PostgresDatabase) -> None:
    with pytest.raises(MigrationFailed):
        await upgrade(postgres_database.owner_url, "glottis_app; DROP TABLE teams")


async def test_every_table_of_a_tenant_forces_row_level_security(migrated: PostgresDatabase) -> None:
    connection = await asyncpg.connect(migrated.superuser_url)
    try:
        rows = await connection.fetch(
            "SELECT relname, relrowsecurity, relforcerowsecurity FROM pg_class "
            "WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'"
        )
        columns = await connection.fetch(
            "SELECT table_name FROM information_schema.columns WHERE table_schema = 'public' AND column_name = 'workspace'"
        )
    finally:
        await connection.close()
    secured = {row["relname"] for row in rows if row["relrowsecurity"] and row["relforcerowsecurity"]}
    assert {row["relname"] for row in rows} - secured == SYSTEM_TABLES
    assert {row["table_name"] for row in columns} == secured


async def test_the_application_owns_no_table_and_bypasses_nothing(migrated: PostgresDatabase) -> None:
    connection = await asyncpg.connect(migrated.superuser_url)
    try:
        owners = await connection.fetch("SELECT DISTINCT tableowner FROM pg_tables WHERE schemaname = 'public'")
        role = await connection.fetchrow(
            "SELECT rolsuper, rolbypassrls, rolcreatedb FROM pg_roles WHERE rolname = $1", APPLICATION_ROLE
        )
    finally:
        await connection.close()
    assert APPLICATION_ROLE not in {row["tableowner"] for row in owners}
    assert tuple(role) == (False, False, False)


async def test_an_unset_workspace_sees_no_row_of_any_table(application: asyncpg.Connection) -> None:
    await make_workspace(application, "acme")
    tables = [
        row["relname"]
        for row in await application.fetch(
            "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND relrowsecurity"
        )
    ]
    assert len(tables) == 19
    for table in tables:
        assert await application.fetchval(f"SELECT count(*) FROM {table}") == 0, table


async def test_a_workspace_sees_its_own_rows_alone(application: asyncpg.Connection) -> None:
    await make_workspace(application, "acme")
    await make_workspace(application, "globex")
    async with application.transaction():
        await application.execute("SELECT set_config('glottis.workspace', 'acme', true)")
        assert [row["id"] for row in await application.fetch("SELECT id FROM teams")] == ["acme-team"]
        assert await application.execute("UPDATE teams SET name = 'stolen' WHERE id = 'globex-team'") == "UPDATE 0"
        assert await application.execute("DELETE FROM teams WHERE id = 'globex-team'") == "DELETE 0"


async def test_a_row_cannot_be_written_for_another_workspace(application: asyncpg.Connection) -> None:
    await make_workspace(application, "acme")
    await make_workspace(application, "globex")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await in_acme(application, "INSERT INTO teams (workspace, id, name, created_at) VALUES ('globex', 'x', 'x', now())")


async def test_a_row_cannot_refer_into_another_workspace(application: asyncpg.Connection) -> None:
    await make_workspace(application, "acme")
    await make_workspace(application, "globex")
    await in_acme(
        application,
        "INSERT INTO principals (workspace, id, kind, name, created_at) VALUES ('acme', 'p', 'user', 'p', now())",
    )
    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await in_acme(
            application,
            "INSERT INTO memberships (workspace, principal_id, team_id, position) VALUES ('acme', 'p', 'globex-team', 0)",
        )


async def test_the_publishers_reader_sees_all_workspaces_and_writes_none(application: asyncpg.Connection) -> None:
    await make_workspace(application, "acme")
    await make_workspace(application, "globex")
    async with application.transaction():
        await application.execute("SELECT set_config('glottis.reader', 'publisher', true)")
        assert await application.fetchval("SELECT count(*) FROM teams") == 2
        assert await application.execute("UPDATE teams SET name = 'x'") == "UPDATE 0"
        assert await application.execute("DELETE FROM teams") == "DELETE 0"


async def test_a_deleted_team_puts_everything_that_it_takes_along_into_the_outbox(application: asyncpg.Connection) -> None:
    await make_workspace(application, "acme")
    async with application.transaction():
        await application.execute("SELECT set_config('glottis.workspace', 'acme', true)")
        await application.execute(
            "INSERT INTO principals (workspace, id, kind, name, created_at) VALUES ('acme', 'p1', 'user', 'p', now())"
        )
        await application.execute(
            "INSERT INTO memberships (workspace, principal_id, team_id, position) VALUES ('acme', 'p1', 'acme-team', 0)"
        )
        await application.execute("DELETE FROM outbox")
        await application.execute("DELETE FROM teams")
        rows = await application.fetch("SELECT kind, ids FROM outbox ORDER BY kind")
    assert [(row["kind"], row["ids"]) for row in rows] == [("principals", ["p1"]), ("teams", ["acme-team"])]


async def test_the_audit_log_takes_no_change_even_from_its_owner(migrated: PostgresDatabase) -> None:
    for url in (migrated.url, migrated.owner_url):
        connection = await asyncpg.connect(url)
        try:
            for statement in ("UPDATE audit SET actor = 'x'", "DELETE FROM audit", "TRUNCATE audit"):
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await connection.execute(statement)
        finally:
            await connection.close()


async def test_one_issuer_and_audience_belong_to_one_workspace(application: asyncpg.Connection) -> None:
    await make_workspace(application, "acme")
    await make_workspace(application, "globex")

    async def register(workspace: str) -> None:
        async with application.transaction():
            await application.execute("SELECT set_config('glottis.workspace', $1, true)", workspace)
            await application.execute(
                "INSERT INTO issuers (workspace, id, name, issuer, audiences, algorithms, subject_claim, group_teams, "
                "admits_unregistered, expiry, leeway_seconds, created_at) VALUES ($1, 'i-' || $1, 'idp', 'https://idp.example', "
                "'{glottis}', '{RS256}', 'sub', '{}', false, 'hard', 30, now())",
                workspace,
            )
            await application.execute(
                "INSERT INTO issuer_audiences VALUES ($1, 'i-' || $1, 'glottis', 'https://idp.example')", workspace
            )

    await register("acme")
    with pytest.raises(asyncpg.UniqueViolationError):
        await register("globex")


async def test_an_upgrade_from_the_first_revision_keeps_what_was_there(postgres_database: PostgresDatabase) -> None:
    assert await upgrade(postgres_database.owner_url, APPLICATION_ROLE, "0001") == "0001"
    connection = await asyncpg.connect(postgres_database.url)
    await make_workspace(connection, "acme")
    assert await upgrade(postgres_database.owner_url, APPLICATION_ROLE) == newest_revision()
    async with connection.transaction():
        await connection.execute("SELECT set_config('glottis.workspace', 'acme', true)")
        assert [row["name"] for row in await connection.fetch("SELECT name FROM teams")] == ["voice"]
        assert await connection.fetchval("SELECT count(*) FROM export_targets") == 0
    await connection.close()


async def test_an_upgrade_that_cannot_have_its_lock_gives_up_and_changes_nothing(
    postgres_database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    await upgrade(postgres_database.owner_url, APPLICATION_ROLE, "0001")
    runner = importlib.import_module("migrations.postgres.upgrade")
    monkeypatch.setattr(runner, "LOCK_TIMEOUT", "100ms")
    monkeypatch.setattr(runner, "ATTEMPTS", 1)
    connection = await asyncpg.connect(postgres_database.superuser_url)
    async with connection.transaction():
        await connection.execute("LOCK TABLE workspaces IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(MigrationFailed, match="A table stayed locked"):
            await upgrade(postgres_database.owner_url, APPLICATION_ROLE)
    await connection.close()
    assert await current_revision(postgres_database.owner_url) == "0001"
