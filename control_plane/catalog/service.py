"""Models and prices: what may be registered, and the narrowing of a model to some of its account's collaborators."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.access.service import SubjectColumns
from control_plane.catalog import queries
from control_plane.kit import resources
from control_plane.kit.problems import invalid
from control_plane.kit.resources import Resource
from control_plane.kit.rows import Row
from control_plane.kit.unit import Unit
from control_plane.tables import models, prices
from policy.workspace_file import model_problem

MODEL = Resource("model", models)
PRICE = Resource("price", prices, label="unit")


async def create_models(
    unit: Unit, account: Row, values: Sequence[tuple[Mapping[str, Any], Sequence[SubjectColumns] | None]]
) -> list[Row]:
    """Register models in an account. values: columns of `models` (name, type, priority), and the narrowing or None."""
    for columns, _ in values:
        if (sentence := model_problem(account["provider"], columns["name"], columns["type"])) is not None:
            raise invalid("name", sentence)
    made = await resources.create(
        unit,
        MODEL,
        [{"account_id": account["id"], **columns, "is_narrowed": only is not None} for columns, only in values],
    )
    wanted = {row["id"]: _rows(only) for row, (_, only) in zip(made, values, strict=True) if only}
    if wanted:
        await queries.replace_subjects(unit.connection, unit.workspace, wanted)
    return [{**row, "only": _texts(only)} for row, (_, only) in zip(made, values, strict=True)]


async def update_model(
    unit: Unit, row: Row, values: Mapping[str, Any], only: Sequence[SubjectColumns] | None, sets_only: bool
) -> Row:
    """Change a model. row: with `only`; sets_only: whether `only` is to be written (None then means: not narrowed)."""
    columns = dict(values)
    narrowing: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    wanted = row["only"]
    if sets_only:
        wanted = _texts(only)
        columns["is_narrowed"] = only is not None
        if wanted != row["only"]:
            await queries.replace_subjects(unit.connection, unit.workspace, {row["id"]: _rows(only or ())})
            narrowing = ({"only": row["only"]}, {"only": wanted})
    plain = {name: value for name, value in row.items() if name != "only"}
    updated = await resources.update(unit, MODEL, plain, columns, *narrowing)
    return {**updated, "only": wanted}


async def delete_models(unit: Unit, doomed: Sequence[Row]) -> None:
    """Take models out of their accounts."""
    await resources.delete(unit, MODEL, doomed)


async def with_only(connection: AsyncConnection, found: Sequence[Row]) -> list[Row]:
    """Return the model rows, each with `only`: the subjects that it is narrowed to, or None."""
    of_each = await queries.subjects_of(connection, [row["id"] for row in found if row["is_narrowed"]])
    return [{**row, "only": of_each.get(row["id"], []) if row["is_narrowed"] else None} for row in found]


async def create_prices(unit: Unit, values: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Add entries to the price book. values: columns of `prices`."""
    return await resources.create(unit, PRICE, values)


async def delete_prices(unit: Unit, doomed: Sequence[Row]) -> None:
    """Take entries out of the price book; what was priced keeps its price."""
    await resources.delete(unit, PRICE, doomed)


def _texts(only: Sequence[SubjectColumns] | None) -> list[str] | None:
    return None if only is None else sorted(subject.text for subject in only)


def _rows(only: Sequence[SubjectColumns]) -> list[dict[str, str | None]]:
    return [{"subject": subject.text, "principal_id": subject.principal_id, "team_id": subject.team_id} for subject in only]
