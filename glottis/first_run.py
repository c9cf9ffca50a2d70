"""What a new installation needs before its first call: an owner, a workspace, and a token for the gateway.

Speaks to the control plane's REST API, like any other client of it. Each step looks first whether it was done, so that
a first run that was cut short goes on where it stopped, and a token that has expired is replaced. The workspace itself
is a file that people may read and change: `<data-dir>/workspace.yaml`.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import httpx

from contracts.secret import Secret
from glottis.errors import SetupError
from glottis.keys import read, write_private
from glottis.stack import Stack

WORKSPACE: Final = "local"
OWNER: Final = "owner"
CALLER: Final = "user:ada"
MODEL: Final = "kokoro-82m"

_YEAR_SECONDS: Final = 365 * 86_400
# A token that ends so soon is replaced at a start, not in the middle of somebody's work.
_RENEWAL: Final = timedelta(days=30)
_TIMEOUT_SECONDS: Final = 30.0

_WORKSPACE_FILE: Final = """\
# The workspace that the first `glottis up` makes. Change it and run: glottis apply -f {file}
# Every field: deploy/examples/workspace.yaml
version: 1

workspace:
  id: {workspace}
  name: This machine

teams:
  - name: voice

users:
  - name: ada
    teams: [voice]

service_accounts:
  - name: phone-agent
    teams: [voice]

accounts:
  - name: kokoro-local
    provider: kokoro
    origin: {origin}
    credential: file:{credential}
    collaborators:
      - subject: team:voice
    models:
      - name: {model}
        type: text-to-speech

# Per character. Your own GPU is not free either: this is about what a small one costs when it is well used.
prices:
  - {{provider: kokoro, model: {model}, unit: characters, price: 0.000002}}
"""


@dataclass(frozen=True, slots=True)
class Client:
    """How the command line on this machine reaches the control plane: the address and an API token of the owner."""

    url: str
    token: Secret


def client_file(folder: Path) -> Path:
    """Return where the client commands find address and token."""
    return folder / "client.json"


def workspace_file(folder: Path) -> Path:
    """Return the workspace file that the first run applies."""
    return folder / "workspace.yaml"


def is_workspace_applied(folder: Path) -> bool:
    """Return whether the first run has applied the workspace file: later it is the operator's, and is left alone."""
    return _applied_note(folder).exists()


def note_workspace_applied(folder: Path) -> None:
    """Remember that the workspace file was applied."""
    _applied_note(folder).touch()


def read_client(folder: Path) -> Client:
    """Return the client's settings. Raises SetupError if there are none yet."""
    try:
        written = json.loads(client_file(folder).read_bytes())
        return Client(written["url"], Secret(written["token"]))
    except (OSError, ValueError, KeyError) as error:
        raise SetupError(f"{client_file(folder)} cannot be used.", "Start `glottis up`: it writes the file.") from error


async def ensure_client(stack: Stack) -> None:
    """Write `client.json` and `workspace.yaml` if they are missing; replace an API token that is no longer good."""
    if not workspace_file(stack.folder).exists():
        workspace_file(stack.folder).write_text(
            _WORKSPACE_FILE.format(
                file=workspace_file(stack.folder),
                workspace=WORKSPACE,
                origin=stack.kokoro_origin,
                credential=stack.keys.kokoro,
                model=MODEL,
            )
        )
    async with _http(stack.control_plane_url) as http:
        if client_file(stack.folder).exists() and await _is_good(http, read_client(stack.folder).token):
            return
        answer = await _bootstrap(http, read(stack.keys.owner_secret))
        if answer.status_code == 401:
            # Used up by an earlier start. Who can write the secret's file may have another token: that is us.
            write_private(stack.keys.owner_secret, secrets.token_urlsafe(24).encode() + b"\n")
            answer = await _bootstrap(http, read(stack.keys.owner_secret))
        token = _field(answer, "token", "The control plane did not accept its first owner")
    document = json.dumps({"url": stack.control_plane_url, "token": token})
    write_private(client_file(stack.folder), document.encode() + b"\n")


async def ensure_caller_token(stack: Stack, now: datetime) -> Secret:
    """Return a token for calls through the gateway, kept in `<data-dir>/caller.json`; minted if need be. now: aware."""
    file = stack.folder / "caller.json"
    if file.exists():
        kept = json.loads(file.read_bytes())
        if datetime.fromisoformat(kept["expires_at"]) - now > _RENEWAL:
            return Secret(kept["token"])
    client = read_client(stack.folder)
    async with _http(client.url) as http:
        wanted = {"principal": CALLER, "name": "glottis up", "expires_in_seconds": _YEAR_SECONDS}
        answer = await http.post("/api/v1/tokens", json=wanted, headers=_bearer(client.token))
    token = _field(answer, "token", f"The control plane minted no token for {CALLER}")
    expires_at = (now + timedelta(seconds=_YEAR_SECONDS)).astimezone(UTC).isoformat()
    write_private(file, json.dumps({"token": token, "expires_at": expires_at}).encode() + b"\n")
    return Secret(token)


async def _bootstrap(http: httpx.AsyncClient, secret: Secret) -> httpx.Response:
    wanted = {"secret": secret.reveal().decode(), "workspace": WORKSPACE, "name": "This machine", "owner": OWNER}
    return await http.post("/api/v1/bootstrap", json=wanted)


async def _is_good(http: httpx.AsyncClient, token: Secret) -> bool:
    answer = await http.get("/api/v1/workspace", headers=_bearer(token))
    return answer.status_code == 200


def _http(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, trust_env=False, timeout=_TIMEOUT_SECONDS)


def _bearer(token: Secret) -> Mapping[str, str]:
    return {"Authorization": f"Bearer {token.reveal().decode()}"}


def _field(answer: httpx.Response, name: str, failure: str) -> str:
    if not answer.is_success:
        document: Any = answer.json() if "json" in answer.headers.get("content-type", "") else {}
        raise SetupError(f"{failure} (status {answer.status_code}).", str(document.get("detail") or "See its log."))
    value: str = answer.json()[name]
    return value


def _applied_note(folder: Path) -> Path:
    return folder / "workspace.applied"
