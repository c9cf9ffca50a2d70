"""Questions about spans: single ones, newest first, and durations by any dimension. Pure: no I/O, no clock.

As in `question`, names come from a table and values travel as parameters. What the attributes mean: docs/telemetry.md.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeAlias

from control_plane.reports.question import QuestionRefused, time_range
from control_plane.reports.report import moment_text

MOST_SPANS = 1_000
MOST_GROUPS = 5_000
_ATTRIBUTE = "attribute."
_USUAL = timedelta(hours=24)
_NS = 1_000_000_000

COLUMNS: dict[str, str] = {
    "exchange": "request_id",
    "trace": "trace_id",
    "name": "name",
    "kind": "kind",
    "pod": "pod",
    "user": "attributes['glottis.principal.id']",
    "principal": "attributes['glottis.principal.id']",
    "team": "attributes['glottis.team.id']",
    "account": "attributes['glottis.account.id']",
    "provider": "attributes['gen_ai.provider.name']",
    "model": "attributes['gen_ai.request.model']",
    "voice": "attributes['glottis.voice']",
    "operation": "attributes['glottis.operation']",
    "endpoint": "attributes['glottis.endpoint']",
    "outcome": "attributes['glottis.outcome']",
    "reason": "attributes['glottis.reason']",
    "status": "attributes['http.response.status_code']",
}
"""what spans are grouped and filtered by; `attribute.<name>` is any other attribute"""

BUCKETS: dict[str, str] = {"minute": "toStartOfMinute(start)", "5m": "toStartOfFiveMinutes(start)", "hour": "hour"}

_FIELDS = (
    "trace_id", "span_id", "parent_id", "request_id", "name", "kind", "start_ns", "duration_ns", "is_error", "pod", "attributes",
)  # fmt: skip
SummaryOf: TypeAlias = Literal["exchanges", "contexts"]
_SUMMARISED: dict[SummaryOf, str] = {"exchanges": "kind = 'server'", "contexts": "name = 'context'"}
_FIRST_AUDIO = "toFloat64OrNull(attributes['glottis.first_audio_seconds'])"


@dataclass(frozen=True)
class SpanQuestion:
    """Spans of a workspace that started from `start` (inclusive) to `end` (exclusive) and meet every filter."""

    workspace: str
    start: datetime
    end: datetime
    filters: tuple[tuple[str, tuple[str, ...]], ...] = ()
    only_errors: bool = False
    least_ms: float = 0

    def search(self, limit: int) -> tuple[str, dict[str, Any]]:
        """Return the statement for single spans, newest first, with the columns of `span_of` (Any: parameters)."""
        where, parameters = self._where()
        fields = ", ".join("toUnixTimestamp64Nano(start)" if name == "start_ns" else name for name in _FIELDS)
        order = "ORDER BY start DESC, span_id"
        return f"SELECT {fields} FROM spans FINAL WHERE {where} {order} LIMIT {min(limit, MOST_SPANS)}", parameters

    def summary(self, by: Sequence[str], bucket: str, of: SummaryOf = "exchanges") -> tuple[str, dict[str, Any]]:
        """Return the statement for durations of exchanges (the spans that a client opened), or of contexts on sockets.

        Columns: time if there is a bucket, dimensions, count, errors, quantiles of duration, quantiles of time to first
        audio. Raises QuestionRefused.
        """
        if bucket and bucket not in BUCKETS:
            raise QuestionRefused("bucket", f"A bucket is one of {', '.join(BUCKETS)}.")
        where, parameters = self._where()
        groups = [BUCKETS[bucket]] if bucket else []
        groups += [_expression(name, "by", parameters) for name in by]
        columns = [
            *groups,
            "count()",
            "countIf(is_error)",
            "quantilesTDigest(0.5, 0.95, 0.99)(duration_ns / 1e6)",
            f"quantilesTDigest(0.5, 0.95, 0.99)({_FIRST_AUDIO} * 1000)",
        ]
        keys = ", ".join(str(number + 1) for number in range(len(groups)))
        tail = f"GROUP BY {keys} ORDER BY {keys}" if keys else ""
        return (
            f"SELECT {', '.join(columns)} FROM spans FINAL WHERE {_SUMMARISED[of]} AND {where} {tail} LIMIT {MOST_GROUPS + 1}",
            parameters,
        )

    def _where(self) -> tuple[str, dict[str, Any]]:
        parameters: dict[str, Any] = {
            "workspace": self.workspace,
            "first_hour": self.start.replace(minute=0, second=0, microsecond=0),
            "start_ns": _nanoseconds(self.start),
            "end_ns": _nanoseconds(self.end),
            "end": self.end,
        }
        conditions = [
            "workspace = {workspace:String}",
            "hour >= {first_hour:DateTime('UTC')}",
            "hour <= {end:DateTime('UTC')}",
            "start >= fromUnixTimestamp64Nano({start_ns:Int64})",
            "start < fromUnixTimestamp64Nano({end_ns:Int64})",
        ]
        if self.only_errors:
            conditions.append("is_error")
        if self.least_ms:
            parameters["least_ns"] = int(self.least_ms * 1e6)
            conditions.append("duration_ns >= {least_ns:UInt64}")
        for number, (name, values) in enumerate(self.filters):
            parameters[f"values_{number}"] = list(values)
            conditions.append(f"{_expression(name, name, parameters)} IN {{values_{number}:Array(String)}}")
        return " AND ".join(conditions), parameters


def span_question(
    workspace: str,
    *,
    start: str,
    end: str,
    filters: Mapping[str, Sequence[str]],
    only_errors: bool,
    least_ms: float,
    now: datetime,
) -> SpanQuestion:
    """Return the question that a caller's texts ask; without `start`, of the last 24 hours. Raises QuestionRefused."""
    since, until = time_range(start, end, now, _USUAL)
    for name in filters:
        _expression(name, name, {})
    kept = tuple((name, tuple(values)) for name, values in sorted(filters.items()))
    return SpanQuestion(workspace, since, until, kept, only_errors, max(0.0, least_ms))


