"""An example of everything that the API takes and gives, put into its description; and the links from what was made to it.

The examples are of one small workspace, so that they fit together. A test checks each against its schema, and that no
operation is without; the suite's schemathesis sends those of requests. Knows shapes by their names alone. Read next: `app`.
"""

from typing import Any, Final

from control_plane.kit.problems import KINDS, Problem

_ID: Final = "0192f3a0-1234-7abc-8def-0123456789ab"
_AT: Final = "2026-11-29T12:00:00.000Z"
_LATER: Final = "2027-02-27T12:00:00.000Z"
_HASH: Final = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
_JSON: Final = "application/json"

Document = dict[str, Any]  # Any: OpenAPI's own shape

_MADE: Final[Document] = {"id": _ID, "version": 1, "created_at": _AT}
_PRINCIPAL: Final[Document] = {
    **_MADE,
    "kind": "user",
    "name": "grace",
    "email": "grace@example.com",
    "role": "member",
    "teams": ["voice"],
    "issuer": None,
    "subject": None,
    "disabled": False,
}
_TOKEN: Final[Document] = {
    "id": _ID,
    "principal": _ID,
    "kind": "service_account",
    "audience": "glottis",
    "name": "phone agent in Frankfurt",
    "team": None,
    "accounts": None,
    "models": ["sonic-3"],
    "operations": ["tts"],
    "origins": None,
    "scopes": None,
    "is_single_use": False,
    "metadata": {"project": "ivr"},
    "replaces": None,
    "created_by": _ID,
    "created_at": _AT,
    "expires_at": _LATER,
    "revoke_at": None,
    "revoked_at": None,
}
_JOB: Final[Document] = {
    "id": _ID,
    "kind": "reprice",
    "state": "done",
    "from": "2026-11-01T00:00:00Z",
    "to": "2026-12-01T00:00:00Z",
    "asked_by": _ID,
    "asked_at": _AT,
    "counts": {"hours": 720, "events": 18_400, "price_revision": 12},
}

