"""What a new installation needs before its first call: an owner, a workspace, and a token for the gateway.

Speaks to the control plane's REST API, like any other client of it. Each step looks first whether it was done, so that
a first run that was cut short goes on where it stopped, and a token that has expired is replaced. The workspace itself
is a file that people may read and change: `<data-dir>/workspace.yaml`.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import httpx

from contracts.secret import Secret
from glottis.client import ControlPlane
from glottis.errors import SetupError
from glottis.keys import read, write_private
from glottis.stack import Stack, applied_note, client_file

WORKSPACE: Final = "local"
OWNER: Final = "owner"
CALLER: Final = "user:ada"
MODEL: Final = "kokoro-82m"

_YEAR_SECONDS: Final = 365 * 86_400
# A token that ends so soon is replaced at a start, not in the middle of somebody's work.
_RENEWAL: Final = timedelta(days=30)
_TIMEOUT_SECONDS: Final = 30.0

_WORKSPACE_FILE: Final = """\
# The workspace that the first `glottis up` makes. Change it and run, in its folder:
#   glottis apply -f {file} --data-dir .
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
    credential: file:{credential}   # from this file's folder on
    collaborators:
      - subject: team:voice
    models:
      - name: {model}
        type: text-to-speech

# Per character: your own machine is not free either, and this is about what a small GPU costs when it is well used.
# A unit without an entry is shown as unpriced, so what costs nothing says so.
prices:
  - {{provider: kokoro, model: {model}, unit: characters, price: 0.000002}}
  - {{provider: kokoro, model: {model}, unit: requests, price: 0}}
"""


def caller_file(folder: Path) -> Path:
    """Return where the token for calls is kept."""
    return folder / "caller.json"


def workspace_file(folder: Path) -> Path:
    """Return the workspace file that the first run applies."""
    return folder / "workspace.yaml"


def is_workspace_applied(folder: Path) -> bool:
    """Return whether the first run has applied the workspace file: later it is the operator's, and is left alone."""
    return applied_note(folder).exists()


def note_workspace_applied(folder: Path) -> None:
    """Remember that the workspace file was applied."""
    applied_note(folder).touch()


def write_workspace_file(stack: Stack) -> None:
    """Write the workspace file of a new installation. Its paths are relative, so that the folder can be moved."""
    file = workspace_file(stack.folder)
    file.write_text(
        _WORKSPACE_FILE.format(
            file=file.name,
            workspace=WORKSPACE,
            origin=stack.kokoro_origin,
            credential=stack.keys.kokoro.relative_to(stack.folder),
            model=MODEL,
        )
    )


def control_plane(stack: Stack) -> ControlPlane:
    """Return the control plane as its owner reaches it. Raises SetupError before the first run has come so far."""
    return ControlPlane.find({}, stack.folder)


async def ensure_client(stack: Stack) -> None:
    """Write `client.json` and `workspace.yaml` if they are missing; replace an API token that is no longer good."""
    if not workspace_file(stack.folder).exists():
        write_workspace_file(stack)
    async with _http(stack.control_plane_url) as http:
        if _is_of(client_file(stack.folder), stack) and await _is_good(http, control_plane(stack).token):
            return
        answer = await _bootstrap(http, read(stack.keys.owner_secret))
        if answer.status_code == 401:
            # Used up by an earlier start. Who can write the secret's file may have another token: that is us.
            write_private(stack.keys.owner_secret, secrets.token_urlsafe(24).encode() + b"\n")
            answer = await _bootstrap(http, read(stack.keys.owner_secret))
        if not answer.is_success:
            raise SetupError(
                f"The control plane did not take its first owner (status {answer.status_code}).",
                f"Its log says why: {stack.log_folder / 'control-plane.log'}",
            )
        token: str = answer.json()["token"]
    document = json.dumps({"url": stack.control_plane_url, "token": token})
    write_private(client_file(stack.folder), document.encode() + b"\n")


async def ensure_caller_token(stack: Stack, now: datetime) -> Secret:
    """Return a token for calls through the gateway, kept in `<data-dir>/caller.json`; minted if need be. now: aware."""
    file = caller_file(stack.folder)
    if _is_of(file, stack):
        kept = json.loads(file.read_bytes())
        if datetime.fromisoformat(kept["expires_at"]) - now > _RENEWAL:
            return Secret(kept["token"])
    wanted = {"principal": CALLER, "name": "glottis up", "expires_in_seconds": _YEAR_SECONDS}
    minted = await asyncio.to_thread(control_plane(stack).json, "POST", "/api/v1/tokens", (), wanted)
    token: str = minted["token"]
    expires_at = (now + timedelta(seconds=_YEAR_SECONDS)).astimezone(UTC).isoformat()
    document = json.dumps({"url": stack.control_plane_url, "token": token, "expires_at": expires_at})
    write_private(file, document.encode() + b"\n")
    return Secret(token)


async def _bootstrap(http: httpx.AsyncClient, secret: Secret) -> httpx.Response:
    wanted = {"secret": secret.reveal().decode(), "workspace": WORKSPACE, "name": "This machine", "owner": OWNER}
    return await http.post("/api/v1/bootstrap", json=wanted)


def _is_of(file: Path, stack: Stack) -> bool:
    # The control plane's address is its tokens' issuer: a start on other ports needs tokens of the new one.
    return file.exists() and json.loads(file.read_bytes()).get("url") == stack.control_plane_url


async def _is_good(http: httpx.AsyncClient, token: Secret) -> bool:
    bearer = {"Authorization": f"Bearer {token.reveal().decode()}"}
    answer = await http.get("/api/v1/workspace", headers=bearer)
    return answer.status_code == 200


def _http(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, trust_env=False, timeout=_TIMEOUT_SECONDS)
