"""Statements that read or write a workspace whole. Each runs in a transaction of one workspace."""

from typing import Any

from sqlalchemy import Table, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.kit.rows import Row, locked
from control_plane.tables import (
    accounts,
    credentials,
    grants,
    issuers,
    memberships,
    model_subjects,
    models,
    owner_secrets,
    prices,
    principals,
    teams,
    workspace_keys,
    workspaces,
)
from control_plane.workspaces.state import Rows


async def workspace_row(connection: AsyncConnection, locks: bool = False) -> Row | None:
    """Return the transaction's workspace, None if there is no such one; locks: see `rows.locked`."""
    query = select(workspaces)
    row = (await connection.execute(locked(query) if locks else query)).mappings().one_or_none()
    return None if row is None else dict(row)


async def all_rows(connection: AsyncConnection, workspace: Row) -> Rows:
    """Return every row of the transaction's workspace."""
    found = Rows(workspace)
    by_id: tuple[tuple[dict[str, Row], Table], ...] = (
        (found.issuers, issuers),
        (found.teams, teams),
        (found.principals, principals),
        (found.accounts, accounts),
        (found.models, models),
        (found.grants, grants),
        (found.prices, prices),
    )
    for into, table in by_id:
        for row in (await connection.execute(select(table))).mappings():
            into[row["id"]] = dict(row)
    ordered = select(memberships.c.principal_id, memberships.c.team_id).order_by(
        memberships.c.principal_id, memberships.c.position
    )
    for principal, team in await connection.execute(ordered):
        found.teams_of.setdefault(principal, []).append(team)
    for model, subject in await connection.execute(
        select(model_subjects.c.model_id, model_subjects.c.subject).order_by(model_subjects.c.subject)
    ):
        found.only_of.setdefault(model, []).append(subject)
    for row in (await connection.execute(select(credentials))).mappings():
        found.slots_of.setdefault(row["account_id"], {})[row["slot"]] = dict(row)
    return found


async def make_workspace(connection: AsyncConnection, values: dict[str, Any]) -> None:
    """Insert the workspace's row."""
    await connection.execute(insert(workspaces).values(**values))


async def make_keys(connection: AsyncConnection, rows: list[Row]) -> None:
    """Insert the workspace's keys."""
    await connection.execute(insert(workspace_keys), rows)


async def is_secret_used(connection: AsyncConnection, digest: bytes) -> bool:
    """Tell whether an owner secret was used before."""
    query = select(owner_secrets.c.digest).where(owner_secrets.c.digest == digest)
    return (await connection.execute(query)).first() is not None


async def use_secret(connection: AsyncConnection, digest: bytes, now: Any) -> None:
    """Note that an owner secret is used; a second use fails on its key."""
    await connection.execute(insert(owner_secrets).values(digest=digest, used_at=now))
