"""A question about usage, and the statement that answers it. Pure: no I/O, no clock.

The table of dimensions is the whole language: names outside it are refused, values travel as parameters, so that no
caller's text becomes SQL. Most dimensions are in the rollups; the others are read from the events themselves.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

SLOT = timedelta(minutes=5)
LONGEST_RANGE = timedelta(days=800)
LARGEST_ANSWER = 50_000
"""rows of ClickHouse: (group, unit, currency)"""
MOST_DIMENSIONS = 6
_METADATA = "metadata."


class QuestionRefused(ValueError):
    """The question is not one that can be asked. `field`: the parameter at fault; the text is a sentence for the caller."""

    def __init__(self, field: str, sentence: str) -> None:
        super().__init__(sentence)
        self.field = field


@dataclass(frozen=True)
class Dimension:
    """Something to group or filter by. label: the column with its readable name; is_raw: in the events only."""

    expression: str
    label: str = ""
    is_raw: bool = False


DIMENSIONS: dict[str, Dimension] = {
    "user": Dimension("principal", "principal_name"),
    "principal": Dimension("principal", "principal_name"),
    "kind": Dimension("principal_kind"),
    "team": Dimension("team", "team_name"),
    "account": Dimension("account", "account_name"),
    "provider": Dimension("provider"),
    "model": Dimension("model"),
    "operation": Dimension("operation"),
    "endpoint": Dimension("endpoint", is_raw=True),
    "exchange": Dimension("key", is_raw=True),
    "token": Dimension("token", is_raw=True),
    "pod": Dimension("pod", is_raw=True),
    "outcome": Dimension("final_outcome", is_raw=True),
}
"""`metadata.<key>` is one as well, in the events only"""

BUCKETS: dict[str, str] = {
    "5m": "slot",
    "hour": "toStartOfHour(slot)",
    "day": "toDateTime(toStartOfDay(slot), 'UTC')",
    "month": "toDateTime(toStartOfMonth(slot), 'UTC')",
}

# One scan, so that a recomputation in between cannot be seen by halves: the newest generation of each slot is found in the
# rows themselves. FINAL drops copies that a merge has not dropped yet.
_FROM_ROLLUPS = """
SELECT * FROM (
    SELECT *, max(version) OVER (PARTITION BY slot) AS newest FROM usage_rollups FINAL
    WHERE workspace = {workspace:String} AND slot >= {start:DateTime('UTC')} AND slot < {end:DateTime('UTC')}
) WHERE version = newest
"""
# Only the last event of a key knows its outcome, which is that of all its events.
_FROM_EVENTS = """
SELECT *, unit, max(outcome) OVER (PARTITION BY key) AS final_outcome, currencies[unit] AS currency, units[unit] AS quantity,
    costs[unit] AS cost, toUInt64(unit = '') AS events, toUInt64(unit = '' AND is_final) AS exchanges
