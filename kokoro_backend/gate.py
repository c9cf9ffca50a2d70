"""What every request passes on its way in: a request id, the caller key, readiness; and on its way out: errors in shape.

Pure ASGI, since it serves WebSocket handshakes as well. The key is compared as a digest, in constant time.
"""

import hashlib
import hmac
import re
import uuid
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders, State
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kokoro_backend.cartesia_messages import error_body
from kokoro_backend.errors import NOT_READY, UNAUTHORIZED, Problem
from kokoro_backend.problems import problem_of
from kokoro_backend.streaming import ClientGone

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:\-]{1,128}\Z")
_OPEN_PATHS = frozenset({"/ping"})
_UNREADY_PATHS = frozenset({"/ping", "/"})


class Gate:
    """The outermost middleware of ours."""

    def __init__(self, app: ASGIApp, state: State, caller_key_digest: bytes | None) -> None:
        """state: of the application; its `backend` is None until the model is warm."""
        self._app = app
        self._state = state
        self._digest = caller_key_digest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request through, or answer it."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.match(given) else str(uuid.uuid4())
        scope.setdefault("state", {})["request_id"] = request_id
        version = headers.get("cartesia-version", "")
        if problem := self._refusal(scope, headers):
            await answer(scope, send, problem, version, request_id)
            return
        has_started = False

        async def send_with_id(message: Message) -> None:
            nonlocal has_started
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                has_started = True
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
            elif message["type"] in ("websocket.accept", "websocket.close"):
                has_started = True
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except ClientGone:
            return
        except Exception as error:  # The edge of one request; `problem_of` logs what was not foreseen.
            if has_started:
                raise  # The head is out: only a broken connection can still say that the rest is missing.
            await answer(scope, send, problem_of(error), version, request_id)

    def _refusal(self, scope: Scope, headers: Headers) -> Problem | None:
        path = scope["path"]
        if self._digest is not None and path not in _OPEN_PATHS and not self._has_key(scope, headers):
            return UNAUTHORIZED
        if self._state.backend is None and path not in _UNREADY_PATHS:
            return NOT_READY
        return None

    def _has_key(self, scope: Scope, headers: Headers) -> bool:
        shown = [value[7:].strip() for value in headers.getlist("authorization") if value[:7].lower() == "bearer "]
        shown += headers.getlist("x-api-key")
        if scope["type"] == "websocket":
            # Browsers and the JavaScript SDK's ESM build have no other way on a WebSocket.
            query = parse_qs(scope["query_string"].decode("latin-1"))
            shown += query.get("api_key", []) + query.get("access_token", [])
        digests = [hashlib.sha256(key.encode()).digest() for key in shown]
        expected = self._digest or b""
        # Several keys that disagree are refused: one of them is not what its sender believes.
        return bool(digests) and all([hmac.compare_digest(digest, expected) for digest in digests])


async def answer(scope: Scope, send: Send, problem: Problem, version: str, request_id: str) -> None:
    """Send `problem` as the whole answer, to an HTTP request or a WebSocket handshake."""
    body, media_type = error_body(problem, version, request_id)
    headers = [
        (b"content-type", media_type.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"x-request-id", request_id.encode()),
    ]
    if 400 <= problem.status < 500 and problem.status != 429:
        headers.append((b"x-should-retry", b"false"))
    elif problem.status == 503:
        headers.append((b"retry-after", b"1"))
    prefix = "websocket.http.response" if scope["type"] == "websocket" else "http.response"
    await send({"type": f"{prefix}.start", "status": problem.status, "headers": headers})
    await send({"type": f"{prefix}.body", "body": body})
