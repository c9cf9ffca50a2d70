"""What can be asked about usage, and what is refused."""

from datetime import UTC, datetime
from typing import Any

import pytest

from control_plane.reports.question import Question, QuestionRefused, question

NOW = datetime(2026, 11, 29, 10, 2, 3, tzinfo=UTC)


def ask(**changes: Any) -> Question:
    """Ask for everything of the last 30 days; any part can be another."""
    parts: dict[str, Any] = {"by": [], "bucket": "", "start": "", "end": "", "filters": {}, "now": NOW}
    return question("acme", **{**parts, **changes})


def test_without_a_range_the_last_30_days_are_meant_up_to_the_end_of_the_current_slot() -> None:
    asked = ask()
    assert asked.start == datetime(2026, 10, 30, 10, 0, tzinfo=UTC)
    assert asked.end == datetime(2026, 11, 29, 10, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-01", datetime(2026, 11, 1, tzinfo=UTC)),
        ("2026-11-01T10:00", datetime(2026, 11, 1, 10, tzinfo=UTC)),
        ("2026-11-01T10:00:00Z", datetime(2026, 11, 1, 10, tzinfo=UTC)),
        ("2026-11-01T10:00:00+02:00", datetime(2026, 11, 1, 8, tzinfo=UTC)),
        ("2026-11-01T10:04:59", datetime(2026, 11, 1, 10, tzinfo=UTC)),
    ],
)
def test_a_time_is_utc_unless_it_says_otherwise_and_begins_its_slot(text: str, expected: datetime) -> None:
    assert ask(start=text).start == expected


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"by": ["colour"]}, "by"),
        ({"by": ["user", "user"]}, "by"),
        ({"by": ["user", "team", "account", "provider", "model", "operation", "kind"]}, "by"),
        ({"by": ["metadata."]}, "by"),
        ({"by": ["principal) OR (1=1"]}, "by"),
        ({"filters": {"workspace": ["other"]}}, "workspace"),
        ({"bucket": "week"}, "bucket"),
        ({"start": "yesterday"}, "from"),
        ({"end": "20261129T99"}, "to"),
        ({"start": "0001-01-01"}, "from"),
        ({"start": "2026-11-30"}, "from"),
        ({"start": "2020-01-01"}, "from"),
    ],
)
def test_what_cannot_be_asked_is_refused_by_the_name_of_its_parameter(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(QuestionRefused) as refused:
        ask(**changes)
    assert refused.value.field == field


def test_no_text_of_a_caller_is_part_of_the_statement() -> None:
    canary = "x'); DROP TABLE usage_events --"
    statement, parameters = ask(by=[f"metadata.{canary}"], filters={"model": [canary], f"metadata.{canary}": ["v"]}).statement()
    assert "DROP" not in statement
    assert list(parameters.values()).count(canary) == 2
    assert [canary] in parameters.values()


def test_every_statement_names_the_workspace() -> None:
    for by in (["user"], ["exchange"]):
        statement, parameters = ask(by=by).statement()
        assert "workspace = {workspace:String}" in statement
        assert parameters["workspace"] == "acme"
