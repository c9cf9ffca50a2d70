"""Routes for issuers, teams, users and service accounts under /api/v1."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel
from sqlalchemy import ColumnElement, exists, select

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
from control_plane.people import service
from control_plane.people.schemas import (
    Issuer,
    IssuerChange,
    NewIssuer,
    NewServiceAccount,
    NewTeam,
    NewUser,
    Principal,
    ServiceAccountChange,
    Team,
    TeamChange,
    UserChange,
)
from control_plane.tables import issuers, memberships, principals, teams

router = APIRouter(responses=PROBLEMS)

_COLUMNS = {"issuer": "issuer_id", "disabled": "is_disabled"}


# --- Teams ----------------------------------------------------------------------------------------------------------


@router.get("/teams", tags=["people"], summary="List teams")
async def list_teams(
    caller: Caller, limit: Limit = 100, cursor: Cursor = None, name: Annotated[str | None, Query(max_length=63)] = None
) -> Page[Team]:
    """Return the workspace's teams."""
    where = [] if name is None else [teams.c.name == name]
    async with caller.read() as connection:
        found = await rows.page(connection, teams, after_of(cursor), limit, *where)
    return page_of(found, limit, Team.model_validate)


@router.post("/teams", tags=["people"], summary="Make a team", status_code=201, response_model=Team)
async def create_team(caller: Caller, request: Request, body: NewTeam, idempotency_key: IdempotencyKey = None) -> Response:
    """Make a team. Only owners and admins."""
    require_admin(caller.actor)

    async def make(unit: Unit) -> tuple[BaseModel, int, str]:
        defaults = await service.resolved_defaults(unit.connection, body.defaults)
        values = {"name": body.name, "default_accounts": defaults, "allowed_voices": body.allowed_voices}
        row = (await resources.create(unit, service.TEAM, [values]))[0]
        return Team.model_validate(row), row["version"], f"/api/v1/teams/{row['id']}"

    return await created(caller, request, idempotency_key, make)


@router.get("/teams/{team}", tags=["people"], summary="Read a team", response_model=Team)
async def read_team(caller: Caller, team: str) -> Response:
    """Return the team with this id or name."""
    async with caller.read() as connection:
        row = await rows.get(connection, teams, "team", team)
    return answer(Team.model_validate(row), row["version"])


@router.patch("/teams/{team}", tags=["people"], summary="Change a team", response_model=Team)
async def update_team(caller: Caller, team: str, body: TeamChange, if_match: IfMatch = None) -> Response:
    """Change a team; absent fields stay. Only owners and admins."""
    require_admin(caller.actor)
    version = expected_version(if_match)
    async with caller.change() as unit:
        row = await rows.get(unit.connection, teams, "team", team, locks=True)
        rows.check_version(row, version)
        values: dict[str, Any] = {}  # Any: column values
        if body.name is not None:
            values["name"] = body.name
        if body.defaults is not None:
            values["default_accounts"] = await service.resolved_defaults(unit.connection, body.defaults)
        if "allowed_voices" in body.model_fields_set:
            values["allowed_voices"] = body.allowed_voices
        row = await resources.update(unit, service.TEAM, row, values)
    return answer(Team.model_validate(row), row["version"])


@router.delete("/teams/{team}", tags=["people"], summary="Delete a team", status_code=204)
async def delete_team(caller: Caller, team: str, if_match: IfMatch = None) -> None:
    """Delete a team with its grants. Only owners and admins."""
    require_admin(caller.actor)
    async with caller.change() as unit:
        row = await rows.get(unit.connection, teams, "team", team, locks=True)
        rows.check_version(row, None if if_match is None else expected_version(if_match))
        await service.delete_teams(unit, [row])


# --- Users and service accounts: one set of routes each, one implementation ----------------------------------------


async def _list(
    caller: Caller, kind: str, limit: int, cursor: str | None, name: str | None, team: str | None, email: str | None = None
) -> Page[Principal]:
    where: list[ColumnElement[bool]] = [principals.c.kind == kind]
    if name is not None:
        where.append(principals.c.name == name)
    if email is not None:
        where.append(principals.c.email == email)
    async with caller.read() as connection:
        if team is not None:
            row = await rows.get(connection, teams, "team", team)
            where.append(
                exists(
                    select(memberships.c.team_id).where(
                        memberships.c.principal_id == principals.c.id, memberships.c.team_id == row["id"]
                    )
                )
            )
        found = await rows.page(connection, principals, after_of(cursor), limit, *where)
        found = await service.with_teams(connection, found)
    return page_of(found, limit, Principal.model_validate)


