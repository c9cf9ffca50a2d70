"""Routes for the models of an account and for the price book under /api/v1."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel
from sqlalchemy import ColumnElement, select
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.access import service as access
from control_plane.catalog import service
from control_plane.catalog.schemas import Model, ModelChange, NewModel, NewPrice, Price, Unit
from control_plane.kit import rows
from control_plane.kit import unit as units
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
from control_plane.kit.problems import invalid, not_found
from control_plane.kit.rows import Row
from control_plane.kit.shapes import Page
from control_plane.tables import accounts, models, prices
from policy.workspace_file import Provider

router = APIRouter(responses=PROBLEMS)


async def _model(connection: AsyncConnection, account_id: str, reference: str, locks: bool = False) -> Row:
    query = select(models).where(models.c.account_id == account_id, (models.c.id == reference) | (models.c.name == reference))
    row = (await connection.execute(rows.locked(query) if locks else query)).mappings().one_or_none()
    if row is None:
        raise not_found("model", reference)
    return (await service.with_only(connection, [dict(row)]))[0]


@router.get("/accounts/{account}/models", tags=["catalog"], summary="List an account's models")
async def list_models(
    caller: Caller,
    account: str,
    limit: Limit = 100,
    cursor: Cursor = None,
    name: Annotated[str | None, Query(max_length=100)] = None,
) -> Page[Model]:
    """Return the models that are registered in the account."""
    async with caller.read() as connection:
        row = await access.visible_account(connection, caller.actor, account)
        where = [models.c.account_id == row["id"]]
        if name is not None:
            where.append(models.c.name == name)
        found = await rows.page(connection, models, after_of(cursor), limit, *where)
        found = await service.with_only(connection, found)
    return page_of(found, limit, Model.model_validate)


@router.post("/accounts/{account}/models", tags=["catalog"], summary="Register a model", status_code=201, response_model=Model)
async def register_model(
    caller: Caller, request: Request, account: str, body: NewModel, idempotency_key: IdempotencyKey = None
) -> Response:
    """Register a model under the provider's own id. The account's managers, owners and admins."""

    async def make(unit: units.Unit) -> tuple[BaseModel, int, str]:
        row = await access.visible_account(unit.connection, unit.actor, account)
        await access.require_manager(unit.connection, unit.actor, row["id"])
        only = None if body.only is None else await access.resolved_subjects(unit.connection, body.only)
        columns = {"name": body.name, "type": body.type, "priority": body.priority}
        made = (await service.create_models(unit, row, [(columns, only)]))[0]
        return Model.model_validate(made), 1, f"/api/v1/accounts/{row['id']}/models/{made['id']}"

    return await created(caller, request, idempotency_key, make)


@router.get("/accounts/{account}/models/{model}", tags=["catalog"], summary="Read a model", response_model=Model)
async def read_model(caller: Caller, account: str, model: str) -> Response:
    """Return the model with this id or name."""
    async with caller.read() as connection:
        row = await access.visible_account(connection, caller.actor, account)
        found = await _model(connection, row["id"], model)
    return answer(Model.model_validate(found), found["version"])


@router.patch("/accounts/{account}/models/{model}", tags=["catalog"], summary="Change a model", response_model=Model)
async def update_model(caller: Caller, account: str, model: str, body: ModelChange, if_match: IfMatch = None) -> Response:
    """Change priority or narrowing; absent fields stay. The account's managers, owners and admins."""
    version = expected_version(if_match)
    async with caller.change() as unit:
        row = await access.visible_account(unit.connection, unit.actor, account)
        await access.require_manager(unit.connection, unit.actor, row["id"])
        found = await _model(unit.connection, row["id"], model, locks=True)
        rows.check_version(found, version)
        values = {"priority": body.priority} if "priority" in body.model_fields_set else {}
        only = None if body.only is None else await access.resolved_subjects(unit.connection, body.only)
        found = await service.update_model(unit, found, values, only, "only" in body.model_fields_set)
    return answer(Model.model_validate(found), found["version"])


@router.delete("/accounts/{account}/models/{model}", tags=["catalog"], summary="Take a model out", status_code=204)
async def delete_model(caller: Caller, account: str, model: str, if_match: IfMatch = None) -> None:
    """Take the model out of the account. The account's managers, owners and admins."""
    async with caller.change() as unit:
        row = await access.visible_account(unit.connection, unit.actor, account)
        await access.require_manager(unit.connection, unit.actor, row["id"])
        found = await _model(unit.connection, row["id"], model, locks=True)
        rows.check_version(found, None if if_match is None else expected_version(if_match))
        await service.delete_models(unit, [found])


@router.get("/prices", tags=["catalog"], summary="List the price book")
async def list_prices(
    caller: Caller,
    limit: Limit = 100,
    cursor: Cursor = None,
    provider: Provider | None = None,
    model: Annotated[str | None, Query(max_length=100)] = None,
    unit: Unit | None = None,
) -> Page[Price]:
    """Return the entries of the price book."""
    where: list[ColumnElement[bool]] = []
    for column, value in ((prices.c.provider, provider), (prices.c.model, model), (prices.c.unit, unit)):
        if value is not None:
            where.append(column == value)
    async with caller.read() as connection:
        found = await rows.page(connection, prices, after_of(cursor), limit, *where)
    return page_of(found, limit, Price.model_validate)


@router.post("/prices", tags=["catalog"], summary="Add a price", status_code=201, response_model=Price)
async def create_price(caller: Caller, request: Request, body: NewPrice, idempotency_key: IdempotencyKey = None) -> Response:
    """Add an entry to the price book. Only owners and admins."""
    require_admin(caller.actor)

    async def make(unit: units.Unit) -> tuple[BaseModel, int, str]:
        values: dict[str, Any] = body.model_dump(exclude={"account", "effective"})  # Any: column values
        values["price"] = body.price
        values["account_id"] = None
        if body.account is not None:
            account = await rows.get(unit.connection, accounts, "account", body.account)
            if account["provider"] != body.provider:
                raise invalid("account", f"{account['name']} is no {body.provider} account.")
            values["account_id"] = account["id"]
        values["effective_ms"] = 0 if body.effective is None else round(body.effective.timestamp() * 1000)
        row = (await service.create_prices(unit, [values]))[0]
        return Price.model_validate(row), 1, f"/api/v1/prices/{row['id']}"

    return await created(caller, request, idempotency_key, make)


async def _price(connection: AsyncConnection, reference: str, locks: bool = False) -> Row:
    query = select(prices).where(prices.c.id == reference)
    row = (await connection.execute(rows.locked(query) if locks else query)).mappings().one_or_none()
    if row is None:
        raise not_found("price", reference)
    return dict(row)


@router.get("/prices/{price}", tags=["catalog"], summary="Read a price", response_model=Price)
async def read_price(caller: Caller, price: str) -> Response:
    """Return the entry with this id. Entries do not change: a later one takes over."""
    async with caller.read() as connection:
        row = await _price(connection, price)
    return answer(Price.model_validate(row), row["version"])


@router.delete("/prices/{price}", tags=["catalog"], summary="Delete a price", status_code=204)
async def delete_price(caller: Caller, price: str) -> None:
    """Take the entry out of the price book. Only owners and admins."""
    require_admin(caller.actor)
    async with caller.change() as unit:
        await service.delete_prices(unit, [await _price(unit.connection, price, locks=True)])
