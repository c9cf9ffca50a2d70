"""Statements about the audit log. Each runs in a transaction of one workspace."""

from collections.abc import AsyncIterator, Sequence

from sqlalchemy import ColumnElement, select
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.kit.rows import Row
from control_plane.tables import audit, audit_heads


async def page(connection: AsyncConnection, before: int | None, limit: int, *where: ColumnElement[bool]) -> Sequence[Row]:
    """Return up to limit + 1 entries, the newest first, from before `before`."""
    query = select(audit).where(*where).order_by(audit.c.seq.desc()).limit(limit + 1)
    if before is not None:
        query = query.where(audit.c.seq < before)
    return [dict(row) for row in (await connection.execute(query)).mappings()]


async def in_order(connection: AsyncConnection) -> AsyncIterator[Row]:
    """Yield every entry, the oldest first, without holding them all."""
    result = await connection.stream(select(audit).order_by(audit.c.seq))
    async for row in result.mappings():
        yield dict(row)


async def head(connection: AsyncConnection) -> tuple[int, bytes] | None:
    """Return the sequence number and hash of the last entry, as noted beside the log; None if nothing was logged."""
    row = (await connection.execute(select(audit_heads.c.seq, audit_heads.c.hash))).one_or_none()
    return None if row is None else (row[0], row[1])
