"""Routes for provider accounts and their credentials under /api/v1/accounts."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel
from sqlalchemy import ColumnElement
from sqlalchemy.ext.asyncio import AsyncConnection

from contracts.secret import Secret
from control_plane.access import service as access
from control_plane.accounts import service
from control_plane.accounts.credential_test import test_credential
from control_plane.accounts.schemas import Account, AccountChange, CredentialTest, NewAccount, NewCredential
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
    require_admin,
    require_scope,
)
from control_plane.kit.problems import Problem
from control_plane.kit.rows import Row, any_of
from control_plane.kit.shapes import Page
from control_plane.kit.unit import Unit
from control_plane.tables import accounts
from policy.workspace_file import Provider

router = APIRouter(prefix="/accounts", tags=["accounts"], responses=PROBLEMS)

_COLUMNS = {"ca": "ca_pem", "disabled": "is_disabled"}


async def _managed(unit: Unit, reference: str, version: int | None) -> Row:
    row = await access.visible_account(unit.connection, unit.actor, reference, locks=True)
    await access.require_manager(unit.connection, unit.actor, row["id"])
    rows.check_version(row, version)
    return row


async def _shape(connection: AsyncConnection, row: Row) -> Account:
    return Account.model_validate((await service.with_credentials(connection, [row]))[0])


def _values(body: NewAccount | AccountChange, only_set: bool) -> dict[str, Any]:  # Any: column values
    names = body.model_fields_set if only_set else type(body).model_fields
    values = {_COLUMNS.get(name, name): getattr(body, name) for name in names if name != "credential"}
    if values.get("ca_pem") is not None:
        values["ca_pem"] = values["ca_pem"].encode()
    return values


@router.get("", summary="List accounts")
async def list_accounts(
    caller: Caller,
    limit: Limit = 100,
    cursor: Cursor = None,
    name: Annotated[str | None, Query(max_length=63)] = None,
    provider: Provider | None = None,
) -> Page[Account]:
    """Return the accounts that the caller may see: all for owners and admins, else those it collaborates on."""
    async with caller.read() as connection:
        where: list[ColumnElement[bool]] = []
        visible = await access.visible_accounts(connection, caller.actor)
        if visible is not None:
            where.append(accounts.c.id == any_of(visible))
        if name is not None:
            where.append(accounts.c.name == name)
        if provider is not None:
            where.append(accounts.c.provider == provider)
        found = await rows.page(connection, accounts, after_of(cursor), limit, *where)
        found = await service.with_credentials(connection, found)
    return page_of(found, limit, Account.model_validate)


@router.post("", summary="Make an account", status_code=201, response_model=Account)
async def create_account(caller: Caller, request: Request, body: NewAccount, idempotency_key: IdempotencyKey = None) -> Response:
    """Make a provider account. Only owners and admins."""
    require_admin(caller.actor)
    state = request.app.state

    async def make(unit: Unit) -> tuple[BaseModel, int, str]:
        row = (await service.create_accounts(unit, [_values(body, only_set=False)], state.settings.allowed_origins))[0]
        if body.credential is not None:
            secret = Secret(body.credential.get_secret_value())
            await service.set_credential(unit, state.vault, row, secret, keep_previous=False)
        return await _shape(unit.connection, row), row["version"], f"/api/v1/accounts/{row['id']}"

    return await created(caller, request, idempotency_key, make)


@router.get("/{account}", summary="Read an account", response_model=Account)
async def read_account(caller: Caller, account: str) -> Response:
    """Return the account with this id or name."""
    async with caller.read() as connection:
        row = await access.visible_account(connection, caller.actor, account)
        shape = await _shape(connection, row)
    return answer(shape, row["version"])


@router.patch("/{account}", summary="Change an account", response_model=Account)
async def update_account(
    caller: Caller, request: Request, account: str, body: AccountChange, if_match: IfMatch = None
) -> Response:
    """Change an account; absent fields stay. Its managers, owners and admins. A new origin drops the credential."""
    version = expected_version(if_match)
    async with caller.change() as unit:
        row = await _managed(unit, account, version)
        values = _values(body, only_set=True)
        row, _ = await service.update_account(unit, row, values, request.app.state.settings.allowed_origins)
        shape = await _shape(unit.connection, row)
    return answer(shape, row["version"])


@router.delete("/{account}", summary="Delete an account", status_code=204)
async def delete_account(caller: Caller, account: str, if_match: IfMatch = None) -> None:
    """Delete an account with its models, collaborators and prices. Only owners and admins."""
    require_admin(caller.actor)
    async with caller.change() as unit:
        row = await _managed(unit, account, None if if_match is None else expected_version(if_match))
        await service.delete_accounts(unit, [row])


@router.put("/{account}/credential", summary="Set the credential", response_model=Account)
async def set_credential(caller: Caller, request: Request, account: str, body: NewCredential) -> Response:
    """Use a new credential from now on. Its managers, owners and admins. No answer ever shows it."""
    async with caller.change() as unit:
        row = await _managed(unit, account, None)
        secret = Secret(body.credential.get_secret_value())
        await service.set_credential(unit, request.app.state.vault, row, secret, body.keep_previous)
        shape = await _shape(unit.connection, row)
    return answer(shape, row["version"])


@router.delete("/{account}/credential/{slot}", summary="Drop a credential", status_code=204)
async def drop_credential(caller: Caller, account: str, slot: Literal["active", "retiring"]) -> None:
    """Drop the credential in a slot: `retiring` ends a rotation. Its managers, owners and admins."""
    async with caller.change() as unit:
        row = await _managed(unit, account, None)
        await service.drop_credential(unit, row, slot)


@router.post(
    "/{account}/credential/test",
    summary="Test the credential",
    response_model=CredentialTest,
    responses={502: {**PROBLEMS[503], "description": "The provider could not be reached"}},
)
async def try_credential(caller: Caller, request: Request, account: str) -> Response:
    """Call a free endpoint of the provider with the active credential. Its managers, owners and admins."""
    require_scope(caller.actor, "write")
    state = request.app.state
    async with caller.read() as connection:
        row = await access.visible_account(connection, caller.actor, account)
        await access.require_manager(connection, caller.actor, row["id"])
        credential = await service.opened_credential(connection, state.vault, row)
    if credential is None:
        raise Problem("credential_missing")
    return answer(await test_credential(row, credential, state.settings.allowed_origins))
