"""Routes for tokens under /api/v1/tokens, for ending sessions, and the issuer's public documents under /.well-known."""

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from sqlalchemy import ColumnElement

from contracts.ids import is_handle
from control_plane.kit import rows
from control_plane.kit.http import (
    PROBLEMS,
    Caller,
    Cursor,
    IdempotencyKey,
    Limit,
    Session,
    after_of,
    answer,
    created,
    page_of,
    require_admin,
)
from control_plane.kit.problems import Problem, invalid, not_found
from control_plane.kit.rows import Row
from control_plane.kit.shapes import Page
from control_plane.kit.unit import Unit
from control_plane.people import service as people
from control_plane.tables import accounts, tokens
from control_plane.tokens import service, signing
from control_plane.tokens.schemas import Audience, MintedToken, NewToken, Token, TokenRotation

router = APIRouter(responses=PROBLEMS)
well_known = APIRouter()


@router.get("/tokens", tags=["tokens"], summary="List tokens")
async def list_tokens(
    caller: Caller,
    limit: Limit = 100,
    cursor: Cursor = None,
    principal: Annotated[str | None, Query(max_length=130, description="user:<…> or service_account:<…>")] = None,
    audience: Audience | None = None,
    is_revoked: bool | None = None,
) -> Page[Token]:
    """Return what is kept of tokens: all for owners and admins, else the caller's own."""
    where: list[ColumnElement[bool]] = []
    async with caller.read() as connection:
        if caller.actor.role == "member":
            where.append(tokens.c.principal_id == caller.actor.id)
        if principal is not None:
            kind, _, reference = principal.partition(":")
            if kind not in ("user", "service_account"):
                raise invalid("principal", "Write user:<id or name> or service_account:<id or name>.")
            where.append(tokens.c.principal_id == (await people.principal(connection, kind, reference))["id"])
        if audience is not None:
            where.append(tokens.c.audience == audience)
        if is_revoked is not None:
            where.append(tokens.c.revoked_at.is_not(None) if is_revoked else tokens.c.revoked_at.is_(None))
        found = await rows.page(connection, tokens, after_of(cursor), limit, *where)
    return page_of(found, limit, Token.model_validate)


async def _token(connection: Any, caller: Session, reference: str) -> Row:  # Any: an AsyncConnection
    row = await service.token_row(connection, reference)
    if caller.actor.role == "member" and row["principal_id"] != caller.actor.id:
        raise not_found("token", reference)
    return row


def _check_may_mint(caller: Session, principal: Row, audience: str, scopes: Collection[str] | None) -> None:
    """Raise Problem forbidden if the caller may not mint this token, anew or in place of another. scopes: None for all."""
    if caller.actor.role == "member" and principal["id"] != caller.actor.id:
        raise Problem("forbidden", "Members mint tokens for themselves only.")
    if audience != service.API_AUDIENCE:
        return
    if principal["role"] == "owner" and caller.actor.role != "owner":
        raise Problem("forbidden", "Only an owner mints an API token for an owner.")
    if caller.actor.scopes is not None and (scopes is None or not caller.actor.scopes.issuperset(scopes)):
        raise Problem("forbidden", "A token cannot mint one that may do more than itself.")


@router.post("/tokens", tags=["tokens"], summary="Mint a token", status_code=201, response_model=MintedToken)
async def mint_token(caller: Caller, request: Request, body: NewToken, idempotency_key: IdempotencyKey = None) -> Response:
    """Mint a token; its text is in this answer only. Members mint for themselves, owners and admins for anybody."""
    issuer: service.TokenIssuer = request.app.state.token_issuer
    kind, _, reference = body.principal.partition(":")
    if kind == "team":
        raise invalid("principal", "A token belongs to a user or a service account, not to a team.")
    is_api = body.audience == service.API_AUDIENCE
    if is_api and (
        body.is_browser or body.models or body.operations or body.accounts or body.origins or body.team or body.metadata
    ):
        raise invalid("audience", "An API token has scopes alone; everything else is for tokens of audience glottis.")
    if body.scopes is not None and not is_api:
        raise invalid("scopes", "Scopes are for tokens of audience glottis-api.")

    async def make(unit: Unit) -> tuple[BaseModel, None, str]:
        principal = await people.principal(unit.connection, kind, reference)
        _check_may_mint(caller, principal, body.audience, body.scopes)
        team = None
        if body.team is not None:
            team = (await people.resolved_teams(unit.connection, [body.team]))[0]
            if team not in principal["teams"]:
                raise invalid("team", f"{principal['name']} is not in that team.")
        account_ids = None
        if body.accounts is not None:
            account_ids = [(await rows.get(unit.connection, accounts, "account", name))["id"] for name in body.accounts]
        if body.models is not None:
            await service.check_models(unit.connection, body.models, account_ids)
        row, text = await issuer.mint(
            unit,
            {
                "principal_id": principal["id"],
                "kind": "browser" if body.is_browser else "personal" if kind == "user" else "service_account",
                "audience": body.audience,
                "name": body.name,
                "team_id": team,
                "account_ids": account_ids,
                "models": body.models,
                "operations": body.operations,
                "origins": body.origins,
                "scopes": body.scopes,
                "is_single_use": body.is_single_use,
                "metadata": body.metadata,
            },
            None if body.expires_in_seconds is None else timedelta(seconds=body.expires_in_seconds),
        )
        return MintedToken.model_validate({**row, "token": text}), None, f"/api/v1/tokens/{row['id']}"

    return await created(caller, request, idempotency_key, make, scope="tokens")


