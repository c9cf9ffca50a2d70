"""Routes for the collaborators of an account under /api/v1/accounts/{account}/collaborators."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.access import service
from control_plane.access.explain import explained
from control_plane.access.schemas import Collaborator, CollaboratorChange, Explanation, NewCollaborator
from control_plane.kit import rows
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
)
from control_plane.kit.problems import Problem, not_found
from control_plane.kit.rows import Row
from control_plane.kit.shapes import Page
from control_plane.kit.unit import Unit
from control_plane.tables import grants
from policy.explain import Question

_collaborators = APIRouter(prefix="/accounts/{account}/collaborators", tags=["access"], responses=PROBLEMS)
router = APIRouter()


async def _collaborator(connection: AsyncConnection, account_id: str, reference: str, locks: bool = False) -> Row:
    query = select(grants).where(grants.c.account_id == account_id, (grants.c.id == reference) | (grants.c.subject == reference))
    row = (await connection.execute(rows.locked(query) if locks else query)).mappings().one_or_none()
    if row is None:
        raise not_found("collaborator", reference)
    return dict(row)


@_collaborators.get("", summary="List an account's collaborators")
async def list_collaborators(
    caller: Caller,
    account: str,
    limit: Limit = 100,
    cursor: Cursor = None,
    subject: Annotated[str | None, Query(max_length=130)] = None,
) -> Page[Collaborator]:
    """Return who may route through the account."""
    async with caller.read() as connection:
        row = await service.visible_account(connection, caller.actor, account)
        where = [grants.c.account_id == row["id"]]
        if subject is not None:
            where.append(grants.c.subject == subject)
        found = await rows.page(connection, grants, after_of(cursor), limit, *where)
    return page_of(found, limit, Collaborator.model_validate)


@_collaborators.post("", summary="Attach a collaborator", status_code=201, response_model=Collaborator)
async def attach_collaborator(
    caller: Caller, request: Request, account: str, body: NewCollaborator, idempotency_key: IdempotencyKey = None
) -> Response:
    """Attach a user, service account or team. The account's managers, owners and admins."""

    async def make(unit: Unit) -> tuple[BaseModel, int, str]:
        row = await service.visible_account(unit.connection, unit.actor, account)
        await service.require_manager(unit.connection, unit.actor, row["id"])
        subject = (await service.resolved_subjects(unit.connection, [body.subject]))[0]
        made = (await service.attach(unit, row["id"], [(subject, body.role, body.operations)]))[0]
        return Collaborator.model_validate(made), 1, f"/api/v1/accounts/{row['id']}/collaborators/{made['id']}"

    return await created(caller, request, idempotency_key, make)


@_collaborators.get("/{collaborator}", summary="Read a collaborator", response_model=Collaborator)
async def read_collaborator(caller: Caller, account: str, collaborator: str) -> Response:
    """Return the collaborator with this id or subject."""
    async with caller.read() as connection:
        row = await service.visible_account(connection, caller.actor, account)
        found = await _collaborator(connection, row["id"], collaborator)
    return answer(Collaborator.model_validate(found), found["version"])


@_collaborators.patch("/{collaborator}", summary="Change a collaborator", response_model=Collaborator)
async def change_collaborator(
    caller: Caller, account: str, collaborator: str, body: CollaboratorChange, if_match: IfMatch = None
) -> Response:
    """Change the role or the operations; absent fields stay. The account's managers, owners and admins."""
    version = expected_version(if_match)
    async with caller.change() as unit:
        row = await service.visible_account(unit.connection, unit.actor, account)
        await service.require_manager(unit.connection, unit.actor, row["id"])
        found = await _collaborator(unit.connection, row["id"], collaborator, locks=True)
        rows.check_version(found, version)
        found = await service.change(unit, found, body.model_dump(exclude_unset=True))
    return answer(Collaborator.model_validate(found), found["version"])


@_collaborators.delete("/{collaborator}", summary="Withdraw a grant", status_code=204)
async def withdraw_collaborator(caller: Caller, account: str, collaborator: str, if_match: IfMatch = None) -> None:
    """Withdraw the grant; gateways refuse the next request within a second. The account's managers, owners and admins."""
    async with caller.change() as unit:
        row = await service.visible_account(unit.connection, unit.actor, account)
        await service.require_manager(unit.connection, unit.actor, row["id"])
        found = await _collaborator(unit.connection, row["id"], collaborator, locks=True)
        rows.check_version(found, None if if_match is None else expected_version(if_match))
        await service.withdraw(unit, [found])


router.include_router(_collaborators)


@router.get("/explain", tags=["access"], summary="Why a request is admitted or refused", responses=PROBLEMS)
async def explain(
    caller: Caller,
    request: Request,
    subject: Annotated[str, Query(alias="as", pattern=r"^(user|service_account):[A-Za-z0-9._-]{1,100}$")],
    op: Annotated[str, Query(max_length=60, description="an endpoint, for example tts.bytes or stt.websocket")] = "tts.websocket",
    model: Annotated[str | None, Query(max_length=100)] = None,
    voice: Annotated[str | None, Query(max_length=200)] = None,
    account: Annotated[str | None, Query(max_length=63, description="the account that the path pins")] = None,
    profile: Annotated[str, Query(max_length=30)] = "cartesia",
) -> Explanation:
    """Return the data plane's own decision with every rule that took part. Members ask about themselves only."""
    state = request.app.state
    question = Question(caller.workspace, "", op, model, voice, account, profile)
    async with caller.read() as connection:
        if caller.actor.role == "member" and subject not in (f"user:{caller.actor.id}", f"user:{caller.actor.name}"):
            raise Problem("forbidden", "Members may ask about themselves only.")
        found = await explained(connection, question, subject, state.settings.public_url, state.units.clock())
    return Explanation.model_validate(found, from_attributes=True)
