"""`glottis explain`, `audit`, `pods`, `republish`, `rewrap`: what operators ask and do."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import click

from glottis.client import DEFAULT_DATA_DIR, ControlPlane
from glottis.errors import SetupError
from glottis.progress import progress
from glottis.tables import show

_POLL_SECONDS = 0.5
_LONGEST_SECONDS = 900

_DATA_DIR = click.option(
    "--data-dir", type=click.Path(path_type=Path), default=DEFAULT_DATA_DIR, help="Folder of a running `glottis up`."
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_MARKS = {"allows": ("✓", "green"), "refuses": ("✗", "red"), "does not apply": ("·", "bright_black")}


@click.command()
@click.option("--as", "subject", required=True, metavar="SUBJECT", help="user:NAME or service_account:NAME.")
@click.option("--op", default="tts.websocket", show_default=True, help="The endpoint, for example tts.bytes or stt.websocket.")
@click.option("--model", help="The model that the request names.")
@click.option("--voice", help="The voice that the request names.")
@click.option("--account", help="The account that the path pins (/cartesia/@ACCOUNT/…).")
@click.option("--profile", default="cartesia", show_default=True, help="The wire protocol: cartesia or kokoro.")
@_JSON
@_DATA_DIR
def explain(
    subject: str,
    op: str,
    model: str | None,
    voice: str | None,
    account: str | None,
    profile: str,
    as_json: bool,
    data_dir: Path,
) -> int:
    """Say what a gateway decides and print every rule that took part. Exit status 1 if it would refuse."""
    query = [("as", subject), ("op", op), ("profile", profile)]
    query += [(name, value) for name, value in (("model", model), ("voice", voice), ("account", account)) if value]
    found = ControlPlane.find(os.environ, data_dir).json("GET", "/api/v1/explain", query)
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        for finding in found["findings"]:
            mark, colour = _MARKS[finding["effect"]]
            click.echo(f"{click.style(mark, fg=colour)} {finding['rule']:<10} {finding['text']}")
        verdict = "Admitted" if found["is_admitted"] else f"Refused ({found['reason']})"
        click.secho(f"{verdict}: {found['message']}", fg="green" if found["is_admitted"] else "red", bold=True)
    return 0 if found["is_admitted"] else 1


@click.command()
@click.option("--kind", help="Only this kind, for example account.")
@click.option("--target", help="Only what was done to this id.")
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True, help="How many, the newest first.")
@click.option("--export", "export_to", type=click.Path(dir_okay=False, path_type=Path), help="Write all of it as JSON lines.")
@click.option("--verify", is_flag=True, help="Check that nothing was taken out or changed.")
@_JSON
@_DATA_DIR
def audit(
    kind: str | None, target: str | None, limit: int, export_to: Path | None, verify: bool, as_json: bool, data_dir: Path
) -> int:
    """Show who changed what. With --verify the exit status is 1 if the log is not whole."""
    control_plane = ControlPlane.find(os.environ, data_dir)
    if verify:
        with progress("Checking the audit log"):
            found = control_plane.json("GET", "/api/v1/audit/verification", timeout_seconds=_LONGEST_SECONDS)
        said = "whole" if found["is_whole"] else f"BROKEN at entry {found['broken_at']}"
        click.echo(f"The audit log of {found['entries']} entries is {said}; its head is {found['head']}.")
        return 0 if found["is_whole"] else 1
    if export_to is not None:
        _export_audit(control_plane, export_to)
        click.echo(f"Wrote {export_to}.")
        return 0
    query = [("limit", str(limit))] + [(name, value) for name, value in (("kind", kind), ("target", target)) if value]
    rows = control_plane.json("GET", "/api/v1/audit", query)["items"]
    show(rows, ("at", "actor_name", "action", "kind", "target_name", "after"), as_json=as_json, empty="Nothing was changed yet.")
    return 0


def _export_audit(control_plane: ControlPlane, file: Path) -> None:
    """Write every entry as it comes; the file has its name when it is whole."""
    newest = control_plane.json("GET", "/api/v1/audit", [("limit", "1")])["items"]
    total = newest[0]["seq"] if newest else 0
    part = file.with_name(f"{file.name}.part")
    try:
        with progress("Exporting the audit log") as shown, part.open("wb") as into:
            for done, line in enumerate(control_plane.lines("/api/v1/audit/export"), start=1):
                into.write(line)
                shown.at(done, max(done, total))
        part.replace(file)
    except OSError as error:
        raise SetupError(f"Cannot write {file}: {error.strerror}.", "Name a file that you can write.") from error
    finally:
        part.unlink(missing_ok=True)


@click.command()
@_JSON
@_DATA_DIR
def pods(as_json: bool, data_dir: Path) -> None:
    """Show which gateway pod runs which revision."""
    found = ControlPlane.find(os.environ, data_dir).json("GET", "/api/v1/pods")
    if not as_json:
        click.echo(f"Published revision: {found['revision']}")
    columns = ("pod", "version", "revision", "is_current", "open_sessions", "open_exchanges", "is_draining", "spool_bytes")
    show(found["pods"], columns, as_json=as_json, empty="No pod was heard of in the last minute.")


@click.command()
@click.option("--user", help="Only this user's (its id).")
@click.option("--account", help="Only those at this account (its id).")
@click.option("--model", help="Only those with this model.")
@click.option("--pod", help="Only those on this pod.")
@_JSON
@_DATA_DIR
def sessions(user: str | None, account: str | None, model: str | None, pod: str | None, as_json: bool, data_dir: Path) -> None:
    """Show which WebSocket sessions are open now, who speaks, since when, and how much so far."""
    asked = {"user": user, "account": account, "model": model, "pod": pod, "limit": "1000"}
    query = [(name, value) for name, value in asked.items() if value]
    found = ControlPlane.find(os.environ, data_dir).json("GET", "/api/v1/sessions", query)
    rows = [
        {**row, "user": row["user_name"] or row["user"], "account": row["account_name"] or row["account"]}
        for row in found["sessions"]
    ]
    columns = ("since", "user", "account", "model", "endpoint", "pod", "contexts", "characters", "audio_in_ms", "exchange")
    show(found["sessions"] if as_json else rows, columns, as_json=as_json, empty="No session is open.")
    if not as_json and found["count"] > len(rows):
        click.echo(f"{found['count'] - len(rows)} more are open.")


@click.command()
@click.option("--wait", "waits", is_flag=True, help="Return when every pod that is heard of runs the new revision.")
@_DATA_DIR
def republish(waits: bool, data_dir: Path) -> None:
    """Write everything that gateways read anew from the database, for example after the bus lost its disk."""
    control_plane = ControlPlane.find(os.environ, data_dir)
    before = control_plane.json("GET", "/api/v1/pods")["revision"]
    control_plane.json("POST", "/api/v1/republish")
    if not waits:
        click.echo("Asked for; `glottis pods` shows when pods run the new revision.", err=True)
        return
    deadline = time.monotonic() + _LONGEST_SECONDS
    with progress("Republishing") as shown:
        while True:
            if time.monotonic() > deadline:
                raise SetupError("The new revision did not reach every pod.", "See `glottis pods`, and the control plane's log.")
            found = control_plane.json("GET", "/api/v1/pods")
            there = sum(pod["revision"] > before for pod in found["pods"])
            if found["revision"] > before and there == len(found["pods"]):
                break
            shown.note("pods that run it" if found["revision"] > before else "writing")
            shown.at(there, len(found["pods"]))
            time.sleep(_POLL_SECONDS)
    click.echo(f"Revision {found['revision']} is published; {there} pods run it.", err=True)


@click.command()
@_DATA_DIR
def rewrap(data_dir: Path) -> None:
    """Move every stored secret to the first key of the key file, and seal it for the current fleet key."""
    control_plane = ControlPlane.find(os.environ, data_dir)
    with progress("Moving secrets to the first key"):
        moved = control_plane.json("POST", "/api/v1/rewrap", timeout_seconds=_LONGEST_SECONDS)["moved"]
    click.echo(f"Moved {moved} secrets.")
