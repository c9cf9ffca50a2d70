"""`glottis reconcile`: a provider's usage export beside ours, and what explains the difference.

The export is any CSV with a time, a quantity and perhaps a model: providers name their columns as they like, and change
them. Three causes are told apart, in this order: **coverage** (usage that only one side has: traffic past the gateway, an
account of someone else), **rate** (a constant factor between the sides: another price per character), and what is left,
**units** (the sides count differently, or not yet). Read next: `compare`, which is pure.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from pathlib import Path
from statistics import median
from typing import Any, Final, TextIO

import click

from glottis.client import DEFAULT_DATA_DIR, ControlPlane
from glottis.errors import SetupError

_TIME_COLUMNS: Final = ("date", "day", "time", "timestamp", "start", "start_ts", "start_time", "period_start")
_QUANTITY_COLUMNS: Final = ("credits", "credits_used", "characters", "quantity", "usage", "units", "seconds")
_MODEL_COLUMNS: Final = ("model", "model_id")
_UNITS: Final = ("characters", "audio_in_ms", "audio_out_ms", "requests")
_SAME_RATE: Final = 0.02
"""days whose factor lies this close to the usual one have the usual rate"""
_KNOWN_RATES: Final = {1.5: "the rate of Pro Voice Clones", 2.0: "twice", 0.5: "half", 3.0: "ink-2's credits a second"}

Key = tuple[str, str]
"""day and model; the model is empty where the export names none"""


@dataclass(frozen=True)
class Difference:
    """One day and model. ours, theirs: quantities in the export's unit; cause: `same`, `coverage`, `rate` or `units`."""

    day: str
    model: str
    ours: Decimal
    theirs: Decimal
    cause: str


@dataclass(frozen=True)
class Comparison:
    """All differences, and the usual factor of theirs to ours (None: no day that both sides have)."""

    differences: tuple[Difference, ...]
    rate: float | None

    def total(self, cause: str) -> Decimal:
        """Return theirs minus ours over the days of this cause."""
        return sum((one.theirs - one.ours for one in self.differences if one.cause == cause), Decimal(0))


def compare(ours: Mapping[Key, Decimal], theirs: Mapping[Key, Decimal]) -> Comparison:
    """Return what explains the difference between two accounts of the same time."""
    factors = [float(theirs[key] / ours[key]) for key in ours.keys() & theirs.keys() if ours[key] and theirs[key]]
    rate = median(factors) if factors else None
    rate_of_days = rate if rate is not None and _is_constant(rate, factors) else None
    differences = tuple(
        Difference(day, model, ours.get((day, model), Decimal(0)), theirs.get((day, model), Decimal(0)), cause)
        for day, model in sorted(ours.keys() | theirs.keys())
        for cause in [_cause(ours.get((day, model), Decimal(0)), theirs.get((day, model), Decimal(0)), rate_of_days)]
    )
    return Comparison(differences, rate)


def _is_constant(rate: float, factors: Sequence[float]) -> bool:
    """Whether the factor is a rate: one that days share, or that providers are known for. One day alone shows none."""
    if rate <= 0 or abs(rate - 1) <= _SAME_RATE:
        return False
    return sum(abs(factor / rate - 1) <= _SAME_RATE for factor in factors) > 1 or _known(rate) is not None


def _known(rate: float) -> str | None:
    return next((meaning for factor, meaning in _KNOWN_RATES.items() if abs(rate / factor - 1) <= _SAME_RATE), None)


def _cause(ours: Decimal, theirs: Decimal, rate: float | None) -> str:
    if ours == theirs:
        return "same"
    if not ours or not theirs:
        return "coverage"
    if rate is not None and abs(float(theirs / ours) / rate - 1) <= _SAME_RATE:
        return "rate"
    return "units"


@click.command()
@click.argument("export", type=click.File("r", encoding="utf-8-sig"))
@click.option("--provider", default="cartesia", show_default=True, help="Whose export it is.")
@click.option("--account", help="Only this account of ours (its id).")
@click.option("--unit", type=click.Choice(_UNITS), default="characters", show_default=True, help="Our unit to compare.")
@click.option(
    "--per",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Our units in one of theirs, for example 1000 for seconds.",
)
@click.option("--time-column", help="The export's column with the day or time; guessed if not given.")
@click.option("--quantity-column", help="The export's column with the quantity; guessed if not given.")
@click.option("--model-column", help="The export's column with the model; guessed if not given.")
@click.option("--data-dir", type=click.Path(path_type=Path), default=DEFAULT_DATA_DIR, help="Folder of a running `glottis up`.")
def reconcile(
    export: TextIO,
    provider: str,
    account: str | None,
    unit: str,
    per: int,
    time_column: str | None,
    quantity_column: str | None,
    model_column: str | None,
    data_dir: Path,
) -> None:
    """Compare EXPORT, a provider's usage as CSV, with what we counted, day by day, and explain the difference."""
    try:
        theirs = read_export(csv.DictReader(export), time_column, quantity_column, model_column)
    except (UnicodeDecodeError, csv.Error) as error:
        raise SetupError("The export is not CSV in UTF-8.", "Save it as that; spreadsheets offer it in their export.") from error
    days = [day for day, _ in theirs]
    until = datetime.fromisoformat(max(days)).replace(tzinfo=UTC) + timedelta(days=1)
    query = [("bucket", "day"), ("by", "model"), ("from", min(days)), ("to", until.date().isoformat()), ("provider", provider)]
    if account:
        query.append(("account", account))
    report = ControlPlane.find(os.environ, data_dir).json("GET", "/api/v1/usage", query)
    ours = our_usage(report, unit, per, has_models=any(model for _, model in theirs))
    if not ours:
        click.echo(f"We counted no {unit} of {account or provider} on those days: see --provider, --account and --unit.")
    for line in lines(compare(ours, theirs)):
        click.echo(line)


