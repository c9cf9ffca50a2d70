"""Run the migrations, from code: one connection, one at a time across all pods, brief waits for locks.

Knows Alembic and asyncpg; the revisions stand in `versions/`. Read next: `env.py`, which Alembic runs.
"""

import asyncio
import re
from pathlib import Path
from typing import Any

import alembic.command
import alembic.config
import alembic.runtime.migration
import alembic.script
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

LOCK_TIMEOUT = "4s"
STATEMENT_TIMEOUT = "30s"
_ADVISORY_LOCK = 0x676C6F74_6D696772  # "glotmigr"; the publisher has another
ATTEMPTS = 5
_GAVE_WAY = ("55P03", "40P01")  # a lock was not to be had in time, or in a deadlock with what pods do
_QUERY_CANCELED = "57014"
"""SQLSTATEs"""
_ROLE = re.compile(r"[a-z_][a-z0-9_]{0,62}\Z")


class MigrationFailed(RuntimeError):
    """The database could not be brought to this release; the text says why and what to do, without any secret."""


def async_url(url: str) -> str:
    """Return a `postgresql://` address with SQLAlchemy's name for the asyncpg driver."""
    return re.sub(r"^postgres(ql)?(\+asyncpg)?://", "postgresql+asyncpg://", url, count=1)


async def upgrade(owner_url: str, application_role: str, revision: str = "head") -> str:
    """Bring the database to the revision and return the one it is at now.

    owner_url: of the role that owns the tables; application_role: the role that the control plane connects as.
    Raises MigrationFailed if the role's name cannot be one, a lock was not to be had after several tries, or a statement
    took too long.
    """
    if not _ROLE.match(application_role):
        raise MigrationFailed(f"{application_role!r} cannot be the name of the application's role; use a-z, 0-9 and _.")
    engine = create_async_engine(
        async_url(owner_url),
        poolclass=NullPool,
        connect_args={"server_settings": {"lock_timeout": LOCK_TIMEOUT, "statement_timeout": STATEMENT_TIMEOUT}},
    )
    try:
        for attempt in range(ATTEMPTS):
            try:
                async with engine.connect() as connection:
                    return await connection.run_sync(_run, application_role, revision)
            except DBAPIError as error:
                if not _has_given_way(error) or attempt == ATTEMPTS - 1:
                    raise
                await asyncio.sleep(2**attempt)
    except DBAPIError as error:
        if _has_given_way(error):
            raise MigrationFailed(
                f"A table stayed locked for {LOCK_TIMEOUT} in {ATTEMPTS} tries. End the long transaction "
                "(see pg_stat_activity) and run it again; nothing was changed."
            ) from error
        if getattr(error.orig, "sqlstate", None) == _QUERY_CANCELED:
            raise MigrationFailed(
                f"A statement took longer than {STATEMENT_TIMEOUT}. Run it again when the database has less to do; "
                "nothing was changed."
            ) from error
        raise
    finally:
        await engine.dispose()
    raise AssertionError("the loop returns or raises")


async def current_revision(url: str) -> str | None:
    """Return the revision that the database is at; None for an empty one."""
    engine = create_async_engine(async_url(url), poolclass=NullPool)
    try:
        async with engine.connect() as connection:
            return await connection.run_sync(_current)
    finally:
        await engine.dispose()


def newest_revision() -> str:
    """Return the revision that this release's code needs."""
    head = alembic.script.ScriptDirectory.from_config(_configuration()).get_current_head()
    assert head is not None, "the release carries migrations"
    return head


def _configuration(**attributes: Any) -> alembic.config.Config:  # Any: as Alembic has it
    configuration = alembic.config.Config()
    configuration.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    configuration.attributes.update(attributes)
    return configuration


def _current(connection: Connection) -> str | None:
    return alembic.runtime.migration.MigrationContext.configure(connection).get_current_revision()


def _run(connection: Connection, application_role: str, revision: str) -> str:
    # The advisory lock is the session's: two pods that start together migrate one after the other.
    connection.execute(text("SELECT pg_advisory_lock(:lock)"), {"lock": _ADVISORY_LOCK})
    connection.commit()
    try:
        configuration = _configuration(connection=connection, application_role=application_role)
        alembic.command.upgrade(configuration, revision)
        reached = _current(connection)
        connection.commit()
    finally:
        if connection.in_transaction():
            connection.rollback()
        connection.execute(text("SELECT pg_advisory_unlock(:lock)"), {"lock": _ADVISORY_LOCK})
        connection.commit()
    assert reached is not None
    return reached


def _has_given_way(error: DBAPIError) -> bool:
    return getattr(error.orig, "sqlstate", None) in _GAVE_WAY
