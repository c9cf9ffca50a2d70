"""The answer to a question about usage: groups with units, money and what has no price yet; as JSON, CSV or columns.

Pure. Money stays decimal and leaves as text: a JSON number would pass through someone's float.
"""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Context, Decimal
from typing import Any

from contracts.events import UNITS
from control_plane.reports.question import Question

_EXACT = Context(prec=60)
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


@dataclass
class Group:
    """One row of a report. key: time (if bucketed) and dimensions; labels: readable names of the dimensions with one."""

    key: tuple[Any, ...]
    labels: tuple[str, ...] = ()
    units: dict[str, int] = field(default_factory=dict)
    cost: dict[str, Decimal] = field(default_factory=dict)
    """currency to amount"""
    unpriced: dict[str, int] = field(default_factory=dict)
    """the part of `units` that no price was found for"""
    events: int = 0
    exchanges: int = 0

    def add(self, unit: str, currency: str, quantity: int, cost: Decimal, events: int, exchanges: int) -> None:
        """Add what ClickHouse says of one unit in one currency; unit '' counts, currency '' is unpriced."""
        self.events += events
        self.exchanges += exchanges
        if not unit:
            return
        self.units[unit] = self.units.get(unit, 0) + quantity
        if currency:
            self.cost[currency] = _EXACT.add(self.cost.get(currency, Decimal(0)), cost)
        elif quantity:
            self.unpriced[unit] = self.unpriced.get(unit, 0) + quantity

    def quantities(self) -> dict[str, Any]:
        """Return everything but the key, as JSON holds it (hence Any)."""
        return {
            "units": {unit: self.units[unit] for unit in _in_order(self.units)},
            "cost": {currency: amount_text(self.cost[currency]) for currency in sorted(self.cost)},
            "unpriced": {unit: self.unpriced[unit] for unit in _in_order(self.unpriced)},
            "exchanges": self.exchanges,
            "events": self.events,
        }


@dataclass(frozen=True)
class Report:
    """Groups in the order of their keys, and the sum of all."""

    question: Question
    groups: list[Group]
    total: Group

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON holds it (hence Any): amounts as decimal text, times as ISO 8601 in UTC."""
        question = self.question
        return {
            "from": moment_text(question.start),
            "to": moment_text(question.end),
            "by": list(question.by),
            "bucket": question.bucket or None,
            "rows": [self._key_of(group) | group.quantities() for group in self.groups],
            "total": self.total.quantities(),
        }

    def as_csv(self) -> str:
        """Return the report as CSV (RFC 4180) with a header; a column a unit, a currency and an unpriced unit."""
        units, currencies, unpriced = _in_order(self.total.units), sorted(self.total.cost), _in_order(self.total.unpriced)
        keys = self._key_names()
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(
            [
                *keys,
                "exchanges",
                *units,
                *(f"cost_{currency}" for currency in currencies),
                *(f"unpriced_{unit}" for unit in unpriced),
            ]
        )
        for group in self.groups:
            writer.writerow(
                [
                    *(cell(value) for value in self._key_of(group).values()),
                    group.exchanges,
                    *(group.units.get(unit, 0) for unit in units),
                    *(amount_text(group.cost[currency]) if currency in group.cost else "" for currency in currencies),
                    *(group.unpriced.get(unit, 0) for unit in unpriced),
                ]
            )
        return text.getvalue()

    def _key_names(self) -> list[str]:
        names = ["time"] if self.question.bucket else []
        for name in self.question.by:
            names += [name, f"{name}_name"] if name in self.question.labelled else [name]
        return names

    def _key_of(self, group: Group) -> dict[str, str]:
        values = iter(group.key)
        labels = dict(zip(self.question.labelled, group.labels, strict=True))
        key = {"time": moment_text(next(values))} if self.question.bucket else {}
        for name in self.question.by:
            key[name] = next(values)
            if name in labels:
                key[f"{name}_name"] = labels[name]
        return key


def report(question: Question, rows: Iterable[Sequence[Any]]) -> Report:
    """Return the report over ClickHouse's rows, which have the columns of `Question.statement`."""
    keys = len(question.by) + bool(question.bucket)
    labels = keys + len(question.labelled)
    groups: dict[tuple[Any, ...], Group] = {}
    total = Group(())
    for row in rows:
        key = tuple(row[:keys])
        group = groups.setdefault(key, Group(key, tuple(row[keys:labels])))
        if not any(group.labels):
            group.labels = tuple(row[keys:labels])
        group.add(*row[labels:])
        total.add(*row[labels:])
    return Report(question, list(groups.values()), total)


def amount_text(amount: Decimal) -> str:
    """Return an amount in plain notation, without trailing zeros: `0.00084`, `12`."""
    return format(amount.normalize(_EXACT), "f") if amount else "0"


def moment_text(moment: datetime) -> str:
    """Return a time in UTC, `2026-11-29T10:00:00Z`; a naive one is UTC already, as ClickHouse gives it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if moment.tzinfo else moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def cell(text: str) -> str:
    """Return a text as a CSV cell that no spreadsheet takes for a formula: names are chosen by others."""
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


def _in_order(units: Iterable[str]) -> list[str]:
    """Our own units first, in their order, then others by name."""
    return sorted(units, key=lambda unit: (UNITS.index(unit) if unit in UNITS else len(UNITS), unit))
