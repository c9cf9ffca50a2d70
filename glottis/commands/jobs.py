"""`glottis reprice` and `glottis erase`: ask for a job, and follow it until an aggregator has done it.

The control plane's API takes the job, aggregators do it (ADR 0034); nothing is computed here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from glottis.client import DEFAULT_DATA_DIR, ControlPlane
from glottis.errors import SetupError
from glottis.progress import progress

_JOBS: Final = "/api/v1/usage/jobs"
_POLL_SECONDS: Final = 1.0

_data_dir = click.option(
    "--data-dir", type=click.Path(path_type=Path), default=DEFAULT_DATA_DIR, help="Folder of a running `glottis up`."
)
_no_wait = click.option("--no-wait", is_flag=True, help="Print the job's id and return at once.")


@click.command()
@click.option("--from", "start", required=True, help="Price usage from this date or time on (UTC).")
@click.option("--to", "end", help="Before this date or time (UTC); now if not given.")
@_no_wait
@_data_dir
def reprice(start: str, end: str | None, no_wait: bool, data_dir: Path) -> None:
    """Price what was used by today's price book: prices that were missing, wrong, or entered late.

    Each price still holds from its own date on; usage of other times is not touched.
    """
    _ask({"kind": "reprice", "from": start, **({"to": end} if end else {})}, data_dir, no_wait=no_wait)


@click.command()
@click.argument("principal")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_no_wait
@_data_dir
def erase(principal: str, yes: bool, no_wait: bool, data_dir: Path) -> None:
    """Take PRINCIPAL (its id) out of what was stored so far: names, tokens, metadata, spans.

    What was used and what it cost stays in the sums, as that of `erased`. It cannot be undone.
    """
    if not yes:
        click.confirm(f"Erase what is stored of {principal}?", abort=True)
    _ask({"kind": "erase", "principal": principal}, data_dir, no_wait=no_wait)


def _ask(asked: Mapping[str, str], data_dir: Path, *, no_wait: bool) -> None:
    control_plane = ControlPlane.find(os.environ, data_dir)
    job = control_plane.json("POST", _JOBS, body=asked)
    if no_wait:
        click.echo(job["id"])
        return
    with progress(f"Waiting for an aggregator to {asked['kind']}") as shown:
        while job["state"] in ("asked", "running"):
            shown.note(str(job["state"]))
            time.sleep(_POLL_SECONDS)
            job = control_plane.json("GET", f"{_JOBS}/{job['id']}")
    if job["state"] == "failed":
        raise SetupError(f"Job {job['id']} failed.", "See the aggregator's log for the reason.")
    for line in told(job):
        click.echo(line)


def told(job: Mapping[str, Any]) -> list[str]:
    """Return the lines that tell what was done. Any: the job is the API's JSON."""
    counts = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in job["counts"].items() if name != "price_revision")
    lines = [f"{job['kind']}: {counts or 'nothing to do'}"]
    if "price_revision" in job["counts"]:
        lines[0] += f" (price book {job['counts']['price_revision']})"
    if job["kind"] == "erase" and not any(job["counts"].values()):
        lines.append(
            f"Nothing was stored of {job['principal']}: `glottis usage --by user --json` shows the ids of who used something."
        )
    lines += [f"not erased: {sink}" for sink in job["not_erased"]]
    return lines
