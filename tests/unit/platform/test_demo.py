"""What the demo shows of its calls' usage, against answers of the control plane that are written here."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from glottis.commands import demo

CALL = {"exchange": "r1", "exchanges": 1, "units": {"characters": 12}, "cost": {"USD": "0.000024"}}


class Answers:
    """Reports by dimension, one after the other; the last one stays."""

    def __init__(self, **by: list[list[dict[str, Any]]]) -> None:
        self._by = by
        self.asked: list[str] = []

    def json(self, _: str, __: str, question: Sequence[tuple[str, str]]) -> dict[str, Any]:
        dimension = question[0][1]
        self.asked.append(dimension)
        answers = self._by[dimension]
        return {"rows": answers.pop(0) if len(answers) > 1 else answers[0]}


def counted(monkeypatch: pytest.MonkeyPatch, answers: Answers) -> dict[str, demo.Counted]:
    monkeypatch.setattr(demo, "control_plane", lambda _: answers)
    monkeypatch.setattr(demo, "_POLL_SECONDS", 0.0)
    return asyncio.run(demo.count(None, ["r1"]))  # type: ignore[arg-type]


def test_calls_are_counted_when_reports_by_model_show_them_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers(
        exchange=[[], [CALL]],
        outcome=[[{"outcome": "completed", "exchanges": 3}]],
        model=[[{"model": "kokoro-82m", "exchanges": 2}], [{"model": "kokoro-82m", "exchanges": 3}]],
    )

    assert counted(monkeypatch, answers) == {"r1": demo.Counted(12, "0.000024 USD")}
    assert answers.asked == ["exchange", "exchange", "outcome", "model", "exchange", "outcome", "model"]