async def _values(unit: Unit, body: BaseModel) -> Row:
    """Return the columns that the body sets, with references resolved."""
    values = {_COLUMNS.get(name, name): getattr(body, name) for name in body.model_fields_set}
    if values.get("issuer_id") is not None:
        values["issuer_id"] = (await rows.get(unit.connection, issuers, "issuer", values["issuer_id"]))["id"]
    if "teams" in values:
        values["teams"] = await service.resolved_teams(unit.connection, values["teams"])
    return values


async def _create(
    caller: Caller, request: Request, kind: str, body: NewUser | NewServiceAccount, idempotency_key: str | None
) -> Response:
    require_admin(caller.actor)

    async def make(unit: Unit) -> tuple[BaseModel, int, str]:
        values = {"teams": [], **await _values(unit, body)}
        row = (await service.create_principals(unit, kind, [values]))[0]
        path = "users" if kind == "user" else "service-accounts"
        return Principal.model_validate(row), row["version"], f"/api/v1/{path}/{row['id']}"

    return await created(caller, request, idempotency_key, make)


async def _read(caller: Caller, kind: str, reference: str) -> Response:
    async with caller.read() as connection:
        row = await service.principal(connection, kind, reference)
    return answer(Principal.model_validate(row), row["version"])


async def _update(
    caller: Caller, kind: str, reference: str, body: UserChange | ServiceAccountChange, if_match: str | None
) -> Response:
    require_admin(caller.actor)
    version = expected_version(if_match)
    async with caller.change() as unit:
        row = await service.principal(unit.connection, kind, reference, locks=True)
        rows.check_version(row, version)
        row = await service.update_principal(unit, row, await _values(unit, body))
    return answer(Principal.model_validate(row), row["version"])


async def _delete(caller: Caller, kind: str, reference: str, if_match: str | None) -> None:
    require_admin(caller.actor)
    async with caller.change() as unit:
        row = await service.principal(unit.connection, kind, reference, locks=True)
        rows.check_version(row, None if if_match is None else expected_version(if_match))
        await service.delete_principals(unit, [row])


@router.get("/users", tags=["people"], summary="List users")
async def list_users(
    caller: Caller,
    limit: Limit = 100,
    cursor: Cursor = None,
    name: Annotated[str | None, Query(max_length=63)] = None,
    email: Annotated[str | None, Query(max_length=254)] = None,
    team: Annotated[str | None, Query(max_length=100)] = None,
) -> Page[Principal]:
    """Return the workspace's users."""
    return await _list(caller, "user", limit, cursor, name, team, email)


@router.post("/users", tags=["people"], summary="Make a user", status_code=201, response_model=Principal)
async def create_user(caller: Caller, request: Request, body: NewUser, idempotency_key: IdempotencyKey = None) -> Response:
    """Make a user. Only owners and admins; only owners make owners."""
    return await _create(caller, request, "user", body, idempotency_key)


@router.get("/users/{user}", tags=["people"], summary="Read a user", response_model=Principal)
async def read_user(caller: Caller, user: str) -> Response:
    """Return the user with this id or name."""
    return await _read(caller, "user", user)


@router.patch("/users/{user}", tags=["people"], summary="Change a user", response_model=Principal)
async def update_user(caller: Caller, user: str, body: UserChange, if_match: IfMatch = None) -> Response:
    """Change a user; absent fields stay. Only owners and admins."""
    return await _update(caller, "user", user, body, if_match)


@router.delete("/users/{user}", tags=["people"], summary="Delete a user", status_code=204)
async def delete_user(caller: Caller, user: str, if_match: IfMatch = None) -> None:
    """Delete a user with its grants and tokens. Only owners and admins."""
    await _delete(caller, "user", user, if_match)


@router.get("/service-accounts", tags=["people"], summary="List service accounts")
async def list_service_accounts(
    caller: Caller,
    limit: Limit = 100,
    cursor: Cursor = None,
    name: Annotated[str | None, Query(max_length=63)] = None,
    team: Annotated[str | None, Query(max_length=100)] = None,
) -> Page[Principal]:
    """Return the workspace's service accounts."""
    return await _list(caller, "service_account", limit, cursor, name, team)


@router.post("/service-accounts", tags=["people"], summary="Make a service account", status_code=201, response_model=Principal)
async def create_service_account(
    caller: Caller, request: Request, body: NewServiceAccount, idempotency_key: IdempotencyKey = None
) -> Response:
    """Make a service account. Only owners and admins."""
    return await _create(caller, request, "service_account", body, idempotency_key)


