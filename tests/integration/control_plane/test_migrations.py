"""Every migration beside a pod of the release before: the pod works on while it runs and after it.

Only one release's code is here, so the release before is played by what it does to the database: its statements, with
every column spelled out as its queries spell them, kept below by the revision that it was written for; they were prepared
before the migration, as a pool's are. Beside them stands a rule that needs no list: what the catalog held before a step is
there after it, and nothing new is asked of who does not know it.
"""

from __future__ import annotations

import asyncio
import importlib
from typing import Any, Final

import alembic.script
import asyncpg
import pytest
from sqlalchemy import text

from contracts.secret import Secret
from control_plane.kit.database import Database
from migrations.postgres import MigrationFailed, newest_revision, upgrade
from tests.kit.control_plane import APPLICATION_ROLE
from tests.kit.services import PostgresDatabase

runner = importlib.import_module("migrations.postgres.upgrade")

STEPS: Final = [
    (str(script.down_revision), script.revision)
    for script in reversed(list(alembic.script.ScriptDirectory.from_config(runner._configuration()).walk_revisions()))
    if script.down_revision is not None
]

FIRST_RELEASE: Final = (
    "INSERT INTO teams (workspace, id, name, default_accounts, created_at) VALUES ('acme', $1, $1, '{}', now())",
    "INSERT INTO principals (workspace, id, kind, name, email, role, created_at) "
    "VALUES ('acme', $1, 'user', $1, NULL, 'member', now())",
    "INSERT INTO memberships (workspace, principal_id, team_id, position) VALUES ('acme', $1, $1, 0)",
    "INSERT INTO issuers (workspace, id, name, issuer, audiences, algorithms, subject_claim, group_teams, admits_unregistered, "
    "expiry, leeway_seconds, created_at) VALUES ('acme', $1, $1, 'https://idp.example/' || $1, '{glottis}', '{RS256}', 'sub', "
    "'{}', false, 'hard', 30, now())",
    "INSERT INTO issuer_audiences (workspace, issuer_id, audience, issuer) "
    "VALUES ('acme', $1, 'glottis', 'https://idp.example/' || $1)",
    "INSERT INTO accounts (workspace, id, name, provider, origin, credential_scheme, priority, forwards_trace_headers, region, "
    "plan, is_disabled, created_at) VALUES ('acme', $1, $1, 'cartesia', 'https://api.cartesia.ai', 'bearer', 100, false, '', '', "
    "false, now())",
    "INSERT INTO credentials (workspace, account_id, slot, version, secret, sealed, sealed_for, created_at) "
    "VALUES ('acme', $1, 'active', 1, '', '', 'k', now())",
    "INSERT INTO models (workspace, id, account_id, name, type, priority, is_narrowed, created_at) "
    "VALUES ('acme', $1, $1, 'sonic-3', 'text-to-speech', NULL, true, now())",
    "INSERT INTO model_subjects (workspace, model_id, subject, principal_id) VALUES ('acme', $1, 'user:' || $1, $1)",
    "INSERT INTO grants (workspace, id, account_id, subject, principal_id, role, operations, created_at) "
    "VALUES ('acme', $1, $1, 'user:' || $1, $1, 'user', '{}', now())",
    "INSERT INTO prices (workspace, id, provider, account_id, model, unit, price, currency, effective_ms, created_at) "
    "VALUES ('acme', $1, 'cartesia', $1, 'sonic-3', 'characters', 0.1, 'USD', 0, now())",
    "INSERT INTO tokens (workspace, id, principal_id, digest, kind, audience, name, is_single_use, created_by, created_at, "
    "expires_at) VALUES ('acme', $1, $1, '', 'personal', 'glottis', '', false, $1, now(), now() + interval '1 day')",
    "UPDATE tokens SET revoked_at = now() WHERE id = $1",
    "UPDATE accounts SET priority = 50, version = version + 1 WHERE id = $1",
    "UPDATE audit_heads SET seq = seq + 1 WHERE $1 <> ''",
    "DELETE FROM teams WHERE id = $1",
)
"""one change of each kind that the first release makes; $1: a name of its own for each round"""

FIRST_RELEASE_READS: Final = (
    "SELECT workspace, id, kind, ids, payload, created_at FROM outbox ORDER BY id",
    "SELECT id, workspace, kind, name, email, role, issuer_id, subject, is_disabled, version, created_at FROM principals",
    "SELECT id, workspace, name, provider, origin, credential_scheme, credential_version, priority, ca_pem, tls_server_name, "
    "allowed_voices, forwards_trace_headers, region, plan, is_disabled, version, created_at FROM accounts",
    "SELECT id, workspace, account_id, subject, principal_id, team_id, role, operations, version, created_at FROM grants",
    "SELECT revision FROM publication",
)

