"""Connections and transactions, each bound to one workspace before its first statement.

Row-level security shows a transaction only the rows of the workspace named in `glottis.workspace`; without one it sees
none. `publisher` transactions read all workspaces and write nothing of theirs. Knows no table. Read next: `unit`.
"""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
from sqlalchemy import text
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from contracts.secret import Secret
from control_plane.kit.problems import Problem

OUTBOX_CHANNEL = "glottis_outbox"
_STATEMENT_TIMEOUT = "30s"
_LOCK_TIMEOUT = "4s"
_IDLE_TIMEOUT = "60s"


class Database:
    """The pool of application-role connections. url: `postgresql://…`, of the role that obeys row-level security."""

    def __init__(self, url: Secret, pool_size: int = 8) -> None:
        self._url = url
        self._engine: AsyncEngine = create_async_engine(
            re.sub(r"^postgres(ql)?(\+asyncpg)?://", "postgresql+asyncpg://", url.reveal().decode(), count=1),
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=5,
            pool_pre_ping=True,
            connect_args={
                "timeout": 5,
                "server_settings": {
                    "application_name": "glottis-control-plane",
                    "statement_timeout": _STATEMENT_TIMEOUT,
                    "lock_timeout": _LOCK_TIMEOUT,
                    "idle_in_transaction_session_timeout": _IDLE_TIMEOUT,
                },
            },
        )

    async def close(self) -> None:
        """Close every connection."""
        await self._engine.dispose()

    @asynccontextmanager
    async def transaction(self, workspace: str) -> AsyncIterator[AsyncConnection]:
        """One transaction that sees and writes this workspace alone; committed at the end, rolled back on any exception."""
        async with translated_faults(), self._engine.begin() as connection:
            await connection.execute(text("SELECT set_config('glottis.workspace', :workspace, true)"), {"workspace": workspace})
            yield connection

    @asynccontextmanager
    async def system(self) -> AsyncIterator[AsyncConnection]:
        """One transaction without a workspace: it sees no tenant's row, only the deployment's own tables."""
        async with translated_faults(), self._engine.begin() as connection:
            yield connection

    @asynccontextmanager
    async def publisher(self) -> AsyncIterator[AsyncConnection]:
        """One transaction over all workspaces, at one moment of the database (repeatable read); it writes no tenant's row."""
        async with translated_faults(), self._engine.connect() as connection:
            await connection.execution_options(isolation_level="REPEATABLE READ")
            async with connection.begin():
                await connection.execute(text("SELECT set_config('glottis.reader', 'publisher', true)"))
                yield connection

    async def session(self) -> asyncpg.Connection:
        """Return a connection outside the pool, for LISTEN and advisory locks; the caller closes it."""
        return await asyncpg.connect(
            self._url.reveal().decode(), timeout=5, server_settings={"application_name": "glottis-publisher"}
        )


@asynccontextmanager
async def translated_faults() -> AsyncIterator[None]:
    """Turn what the database says into problems: away, taken, referred to. Anything else stays a defect with its trace."""
    try:
        yield
    except IntegrityError as error:
        raise _integrity_problem(error) from error
    except DBAPIError as error:
        state = getattr(error.orig, "sqlstate", None) or ""
        if state == "55P03" or state == "40P01":
            raise Problem("conflict", "Another change holds this row; try again.", headers={"Retry-After": "1"}) from error
        if state[:2] == "22" or isinstance(error, DataError):
            raise Problem("invalid_request", "A value is outside what can be stored.") from error
        if (
            isinstance(error, OperationalError | InterfaceError)
            or error.connection_invalidated
            or state[:2] in ("08", "53", "57", "58")
        ):
            raise _unavailable() from error
        raise
    except (TimeoutError, PoolTimeout, OSError, asyncpg.PostgresConnectionError, asyncpg.CannotConnectNowError) as error:
        raise _unavailable() from error


def _unavailable() -> Problem:
    return Problem("database_unavailable", headers={"Retry-After": "1"})


def _integrity_problem(error: IntegrityError) -> Problem:
    state = getattr(error.orig, "sqlstate", "")
    if state == "23505":
        return Problem("already_exists")
    if state == "23503":
        return Problem("in_use")
    return Problem("invalid_request", "A value is outside what is allowed.")
