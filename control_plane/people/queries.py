"""Statements about people. Each runs in a transaction of one workspace."""

from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import delete, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.kit.rows import any_of, locked
from control_plane.tables import issuer_audiences, memberships, principals, teams


async def teams_of(connection: AsyncConnection, principal_ids: Iterable[str]) -> dict[str, list[str]]:
    """Return principal id -> team ids in their order, for those who have any."""
    found: dict[str, list[str]] = {}
    query = (
        select(memberships.c.principal_id, memberships.c.team_id)
        .where(memberships.c.principal_id == any_of(principal_ids))
        .order_by(memberships.c.principal_id, memberships.c.position)
    )
    for principal, team in await connection.execute(query):
        found.setdefault(principal, []).append(team)
    return found


async def ids_of_principals(connection: AsyncConnection, reference: str) -> list[str]:
    """Return the ids of the users and service accounts that have this id or this name."""
    query = select(principals.c.id).where((principals.c.id == reference) | (principals.c.name == reference))
    return list((await connection.execute(query.order_by(principals.c.id))).scalars())


async def replace_memberships(connection: AsyncConnection, workspace: str, wanted: Mapping[str, Sequence[str]]) -> None:
    """Make exactly these the teams of each principal. wanted: principal id -> team ids in order."""
    await connection.execute(delete(memberships).where(memberships.c.principal_id == any_of(wanted)))
    rows = [
        {"workspace": workspace, "principal_id": principal, "team_id": team, "position": position}
        for principal, team_ids in wanted.items()
        for position, team in enumerate(team_ids)
    ]
    for start in range(0, len(rows), 1000):
        await connection.execute(insert(memberships), rows[start : start + 1000])


async def ids_of_teams(connection: AsyncConnection, references: Iterable[str]) -> dict[str, str]:
    """Return reference -> id for the team ids and names that exist."""
    wanted = list(references)
    found: dict[str, str] = {}
    rows = await connection.execute(
        select(teams.c.id, teams.c.name).where((teams.c.id == any_of(wanted)) | (teams.c.name == any_of(wanted)))
    )
    for team, name in rows:
        found.setdefault(name, team)
        found[team] = team
    return found


async def replace_audiences(
    connection: AsyncConnection, workspace: str, issuer_id: str, issuer: str, audiences: Sequence[str]
) -> None:
    """Make exactly these the audiences that the issuer is registered with."""
    await connection.execute(delete(issuer_audiences).where(issuer_audiences.c.issuer_id == issuer_id))
    rows = [{"workspace": workspace, "issuer_id": issuer_id, "issuer": issuer, "audience": audience} for audience in audiences]
    await connection.execute(insert(issuer_audiences), rows)


async def held_owners(connection: AsyncConnection) -> list[str]:
    """Return the ids of those who may act as owners; none of them is changed by another transaction before this one ends."""
    query = select(principals.c.id).where(principals.c.role == "owner", ~principals.c.is_disabled).order_by(principals.c.id)
    return list((await connection.execute(locked(query))).scalars())
