"""What a route needs of a request: who asks, for which workspace, with which ETag, cursor and idempotency key.

`Session` is the authenticated caller; a route reads with `session.read()` and changes with `session.change()`. How a token
becomes a session is set by `app`, because tokens are a slice of their own.
"""

import base64
import hashlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Header, Query, Request, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel
from sqlalchemy import delete, select, update
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.kit.problems import Problem, invalid
from control_plane.kit.rows import Row
from control_plane.kit.shapes import Page
from control_plane.kit.unit import Actor, Unit, Units
from control_plane.tables import idempotency_keys

IDEMPOTENCY_LIFETIME = timedelta(hours=24)
_ETAG = re.compile(r'(?:W/)?"v([1-9][0-9]{0,9})"\Z')
_LARGEST_VERSION = 2**31 - 1


@dataclass(frozen=True)
class Session:
    """An authenticated caller in its workspace. close/open_: encrypt and decrypt answers kept for repeated requests."""

    workspace: str
    actor: Actor
    request_id: str
    units: Units
    close: Callable[[bytes, str], bytes]
    open: Callable[[bytes, str], bytes]

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """A transaction for reading."""
        async with self.units.database.transaction(self.workspace) as connection:
            yield connection

    @asynccontextmanager
    async def change(self, scope: str = "write") -> AsyncIterator[Unit]:
        """A transaction for one change. Raises Problem forbidden if the token lacks the scope."""
        require_scope(self.actor, scope)
        async with self.units.change(self.workspace, self.actor, self.request_id) as unit:
            yield unit


def require_scope(actor: Actor, scope: str) -> None:
    """Raise Problem forbidden if the actor's token is narrowed and this scope is not in it."""
    if actor.scopes is not None and scope not in actor.scopes:
        raise Problem("forbidden", f"This token lacks the scope {scope}.")


def require_admin(actor: Actor) -> None:
    """Raise Problem forbidden unless the actor is an owner or admin of the workspace."""
    if actor.role == "member":
        raise Problem("forbidden", "Only owners and admins of the workspace may do this.")


_BEARER = HTTPBearer(auto_error=False, bearerFormat="JWT", description="An API token: glottis tokens mint --api")


async def session(request: Request, shown: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)]) -> Session:
    """Return the caller. Raises Problem unauthenticated."""
    if shown is None or not shown.credentials.strip():
        raise Problem("unauthenticated", headers={"WWW-Authenticate": "Bearer"})
    authenticated: Session = await request.app.state.authenticate(shown.credentials.strip(), request.state.request_id)
    if request.method in ("GET", "HEAD"):
        require_scope(authenticated.actor, "read")
    return authenticated


Caller = Annotated[Session, Depends(session)]
Limit = Annotated[int, Query(ge=1, le=500, description="How many at most")]
Cursor = Annotated[str | None, Query(max_length=200, description="`next_cursor` of the page before")]
IfMatch = Annotated[str | None, Header(description='The ETag that was read, for example `"v3"`, or `*`')]
IdempotencyKey = Annotated[
    str | None,
    Header(min_length=1, max_length=200, description="Send the same key again to repeat a request safely for 24 hours"),
]

PROBLEMS: dict[int | str, dict[str, Any]] = {  # Any: OpenAPI's own shape
    status: {
        "description": text,
        "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}},
    }
    for status, text in (
        (400, "The request cannot be read"),
        (401, "No valid API token"),
        (403, "Not allowed"),
        (404, "There is no such thing"),
        (409, "It does not fit what is there"),
        (412, "It was changed meanwhile"),
        (413, "The request is too large"),
        (422, "The request is not valid"),
        (428, "If-Match is missing"),
        (503, "Something that is needed is away"),
    )
}


def only_known_parameters(request: Request) -> None:
    """Refuse a query parameter that the route does not have: a misspelt filter would silently be none, and the answer
    everything. Raises Problem invalid_request."""
    known = {parameter.alias for parameter in request.scope["route"].dependant.query_params}
    for name in request.query_params:
        if name not in known:
            there_are = ", ".join(sorted(known)) or "none"
            raise invalid(name[:80], f"There is no such parameter here; there is {there_are}.")


def expected_version(if_match: str | None) -> int | None:
    """Return the version that the caller saw; None for `*`. Raises Problem precondition_required or changed_meanwhile."""
    if if_match is None:
        raise Problem("precondition_required")
    if if_match.strip() == "*":
        return None
    found = _ETAG.match(if_match.strip())
    if found is None or int(found.group(1)) > _LARGEST_VERSION:
        raise Problem("changed_meanwhile", "That is no ETag of this resource.")
    return int(found.group(1))