@router.get("/tokens/{token}", tags=["tokens"], summary="Read what is kept of a token", response_model=Token)
async def read_token(caller: Caller, token: str) -> Response:
    """Return the token's record. Members see their own."""
    async with caller.read() as connection:
        row = await _token(connection, caller, token)
    return answer(Token.model_validate(row))


@router.post("/tokens/{token}/rotate", tags=["tokens"], summary="Rotate a token", status_code=201, response_model=MintedToken)
async def rotate_token(
    caller: Caller, request: Request, token: str, body: TokenRotation, idempotency_key: IdempotencyKey = None
) -> Response:
    """Mint a token like this one; the old one is revoked when the overlap is over."""
    issuer: service.TokenIssuer = request.app.state.token_issuer

    async def make(unit: Unit) -> tuple[BaseModel, None, str]:
        row = await _token(unit.connection, caller, token)
        _check_may_mint(caller, {"id": row["principal_id"], "role": row["principal_role"]}, row["audience"], row["scopes"])
        lifetime = None if body.expires_in_seconds is None else timedelta(seconds=body.expires_in_seconds)
        made, text = await issuer.rotated(unit, row, timedelta(seconds=body.overlap_seconds), lifetime)
        return MintedToken.model_validate({**made, "token": text}), None, f"/api/v1/tokens/{made['id']}"

    return await created(caller, request, idempotency_key, make, scope="tokens")


@router.delete("/tokens/{token}", tags=["tokens"], summary="Revoke a token", status_code=204)
async def revoke_token(caller: Caller, token: str) -> None:
    """Revoke the token; gateways refuse it within a second. Revoking twice is no error."""
    async with caller.change("tokens") as unit:
        row = await _token(unit.connection, caller, token)
        await service.revoke(unit, [row["id"]])


@router.post("/users/{user}/revoke-tokens", tags=["tokens"], summary="Revoke all tokens of a user", status_code=204)
async def revoke_tokens_of_user(caller: Caller, user: str) -> None:
    """Revoke every token of the user. Only owners and admins."""
    require_admin(caller.actor)
    async with caller.change() as unit:
        row = await people.principal(unit.connection, "user", user)
        await service.revoke_all_of(unit, row["id"])


@router.post(
    "/service-accounts/{service_account}/revoke-tokens",
    tags=["tokens"],
    summary="Revoke all tokens of a service account",
    status_code=204,
)
async def revoke_tokens_of_service_account(caller: Caller, service_account: str) -> None:
    """Revoke every token of the service account. Only owners and admins."""
    require_admin(caller.actor)
    async with caller.change() as unit:
        row = await people.principal(unit.connection, "service_account", service_account)
        await service.revoke_all_of(unit, row["id"])


@router.delete("/sessions/{exchange}", tags=["tokens"], summary="End an open session", status_code=202, response_class=Response)
async def end_session(caller: Caller, exchange: str) -> None:
    """Have the gateway end the session of this exchange (its request id). Only owners and admins."""
    require_admin(caller.actor)
    if len(exchange) > 63 or not is_handle(exchange):
        raise not_found("session", exchange)
    async with caller.change() as unit:
        await service.end_session(unit, exchange)


@router.post("/signing-keys/rotate", tags=["tokens"], summary="Sign with a new key", status_code=204)
async def rotate_signing_key(caller: Caller, request: Request) -> None:
    """Make a new signing key for the deployment; tokens of the old one stay good. Only owners."""
    if caller.actor.role != "owner":
        raise Problem("forbidden", "Only an owner may do this.")
    async with caller.change() as unit:
        await request.app.state.token_issuer.rotate(unit.now)
        unit.record("rotate", "signing_key", request.app.state.token_issuer.keys.current, "signing key")


@well_known.get("/.well-known/jwks.json", include_in_schema=False)
async def jwks(request: Request) -> Response:
    """Return the public keys of the token issuer (RFC 7517)."""
    issuer: service.TokenIssuer = request.app.state.token_issuer
    now = datetime.fromtimestamp(request.app.state.units.clock(), UTC)
    issuer.keys = await signing.read_keys(issuer.database, issuer.vault, now)
    return JSONResponse(issuer.keys.jwks(), headers={"Cache-Control": "public, max-age=60"})


@well_known.get("/.well-known/openid-configuration", include_in_schema=False)
async def discovery(request: Request) -> dict[str, Any]:
    """Return where the key set is (OpenID Connect Discovery); workspaces' issuers are below `/w/`."""
    return _discovery(request, request.app.state.settings.public_url)


@well_known.get("/w/{workspace}/.well-known/openid-configuration", include_in_schema=False)
async def workspace_discovery(request: Request, workspace: str) -> dict[str, Any]:
    """Return the discovery document of a workspace's issuer; any handle has one, so that it tells nobody what exists."""
    if not is_handle(workspace):
        raise Problem("no_such_route")
    return _discovery(request, service.issuer_of(request.app.state.settings.public_url, workspace))


def _discovery(request: Request, issuer: str) -> dict[str, Any]:
    return {
        "issuer": issuer,
        "jwks_uri": f"{request.app.state.settings.public_url}/.well-known/jwks.json",
        "id_token_signing_alg_values_supported": [signing.ALGORITHM],
        "subject_types_supported": ["public"],
        "response_types_supported": [],
    }
