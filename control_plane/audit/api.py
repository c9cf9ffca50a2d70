"""Routes for the audit log under /api/v1/audit."""

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse
from sqlalchemy import ColumnElement

from control_plane.audit import service
from control_plane.audit.schemas import AuditEntry, Verified
from control_plane.kit.http import PROBLEMS, Caller, Cursor, Limit, after_of, answer, page_of, require_admin
from control_plane.kit.problems import invalid
from control_plane.kit.rows import Row
from control_plane.kit.shapes import Page
from control_plane.tables import audit

router = APIRouter(prefix="/audit", tags=["audit"], responses=PROBLEMS)


def _entry(row: Row) -> AuditEntry:
    return AuditEntry.model_validate({**row, "hash": row["hash"].hex(), "previous_hash": row["previous_hash"].hex()})


@router.get("", summary="Read the audit log")
async def list_entries(
    caller: Caller,
    limit: Limit = 100,
    cursor: Cursor = None,
    kind: Annotated[str | None, Query(max_length=40)] = None,
    target: Annotated[str | None, Query(max_length=100)] = None,
    actor: Annotated[str | None, Query(max_length=100)] = None,
) -> Page[AuditEntry]:
    """Return entries, the newest first. Only owners and admins."""
    require_admin(caller.actor)
    where: list[ColumnElement[bool]] = [
        column == value
        for column, value in ((audit.c.kind, kind), (audit.c.target, target), (audit.c.actor, actor))
        if value is not None
    ]
    before = after_of(cursor)
    if before is not None and not (before.isdigit() and len(before) < 19):
        raise invalid("cursor", "That is no cursor of this list.")
    async with caller.read() as connection:
        found = await service.page(connection, None if before is None else int(before), limit, *where)
    return page_of(found, limit, _entry, key="seq")


@router.get(
    "/export",
    summary="Export the audit log",
    response_class=StreamingResponse,
    responses={200: {"content": {"application/x-ndjson": {"schema": {"type": "string"}}}}},
)
async def export(caller: Caller) -> Response:
    """Return every entry as JSON lines, the oldest first. Only owners and admins."""
    require_admin(caller.actor)

    async def lines() -> AsyncIterator[bytes]:
        async with caller.read() as connection:
            async for row in service.in_order(connection):
                yield _entry(row).model_dump_json().encode() + b"\n"

    return StreamingResponse(lines(), media_type="application/x-ndjson")


@router.get("/verification", summary="Check the audit log's chain", response_model=Verified)
async def verification(caller: Caller) -> Response:
    """Return whether the log is whole. Only owners and admins."""
    require_admin(caller.actor)
    async with caller.read() as connection:
        return answer(await service.verify(connection))