@router.get("/service-accounts/{service_account}", tags=["people"], summary="Read a service account", response_model=Principal)
async def read_service_account(caller: Caller, service_account: str) -> Response:
    """Return the service account with this id or name."""
    return await _read(caller, "service_account", service_account)


@router.patch(
    "/service-accounts/{service_account}", tags=["people"], summary="Change a service account", response_model=Principal
)
async def update_service_account(
    caller: Caller, service_account: str, body: ServiceAccountChange, if_match: IfMatch = None
) -> Response:
    """Change a service account; absent fields stay. Only owners and admins."""
    return await _update(caller, "service_account", service_account, body, if_match)


@router.delete("/service-accounts/{service_account}", tags=["people"], summary="Delete a service account", status_code=204)
async def delete_service_account(caller: Caller, service_account: str, if_match: IfMatch = None) -> None:
    """Delete a service account with its grants and tokens. Only owners and admins."""
    await _delete(caller, "service_account", service_account, if_match)


# --- Issuers --------------------------------------------------------------------------------------------------------


def _issuer(row: Row) -> Issuer:
    return Issuer.model_validate({**row, "has_static_jwks": row["jwks"] is not None})


async def _issuer_values(unit: Unit, body: NewIssuer | IssuerChange, only_set: bool) -> Row:
    names = body.model_fields_set if only_set else type(body).model_fields
    values = {name: getattr(body, name) for name in names}
    if values.get("jwks") is not None:
        values["jwks"] = values["jwks"].encode()
    if "group_teams" in values:
        groups = values["group_teams"]
        ids = [(await rows.get(unit.connection, teams, "team", team))["id"] for team in groups.values()]
        values["group_teams"] = dict(zip(groups, ids, strict=True))
    return values


@router.get("/issuers", tags=["people"], summary="List issuers")
async def list_issuers(caller: Caller, limit: Limit = 100, cursor: Cursor = None) -> Page[Issuer]:
    """Return the registered issuers."""
    async with caller.read() as connection:
        found = await rows.page(connection, issuers, after_of(cursor), limit)
    return page_of(found, limit, _issuer)


@router.post("/issuers", tags=["people"], summary="Register an issuer", status_code=201, response_model=Issuer)
async def create_issuer(caller: Caller, request: Request, body: NewIssuer, idempotency_key: IdempotencyKey = None) -> Response:
    """Register who signs caller tokens. Only owners and admins."""
    require_admin(caller.actor)
    settings = request.app.state.settings

    async def make(unit: Unit) -> tuple[BaseModel, int, str]:
        values = await _issuer_values(unit, body, only_set=False)
        row = (await service.create_issuers(unit, [values], settings.public_url, settings.allowed_origins))[0]
        return _issuer(row), row["version"], f"/api/v1/issuers/{row['id']}"

    return await created(caller, request, idempotency_key, make)


@router.get("/issuers/{issuer}", tags=["people"], summary="Read an issuer", response_model=Issuer)
async def read_issuer(caller: Caller, issuer: str) -> Response:
    """Return the issuer with this id or name."""
    async with caller.read() as connection:
        row = await rows.get(connection, issuers, "issuer", issuer)
    return answer(_issuer(row), row["version"])


@router.patch("/issuers/{issuer}", tags=["people"], summary="Change an issuer", response_model=Issuer)
async def update_issuer(caller: Caller, request: Request, issuer: str, body: IssuerChange, if_match: IfMatch = None) -> Response:
    """Change an issuer's settings; absent fields stay. Only owners and admins."""
    require_admin(caller.actor)
    version = expected_version(if_match)
    settings = request.app.state.settings
    async with caller.change() as unit:
        row = await rows.get(unit.connection, issuers, "issuer", issuer, locks=True)
        rows.check_version(row, version)
        values = await _issuer_values(unit, body, only_set=True)
        row = await service.update_issuer(unit, row, values, settings.public_url, settings.allowed_origins)
    return answer(_issuer(row), row["version"])


@router.delete("/issuers/{issuer}", tags=["people"], summary="Delete an issuer", status_code=204)
async def delete_issuer(caller: Caller, issuer: str, if_match: IfMatch = None) -> None:
    """Delete an issuer; refused while users are identified by it. Only owners and admins."""
    require_admin(caller.actor)
    async with caller.change() as unit:
        row = await rows.get(unit.connection, issuers, "issuer", issuer, locks=True)
        rows.check_version(row, None if if_match is None else expected_version(if_match))
        await service.delete_issuers(unit, [row])
