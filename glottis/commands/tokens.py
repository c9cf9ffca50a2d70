"""`glottis tokens`: mint, list, rotate and revoke tokens. A token's text is printed once, on standard output alone."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from glottis.client import DEFAULT_DATA_DIR, ControlPlane
from glottis.tables import show

_DATA_DIR = click.option(
    "--data-dir", type=click.Path(path_type=Path), default=DEFAULT_DATA_DIR, help="Folder of a running `glottis up`."
)
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@click.group()
def tokens() -> None:
    """Mint, list, rotate and revoke access tokens."""


@tokens.command()
@click.option("--user", help="The user whose token it is (id or name).")
@click.option("--service-account", help="The service account whose token it is (id or name).")
@click.option("--api", "is_api", is_flag=True, help="For this API and command line, not for calls through a gateway.")
@click.option("--browser", is_flag=True, help="A short token for a web page.")
@click.option("--single-use", "is_single_use", is_flag=True, help="One open session at a time.")
@click.option("--name", default="", help="A name to find it by.")
@click.option("--expires-in", metavar="TIME", help="For example 10m, 12h, 90d.")
@click.option("--team", help="The team that the cost goes to.")
@click.option("--account", "accounts", multiple=True, help="Only this account; repeat for more.")
@click.option("--model", "models", multiple=True, help="Only this model; repeat for more.")
@click.option("--operation", "operations", multiple=True, help="Only this operation class; repeat for more.")
@click.option("--origin", "origins", multiple=True, help="Browser tokens: this web origin may present it; repeat for more.")
@click.option(
    "--metadata", multiple=True, metavar="KEY=VALUE", help="Annotate each of its calls with this; repeat for more. See reports."
)
@click.option("--scope", "scopes", multiple=True, type=click.Choice(["read", "write", "tokens"]), help="API tokens: only this.")
@click.option("--json", "as_json", is_flag=True, help="Print the API's JSON.")
@_DATA_DIR
def mint(
    user: str | None,
    service_account: str | None,
    is_api: bool,
    browser: bool,
    is_single_use: bool,
    name: str,
    expires_in: str | None,
    team: str | None,
    accounts: tuple[str, ...],
    models: tuple[str, ...],
    operations: tuple[str, ...],
    origins: tuple[str, ...],
    metadata: tuple[str, ...],
    scopes: tuple[str, ...],
    as_json: bool,
    data_dir: Path,
) -> None:
    """Mint a token and print it. Keep it: it is not shown again."""
    if (user is None) == (service_account is None):
        raise click.UsageError("Name whose token it is: --user NAME or --service-account NAME.")
    body: dict[str, Any] = {  # Any: JSON
        "principal": f"user:{user}" if user is not None else f"service_account:{service_account}",
        "audience": "glottis-api" if is_api else "glottis",
        "is_browser": browser,
        "is_single_use": is_single_use,
        "name": name,
    }
    narrowing = {"accounts": accounts, "models": models, "operations": operations, "origins": origins, "scopes": scopes}
    body |= {field: list(values) for field, values in narrowing.items() if values}
    if team is not None:
        body["team"] = team
    if metadata:
        body["metadata"] = dict(map(_annotation, metadata))
    if expires_in is not None:
        body["expires_in_seconds"] = seconds(expires_in)
    minted = ControlPlane.find(os.environ, data_dir).json("POST", "/api/v1/tokens", body=body)
    _show_minted(minted, as_json)


@tokens.command(name="list")
@click.option("--user", help="Only this user's (id or name).")
@click.option("--service-account", help="Only this service account's (id or name).")
@click.option("--all", "with_revoked", is_flag=True, help="Revoked ones as well.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_DATA_DIR
def list_tokens(user: str | None, service_account: str | None, with_revoked: bool, as_json: bool, data_dir: Path) -> None:
    """List tokens: what they may do and until when, never the tokens."""
    query = [] if with_revoked else [("is_revoked", "false")]
    if user is not None:
        query.append(("principal", f"user:{user}"))
    elif service_account is not None:
        query.append(("principal", f"service_account:{service_account}"))
    control_plane = ControlPlane.find(os.environ, data_dir)
    rows = control_plane.items("/api/v1/tokens", query)
    now = datetime.now(UTC)
    shown = rows if as_json else [{**row, "state": state(row, now)} for row in rows]
    columns = ("id", "name", "principal", "kind", "audience", "state", "expires_at")
    show(shown, columns, as_json=as_json, empty="There are no tokens.")


@tokens.command()
@click.argument("token_id")
@click.option("--overlap", default="1h", show_default=True, metavar="TIME", help="How long the old one stays good.")
@click.option("--expires-in", metavar="TIME", help="As long as the old one, if not given.")
@click.option("--json", "as_json", is_flag=True, help="Print the API's JSON.")
@_DATA_DIR
def rotate(token_id: str, overlap: str, expires_in: str | None, as_json: bool, data_dir: Path) -> None:
    """Mint a token like this one; the old one is revoked when the overlap is over."""
    body: dict[str, Any] = {"overlap_seconds": seconds(overlap)}  # Any: JSON
    if expires_in is not None:
        body["expires_in_seconds"] = seconds(expires_in)
    minted = ControlPlane.find(os.environ, data_dir).json("POST", f"/api/v1/tokens/{token_id}/rotate", body=body)
    _show_minted(minted, as_json)


@tokens.command()
@click.argument("token_ids", nargs=-1, required=True)
@_DATA_DIR
def revoke(token_ids: tuple[str, ...], data_dir: Path) -> None:
    """Revoke tokens: gateways refuse them within a second, on open sockets as well."""
    control_plane = ControlPlane.find(os.environ, data_dir)
    for token_id in token_ids:
        control_plane.json("DELETE", f"/api/v1/tokens/{token_id}")
        click.echo(f"Revoked {token_id}.", err=True)


def state(token: Mapping[str, Any], now: datetime) -> str:
    """Return what a token is worth now. Any: the API's JSON."""
    if token["revoked_at"] is not None:
        return f"revoked {token['revoked_at']}"
    if datetime.fromisoformat(token["expires_at"]) <= now:
        return "expired"
    return "good" if token["revoke_at"] is None else f"rotated, good until {token['revoke_at']}"


def seconds(text: str) -> int:
    """Return how many seconds a text such as 10m or 90d means. Raises click.BadParameter."""
    found = re.fullmatch(r"([0-9]{1,9})([smhd]?)", text)
    if found is None:
        raise click.BadParameter(f"{text!r} is not a time; write a number and s, m, h or d, for example 12h.")
    return int(found.group(1)) * _UNITS[found.group(2) or "s"]


def _annotation(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise click.BadParameter(f"{text!r} is not KEY=VALUE.", param_hint="--metadata")
    return key, value


def _show_minted(minted: Any, as_json: bool) -> None:  # Any: JSON
    if as_json:
        click.echo(json.dumps(minted, indent=2))
        return
    # The token alone on standard output, so that a script can take it: TOKEN=$(glottis tokens mint --user ada)
    click.echo(f"Token {minted['id']}, good until {minted['expires_at']}; it is not shown again:", err=True)
    click.echo(minted["token"])
