"""Statements about subjects and grants. Each runs in a transaction of one workspace."""

from collections.abc import Iterable

from sqlalchemy import exists, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.kit.rows import any_of
from control_plane.tables import grants, memberships, principals, teams


async def subjects(connection: AsyncConnection, kind: str, references: Iterable[str]) -> dict[str, str]:
    """Return reference -> id for those that exist. kind: user, service_account or team."""
    wanted = list(references)
    table = teams if kind == "team" else principals
    query = select(table.c.id, table.c.name).where((table.c.id == any_of(wanted)) | (table.c.name == any_of(wanted)))
    if kind != "team":
        query = query.where(principals.c.kind == kind)
    found: dict[str, str] = {}
    for subject, name in await connection.execute(query):
        found.setdefault(name, subject)
        found[subject] = subject
    return found


async def grant_ids_of(connection: AsyncConnection, principal: str) -> list[str]:
    """Return the ids of the grants that the principal has, itself or by a team."""
    of_my_teams = select(memberships.c.team_id).where(memberships.c.principal_id == principal)
    query = select(grants.c.id).where(or_(grants.c.principal_id == principal, grants.c.team_id.in_(of_my_teams)))
    return list((await connection.execute(query)).scalars())


async def manages(connection: AsyncConnection, principal: str, account: str) -> bool:
    """Tell whether the principal, or a team that it is in, is a manager of the account."""
    of_my_teams = select(memberships.c.team_id).where(memberships.c.principal_id == principal)
    query = select(
        exists(
            select(grants.c.id).where(
                grants.c.account_id == account,
                grants.c.role == "manager",
                or_(grants.c.principal_id == principal, grants.c.team_id.in_(of_my_teams)),
            )
        )
    )
    return bool((await connection.execute(query)).scalar_one())


async def accounts_of(connection: AsyncConnection, principal: str) -> set[str]:
    """Return the ids of the accounts that the principal collaborates on, itself or by a team."""
    of_my_teams = select(memberships.c.team_id).where(memberships.c.principal_id == principal)
    query = select(grants.c.account_id).where(or_(grants.c.principal_id == principal, grants.c.team_id.in_(of_my_teams)))
    return set((await connection.execute(query)).scalars())
