"""How the control plane is put together: services by constructor, routes, the edge of one request, background work.

The only place that knows every slice. `create_app` does no I/O; what needs the database happens in the lifespan.
"""

import asyncio
import contextlib
import functools
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import structlog
from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from sqlalchemy import text
from sqlalchemy.exc import ProgrammingError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import contracts.ids
from contracts.secret import Secret
from control_plane import examples
from control_plane.access import api as access
from control_plane.accounts import api as accounts
from control_plane.audit import api as audit
from control_plane.catalog import api as catalog
from control_plane.exports import api as exports
from control_plane.kit.database import Database
from control_plane.kit.http import Session, only_known_parameters
from control_plane.kit.problems import Problem
from control_plane.kit.shapes import ProblemDocument
from control_plane.kit.tasks import start_task, stop_task
from control_plane.kit.unit import Units
from control_plane.people import api as people
from control_plane.publish import BusSettings, Publisher
from control_plane.publish.publisher import Metrics, PublisherSettings
from control_plane.reports.api import router_of as reports_router_of
from control_plane.reports.service import Reports
from control_plane.settings import Settings
from control_plane.tokens import api as tokens
from control_plane.tokens import service as token_service
from control_plane.tokens import signing
from control_plane.vault import CannotDecrypt, Vault
from control_plane.workspaces import api as workspaces

log = structlog.get_logger(__name__)

_LARGEST_BODY_BYTES = 4 * 1024 * 1024
_LARGEST_FILE_BYTES = 64 * 1024 * 1024
"""of a request whose body is a workspace file, from somebody whom we gave a token: reading it holds the loop for seconds"""
_TAKES_FILES = "/api/v1/apply"
_HOUSEKEEPING_SECONDS = 2.0
_RETRY_SECONDS = 1.0
SCHEMA_REVISION = "0005"
"""the migration that this code needs (a test compares it with the newest one)"""


