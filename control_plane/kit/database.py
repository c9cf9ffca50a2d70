"""Connections and transactions, each bound to one workspace before its first statement.

Row-level security shows a transaction only the rows of the workspace named in `glottis.workspace`; without one it sees
none. `publisher` transactions read all workspaces and write nothing of theirs. A server that goes silent without closing
holds nobody up for ever: its connection is cut. Knows no table. Read next: `unit`.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from sqlalchemy import Connection, event, text
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from contracts.secret import Secret
from control_plane.kit.problems import Problem

OUTBOX_CHANNEL = "glottis_outbox"
_STATEMENT_TIMEOUT = "30s"
_LOCK_TIMEOUT = "4s"
_IDLE_TIMEOUT = "60s"
_CHECKOUT_SECONDS = 6.0
"""how long a connection may take that is made, or asked whether it is still alive"""
_SILENCE_SECONDS = 35.0
"""after which a statement is given up: the server itself ends one sooner, so what is silent is the network"""


class Database:
    """The pool of application-role connections. url: `postgresql://…`, of the role that obeys row-level security."""

    def __init__(self, url: Secret, pool_size: int = 8) -> None:
        self._url = url
        self._engine: AsyncEngine = create_async_engine(
            re.sub(r"^postgres(ql)?(\+asyncpg)?://", "postgresql+asyncpg://", url.reveal().decode(), count=1),
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=5,
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
        event.listen(self._engine.sync_engine, "before_cursor_execute", _arm)
        event.listen(self._engine.sync_engine, "after_cursor_execute", _disarm)

    async def close(self) -> None:
        """Close every connection."""
        await self._engine.dispose()

    @asynccontextmanager
    async def transaction(self, workspace: str) -> AsyncIterator[AsyncConnection]:
        """One transaction that sees and writes this workspace alone; committed at the end, rolled back on any exception."""
        async with translated_faults(), self._begun() as connection:
            await connection.execute(text("SELECT set_config('glottis.workspace', :workspace, true)"), {"workspace": workspace})
            yield connection

    @asynccontextmanager
    async def system(self) -> AsyncIterator[AsyncConnection]:
        """One transaction without a workspace: it sees no tenant's row, only the deployment's own tables."""
        async with translated_faults(), self._begun() as connection:
            yield connection

    @asynccontextmanager
    async def publisher(self) -> AsyncIterator[AsyncConnection]:
        """One transaction over all workspaces, at one moment of the database (repeatable read); it writes no tenant's row.

        Its commit does not wait for the disk: what a crash takes back (a revision, the end of outbox rows) is done again.
        """
        async with translated_faults(), self._begun("REPEATABLE READ") as connection:
            await connection.execute(_AS_PUBLISHER)
            yield connection

    @asynccontextmanager
    async def _begun(self, isolation_level: str | None = None) -> AsyncIterator[AsyncConnection]:
        connection, guard = await self._checked_out()
        try:
            if isolation_level is not None:
                await connection.execution_options(isolation_level=isolation_level)
            async with connection.begin():
                try:
                    yield connection
                finally:
                    guard.arm(_SILENCE_SECONDS)  # the commit or the rollback may meet silence as well
        finally:
            await connection.close()
            guard.disarm()

    async def _checked_out(self) -> tuple[AsyncConnection, "_Guard"]:
        """Return a connection of the pool that is alive, and its guard. Raises TimeoutError if it is silent.

        Not by the pool's own `pool_pre_ping`: where that is cancelled it waits, without a limit, for the server to answer.
        """
        while True:
            async with asyncio.timeout(_CHECKOUT_SECONDS):
                connection = await self._engine.connect()
            pooled = await connection.get_raw_connection()
            is_new = _GUARD not in pooled.info
            driver: Any = pooled.driver_connection  # Any: asyncpg's connection, which SQLAlchemy does not type
            guard = pooled.info[_GUARD] = _Guard(driver)
            if is_new:
                return connection, guard
            guard.arm(_CHECKOUT_SECONDS)
            try:
                await driver.execute("SELECT 1")
                return connection, guard
            except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
                await connection.invalidate()
                await connection.close()
                if guard.has_fired:
                    raise TimeoutError("the database is silent") from None
            except BaseException:
                await connection.invalidate()
                await connection.close()
                raise
            finally:
                guard.disarm()

    async def session(self) -> asyncpg.Connection:
        """Return a connection outside the pool, for LISTEN and advisory locks; the caller closes it."""
        return await asyncpg.connect(
            self._url.reveal().decode(), timeout=5, server_settings={"application_name": "glottis-publisher"}
        )


_AS_PUBLISHER = text("SELECT set_config('glottis.reader', 'publisher', true), set_config('synchronous_commit', 'off', true)")
_GUARD = "glottis.guard"


class _Guard:
    """Cuts a connection off if it stays silent while it is armed; whoever waits for it is told so at once."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection
        self._timer: asyncio.TimerHandle | None = None
        self.has_fired = False

    def arm(self, seconds: float) -> None:
        self.disarm()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._fire)

    def disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self.has_fired = True
        self._connection.terminate()


def _arm(connection: Connection, *_: object) -> None:
    guard: _Guard | None = connection.info.get(_GUARD)
    if guard is not None:
        guard.arm(_SILENCE_SECONDS)


def _disarm(connection: Connection, *_: object) -> None:
    guard: _Guard | None = connection.info.get(_GUARD)
    if guard is not None:
        guard.disarm()


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
