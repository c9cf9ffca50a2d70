"""A kind of resource, and the three changes that all kinds share: create many, update one, delete many, each audited.

What is special to a kind (memberships, narrowing, credentials) stands in its slice's service, which calls these.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import Table

from control_plane.kit import rows
from control_plane.kit.rows import Row
from control_plane.kit.unit import Unit

_NOT_DESCRIBED = frozenset({"workspace", "id", "version", "created_at", "credential_version"})


@dataclass(frozen=True)
class Resource:
    """kind: the word for people and the audit log; label: the column that names a row to people."""

    kind: str
    table: Table
    label: str = "name"

    def described(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the audit log keeps of a row: its columns as JSON, binary ones by their length."""
        return {name: _plain(value) for name, value in row.items() if name not in _NOT_DESCRIBED and value is not None}


async def create(unit: Unit, resource: Resource, values: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Insert the rows and return them with their ids, versions and times."""
    made = [{"workspace": unit.workspace, "id": unit.new_id(), "created_at": unit.now, "version": 1, **row} for row in values]
    await rows.insert_rows(unit.connection, resource.table, made)
    for row in made:
        unit.record("create", resource.kind, row["id"], str(row[resource.label]), None, resource.described(row))
    return made


async def update(
    unit: Unit,
    resource: Resource,
    row: Row,
    values: Mapping[str, Any],
    more_before: Mapping[str, Any] | None = None,
    more_after: Mapping[str, Any] | None = None,
) -> Row:
    """Return the row with the values written; unchanged values write nothing and are not audited.

    more_before, more_after: what changed beside the row's own columns. Raises Problem changed_meanwhile.
    """
    differing = {name: value for name, value in values.items() if row[name] != value}
    before, after = rows.changed(
        {**resource.described({name: row[name] for name in differing}), **(more_before or {})},
        {**{name: _plain(value) for name, value in differing.items()}, **(more_after or {})},
    )
    if not differing and not after:
        return row
    updated = await rows.update_row(unit.connection, resource.table, row, differing)
    unit.record("update", resource.kind, row["id"], str(updated[resource.label]), before, after)
    return updated


async def delete(unit: Unit, resource: Resource, doomed: Sequence[Row]) -> None:
    """Delete the rows. Raises Problem in_use if something that must stay refers to one."""
    await rows.delete_rows(unit.connection, resource.table, [row["id"] for row in doomed])
    for row in doomed:
        unit.record("delete", resource.kind, row["id"], str(row[resource.label]), resource.described(row), None)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Decimal):
        return format(value, "f")
    return value
