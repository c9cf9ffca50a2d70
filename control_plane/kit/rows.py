"""The statements that all tables share: read one by id or name, a page, insert many, update against a version.

None names a workspace: the transaction does, and row-level security holds to it. Inserted rows carry it.
Table-specific statements stand in the slices' `queries`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from sqlalchemy import ColumnElement, Select, Table, Text, any_, delete, insert, literal, select, update
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.kit.problems import Problem, not_found

Row: TypeAlias = dict[str, Any]  # Any: a row's values are typed by its table

_ROWS_A_STATEMENT = 1000


async def find(
    connection: AsyncConnection, table: Table, reference: str, *where: ColumnElement[bool], locks: bool = False
) -> Row | None:
    """Return the row with this id, else the one with this name, or None. locks: see `locked`."""
    for column in (table.c.id, table.c.name):
        query = select(table).where(column == reference, *where)
        row = (await connection.execute(locked(query) if locks else query)).mappings().one_or_none()
        if row is not None:
            return dict(row)
    return None


def locked(query: Select[Any]) -> Select[Any]:
    """Return the query for who is going to change what it finds: of two changes the second waits for the first, and reads
    what that one left. What refers to the rows is not held up. Any: rows, as above."""
    return query.with_for_update(key_share=True)


async def get(
    connection: AsyncConnection, table: Table, kind: str, reference: str, *where: ColumnElement[bool], locks: bool = False
) -> Row:
    """Return the row with this id or name. Raises Problem not_found; kind: the word for people; locks: see `locked`."""
    row = await find(connection, table, reference, *where, locks=locks)
    if row is None:
        raise not_found(kind, reference)
    return row


async def page(
    connection: AsyncConnection, table: Table, after: str | None, limit: int, *where: ColumnElement[bool]
) -> Sequence[Row]:
    """Return up to limit + 1 rows in the order of their ids, from the one after `after`; one too many: there are more."""
    query = select(table).where(*where).order_by(table.c.id).limit(limit + 1)
    if after is not None:
        query = query.where(table.c.id > after)
    return [dict(row) for row in (await connection.execute(query)).mappings()]


async def insert_rows(connection: AsyncConnection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert the rows, many a statement."""
    for start in range(0, len(rows), _ROWS_A_STATEMENT):
        await connection.execute(insert(table), list(rows[start : start + _ROWS_A_STATEMENT]))


async def update_row(connection: AsyncConnection, table: Table, row: Row, values: Mapping[str, Any]) -> Row:
    """Return the row with the values written and its version counted up. Raises Problem changed_meanwhile."""
    statement = (
        update(table)
        .where(table.c.id == row["id"], table.c.version == row["version"])
        .values(**values, version=row["version"] + 1)
        .returning(table)
    )
    updated = (await connection.execute(statement)).mappings().one_or_none()
    if updated is None:
        raise Problem("changed_meanwhile")
    return dict(updated)


async def delete_rows(connection: AsyncConnection, table: Table, ids: Iterable[str]) -> None:
    """Delete the rows with these ids."""
    await connection.execute(delete(table).where(table.c.id == any_of(ids)))


def any_of(ids: Iterable[str]) -> Any:  # Any: SQLAlchemy types ANY() by its use
    """Return `ANY(ids)`, one parameter however many ids there are."""
    return any_(literal(list(ids), ARRAY(Text)))


def check_version(row: Row, expected: int | None) -> None:
    """Raise Problem changed_meanwhile if the caller saw another version than there is; None: the caller does not say."""
    if expected is not None and row["version"] != expected:
        raise Problem("changed_meanwhile")


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what differs between two descriptions, before and after."""
    names = [name for name in after if before.get(name) != after[name]]
    return {name: before.get(name) for name in names}, {name: after[name] for name in names}