RELEASES: Final = {"0001": (FIRST_RELEASE, FIRST_RELEASE_READS)}
"""revision -> what the release of it writes and reads; a revision without an entry writes and reads as the one before"""


class OldPod:
    """A pod of the release that knows `revision`, with its statements prepared. `rounds`: changes that it has committed."""

    def __init__(self, connection: asyncpg.Connection, revision: str) -> None:
        newest = max(known for known in RELEASES if known <= revision)
        self._connection = connection
        self._writes, self._reads = RELEASES[newest]
        self.rounds = 0

    async def change(self) -> None:
        """Commit one change of every kind, each in a transaction as a request's, and read what a round reads."""
        name = f"round-{self.rounds}"
        for statement in self._writes:
            while not await self._is_committed(statement, name):
                pass  # the API answers 409 `conflict` with Retry-After, and the caller asks again
        while not await self._is_read():
            pass  # the publisher begins its round anew after any fault
        self.rounds += 1

    async def _is_committed(self, statement: str, name: str) -> bool:
        """Commit one change; tell whether the database took it, or had it give way to the migration's locks."""
        try:
            async with self._connection.transaction():
                await self._connection.execute("SELECT set_config('glottis.workspace', 'acme', true)")
                await self._connection.execute(statement, name)
        except (asyncpg.DeadlockDetectedError, asyncpg.LockNotAvailableError):
            return False
        return True

    async def _is_read(self) -> bool:
        """Read what a round of the publisher reads, and end its outbox rows; tell whether it was not made to give way."""
        try:
            async with self._connection.transaction(isolation="repeatable_read"):
                await self._connection.execute("SELECT set_config('glottis.reader', 'publisher', true)")
                for query in self._reads:
                    await self._connection.fetch(query)
                await self._connection.execute("DELETE FROM outbox")
        except (asyncpg.DeadlockDetectedError, asyncpg.LockNotAvailableError):
            return False
        return True


async def old_pod(database: PostgresDatabase, revision: str) -> tuple[asyncpg.Connection, OldPod]:
    """Return a connection of the application's role with a workspace, and the pod on it, which has worked already."""
    connection = await asyncpg.connect(database.url, server_settings={"lock_timeout": "4s", "statement_timeout": "30s"})
    async with connection.transaction():
        await connection.execute("SELECT set_config('glottis.workspace', 'acme', true)")
        await connection.execute("INSERT INTO workspaces (workspace, name, created_at) VALUES ('acme', 'Acme', now())")
        await connection.execute("INSERT INTO audit_heads (workspace, seq, hash) VALUES ('acme', 0, '')")
    pod = OldPod(connection, revision)
    await pod.change()
    return connection, pod


@pytest.mark.parametrize(("before", "after"), STEPS)
async def test_a_pod_of_the_release_before_works_on_while_a_migration_runs_and_after_it(
    postgres_database: PostgresDatabase, before: str, after: str
) -> None:
    await upgrade(postgres_database.owner_url, APPLICATION_ROLE, before)
    connection, pod = await old_pod(postgres_database, before)
    migrating = asyncio.ensure_future(upgrade(postgres_database.owner_url, APPLICATION_ROLE, after))
    while not migrating.done():
        await pod.change()
    assert await migrating == after
    during = pod.rounds
    await pod.change()
    async with connection.transaction():
        await connection.execute("SELECT set_config('glottis.workspace', 'acme', true)")
        assert await connection.fetchval("SELECT count(*) FROM accounts WHERE priority = 50") == during + 1
        assert await connection.fetchval("SELECT count(*) FROM teams") == 0
    await connection.close()


async def catalog(database: PostgresDatabase) -> dict[str, Any]:
    """Return what the application meets: columns (with what must be given), constraints, rights."""
    connection = await asyncpg.connect(database.superuser_url)
    columns = await connection.fetch(
        "SELECT table_name, column_name, data_type, udt_name, "
        "is_nullable = 'NO' AND column_default IS NULL AND is_identity = 'NO' AS is_demanded "
        "FROM information_schema.columns WHERE table_schema = 'public'"
    )
    constraints = await connection.fetch(
        "SELECT conrelid::regclass::text AS of, conname, pg_get_constraintdef(oid) AS says FROM pg_constraint "
        "WHERE connamespace = 'public'::regnamespace AND contype IN ('c', 'f', 'u', 'x', 'p')"
    )
    rights = await connection.fetch(
        "SELECT table_name, privilege_type FROM information_schema.role_table_grants WHERE grantee = $1", APPLICATION_ROLE
    )
    await connection.close()
    return {
        "columns": {(row["table_name"], row["column_name"]): (row["data_type"], row["udt_name"]) for row in columns},
        "demanded": {(row["table_name"], row["column_name"]) for row in columns if row["is_demanded"]},
        "constraints": {(row["of"], row["conname"]): row["says"] for row in constraints},
        "rights": {tuple(row) for row in rights},
    }


