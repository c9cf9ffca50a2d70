"""`glottis accounts`, `models`, `collaborators`, `teams`, `users`: single resources; `glottis apply` does whole workspaces.

Tables for people, `--json` for machines. A credential is read from a variable or a file, never from the command line,
where others on the machine could see it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import click

from glottis.client import DEFAULT_DATA_DIR, ControlPlane
from glottis.errors import SetupError
from glottis.tables import show

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _data_dir(command: _Command) -> _Command:
    return click.option(
        "--data-dir", type=click.Path(path_type=Path), default=DEFAULT_DATA_DIR, help="Folder of a running `glottis up`."
    )(command)


def _as_json(command: _Command) -> _Command:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def _api(data_dir: Path) -> ControlPlane:
    return ControlPlane.find(os.environ, data_dir)


def _path(*steps: str) -> str:
    return "/api/v1/" + "/".join(quote(step, safe="") for step in steps)


# --- Accounts -------------------------------------------------------------------------------------------------------


@click.group()
def accounts() -> None:
    """Provider accounts and their credentials."""


@accounts.command(name="list")
@_as_json
@_data_dir
def list_accounts(as_json: bool, data_dir: Path) -> None:
    """List the accounts that you may see."""
    columns = ("name", "provider", "origin", "priority", "region", "credential", "disabled")
    rows = [{**row, "credential": _slots(row)} for row in _api(data_dir).items(_path("accounts"))]
    show(rows, columns, as_json=as_json, empty="There are no accounts.")


@accounts.command(name="rotate-credential")
@click.argument("account")
@click.option("--env", "variable", metavar="NAME", help="Read the new credential from this environment variable.")
@click.option("--file", "file", type=click.Path(dir_okay=False, path_type=Path), help="Read the new credential from this file.")
@click.option("--drop-previous", is_flag=True, help="Do not keep the one before as `retiring`.")
@_data_dir
def rotate_credential(account: str, variable: str | None, file: Path | None, drop_previous: bool, data_dir: Path) -> None:
    """Use a new credential from now on; the one before stays until `drop-retiring`, so that no request fails."""
    if (variable is None) == (file is None):
        raise click.UsageError("Say where the credential stands: --env NAME or --file PATH.")
    body = {"credential": _secret(variable, file), "keep_previous": not drop_previous}
    changed = _api(data_dir).json("PUT", _path("accounts", account, "credential"), body=body)
    click.echo(f"{changed['name']} uses its new credential: {_slots(changed)}.")


@accounts.command(name="drop-retiring")
@click.argument("account")
@_data_dir
def drop_retiring(account: str, data_dir: Path) -> None:
    """End a rotation: drop the credential before."""
    _api(data_dir).json("DELETE", _path("accounts", account, "credential", "retiring"))
    click.echo(f"{account} has one credential.")


@accounts.command(name="test-credential")
@click.argument("account")
@_as_json
@_data_dir
def test_credential(account: str, as_json: bool, data_dir: Path) -> int:
    """Call a free endpoint of the provider with the active credential. Exit status 1 if it is not accepted."""
    result = _api(data_dir).json("POST", _path("accounts", account, "credential", "test"))
    if as_json:
        show([result], (), as_json=True, empty="")
    else:
        said = "accepted" if result["accepted"] else "not accepted"
        click.echo(f"The credential of {account} is {said} (status {result['status']}, {result['duration_ms']} ms).")
    return 0 if result["accepted"] else 1


@accounts.command(name="delete")
@click.argument("account")
@click.confirmation_option(prompt="Delete the account with its models, collaborators and prices?")
@_data_dir
def delete_account(account: str, data_dir: Path) -> None:
    """Delete an account with its models, collaborators and prices."""
    _api(data_dir).json("DELETE", _path("accounts", account))
    click.echo(f"Deleted {account}.")


# --- Models ---------------------------------------------------------------------------------------------------------


@click.group()
def models() -> None:
    """Models of an account."""


@models.command(name="list")
@click.argument("account")
@_as_json
@_data_dir
def list_models(account: str, as_json: bool, data_dir: Path) -> None:
    """List the models that are registered in an account."""
    rows = [
        {**row, "for": "collaborators" if row["only"] is None else row["only"] or "nobody"}
        for row in _api(data_dir).items(_path("accounts", account, "models"))
    ]
    show(rows, ("name", "type", "priority", "for"), as_json=as_json, empty=f"{account} has no models.")


@models.command(name="add")
@click.argument("account")
@click.argument("model")
@click.option("--type", "kind", type=click.Choice(["text-to-speech", "speech-to-text"]), required=True)
@click.option("--only", multiple=True, metavar="SUBJECT", help="Only this subject, for example team:voice; repeat for more.")
@_data_dir
def add_model(account: str, model: str, kind: str, only: tuple[str, ...], data_dir: Path) -> None:
    """Register a model under the provider's own id."""
    body = {"name": model, "type": kind, "only": list(only) or None}
    _api(data_dir).json("POST", _path("accounts", account, "models"), body=body)
    click.echo(f"{account} has {model}.")


