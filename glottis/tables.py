"""Tables for people and JSON for machines: how client commands show what the API answered."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

Row = Mapping[str, Any]  # Any: the API's JSON

MISSING = "–"


def show(rows: Sequence[Row], columns: Sequence[str], *, as_json: bool, empty: str) -> None:
    """Print the rows: as JSON whole, else these columns, aligned. empty: the sentence for no rows."""
    if as_json:
        click.echo(json.dumps(list(rows), indent=2))
        return
    if not rows:
        click.echo(empty)
        return
    cells = [[name.replace("_", " ").upper() for name in columns], *([_cell(row.get(name)) for name in columns] for row in rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(columns))]
    for row in cells:
        click.echo("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def _cell(value: Any) -> str:
    if value is None or value == "" or value == []:
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(_cell(item) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{name}={_cell(item)}" for name, item in value.items()) or MISSING
    return str(value)
