"""`glottis usage`: what was used and what it cost, as a table, as JSON or as CSV.

Asks the control plane's API and shows the answer; it computes nothing. Read next: `control_plane.reports.question`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from glottis.client import DEFAULT_DATA_DIR, ControlPlane

_UNIT_HEADERS = {
    "characters": "characters",
    "audio_in_ms": "audio in",
    "audio_out_ms": "audio out",
    "requests": "requests",
    "unmeasured": "unmeasured",
}


@click.command()
@click.option("--by", default="user,model", show_default=True, help="Dimensions to group by, comma-separated.")
@click.option("--from", "start", default="", help="From this date or time on (UTC); 30 days ago if not given.")
@click.option("--to", "end", default="", help="Before this date or time (UTC); now if not given.")
@click.option("--bucket", type=click.Choice(["5m", "hour", "day", "month"]), help="Cut time into buckets.")
@click.option("--where", multiple=True, metavar="DIMENSION=VALUE", help="Only this; repeat for more.")
@click.option("--json", "as_json", is_flag=True, help="Print the API's JSON.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@click.option("--data-dir", type=click.Path(path_type=Path), default=DEFAULT_DATA_DIR, help="Folder of a running `glottis up`.")
def usage(
    by: str,
    start: str,
    end: str,
    bucket: str | None,
    where: tuple[str, ...],
    as_json: bool,
    as_csv: bool,
    data_dir: Path,
) -> None:
    """Show what was used and what it cost.

    Dimensions: user, team, account, provider, model, operation, kind, endpoint, exchange, token, pod, outcome and
    metadata.<key>. A unit that has no price is shown as unpriced, never as free.
    """
    if as_json and as_csv:
        raise click.UsageError("--json and --csv are two forms of one answer: choose one of them.")
    query = [("by", by), ("from", start), ("to", end), ("bucket", bucket or ""), ("format", "csv" if as_csv else "json")]
    query += [_filter(text) for text in where]
    control_plane = ControlPlane.find(os.environ, data_dir)
    path = "/api/v1/usage"
    if as_json or as_csv:
        click.echo(control_plane.request("GET", path, query), nl=False)
        if as_json:
            click.echo()
        return
    for line in table(control_plane.json("GET", path, query)):
        click.echo(line)


def table(report: Mapping[str, Any]) -> list[str]:
    """Return the lines of a report's table. Any: the report is the API's JSON."""
    rows, total = report["rows"], report["total"]
    if not rows:
        return [f"Nothing was used from {report['from']} to {report['to']}."]
    keys = (["time"] if report["bucket"] else []) + list(report["by"])
    units, currencies = list(total["units"]), sorted(total["cost"])
    is_unpriced = bool(total["unpriced"])
    header = [*keys, "exchanges", *(_UNIT_HEADERS.get(unit, unit) for unit in units), *currencies]
    header += ["unpriced"] if is_unpriced else []
    body = [[*_names(row, keys), *_figures(row, units, currencies, is_unpriced=is_unpriced)] for row in rows]
    foot = [*(["total"] + [""] * (len(keys) - 1) if keys else []), *_figures(total, units, currencies, is_unpriced=is_unpriced)]
    return _aligned([header, *body, *([foot] if len(rows) > 1 else [])], left=len(keys))


def _names(row: Mapping[str, Any], keys: Sequence[str]) -> list[str]:
    return [str(row.get(f"{key}_name") or row[key] or "–") for key in keys]


def _figures(row: Mapping[str, Any], units: Sequence[str], currencies: Sequence[str], *, is_unpriced: bool) -> list[str]:
    figures = [str(row["exchanges"]), *(_quantity(unit, row["units"].get(unit, 0)) for unit in units)]
    figures += [row["cost"].get(currency, "–") for currency in currencies]
    if is_unpriced:
        unpriced = [f"{_quantity(unit, quantity)} {_UNIT_HEADERS.get(unit, unit)}" for unit, quantity in row["unpriced"].items()]
        figures.append(", ".join(unpriced) or "–")
    return figures


def _quantity(unit: str, quantity: int) -> str:
    return f"{quantity / 1000:,.3f} s" if unit.endswith("_ms") else f"{quantity:,}"


def _aligned(rows: Sequence[Sequence[str]], left: int) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            text.ljust(width) if column < left else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _filter(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"{text!r} is not DIMENSION=VALUE.", param_hint="--where")
    return name, value