def etag(version: int) -> str:
    """Return the ETag of a version."""
    return f'"v{version}"'


def after_of(cursor: str | None) -> str | None:
    """Return the id that a cursor stands for. Raises Problem invalid_request for one that we did not make."""
    if cursor is None:
        return None
    try:
        text = base64.urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4)).decode("ascii")
    except (ValueError, UnicodeError) as error:
        raise Problem("invalid_request", "That is no cursor of this list.") from error
    if not re.fullmatch(r"[A-Za-z0-9._:-]{1,100}", text):
        raise Problem("invalid_request", "That is no cursor of this list.")
    return text


def cursor_of(last_id: str) -> str:
    """Return the cursor that continues after this id."""
    return base64.urlsafe_b64encode(last_id.encode()).rstrip(b"=").decode()


Item = TypeVar("Item")


def page_of(rows: Sequence[Row], limit: int, shape: Callable[[Row], Item], key: str = "id") -> Page[Item]:
    """Return the page of up to limit rows; rows may hold one more, which tells that there is a next page."""
    more = len(rows) > limit
    kept = rows[:limit]
    return Page(items=[shape(row) for row in kept], next_cursor=cursor_of(str(kept[-1][key])) if more else None)


def answer(shape: BaseModel, version: int | None = None, status: int = 200, location: str | None = None) -> Response:
    """Return the JSON answer with its ETag and Location."""
    headers = {}
    if version is not None:
        headers["ETag"] = etag(version)
    if location is not None:
        headers["Location"] = location
    return Response(shape.model_dump_json(by_alias=True).encode(), status, headers, "application/json")


async def created(
    caller: Session,
    request: Request,
    key: str | None,
    make: Callable[[Unit], Awaitable[tuple[BaseModel, int | None, str | None]]],
    scope: str = "write",
    status: int = 201,
) -> Response:
    """Make something once and answer `status`; a repeated Idempotency-Key with the same request gets the first answer again.

    make: gives the answer's shape, its version and its location. The key's row is part of the same transaction, so that a
    repeat which comes while the first still runs waits for it.
    """
    digest = hashlib.sha256(f"{request.method} {request.url.path}\n".encode() + await request.body()).digest()
    async with caller.change(scope) as unit:
        if key is not None and (kept := await _begin(unit, caller, key, digest)) is not None:
            return kept
        shape, version, location = await make(unit)
        response = answer(shape, version, status, location)
        if key is not None:
            closed = caller.close(bytes(response.body), key)
            await unit.connection.execute(
                update(idempotency_keys)
                .where(idempotency_keys.c.principal == caller.actor.id, idempotency_keys.c.key == key)
                .values(status=status, answer=closed, etag=response.headers.get("etag"))
            )
        return response


async def _begin(unit: Unit, caller: Session, key: str, digest: bytes) -> Response | None:
    mine = idempotency_keys.c.principal == caller.actor.id
    await unit.connection.execute(
        delete(idempotency_keys).where(mine, idempotency_keys.c.created_at < unit.now - IDEMPOTENCY_LIFETIME)
    )
    inserted = await unit.connection.execute(
        postgresql.insert(idempotency_keys)
        .values(
            workspace=unit.workspace,
            principal=caller.actor.id,
            key=key,
            request_digest=digest,
            status=0,
            answer=b"",
            created_at=unit.now,
        )
        .on_conflict_do_nothing()
        .returning(idempotency_keys.c.key)
    )
    if inserted.one_or_none() is not None:
        return None
    kept = (await unit.connection.execute(select(idempotency_keys).where(mine, idempotency_keys.c.key == key))).mappings().one()
    if kept["request_digest"] != digest:
        raise Problem("idempotency_key_reused")
    headers = {"Idempotent-Replay": "true", **({"ETag": kept["etag"]} if kept["etag"] else {})}
    return Response(caller.open(kept["answer"], key), kept["status"], headers, "application/json")


__all__ = [
    "PROBLEMS",
    "Caller",
    "Cursor",
    "IdempotencyKey",
    "IfMatch",
    "Limit",
    "Session",
    "after_of",
    "answer",
    "created",
    "etag",
    "expected_version",
    "only_known_parameters",
    "page_of",
    "require_admin",
    "require_scope",
]