@pytest.mark.parametrize(("before", "after"), STEPS)
async def test_a_migration_takes_nothing_away_and_demands_nothing_new_of_what_was_there(
    postgres_database: PostgresDatabase, before: str, after: str
) -> None:
    await upgrade(postgres_database.owner_url, APPLICATION_ROLE, before)
    old = await catalog(postgres_database)
    await upgrade(postgres_database.owner_url, APPLICATION_ROLE, after)
    new = await catalog(postgres_database)

    tables = {table for table, _ in old["columns"]}
    assert {key: new["columns"].get(key) for key in old["columns"]} == old["columns"]
    assert old["rights"] <= new["rights"]
    assert {key for key in new["demanded"] if key[0] in tables} <= old["demanded"]
    assert {key: says for key, says in new["constraints"].items() if key[0] in tables} == old["constraints"]


@pytest.mark.parametrize(("before", "after"), STEPS)
async def test_a_migration_alters_no_two_tables_that_pods_use_in_one_transaction(
    postgres_database: PostgresDatabase, before: str, after: str
) -> None:
    await upgrade(postgres_database.owner_url, APPLICATION_ROLE, before)
    tables = {table for table, _ in (await catalog(postgres_database))["columns"]}
    superuser = await asyncpg.connect(postgres_database.superuser_url)
    await superuser.execute(
        "CREATE SCHEMA spy; CREATE TABLE spy.altered (transaction bigint, what text); "
        "CREATE FUNCTION spy.note() RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN "
        "INSERT INTO spy.altered SELECT txid_current(), object_identity FROM pg_event_trigger_ddl_commands() "
        "WHERE command_tag = 'ALTER TABLE'; END $$; "
        "CREATE EVENT TRIGGER notes ON ddl_command_end EXECUTE FUNCTION spy.note()"
    )

    assert await upgrade(postgres_database.owner_url, APPLICATION_ROLE, after) == after

    by_transaction: dict[int, set[str]] = {}
    for transaction, what in await superuser.fetch("SELECT transaction, what FROM spy.altered"):
        by_transaction.setdefault(transaction, set()).add(what.removeprefix("public."))
    await superuser.execute("DROP EVENT TRIGGER notes")
    await superuser.close()
    assert [altered & tables for altered in by_transaction.values() if len(altered & tables) > 1] == []


async def test_migrations_run_with_short_waits_for_locks_and_a_limit_for_statements(
    postgres_database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[str, str] = {}
    run = runner._run

    def spying(connection: Any, role: str, revision: str) -> str:
        for name in ("lock_timeout", "statement_timeout"):
            found[name] = connection.execute(text(f"SHOW {name}")).scalar_one()
        connection.commit()
        reached: str = run(connection, role, revision)
        return reached

    monkeypatch.setattr(runner, "_run", spying)
    assert await upgrade(postgres_database.owner_url, APPLICATION_ROLE) == newest_revision()
    assert found == {"lock_timeout": "4s", "statement_timeout": "30s"}


async def test_a_migration_whose_statement_takes_too_long_changes_nothing(
    postgres_database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "STATEMENT_TIMEOUT", "300ms")
    connection = await asyncpg.connect(postgres_database.owner_url)
    # Whatever it creates first takes longer than it may.
    superuser = await asyncpg.connect(postgres_database.superuser_url)
    await superuser.execute(
        "CREATE FUNCTION public.dawdle() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(60); END $$"
    )
    await superuser.execute("CREATE EVENT TRIGGER dawdles ON ddl_command_start EXECUTE FUNCTION public.dawdle()")
    with pytest.raises(MigrationFailed, match="A statement took longer than 300ms"):
        await upgrade(postgres_database.owner_url, APPLICATION_ROLE)
    await superuser.execute("DROP EVENT TRIGGER dawdles")
    tables = "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'"
    assert await connection.fetchval(tables) == 0
    await superuser.close()
    await connection.close()


async def test_the_application_asks_for_locks_briefly_and_ends_what_takes_long(migrated_database: PostgresDatabase) -> None:
    database = Database(Secret(migrated_database.url))
    names = ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")
    async with database.system() as connection:
        found = {name: (await connection.execute(text(f"SHOW {name}"))).scalar_one() for name in names}
    await database.close()
    assert found == {"lock_timeout": "4s", "statement_timeout": "30s", "idle_in_transaction_session_timeout": "1min"}
