"""What `glottis tokens list` says of a token, and what `glottis usage` says of two forms at once."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from click.testing import CliRunner

from glottis.commands.tokens import state
from glottis.commands.usage import usage

NOW = datetime(2026, 7, 1, tzinfo=UTC)
LATER, EARLIER = "2026-07-02T00:00:00Z", "2026-06-30T00:00:00Z"


@pytest.mark.parametrize(
    ("expires_at", "revoke_at", "revoked_at", "expected"),
    [
        (LATER, None, None, "good"),
        (LATER, "2026-07-01T12:00:00Z", None, "rotated, good until 2026-07-01T12:00:00Z"),
        (EARLIER, None, None, "expired"),
        ("2026-07-01T00:00:00Z", None, None, "expired"),
        (EARLIER, None, EARLIER, f"revoked {EARLIER}"),
    ],
)
def test_a_token_is_shown_as_what_it_is_worth(
    expires_at: str, revoke_at: str | None, revoked_at: str | None, expected: str
) -> None:
    assert state({"expires_at": expires_at, "revoke_at": revoke_at, "revoked_at": revoked_at}, NOW) == expected


def test_two_forms_of_one_answer_are_a_mistake() -> None:
    answer = CliRunner().invoke(usage, ["--json", "--csv"])
    assert answer.exit_code == 2
    assert "--json and --csv are two forms of one answer: choose one of them." in answer.output
