"""How the API says no: one table from reason to status, title and what to do (RFC 9457 problem details).

A `Problem` is raised anywhere below a route and becomes `application/problem+json` at the edge of one request, with the
request's id. `detail` names only what the caller itself sent; the text of another exception never gets here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Kind:
    """What a reason always means: HTTP status, title, and what the caller can do."""

    status: int
    title: str
    help: str


KINDS: dict[str, Kind] = {
    "invalid_request": Kind(422, "The request is not valid", "Correct the named fields and send it again."),
    "malformed_request": Kind(400, "The request cannot be read", "Send JSON as the API description says."),
    "invalid_workspace_file": Kind(422, "The workspace file is not valid", "Correct the named fields; see `glottis validate`."),
    "unauthenticated": Kind(401, "No valid API token", "Send `Authorization: Bearer` with a token of audience glottis-api."),
    "forbidden": Kind(403, "Not allowed", "Ask an owner or admin of the workspace."),
    "not_found": Kind(404, "There is no such thing", "Check the id or name; it may belong to another workspace."),
    "no_such_route": Kind(404, "There is no such address", "See /api/v1/openapi.json for what there is."),
    "method_not_allowed": Kind(405, "That address does not take this method", "See /api/v1/openapi.json for what it takes."),
    "already_exists": Kind(409, "That exists already", "Choose another name, or change what is there."),
    "in_use": Kind(409, "Something else refers to it", "Remove what refers to it first."),
    "conflict": Kind(409, "That does not fit what is there", "Read the current state and decide anew."),
    "changed_meanwhile": Kind(412, "It was changed meanwhile", "Read it again and send its new ETag in If-Match."),
    "precondition_required": Kind(428, "If-Match is missing", "Read the resource and send its ETag in If-Match."),
    "idempotency_key_reused": Kind(422, "That Idempotency-Key was used for another request", "Use a new key for a new request."),
    "owner_secret_refused": Kind(
        401, "The owner secret is not valid", "Use the secret in this control plane's owner file, once."
    ),
    "origin_refused": Kind(422, "That origin may not be used", "Use https to a public host, or have the operator list it."),
    "credential_refused": Kind(422, "The provider did not take the credential", "Check the credential at the provider."),
    "credential_missing": Kind(409, "The account has no credential", "Set one first."),
    "provider_unreachable": Kind(502, "The provider could not be reached", "Check the origin, and try again later."),
    "too_large": Kind(413, "The request is too large", "Send less at once."),
    "database_unavailable": Kind(503, "The database is not available", "Try again in a moment; nothing was changed."),
    "bus_unavailable": Kind(503, "The message bus is not available", "Try again in a moment."),
    "reports_unavailable": Kind(503, "Reports are not available", "ClickHouse is away or not configured; try again later."),
    "internal": Kind(500, "Something failed here", "Try again; if it stays, give the request id to the operator."),
}


class Problem(Exception):
    """Our decision not to do it, or our failure to. `errors`: field, sentence and, for files, line of each mistake."""

    def __init__(
        self, reason: str, detail: str = "", errors: Sequence[dict[str, Any]] = (), headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(reason)
        self.kind = KINDS[reason]
        self.reason = reason
        self.detail = detail
        self.errors = list(errors)
        self.headers = headers or {}

    def body(self, request_id: str) -> dict[str, Any]:
        """Return the problem document (RFC 9457 §3)."""
        document: dict[str, Any] = {
            "type": "about:blank",
            "title": self.kind.title,
            "status": self.kind.status,
            "detail": self.detail or f"{self.kind.title}.",
            "reason": self.reason,
            "help": self.kind.help,
            "request_id": request_id,
        }
        if self.errors:
            document["errors"] = self.errors
        return document


def not_found(kind: str, reference: str) -> Problem:
    """Return the problem for an id or name that is not there, or not the caller's to see: both look the same."""
    return Problem("not_found", f"There is no {kind} {reference[:80]!r} in this workspace.")


def invalid(field: str, sentence: str) -> Problem:
    """Return the problem for one field that is wrong."""
    return Problem("invalid_request", sentence, [{"field": field, "sentence": sentence}])