OF_SHAPES: Final[dict[str, Document]] = {
    "Bootstrap": {"secret": "the-secret-from-the-console", "workspace": "acme", "name": "Acme", "owner": "ada"},
    "Bootstrapped": {"workspace": "acme", "owner": _ID, "token": "eyJhbGciOiJFUzI1NiJ9…", "expires_at": _LATER},
    "Workspace": {**_MADE, "id": "acme", "name": "Acme", "defaults": {"cartesia": _ID}, "span_sampling": 1.0},
    "WorkspaceChange": {"name": "Acme Voice", "span_sampling": 0.5},
    "Application": {
        "document": {
            "version": 1,
            "workspace": {"id": "acme", "name": "Acme"},
            "teams": [{"name": "voice"}],
            "users": [{"name": "grace", "teams": ["voice"]}],
        },
        "dry_run": True,
    },
    "Applied": {
        "changes": [
            {"action": "create", "kind": "team", "name": "voice", "fields": {"name": [None, "voice"]}},
            {"action": "update", "kind": "account", "name": "cartesia-eu", "fields": {"priority": [100, 50]}},
        ],
        "is_dry_run": True,
        "kept": ["user bob"],
    },
    "Rewrapped": {"moved": 42},
    "Pods": {
        "revision": 118,
        "pods": [
            {
                "pod": "gateway-7d9f",
                "version": "0.1.0",
                "revision": 118,
                "is_current": True,
                "seen_at": _AT,
                "open_sessions": 240,
                "open_exchanges": 12,
                "is_draining": False,
                "spool_bytes": 0,
            }
        ],
    },
    "LiveSessions": {
        "count": 1,
        "sessions": [
            {
                "exchange": _ID,
                "pod": "gateway-7d9f",
                "user": _ID,
                "user_name": "grace",
                "team": "voice",
                "account": _ID,
                "account_name": "cartesia-eu",
                "provider": "cartesia",
                "model": "sonic-3",
                "endpoint": "tts.websocket",
                "since": _AT,
                "seen_at": _AT,
                "contexts": 3,
                "characters": 1840,
                "audio_in_ms": 0,
            }
        ],
    },
    "Team": {**_MADE, "name": "voice", "defaults": {"cartesia": _ID}, "allowed_voices": None},
    "NewTeam": {"name": "voice-lab"},
    "TeamChange": {"name": "voice-lab"},
    "Principal": _PRINCIPAL,
    "NewUser": {"name": "lin", "email": "lin@example.com", "role": "member"},
    "UserChange": {"email": "lin@example.org", "disabled": False},
    "NewServiceAccount": {"name": "phone-agent-eu"},
    "ServiceAccountChange": {"disabled": True},
    "Issuer": {
        **_MADE,
        "name": "okta",
        "issuer": "https://acme.okta.com",
        "audiences": ["glottis"],
        "jwks_uri": "https://acme.okta.com/oauth2/v1/keys",
        "has_static_jwks": False,
        "algorithms": ["RS256"],
        "subject_claim": "sub",
        "email_claim": "email",
        "groups_claim": "groups",
        "group_teams": {"speech": "voice"},
        "admits_unregistered": False,
        "expiry": "finish-session",
        "leeway_seconds": 30,
    },
    "NewIssuer": {
        "name": "okta",
        "issuer": "https://acme.okta.com",
        "audiences": ["glottis"],
        "jwks_uri": "https://acme.okta.com/oauth2/v1/keys",
        "groups_claim": "groups",
    },
    "IssuerChange": {"audiences": ["glottis", "glottis-staging"], "leeway_seconds": 10},
    "Account": {
        **_MADE,
        "name": "cartesia-eu",
        "provider": "cartesia",
        "origin": "https://api.cartesia.ai",
        "credentials": [{"slot": "active", "version": 3, "created_at": _AT}],
        "credential_scheme": "bearer",
        "priority": 100,
        "has_ca": False,
        "tls_server_name": None,
        "allowed_voices": None,
        "forwards_trace_headers": False,
        "region": "eu",
        "plan": "scale",
        "disabled": False,
    },
    "NewAccount": {"name": "cartesia-us", "provider": "cartesia", "origin": "https://api.cartesia.ai", "region": "us"},
    "AccountChange": {"priority": 50, "allowed_voices": ["a0e99841-438c-4a64-b679-ae501e7d6091"]},
    "NewCredential": {"credential": "sk_car_the-new-key", "keep_previous": True},
    "CredentialTest": {"accepted": True, "status": 200, "duration_ms": 84},
    "Model": {**_MADE, "account": _ID, "name": "sonic-3", "type": "text-to-speech", "priority": None, "only": ["team:voice"]},
    "NewModel": {"name": "ink-whisper", "type": "speech-to-text"},
    "ModelChange": {"priority": 10},
    "Price": {
        "id": _ID,
        "provider": "cartesia",
        "account": None,
        "model": "sonic-3",
        "unit": "characters",
        "price": "0.00003",
        "currency": "USD",
        "effective_ms": 1_795_953_600_000,
        "created_at": _AT,
    },
    "NewPrice": {
        "provider": "cartesia",
        "model": "sonic-3",
        "unit": "characters",
        "price": "0.00004",
        "effective": "2027-01-01T00:00:00Z",
    },
    "Collaborator": {**_MADE, "account": _ID, "subject": f"team:{_ID}", "role": "user", "operations": []},
    "NewCollaborator": {"subject": "team:voice", "role": "user", "operations": ["voices.clone"]},
    "CollaboratorChange": {"role": "manager"},
    "Explanation": {
        "is_admitted": True,
        "reason": "admitted",
        "message": "Admitted at account cartesia-eu.",
        "endpoint": "tts.websocket",
        "account": "cartesia-eu",
        "model": "sonic-3",
        "team": "voice",
        "findings": [{"rule": "grant", "effect": "allows", "text": "Team voice is a collaborator of cartesia-eu, as user."}],
    },
    "Token": _TOKEN,
    "MintedToken": {**_TOKEN, "token": "eyJhbGciOiJFUzI1NiJ9…"},
    "NewToken": {"principal": "service_account:phone-agent", "models": ["sonic-3"], "operations": ["tts"]},
    "TokenRotation": {"overlap_seconds": 3600},
    "ExportTarget": {
        **_MADE,
        "name": "honeycomb",
        "endpoint": "https://api.honeycomb.io",
        "protocol": "http/protobuf",
        "compression": "gzip",
        "headers": {"x-dataset": "glottis"},
        "has_secret_headers": True,
        "has_ca": False,
        "resource_attributes": {"deployment.environment": "production"},
        "timeout_seconds": 10,
        "disabled": False,
    },
    "NewExportTarget": {
        "name": "honeycomb",
        "endpoint": "https://api.honeycomb.io",
        "secret_headers": {"x-honeycomb-team": "the-key"},
        "resource_attributes": {"deployment.environment": "production"},
    },
    "ExportTargetChange": {"timeout_seconds": 20},
    "AuditEntry": {
        "seq": 17,
        "at": _AT,
        "actor": _ID,
        "actor_name": "ada",
        "action": "update",
        "kind": "account",
        "target": _ID,
        "target_name": "cartesia-eu",
        "before": {"priority": 100},
        "after": {"priority": 50},
        "request_id": _ID,
        "previous_hash": _HASH,
        "hash": _HASH,
    },
    "Verified": {"entries": 17, "is_whole": True, "broken_at": None, "head": _HASH},
    "JobAsked": {"kind": "reprice", "from": "2026-11-01T00:00:00Z", "to": "2026-12-01T00:00:00Z"},
    "JobShown": _JOB,
    "Jobs": {"items": [_JOB]},
}
"""name of a shape -> an example of it; that of a page follows from its items'"""

