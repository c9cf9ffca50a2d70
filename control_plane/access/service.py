"""Collaborators: attach, change, withdraw; and who may manage an account.

A withdrawn grant is published by the outbox like any change; gateways hold open sessions to it within a second.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.access import queries
from control_plane.kit import resources, rows
from control_plane.kit.problems import Problem, invalid, not_found
from control_plane.kit.resources import Resource
from control_plane.kit.rows import Row
from control_plane.kit.unit import Actor, Unit
from control_plane.tables import accounts, grants

COLLABORATOR = Resource("collaborator", grants, label="subject")


@dataclass(frozen=True)
class SubjectColumns:
    """A subject as tables keep it: `text` with the id, and the one reference that is set."""

    text: str
    principal_id: str | None
    team_id: str | None


def columns_of(kind: str, identity: str) -> SubjectColumns:
    """Return the columns for a subject of this kind and id."""
    is_team = kind == "team"
    return SubjectColumns(f"{kind}:{identity}", None if is_team else identity, identity if is_team else None)


async def resolved_subjects(connection: AsyncConnection, texts: Sequence[str]) -> list[SubjectColumns]:
    """Return the subjects that the texts (`kind:<id or name>`) name. Raises Problem not_found, or for one named twice."""
    found: dict[str, dict[str, str]] = {}
    for kind in {text.partition(":")[0] for text in texts}:
        references = [text.partition(":")[2] for text in texts if text.startswith(f"{kind}:")]
        found[kind] = await queries.subjects(connection, kind, references)
    resolved = []
    for text in texts:
        kind, _, reference = text.partition(":")
        if reference not in found[kind]:
            raise not_found(kind.replace("_", " "), reference)
        resolved.append(columns_of(kind, found[kind][reference]))
    if len({subject.text for subject in resolved}) != len(resolved):
        raise invalid("subject", "A subject is listed twice.")
    return resolved


async def grant_ids_of(connection: AsyncConnection, principal: str) -> list[str]:
    """Return the ids of the grants that the principal has, itself or by a team."""
    return await queries.grant_ids_of(connection, principal)


async def manages(connection: AsyncConnection, actor: Actor, account_id: str) -> bool:
    """Tell whether the actor may change this account: owners, admins, and its managers."""
    return actor.role != "member" or await queries.manages(connection, actor.id, account_id)


async def require_manager(connection: AsyncConnection, actor: Actor, account_id: str) -> None:
    """Raise Problem forbidden unless the actor may change this account."""
    if not await manages(connection, actor, account_id):
        raise Problem("forbidden", "Only managers of this account, owners and admins may do this.")


async def visible_accounts(connection: AsyncConnection, actor: Actor) -> set[str] | None:
    """Return the ids of the accounts that the actor may see; None: all of them."""
    return None if actor.role != "member" else await queries.accounts_of(connection, actor.id)


async def visible_account(connection: AsyncConnection, actor: Actor, reference: str, locks: bool = False) -> Row:
    """Return the account with this id or name; one that the actor may not see looks like one that is not there.

    locks: see `rows.locked`.
    """
    row = await rows.get(connection, accounts, "account", reference, locks=locks)
    visible = await visible_accounts(connection, actor)
    if visible is not None and row["id"] not in visible:
        raise not_found("account", reference)
    return row


async def attach(unit: Unit, account_id: str, values: Sequence[tuple[SubjectColumns, str, Sequence[str]]]) -> list[Row]:
    """Attach collaborators to an account. values: subject, role, operations."""
    return await resources.create(
        unit,
        COLLABORATOR,
        [
            {
                "account_id": account_id,
                "subject": subject.text,
                "principal_id": subject.principal_id,
                "team_id": subject.team_id,
                "role": role,
                "operations": sorted(set(operations)),
            }
            for subject, role, operations in values
        ],
    )


async def change(unit: Unit, row: Row, values: Mapping[str, Any]) -> Row:
    """Change a collaborator's role or operations."""
    if "operations" in values:
        values = {**values, "operations": sorted(set(values["operations"]))}
    return await resources.update(unit, COLLABORATOR, row, values)


async def withdraw(unit: Unit, doomed: Sequence[Row]) -> None:
    """Withdraw grants."""
    await resources.delete(unit, COLLABORATOR, doomed)