@models.command(name="remove")
@click.argument("account")
@click.argument("model")
@_data_dir
def remove_model(account: str, model: str, data_dir: Path) -> None:
    """Take a model out of an account."""
    _api(data_dir).json("DELETE", _path("accounts", account, "models", model))
    click.echo(f"{account} no longer has {model}.")


# --- Collaborators --------------------------------------------------------------------------------------------------


@click.group()
def collaborators() -> None:
    """Who may use an account."""


@collaborators.command(name="list")
@click.argument("account")
@_as_json
@_data_dir
def list_collaborators(account: str, as_json: bool, data_dir: Path) -> None:
    """List who may route through an account."""
    rows = _api(data_dir).items(_path("accounts", account, "collaborators"))
    show(rows, ("id", "subject", "role", "operations"), as_json=as_json, empty=f"Nobody may use {account}.")


@collaborators.command(name="add")
@click.argument("account")
@click.argument("subject")
@click.option("--role", type=click.Choice(["user", "manager"]), default="user", show_default=True)
@click.option("--operation", "operations", multiple=True, help="An operation class beyond the role's own; repeat for more.")
@_data_dir
def add_collaborator(account: str, subject: str, role: str, operations: tuple[str, ...], data_dir: Path) -> None:
    """Attach SUBJECT (user:NAME, service_account:NAME or team:NAME) to an account."""
    body = {"subject": subject, "role": role, "operations": list(operations)}
    _api(data_dir).json("POST", _path("accounts", account, "collaborators"), body=body)
    click.echo(f"{subject} may use {account}.")


@collaborators.command(name="remove")
@click.argument("account")
@click.argument("collaborator")
@_data_dir
def remove_collaborator(account: str, collaborator: str, data_dir: Path) -> None:
    """Withdraw a grant (by its id); gateways refuse the next request within a second."""
    _api(data_dir).json("DELETE", _path("accounts", account, "collaborators", collaborator))
    click.echo(f"Withdrawn from {account}.")


# --- Teams and users ------------------------------------------------------------------------------------------------


@click.group()
def teams() -> None:
    """Teams and who is in them."""


@teams.command(name="list")
@_as_json
@_data_dir
def list_teams(as_json: bool, data_dir: Path) -> None:
    """List the workspace's teams."""
    show(_api(data_dir).items(_path("teams")), ("name", "id", "defaults"), as_json=as_json, empty="There are no teams.")


@teams.command(name="members")
@click.argument("team")
@_as_json
@_data_dir
def team_members(team: str, as_json: bool, data_dir: Path) -> None:
    """List the users and service accounts of a team."""
    api = _api(data_dir)
    rows = [*api.items(_path("users"), [("team", team)]), *api.items(_path("service-accounts"), [("team", team)])]
    show(rows, ("name", "kind", "role", "disabled"), as_json=as_json, empty=f"{team} has no members.")


@teams.command(name="add")
@click.argument("team")
@_data_dir
def add_team(team: str, data_dir: Path) -> None:
    """Make a team."""
    _api(data_dir).json("POST", _path("teams"), body={"name": team})
    click.echo(f"Made {team}.")


@teams.command(name="delete")
@click.argument("team")
@click.confirmation_option(prompt="Delete the team with its grants?")
@_data_dir
def delete_team(team: str, data_dir: Path) -> None:
    """Delete a team with its grants."""
    _api(data_dir).json("DELETE", _path("teams", team))
    click.echo(f"Deleted {team}.")


@click.group()
def users() -> None:
    """Users of the workspace."""


@users.command(name="list")
@_as_json
@_data_dir
def list_users(as_json: bool, data_dir: Path) -> None:
    """List the workspace's users."""
    columns = ("name", "email", "role", "disabled", "id")
    show(_api(data_dir).items(_path("users")), columns, as_json=as_json, empty="There are no users.")


@users.command(name="revoke-tokens")
@click.argument("user")
@_data_dir
def revoke_tokens(user: str, data_dir: Path) -> None:
    """Revoke every token of a user."""
    _api(data_dir).json("POST", _path("users", user, "revoke-tokens"))
    click.echo(f"Revoked every token of {user}.")


def _slots(account: Any) -> str:  # Any: the API's JSON
    return ", ".join(f"{slot['slot']} v{slot['version']}" for slot in account["credentials"]) or "none"


def _secret(variable: str | None, file: Path | None) -> str:
    if variable is not None:
        value = os.environ.get(variable, "")
        if not value:
            raise SetupError(f"The environment variable {variable} is not set.", "Set it to the credential.")
        return value
    assert file is not None
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"{file} cannot be read.", "Check the path and its permissions.") from error
