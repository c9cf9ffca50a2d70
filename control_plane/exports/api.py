"""Routes for export targets under /api/v1/export-targets."""

from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from control_plane.exports import service
from control_plane.exports.schemas import ExportTarget, ExportTargetChange, NewExportTarget
from control_plane.kit import resources, rows
from control_plane.kit.http import (
    PROBLEMS,
    Caller,
    Cursor,
    IdempotencyKey,
    IfMatch,
    Limit,
    after_of,
    answer,
    created,
    expected_version,
    page_of,
    require_admin,
)
from control_plane.kit.rows import Row
from control_plane.kit.shapes import Page
from control_plane.kit.unit import Unit
from control_plane.tables import export_targets

router = APIRouter(prefix="/export-targets", tags=["exports"], responses=PROBLEMS)

_COLUMNS = {"ca": "ca_pem", "disabled": "is_disabled"}


def _shape(row: Row) -> ExportTarget:
    return ExportTarget.model_validate(
        {**row, "has_secret_headers": row["secret"] is not None, "has_ca": row["ca_pem"] is not None}
    )


def _values(body: NewExportTarget | ExportTargetChange, only_set: bool) -> dict[str, Any]:  # Any: column values
    names = body.model_fields_set if only_set else type(body).model_fields
    values = {_COLUMNS.get(name, name): getattr(body, name) for name in names if name != "secret_headers"}
    if values.get("ca_pem") is not None:
        values["ca_pem"] = values["ca_pem"].encode()
    return values


def _secrets(body: NewExportTarget | ExportTargetChange) -> dict[str, str]:
    return {name: value.get_secret_value() for name, value in body.secret_headers.items()}


@router.get("", summary="List export targets")
async def list_targets(caller: Caller, limit: Limit = 100, cursor: Cursor = None) -> Page[ExportTarget]:
    """Return the receivers of the workspace's spans. Only owners and admins."""
    require_admin(caller.actor)
    async with caller.read() as connection:
        found = await rows.page(connection, export_targets, after_of(cursor), limit)
    return page_of(found, limit, _shape)


@router.post("", summary="Make an export target", status_code=201, response_model=ExportTarget)
async def create_target(
    caller: Caller, request: Request, body: NewExportTarget, idempotency_key: IdempotencyKey = None
) -> Response:
    """Send spans to a receiver, beside storing them. Only owners and admins."""
    require_admin(caller.actor)
    state = request.app.state

    async def make(unit: Unit) -> tuple[BaseModel, int, str]:
        values = _values(body, only_set=False)
        row = await service.create_target(unit, state.vault, values, _secrets(body), state.settings.allowed_origins)
        return _shape(row), row["version"], f"/api/v1/export-targets/{row['id']}"

    return await created(caller, request, idempotency_key, make)


@router.get("/{target}", summary="Read an export target", response_model=ExportTarget)
async def read_target(caller: Caller, target: str) -> Response:
    """Return the target with this id or name. Only owners and admins."""
    require_admin(caller.actor)
    async with caller.read() as connection:
        row = await rows.get(connection, export_targets, "export target", target)
    return answer(_shape(row), row["version"])


@router.patch("/{target}", summary="Change an export target", response_model=ExportTarget)
async def update_target(
    caller: Caller, request: Request, target: str, body: ExportTargetChange, if_match: IfMatch = None
) -> Response:
    """Change a target; absent fields stay. Another endpoint drops the secret headers. Only owners and admins."""
    require_admin(caller.actor)
    version = expected_version(if_match)
    state = request.app.state
    async with caller.change() as unit:
        row = await rows.get(unit.connection, export_targets, "export target", target, locks=True)
        rows.check_version(row, version)
        secrets = _secrets(body) if "secret_headers" in body.model_fields_set else None
        values = _values(body, only_set=True)
        row = await service.update_target(unit, state.vault, row, values, secrets, state.settings.allowed_origins)
    return answer(_shape(row), row["version"])


@router.delete("/{target}", summary="Delete an export target", status_code=204)
async def delete_target(caller: Caller, target: str, if_match: IfMatch = None) -> None:
    """Send spans there no longer. Only owners and admins."""
    require_admin(caller.actor)
    async with caller.change() as unit:
        row = await rows.get(unit.connection, export_targets, "export target", target, locks=True)
        rows.check_version(row, None if if_match is None else expected_version(if_match))
        await resources.delete(unit, service.TARGET, [row])