OF_ANSWERS: Final[dict[tuple[str, str, str], Any]] = {
    ("get", "/api/v1/export", "application/yaml"): {
        "version": 1,
        "workspace": {"id": "acme", "name": "Acme"},
        "teams": [{"name": "voice"}],
    },
    ("get", "/api/v1/workspace-file/schema", _JSON): {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Glottis workspace file",
        "$ref": "#/$defs/WorkspaceFile",
    },
    (
        "get",
        "/api/v1/audit/export",
        "application/x-ndjson",
    ): '{"seq":1,"at":"2026-11-29T12:00:00.000Z","action":"bootstrap","kind":"workspace"}\n',
    ("get", "/api/v1/usage", _JSON): {
        "from": "2026-11-01T00:00:00Z",
        "to": "2026-12-01T00:00:00Z",
        "bucket": None,
        "by": ["model"],
        "rows": [{"model": "sonic-3", "exchanges": 12, "units": {"characters": 840}, "cost": {"USD": "0.0252"}, "unpriced": {}}],
        "total": {"exchanges": 12, "units": {"characters": 840}, "cost": {"USD": "0.0252"}, "unpriced": {}},
    },
    ("get", "/api/v1/spans", _JSON): {"items": []},
    ("get", "/api/v1/spans/summary", _JSON): {"rows": []},
}
"""(method, path, media type) -> the example of an answer that no shape describes"""


def describe(document: Document) -> None:
    """Put examples and links into an OpenAPI document, in place."""
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            for media in operation.get("requestBody", {}).get("content", {}).values():
                media.setdefault("example", _of_schema(media["schema"]))
            for status, response in operation["responses"].items():
                for media_type, media in response.get("content", {}).items():
                    if "example" not in media and (example := _of_answer(method, path, status, media_type, media)) is not None:
                        media["example"] = example
            _link(document, path, method, operation)


def _of_schema(schema: Document) -> Any:
    name = schema.get("$ref", "").rpartition("/")[2]
    if name.startswith("Page_"):
        return {"items": [OF_SHAPES[name.removeprefix("Page_").removesuffix("_")]], "next_cursor": None}
    return OF_SHAPES.get(name)


def _of_answer(method: str, path: str, status: str, media_type: str, media: Document) -> Any:
    if media_type == "application/problem+json":
        reason = next(reason for reason, kind in KINDS.items() if str(kind.status) == status)
        return Problem(reason).body(_ID)
    return OF_ANSWERS.get((method, path, media_type), _of_schema(media.get("schema", {})))


def _link(document: Document, path: str, method: str, operation: Document) -> None:
    """Link what an operation makes to the operations on it: what is made at /teams is read at /teams/{team}."""
    if method != "post" or "201" not in operation["responses"]:
        return
    for below, operations in document["paths"].items():
        rest = below.removeprefix(f"{path}/")
        if rest == below or not rest.startswith("{") or not rest.endswith("}") or "/" in rest:
            continue
        outer = {name: f"$request.path.{name}" for name in _parameters(path)}
        for target in operations.values():
            operation["responses"]["201"].setdefault("links", {})[target["operationId"]] = {
                "operationId": target["operationId"],
                "parameters": {**outer, rest[1:-1]: "$response.body#/id"},
            }


def _parameters(path: str) -> list[str]:
    return [step[1:-1] for step in path.split("/") if step.startswith("{")]