def span_of(row: Sequence[Any]) -> dict[str, Any]:
    """Return a span as JSON holds it (hence Any). Times are ISO 8601 with nanoseconds, durations milliseconds."""
    span = dict(zip(_FIELDS, row, strict=True))
    start_ns = int(span.pop("start_ns"))
    moment = datetime.fromtimestamp(start_ns // _NS, UTC)
    return span | {
        "start": f"{moment:%Y-%m-%dT%H:%M:%S}.{start_ns % _NS:09d}Z",
        "duration_ms": int(span.pop("duration_ns")) / 1e6,
        "is_error": bool(span["is_error"]),
    }


def summary_of(rows: Iterable[Sequence[Any]], by: Sequence[str], *, is_bucketed: bool) -> list[dict[str, Any]]:
    """Return groups as JSON holds them (hence Any): count, errors, quantiles in milliseconds (None: nothing to measure)."""
    groups: list[dict[str, Any]] = []
    for row in rows:
        values = list(row)
        group: dict[str, Any] = {"time": moment_text(values.pop(0))} if is_bucketed else {}
        group |= {name: values.pop(0) for name in by}
        count, errors, durations, first_audio = values
        group |= {
            "count": count,
            "errors": errors,
            "duration_ms": _quantiles(durations),
            "first_audio_ms": _quantiles(first_audio),
        }
        groups.append(group)
    return groups


def _quantiles(values: Sequence[float]) -> dict[str, float | None]:
    return {name: None if value != value else round(value, 3) for name, value in zip(("p50", "p95", "p99"), values, strict=True)}


def _expression(name: str, field: str, parameters: dict[str, Any]) -> str:
    if name in COLUMNS:
        return COLUMNS[name]
    attribute = name.removeprefix(_ATTRIBUTE)
    if attribute == name or not 0 < len(attribute) <= 100:
        raise QuestionRefused(field, f"{name[:80]!r} is no dimension. There are {', '.join(COLUMNS)} and attribute.<name>.")
    parameter = f"attribute_{len(parameters)}"
    parameters[parameter] = attribute
    return f"attributes[{{{parameter}:String}}]"


def _nanoseconds(moment: datetime) -> int:
    return int(moment.timestamp()) * _NS + moment.microsecond * 1000
