"""`glottis apply`, `validate` and `export`: a workspace as one file.

The file is read and checked here, what it refers to is fetched here, and the control plane applies it in one transaction.
Read next: `policy.workspace_file`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from glottis.client import DEFAULT_DATA_DIR, ControlPlane, Refused
from glottis.files import fetch_material, located_in, read_workspace_file
from glottis.progress import progress
from policy.workspace_file import json_schema, to_document

_FILE = click.option(
    "-f",
    "--file",
    "path",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The workspace file.",
)
_DATA_DIR = click.option(
    "--data-dir", type=click.Path(path_type=Path), default=DEFAULT_DATA_DIR, help="Folder of a running `glottis up`."
)
# 100,000 collaborators take a minute on a busy machine.
_LONGEST_SECONDS = 900
_MARKS = {"create": ("+", "green"), "update": ("~", "yellow"), "delete": ("-", "red")}


@click.command()
@_FILE
@click.option("--dry-run", is_flag=True, help="Change nothing; say how much would change.")
@click.option("--diff", is_flag=True, help="Change nothing; show what would change, field by field.")
@click.option("--prune", is_flag=True, help="Delete what the file does not name.")
@click.option("--json", "as_json", is_flag=True, help="Print the API's JSON.")
@_DATA_DIR
def apply(path: Path, dry_run: bool, diff: bool, prune: bool, as_json: bool, data_dir: Path) -> int:
    """Make a workspace match its file, in one transaction and one published revision.

    Lists in the file are whole: a collaborator or model that is not in its account's list is withdrawn. Users, teams,
    accounts and so on that the file does not name stay, unless --prune is given. With --diff the exit status is 1 if
    something would change.
    """
    with progress(f"Reading {path}") as shown:
        file = read_workspace_file(path)
        shown.note("fetching what it refers to")
        material = fetch_material(path, file, os.environ)
    body = {
        "document": to_document(file),
        "material": {key: secret.reveal().decode() for key, secret in material.items()},
        "prune": prune,
        "dry_run": dry_run or diff,
    }
    control_plane = ControlPlane.find(os.environ, data_dir)
    try:
        with progress(f"{'Comparing' if dry_run or diff else 'Applying'} {path}"):
            answer = control_plane.json("POST", "/api/v1/apply", body=body, timeout_seconds=_LONGEST_SECONDS)
    except Refused as refused:
        if refused.reason != "invalid_workspace_file" or not refused.mistakes:
            raise
        raise located_in(path, refused.mistakes) from refused
    if as_json:
        click.echo(json.dumps(answer, indent=2))
    else:
        _show(answer, with_fields=diff, prunes=prune)
    return 1 if diff and answer["changes"] else 0


@click.command()
@click.option("-f", "--file", "path", type=click.Path(dir_okay=False, path_type=Path), help="The workspace file.")
@click.option("--print-schema", is_flag=True, help="Print the file's JSON Schema, for editors.")
def validate(path: Path | None, print_schema: bool) -> None:
    """Check a workspace file without a control plane: every mistake with its line and field."""
    if print_schema:
        click.echo(json.dumps(json_schema(), indent=2))
        return
    if path is None:
        raise click.UsageError("Name the file: glottis validate -f workspace.yaml")
    file = read_workspace_file(path)
    count = len(file.users) + len(file.service_accounts)
    click.echo(f"{path} is valid: {len(file.accounts)} accounts, {len(file.teams)} teams, {count} principals.")


@click.command()
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file.")
@_DATA_DIR
def export(output: Path | None, data_dir: Path) -> None:
    """Print the workspace as a workspace file. Credentials are never exported: add references before you apply it elsewhere."""
    control_plane = ControlPlane.find(os.environ, data_dir)
    with progress("Exporting the workspace"):
        text = control_plane.request("GET", "/api/v1/export", timeout_seconds=_LONGEST_SECONDS)
    if output is None:
        sys.stdout.buffer.write(text)
    else:
        output.write_bytes(text)
        click.echo(f"Wrote {output}.")


def _show(answer: dict[str, Any], *, with_fields: bool, prunes: bool) -> None:
    changes = answer["changes"]
    for change in changes:
        mark, colour = _MARKS[change["action"]]
        click.secho(f"{mark} {change['kind'].replace('_', ' ')} {change['name']}", fg=colour)
        if with_fields and change["action"] != "delete":
            for field, (before, after) in change["fields"].items():
                old = f"{json.dumps(before)} → " if change["action"] == "update" and after != "changed" else ""
                click.echo(f"    {field}: {old}{json.dumps(after)}")
    counts = {action: sum(change["action"] == action for change in changes) for action in _MARKS}
    if not changes:
        also = ", and holds nothing that the file does not name" if prunes else ""
        click.echo(f"Nothing to change: the workspace matches the file{also}.")
    elif answer["is_dry_run"]:
        click.echo(
            f"Would create {counts['create']}, update {counts['update']} and delete {counts['delete']}; nothing is changed yet."
        )
        click.echo(f"Make it so: the same command without --diff and --dry-run{', with --prune' if prunes else ''}.")
    else:
        click.echo(f"Changed: {counts['create']} created, {counts['update']} updated, {counts['delete']} deleted.")
    if answer["kept"]:
        click.echo(f"{len(answer['kept'])} more that the file does not name stay (--prune deletes them).")
