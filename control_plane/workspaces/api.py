"""Routes for a workspace whole under /api/v1: bootstrap, settings, apply, export, pods, and the operator's actions."""

import asyncio
import json
import time
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse

from contracts.secret import Secret
from control_plane.kit import rows
from control_plane.kit.http import PROBLEMS, Caller, IfMatch, answer, expected_version, require_admin, require_scope
from control_plane.kit.problems import Problem
from control_plane.people import service as people
from control_plane.workspaces import service, settings
from control_plane.workspaces.execute import Rules
from control_plane.workspaces.plan import Plan
from control_plane.workspaces.schemas import (
    Application,
    Applied,
    Bootstrap,
    Bootstrapped,
    Change,
    LiveSession,
    LiveSessions,
    Pod,
    Pods,
    Rewrapped,
    Workspace,
    WorkspaceChange,
)
from control_plane.workspaces.state import yaml_of
from policy.workspace_file import json_schema

router = APIRouter(tags=["workspace"], responses=PROBLEMS)

_POD_MEMORY_SECONDS = 60.0

Filter = Annotated[str | None, Query(max_length=200, description="Only this one, by its id")]


@router.post("/bootstrap", summary="Make the first owner", status_code=201, response_model=Bootstrapped)
async def bootstrap(request: Request, body: Bootstrap) -> Response:
    """Make a workspace and its owner with the one-time secret, and get an API token. There is no open set-up page."""
    state = request.app.state
    token, row = await service.bootstrap(
        state.units,
        state.token_issuer,
        state.vault,
        state.owner_secret(),
        Secret(body.secret.get_secret_value()),
        service.FirstOwner(body.workspace, body.name, body.owner, body.email),
        request.state.request_id,
    )
    made = {"workspace": row["workspace"], "owner": row["principal_id"], "token": token, "expires_at": row["expires_at"]}
    return answer(Bootstrapped.model_validate(made), status=201)


@router.get("/workspace", summary="Read the workspace", response_model=Workspace)
async def read_workspace(caller: Caller) -> Response:
    """Return the caller's workspace."""
    async with caller.read() as connection:
        row = await service.workspace(connection, caller.workspace)
    return answer(Workspace.model_validate(row), row["version"])


@router.patch("/workspace", summary="Change the workspace", response_model=Workspace)
async def update_workspace(caller: Caller, body: WorkspaceChange, if_match: IfMatch = None) -> Response:
    """Change name, defaults or sampling; absent fields stay. Only owners and admins."""
    require_admin(caller.actor)
    version = expected_version(if_match)
    async with caller.change() as unit:
        row = await service.workspace(unit.connection, caller.workspace, locks=True)
        rows.check_version(row, version)
        values: dict[str, Any] = body.model_dump(exclude_unset=True)  # Any: column values
        if "defaults" in values:
            values["default_accounts"] = await people.resolved_defaults(unit.connection, values.pop("defaults"))
        row = await settings.update_workspace(unit, row, values)
    return answer(Workspace.model_validate(row), row["version"])


@router.post("/apply", summary="Apply a workspace file", response_model=Applied)
async def apply(caller: Caller, request: Request, body: Application) -> Response:
    """Make the workspace match the file, in one transaction and one published revision. Only owners and admins."""
    require_admin(caller.actor)
    require_scope(caller.actor, "write")
    state = request.app.state
    rules = Rules(state.settings.public_url, state.settings.allowed_origins)
    material = {key: Secret(value.get_secret_value()) for key, value in body.material.items()}
    # A large file takes seconds of checking; others are served meanwhile.
    wanted = await asyncio.to_thread(service.checked, body.document, material, caller.workspace, rules)
    opened = state.units.rehearsal if body.dry_run else state.units.change
    async with opened(caller.workspace, caller.actor, caller.request_id) as unit:
        done = await service.apply(unit, state.vault, wanted, rules, body.prune)
    return answer(_applied(done, body.dry_run))


def _applied(done: Plan, is_dry_run: bool) -> Applied:
    changes = [
        Change(
            action=step.action,
            kind=step.kind,
            name=step.name,
            fields={field: [before, after] for field, (before, after) in step.fields.items()},
        )
        for step in done.steps
    ]
    return Applied(changes=changes, is_dry_run=is_dry_run, kept=list(done.kept))


