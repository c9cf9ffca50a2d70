"""The workspace's own settings: name, defaults, sampling."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import update

from control_plane.kit.problems import Problem
from control_plane.kit.rows import Row, changed
from control_plane.kit.unit import Unit
from control_plane.tables import workspaces


async def update_workspace(unit: Unit, row: Row, values: Mapping[str, Any]) -> Row:
    """Return the workspace's row with the values written. Raises Problem changed_meanwhile."""
    differing = {name: value for name, value in values.items() if row[name] != value}
    if not differing:
        return row
    statement = (
        update(workspaces)
        .where(workspaces.c.version == row["version"])
        .values(**differing, version=row["version"] + 1)
        .returning(workspaces)
    )
    updated = (await unit.connection.execute(statement)).mappings().one_or_none()
    if updated is None:
        raise Problem("changed_meanwhile")
    unit.record("update", "workspace", unit.workspace, updated["name"], *changed(row, differing))
    return dict(updated)