def create_app(settings: Settings, clock: Callable[[], float] = time.time) -> FastAPI:
    """Return the application. clock: Unix seconds."""
    database = Database(settings.database_url)
    vault = Vault(settings.key_encryption_keys, settings.fleet_public_key, secrets.token_bytes)
    registry = CollectorRegistry()
    publisher = Publisher(
        database,
        BusSettings(settings.nats_url, settings.nats_seed, settings.nats_replicas, tls=settings.nats_tls),
        PublisherSettings(settings.manifest_key, settings.public_url),
        clock,
        Metrics(registry),
    )

    def new_id() -> str:
        return contracts.ids.uuid7(round(clock() * 1000), secrets.randbits(80))

    units = Units(database, clock, new_id)
    reports = Reports(settings.clickhouse)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.token_issuer = token_service.TokenIssuer(database, vault, settings.public_url, signing.NO_KEYS)
        background = [
            start_task(_first_keys(app.state.token_issuer, clock), "signing keys"),
            start_task(publisher.run(), "publisher"),
            start_task(_housekeeping(units), "housekeeping"),
        ]
        try:
            yield
        finally:
            for task in background:
                await stop_task(task)
            await reports.close()
            await database.close()

    app = FastAPI(
        title="Glottis control plane",
        version="1",
        summary="Who may use which voice model, and what for",
        openapi_url="/api/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.settings = settings
    app.state.owner_secret = settings.owner_secret
    app.state.vault = vault
    app.state.units = units
    app.state.publisher = publisher
    app.state.authenticate = _authenticator(app, units, vault)
    for module in (workspaces, people, accounts, catalog, access, tokens, exports, audit):
        app.include_router(module.router, prefix="/api/v1", dependencies=[Depends(only_known_parameters)])
    app.include_router(reports_router_of(reports), prefix="/api/v1")
    app.include_router(tokens.well_known)
    _add_operations(app, database, publisher, registry)
    _add_problem_answers(app)
    _describe_problems(app)
    app.add_middleware(_Edge, registry=registry, new_id=new_id, may_send_file=functools.partial(_may_send_file, app))
    return app


async def _may_send_file(app: FastAPI, scope: Scope) -> bool:
    """Tell whether a request whose body is still coming takes a workspace file from somebody who has an API token."""
    if scope["path"] != _TAKES_FILES:
        return False
    header = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
    scheme, _, token = header.decode("latin-1").partition(" ")
    try:
        await app.state.authenticate(token.strip() if scheme.lower() == "bearer" else "", scope["state"]["request_id"])
    except Problem as problem:
        return problem.reason != "unauthenticated"  # the database is away: the route says so
    return True


async def _first_keys(issuer: token_service.TokenIssuer, clock: Callable[[], float]) -> None:
    """Give the issuer its keys as soon as the database answers and has its tables; until then nobody is recognised."""
    while not issuer.keys.current:
        try:
            issuer.keys = await signing.ensured_keys(issuer.database, issuer.vault, datetime.fromtimestamp(clock(), UTC))
        except Problem:
            log.warning("database is away", retry_in_seconds=_RETRY_SECONDS)
            await asyncio.sleep(_RETRY_SECONDS)
        except ProgrammingError:
            log.error("database is not migrated", help="run glottis migrate", retry_in_seconds=_RETRY_SECONDS)
            await asyncio.sleep(_RETRY_SECONDS)


def _authenticator(app: FastAPI, units: Units, vault: Vault) -> Callable[[str, str], Awaitable[Session]]:
    def closed(answer: bytes, key: str) -> bytes:
        return vault.encrypted(Secret(answer), "idempotency_keys", key)

    def opened(data: bytes, key: str) -> bytes:
        try:
            return vault.decrypted(data, "idempotency_keys", key).reveal()
        except CannotDecrypt as error:
            raise Problem("conflict", "The first answer is not kept any more; use a new Idempotency-Key.") from error

    async def authenticate(token: str, request_id: str) -> Session:
        issuer: token_service.TokenIssuer = app.state.token_issuer
        workspace, actor = await issuer.authenticated(token, datetime.fromtimestamp(units.clock(), UTC))
        return Session(workspace, actor, request_id, units, closed, opened)

    return authenticate


async def _housekeeping(units: Units) -> None:
    """Do what is due: revoke rotated tokens whose overlap is over. A fault is logged and tried again."""
    while True:
        try:
            await token_service.revoke_due(units)
        except Problem as problem:
            log.warning("housekeeping interrupted", reason=problem.reason)
        except Exception:  # the edge of a background loop: a defect in one round must not end what rotation relies on
            log.error("housekeeping failed", exc_info=True)
        await asyncio.sleep(_HOUSEKEEPING_SECONDS)


def _add_operations(app: FastAPI, database: Database, publisher: Publisher, registry: CollectorRegistry) -> None:
    @app.get("/livez", include_in_schema=False)
    async def livez() -> dict[str, str]:
        return {"status": "live"}

    @app.get("/readyz", include_in_schema=False)
    async def readyz() -> Response:
        """Ready: the database answers and has this release's tables. The bus may be away: changes wait in the outbox."""
        try:
            async with database.system() as connection:
                revision = (await connection.execute(text("SELECT version_num FROM alembic_version"))).scalar_one()
        except Problem:
            return JSONResponse({"status": "not ready", "reason": "database_unavailable"}, 503)
        except ProgrammingError:
            revision = ""
        if revision < SCHEMA_REVISION:
            return JSONResponse({"status": "not ready", "reason": "database_not_migrated"}, 503)
        if not app.state.token_issuer.keys.current:
            return JSONResponse({"status": "not ready", "reason": "no_signing_key_yet"}, 503)
        return JSONResponse(
            {
                "status": "ready",
                "bus": "connected" if publisher.is_connected else "away",
                "publishes": publisher.is_leader,
                "revision": publisher.revision,
            }
        )

    @app.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


def _add_problem_answers(app: FastAPI) -> None:
    @app.exception_handler(Problem)
    async def problem(request: Request, error: Problem) -> Response:
        return _problem_answer(request, error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        errors = [
            {"field": ".".join(str(step) for step in one["loc"][1:]) or str(one["loc"][0]), "sentence": str(one["msg"])}
            for one in error.errors()[:100]
        ]
        if any(one["type"] == "json_invalid" for one in error.errors()):
            return _problem_answer(request, Problem("malformed_request", "The body is not JSON."))
        return _problem_answer(request, Problem("invalid_request", errors=errors))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        reason = {404: "no_such_route", 405: "method_not_allowed", 413: "too_large"}.get(error.status_code, "malformed_request")
        return _problem_answer(request, Problem(reason, headers=dict(error.headers or {})))

    @app.exception_handler(Exception)
    async def defect(request: Request, error: Exception) -> Response:
        log.error("request failed", request_id=request.state.request_id, exc_info=error)
        return _problem_answer(request, Problem("internal"))


def _describe_problems(app: FastAPI) -> None:
    """Complete the API's description: the problem document, which routes refer to for their refusals, and examples."""
    plain = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            description = plain()
            schemas = description.setdefault("components", {}).setdefault("schemas", {})
            schemas["ProblemDocument"] = ProblemDocument.model_json_schema()
            description["servers"] = [{"url": "/"}]
            examples.describe(description)
        return app.openapi_schema or description

    app.openapi = described  # type: ignore[method-assign]  # FastAPI's own way to extend its description


def _problem_answer(request: Request, problem: Problem) -> Response:
    return JSONResponse(
        problem.body(request.state.request_id), problem.kind.status, problem.headers, media_type="application/problem+json"
    )


class _Edge:
    """Around every request: its id, its size limit, its log line and its metrics. Answers are streamed through untouched."""

    def __init__(
        self,
        app: ASGIApp,
        registry: CollectorRegistry,
        new_id: Callable[[], str],
        may_send_file: Callable[[Scope], Awaitable[bool]],
    ) -> None:
        self._app = app
        self._new_id = new_id
        self._may_send_file = may_send_file
        self._requests = Counter("glottis_api_requests_total", "API requests", ["method", "status"], registry=registry)
        self._seconds = Histogram("glottis_api_request_seconds", "API request durations", registry=registry)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = self._new_id()
        scope.setdefault("state", {})["request_id"] = request_id
        started = time.perf_counter()
        status = 500
        received = 0
        most = _LARGEST_BODY_BYTES

        async def limited() -> Message:
            nonlocal received, most
            message = await receive()
            received += len(message.get("body", b""))
            if received > most == _LARGEST_BODY_BYTES and await self._may_send_file(scope):
                most = _LARGEST_FILE_BYTES
            if received > most:
                raise HTTPException(413)
            return message

        async def told(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {
                    **message,
                    "headers": [
                        *message["headers"],
                        (b"x-glottis-request-id", request_id.encode()),
                        (b"cache-control", b"no-store"),
                        (b"x-content-type-options", b"nosniff"),
                    ],
                }
            await send(message)

        try:
            await self._app(scope, limited, told)
        finally:
            seconds = time.perf_counter() - started
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self._requests.labels(method, str(status)).inc()
            self._seconds.observe(seconds)
            if scope["path"] not in _QUIET:
                log.info(
                    "request answered",
                    method=method,
                    path=scope["path"],
                    status=status,
                    duration_ms=round(seconds * 1000, 1),
                    request_id=request_id,
                )


_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_QUIET = frozenset({"/livez", "/readyz", "/metrics"})