@router.get(
    "/export",
    summary="Export the workspace",
    response_class=Response,
    responses={200: {"content": {"application/yaml": {"schema": {"type": "object"}}}}},
)
async def export(caller: Caller) -> Response:
    """Return the workspace as a workspace file (YAML) without credentials. Only owners and admins."""
    require_admin(caller.actor)
    async with caller.read() as connection:
        items = await service.current_items(connection, caller.workspace)
    return Response(await asyncio.to_thread(yaml_of, items), media_type="application/yaml")


@router.get("/workspace-file/schema", summary="The workspace file's JSON Schema")
async def workspace_file_schema() -> Response:
    """Return the JSON Schema of the workspace file, for editors. Open to anybody."""
    return JSONResponse(json.loads(msgspec.json.encode(json_schema())))


@router.get("/pods", summary="Which gateway pod runs what", response_model=Pods)
async def pods(caller: Caller, request: Request) -> Response:
    """Return the pods heard of in the last minute with their revision, beside the newest one. Only owners and admins."""
    require_admin(caller.actor)
    publisher = request.app.state.publisher
    recent = [pod for pod in publisher.pods.values() if time.time() * 1000 - pod.at_ms < _POD_MEMORY_SECONDS * 1000]
    return answer(
        Pods(
            revision=publisher.revision,
            pods=[
                Pod(
                    pod=pod.pod,
                    version=pod.version,
                    revision=pod.revision,
                    is_current=pod.revision == publisher.revision,
                    seen_at=datetime.fromtimestamp(pod.at_ms / 1000, UTC),
                    open_sessions=pod.open_sessions,
                    open_exchanges=pod.open_exchanges,
                    is_draining=pod.is_draining,
                    spool_bytes=pod.spool_bytes,
                )
                for pod in sorted(recent, key=lambda pod: pod.pod)
            ],
        )
    )


@router.get("/sessions", summary="Which sessions are open", response_model=LiveSessions)
async def sessions(
    caller: Caller,
    request: Request,
    user: Filter = None,
    team: Filter = None,
    account: Filter = None,
    model: Filter = None,
    pod: Filter = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="How many to show at most")] = 200,
) -> Response:
    """Return the open WebSocket sessions of the workspace with who speaks, since when, and how much so far.

    New and ended sessions show within seconds, figures every few seconds; those of a pod that fell silent are gone after 45 s.
    `DELETE /sessions/{exchange}` ends one. Only owners and admins.
    """
    require_admin(caller.actor)
    wanted = {"principal": user, "team": team, "account": account, "model": model}
    found = [
        heard
        for heard in request.app.state.publisher.sessions.of(caller.workspace)
        if pod in (None, heard.pod) and all(value in (None, getattr(heard.session, field)) for field, value in wanted.items())
    ]
    return answer(
        LiveSessions(
            count=len(found),
            sessions=[
                LiveSession(
                    exchange=heard.session.exchange,
                    pod=heard.pod,
                    user=heard.session.principal,
                    user_name=heard.session.principal_name,
                    team=heard.session.team,
                    account=heard.session.account,
                    account_name=heard.session.account_name,
                    provider=heard.session.provider,
                    model=heard.session.model,
                    endpoint=heard.session.endpoint,
                    since=datetime.fromtimestamp(heard.session.since_ms / 1000, UTC),
                    seen_at=datetime.fromtimestamp(heard.at, UTC),
                    contexts=heard.session.contexts,
                    characters=heard.session.characters,
                    audio_in_ms=heard.session.audio_in_ms,
                )
                for heard in found[:limit]
            ],
        )
    )


@router.post("/republish", summary="Rebuild the bucket", status_code=202, response_class=Response)
async def republish(caller: Caller, request: Request) -> None:
    """Write everything that gateways read anew from the database. Only owners."""
    _require_owner(caller)
    await service.republish(request.app.state.units, caller.workspace)


@router.post("/rewrap", summary="Move secrets to the current keys", response_model=Rewrapped)
async def rewrap(caller: Caller, request: Request) -> Response:
    """Encrypt every stored secret with the current key-encryption key and seal it for the current fleet key. Only owners."""
    _require_owner(caller)
    moved = await service.rewrap(request.app.state.units, request.app.state.vault)
    return answer(Rewrapped(moved=moved))


def _require_owner(caller: Caller) -> None:
    require_scope(caller.actor, "write")
    if caller.actor.role != "owner":
        raise Problem("forbidden", "Only an owner may do this.")