FROM usage_events FINAL
ARRAY JOIN arrayPushBack(mapKeys(units), '') AS unit
WHERE workspace = {workspace:String} AND slot >= {start:DateTime('UTC')} AND slot < {end:DateTime('UTC')}
"""


@dataclass(frozen=True)
class Question:
    """Usage of a workspace from `start` (inclusive) to `end` (exclusive), both at slot borders, grouped and filtered."""

    workspace: str
    start: datetime
    end: datetime
    by: tuple[str, ...] = ()
    bucket: str = ""
    filters: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def statement(self) -> tuple[str, dict[str, Any]]:
        """Return the SQL and its parameters. Columns: time if there is a bucket, dimensions, their labels, then unit,
        currency, quantity, cost, events, exchanges. Any: parameters are of several types."""
        parameters: dict[str, Any] = {"workspace": self.workspace, "start": self.start, "end": self.end}
        names = {*self.by, *(name for name, _ in self.filters)}
        source = _FROM_EVENTS if any(_dimension(name).is_raw for name in names) else _FROM_ROLLUPS
        groups = [BUCKETS[self.bucket]] if self.bucket else []
        groups += [_expression(name, parameters) for name in self.by]
        labels = [f"max({_dimension(name).label})" for name in self.by if _dimension(name).label]
        conditions = ["NOT (unit = '' AND events = 0)"]  # the row that only says that a slot was recomputed
        for number, (name, values) in enumerate(self.filters):
            parameters[f"values_{number}"] = list(values)
            conditions.append(f"{_expression(name, parameters)} IN {{values_{number}:Array(String)}}")
        keys = ", ".join(str(number + 1) for number in range(len(groups)))
        columns = [*groups, *labels, "unit", "currency", "sum(quantity)", "sum(cost)", "sum(events)", "sum(exchanges)"]
        order = f"{keys}, unit, currency" if keys else "unit, currency"
        return (
            f"SELECT {', '.join(columns)} FROM ({source}) WHERE {' AND '.join(conditions)} "
            f"GROUP BY {order} ORDER BY {order} LIMIT {LARGEST_ANSWER + 1}",
            parameters,
        )

    @property
    def labelled(self) -> tuple[str, ...]:
        """Return the dimensions of `by` that come with a readable name."""
        return tuple(name for name in self.by if _dimension(name).label)


def question(
    workspace: str, *, by: Sequence[str], bucket: str, start: str, end: str, filters: Mapping[str, Sequence[str]], now: datetime
) -> Question:
    """Return the question that a caller's texts ask. start, end: ISO 8601 dates or times, UTC unless they say otherwise;
    empty: the last 30 days. Raises QuestionRefused."""
    if len(by) > MOST_DIMENSIONS:
        raise QuestionRefused("by", f"Group by {MOST_DIMENSIONS} dimensions at most.")
    if len(set(by)) < len(by):
        raise QuestionRefused("by", "Name each dimension once.")
    for name in by:
        _known(name, "by")
    for name in filters:
        _known(name, name)
    if bucket and bucket not in BUCKETS:
        raise QuestionRefused("bucket", f"A bucket is one of {', '.join(BUCKETS)}.")
    since, until = time_range(start, end, now, timedelta(days=30))
    return Question(
        workspace,
        _down(since),
        _up(until),
        tuple(by),
        bucket,
        tuple((name, tuple(values)) for name, values in sorted(filters.items())),
    )


def time_range(start: str, end: str, now: datetime, usual: timedelta) -> tuple[datetime, datetime]:
    """Return the time that two texts mean. usual: how much is meant if `start` is empty. Raises QuestionRefused."""
    until = _moment("to", end) if end else now
    since = _moment("from", start) if start else until - usual
    if not timedelta(0) < until - since <= LONGEST_RANGE:
        raise QuestionRefused("from", f"`from` must be before `to`, by at most {LONGEST_RANGE.days} days.")
    return since, until


def _known(name: str, field: str) -> None:
    if name not in DIMENSIONS and not (name.startswith(_METADATA) and 0 < len(name) - len(_METADATA) <= 64):
        raise QuestionRefused(field, f"{name[:80]!r} is no dimension. There are {', '.join(DIMENSIONS)} and metadata.<key>.")


def _dimension(name: str) -> Dimension:
    return DIMENSIONS.get(name) or Dimension("", is_raw=True)


def _expression(name: str, parameters: dict[str, Any]) -> str:
    if name in DIMENSIONS:
        return DIMENSIONS[name].expression
    parameter = f"key_{len(parameters)}"
    parameters[parameter] = name.removeprefix(_METADATA)
    return f"metadata[{{{parameter}:String}}]"


def _moment(field: str, text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise QuestionRefused(field, f"`{field}` must be a date or time like 2026-11-29 or 2026-11-29T10:00:00Z.") from error
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    if not 2000 <= moment.year < 2100:
        raise QuestionRefused(field, f"`{field}` must be in this century.")
    return moment


def _down(moment: datetime) -> datetime:
    return moment - (moment - datetime(2000, 1, 1, tzinfo=UTC)) % SLOT


def _up(moment: datetime) -> datetime:
    return _down(moment + SLOT - timedelta(microseconds=1))