def read_export(
    reader: csv.DictReader[str], time_column: str | None, quantity_column: str | None, model_column: str | None
) -> dict[Key, Decimal]:
    """Return the export's quantities by day and model. Raises SetupError, naming the line, for what it cannot read."""
    names = list(reader.fieldnames or ())
    time_name = _column(names, time_column, _TIME_COLUMNS, "--time-column")
    quantity_name = _column(names, quantity_column, _QUANTITY_COLUMNS, "--quantity-column")
    model_name = _column(names, model_column, _MODEL_COLUMNS, "--model-column", is_needed=model_column is not None)
    found: dict[Key, Decimal] = {}
    for row in reader:
        try:
            key = (_day(row[time_name]), (row[model_name] or "").strip() if model_name else "")
            quantity = _quantity(row[quantity_name] or "")
        except (ValueError, InvalidOperation, AttributeError, OverflowError) as error:
            raise SetupError(
                f"Line {reader.line_num} of the export cannot be read.", f"Check its columns {time_name} and {quantity_name}."
            ) from error
        found[key] = found.get(key, Decimal(0)) + quantity
    if not found:
        raise SetupError("The export holds no rows.", "Export a time in which something was used.")
    return found


def our_usage(report: Mapping[str, Any], unit: str, per: int, *, has_models: bool) -> dict[Key, Decimal]:
    """Return our quantities by day and model, from the API's report (Any: it is JSON)."""
    found: dict[Key, Decimal] = {}
    for row in report["rows"]:
        quantity = Decimal(row["units"].get(unit, 0)) / per
        key = (row["time"][:10], row["model"] if has_models else "")
        if quantity:
            found[key] = found.get(key, Decimal(0)) + quantity
    return found


def lines(comparison: Comparison) -> list[str]:
    """Return the comparison as text: days that differ, then the causes with their sums."""
    rows = [("day", "model", "ours", "theirs", "difference", "cause")]
    rows += [
        (one.day, one.model or "–", f"{one.ours:,f}", f"{one.theirs:,f}", f"{one.theirs - one.ours:+,f}", one.cause)
        for one in comparison.differences
        if one.cause != "same"
    ]
    same = sum(one.cause == "same" for one in comparison.differences)
    text = [f"{same} of {len(comparison.differences)} days and models are the same."]
    if len(rows) == 1:
        return text
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    text += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return text + [f"{cause}: {comparison.total(cause):+,f} – {_meaning(cause, comparison)}" for cause in _causes(comparison)]


def _causes(comparison: Comparison) -> list[str]:
    present = {one.cause for one in comparison.differences}
    return [cause for cause in ("coverage", "rate", "units") if cause in present]


def _meaning(cause: str, comparison: Comparison) -> str:
    if cause == "coverage":
        return "only one side has it: calls past the gateway, or an account or time that the export leaves out."
    if cause == "rate":
        rate = comparison.rate or 0.0
        known = _known(rate)
        return f"theirs is {rate:.3g} times ours{f' ({known})' if known else ''}: put this rate into the price book."
    return "both have it and count differently: tags, pre-processing, cancelled contexts, or usage not yet reported."


def _column(names: Sequence[str], named: str | None, usual: Iterable[str], option: str, *, is_needed: bool = True) -> str:
    if named is not None and named in names:
        return named
    if named is None:
        by_lower = {name.strip().lower(): name for name in names}
        for candidate in usual:
            if candidate in by_lower:
                return by_lower[candidate]
    if not is_needed:
        return ""
    raise SetupError(
        f"The export has no column for {option}; it has {', '.join(names) or 'no header'}.", f"Name it with {option}."
    )


def _quantity(text: str) -> Decimal:
    quantity = Decimal(text.replace(",", "").strip() or "0")
    if not quantity.is_finite():
        raise ValueError("not a quantity")
    return quantity


def _day(text: str) -> str:
    text = text.strip()
    if text.isdecimal():
        moment = datetime.fromtimestamp(int(text) / (1000 if len(text) > 11 else 1), UTC)
    else:
        moment = datetime.fromisoformat(text)
    if not 2000 <= moment.year < 2100:
        raise ValueError("not a day of this century")
    return (moment.astimezone(UTC) if moment.tzinfo else moment).date().isoformat()
