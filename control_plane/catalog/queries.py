"""Statements about models and their narrowing. Each runs in a transaction of one workspace."""

from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import delete, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.kit.rows import any_of
from control_plane.tables import model_subjects


async def subjects_of(connection: AsyncConnection, model_ids: Iterable[str]) -> dict[str, list[str]]:
    """Return model id -> the subjects that it is narrowed to, sorted, for those that have any."""
    found: dict[str, list[str]] = {}
    query = (
        select(model_subjects.c.model_id, model_subjects.c.subject)
        .where(model_subjects.c.model_id == any_of(model_ids))
        .order_by(model_subjects.c.subject)
    )
    for model, subject in await connection.execute(query):
        found.setdefault(model, []).append(subject)
    return found


async def replace_subjects(
    connection: AsyncConnection, workspace: str, wanted: Mapping[str, Sequence[Mapping[str, str | None]]]
) -> None:
    """Make exactly these the subjects of each model. wanted: model id -> rows with subject, principal_id, team_id."""
    await connection.execute(delete(model_subjects).where(model_subjects.c.model_id == any_of(wanted)))
    rows = [{"workspace": workspace, "model_id": model, **row} for model, subjects in wanted.items() for row in subjects]
    for start in range(0, len(rows), 1000):
        await connection.execute(insert(model_subjects), rows[start : start + 1000])
