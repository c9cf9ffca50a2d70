"""Statements about tokens. Each runs in a transaction of one workspace, but `due`, which the publisher's reader asks."""

from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.kit.rows import Row, any_of
from control_plane.tables import models, outbox, principals, tokens


async def with_principal(connection: AsyncConnection, token_id: str) -> Row | None:
    """Return the token's row with its principal's name, role and whether it is disabled; None if there is none."""
    query = (
        select(
            tokens,
            principals.c.name.label("principal_name"),
            principals.c.role.label("principal_role"),
            principals.c.is_disabled.label("principal_is_disabled"),
        )
        .join(principals, (principals.c.workspace == tokens.c.workspace) & (principals.c.id == tokens.c.principal_id))
        .where(tokens.c.id == token_id)
    )
    row = (await connection.execute(query)).mappings().one_or_none()
    return None if row is None else dict(row)


async def model_names(connection: AsyncConnection, account_ids: Iterable[str] | None) -> set[str]:
    """Return the names of the models that the accounts have; None: that any account of the workspace has."""
    query = select(models.c.name).distinct()
    if account_ids is not None:
        query = query.where(models.c.account_id == any_of(account_ids))
    return set((await connection.execute(query)).scalars())


async def mark_revoked(connection: AsyncConnection, ids: Iterable[str], now: datetime) -> list[Row]:
    """Return the rows that were not revoked before and are now."""
    statement = (
        update(tokens)
        .where(tokens.c.id == any_of(ids), tokens.c.revoked_at.is_(None))
        .values(revoked_at=now, revoke_at=None)
        .returning(tokens)
    )
    return [dict(row) for row in (await connection.execute(statement)).mappings()]


async def schedule(connection: AsyncConnection, token_id: str, at: datetime) -> None:
    """Have the token revoked at this time."""
    await connection.execute(update(tokens).where(tokens.c.id == token_id).values(revoke_at=at))


async def announce(connection: AsyncConnection, workspace: str, payloads: Iterable[tuple[str, bytes]]) -> None:
    """Put revocations or session commands into the outbox. payloads: key in the bucket, encoded value, which the
    publisher signs."""
    rows = [{"workspace": workspace, "kind": "revocations", "ids": [key], "payload": payload} for key, payload in payloads]
    if rows:
        await connection.execute(insert(outbox), rows)


async def of_principal(connection: AsyncConnection, principal_id: str, now: datetime) -> list[str]:
    """Return the ids of the principal's tokens that are good now."""
    query = select(tokens.c.id).where(
        tokens.c.principal_id == principal_id, tokens.c.revoked_at.is_(None), tokens.c.expires_at > now
    )
    return list((await connection.execute(query)).scalars())


async def mark_all_revoked(connection: AsyncConnection, principal_id: str, now: datetime) -> Row:
    """Note that every token of the principal that was issued before now is revoked; return the principal's row."""
    statement = update(principals).where(principals.c.id == principal_id).values(tokens_revoked_at=now).returning(principals)
    return dict((await connection.execute(statement)).mappings().one())


async def due(connection: AsyncConnection, now: datetime) -> list[tuple[str, str]]:
    """Return (workspace, token id) of those whose scheduled revocation has come; over all workspaces."""
    query = select(tokens.c.workspace, tokens.c.id).where(tokens.c.revoke_at <= now, tokens.c.revoked_at.is_(None))
    return [(workspace, token) for workspace, token in await connection.execute(query)]
