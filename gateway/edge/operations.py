"""The gateway's own routes: whether it lives, whether it takes work, what it counts; and the answer to every other path.

Two FastAPI apps. The public one stands behind the edge's protocol, which keeps provider mounts away from it; the admin one
has a listener of its own that callers cannot reach. Every answer carries a request id. Read next: `gateway.app`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from policy.refusal import Refusal, http_answer


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether the pod takes new work. `reason`: a refusal reason, empty if it does."""

    reason: str
    revision: int
    age_seconds: float
    was_ever_ready: bool


def public_app(new_id: Callable[[], str], on_refused: Callable[[str, str, str], None]) -> ASGIApp:
    """Return the app of the public listeners. on_refused: told (request id, method, reason) of what had no route."""
    app = _app()

    @app.get("/livez")
    async def livez() -> JSONResponse:
        return JSONResponse({"live": True})

    return _WithRequestId(app, new_id, on_refused)


def admin_app(
    new_id: Callable[[], str],
    registry: CollectorRegistry,
    readiness: Callable[[], Readiness],
    drain: Callable[[], None],
) -> ASGIApp:
    """Return the app of the admin listener. drain: begins the pod's drain; the process ends after it."""
    app = _app()

    @app.get("/livez")
    async def livez() -> JSONResponse:
        return JSONResponse({"live": True})

    @app.get("/readyz")
    async def readyz() -> JSONResponse:
        state = readiness()
        body = {"ready": not state.reason, "revision": state.revision, "config_age_seconds": round(state.age_seconds, 1)}
        return JSONResponse(body | ({"reason": state.reason} if state.reason else {}), 503 if state.reason else 200)

    @app.get("/startupz")
    async def startupz() -> JSONResponse:
        has_started = readiness().was_ever_ready
        return JSONResponse({"started": has_started}, 200 if has_started else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    @app.post("/drain")
    async def begin_drain() -> JSONResponse:
        drain()
        return JSONResponse({"draining": True}, 202)

    return _WithRequestId(app, new_id, lambda *_: None)


def _app() -> FastAPI:
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @app.exception_handler(HTTPException)
    async def no_route(request: Request, _: HTTPException) -> Response:
        return _refused(request, "not_found")

    @app.exception_handler(Exception)
    async def failed(request: Request, _: Exception) -> Response:
        return _refused(request, "internal")

    return app


def _refused(request: Request, reason: str) -> Response:
    request.scope["glottis.reason"] = reason
    status, _, headers, body = http_answer(Refusal(reason), None, "", request.scope["glottis.request_id"])
    answer = Response(body, status)
    answer.raw_headers = [(name.lower(), value) for name, value in headers]
    return answer


class _WithRequestId:
    """Gives every request an id, says it in the answer, and tells of refusals."""

    def __init__(self, app: FastAPI, new_id: Callable[[], str], on_refused: Callable[[str, str, str], None]) -> None:
        self._app = app
        self._new_id = new_id
        self._on_refused = on_refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = scope["glottis.request_id"] = self._new_id()

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [pair for pair in message["headers"] if pair[0] != b"x-glottis-request-id"]
                message["headers"] = [*headers, (b"x-glottis-request-id", request_id.encode())]
            await send(message)

        await self._app(scope, receive, send_with_id)
        if "glottis.reason" in scope:
            self._on_refused(request_id, scope["method"], scope["glottis.reason"])
