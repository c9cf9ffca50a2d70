"""Reports as JSON, as CSV and as the command line's table."""

from datetime import UTC, datetime
from decimal import Decimal

from control_plane.reports.question import Question
from control_plane.reports.report import Report, amount_text, cell, report
from glottis.commands.usage import table

START, END = datetime(2026, 11, 29, tzinfo=UTC), datetime(2026, 11, 30, tzinfo=UTC)


def by_user() -> Report:
    """Ann spoke in two currencies and left one unit unpriced; Bob was refused."""
    rows = [
        ("ann", "Ann", "", "", 0, Decimal(0), 5, 3),
        ("ann", "Ann", "audio_out_ms", "", 1500, Decimal(0), 0, 0),
        ("ann", "Ann", "characters", "EUR", 2, Decimal("0.2"), 0, 0),
        ("ann", "Ann", "characters", "USD", 1040, Decimal("0.000840000000000000"), 0, 0),
        ("bob", "=cmd|'/c calc'", "", "", 0, Decimal(0), 1, 1),
    ]
    return report(Question("acme", START, END, by=("user",)), rows)


def test_json_holds_units_money_as_text_and_what_is_unpriced() -> None:
    assert by_user().as_json() == {
        "from": "2026-11-29T00:00:00Z",
        "to": "2026-11-30T00:00:00Z",
        "by": ["user"],
        "bucket": None,
        "rows": [
            {
                "user": "ann",
                "user_name": "Ann",
                "units": {"characters": 1042, "audio_out_ms": 1500},
                "cost": {"EUR": "0.2", "USD": "0.00084"},
                "unpriced": {"audio_out_ms": 1500},
                "exchanges": 3,
                "events": 5,
            },
            {
                "user": "bob",
                "user_name": "=cmd|'/c calc'",
                "units": {},
                "cost": {},
                "unpriced": {},
                "exchanges": 1,
                "events": 1,
            },
        ],
        "total": {
            "units": {"characters": 1042, "audio_out_ms": 1500},
            "cost": {"EUR": "0.2", "USD": "0.00084"},
            "unpriced": {"audio_out_ms": 1500},
            "exchanges": 4,
            "events": 6,
        },
    }


def test_csv_has_a_column_a_unit_and_a_currency_and_no_formulas() -> None:
    assert by_user().as_csv() == (
        "user,user_name,exchanges,characters,audio_out_ms,cost_EUR,cost_USD,unpriced_audio_out_ms\r\n"
        "ann,Ann,3,1042,1500,0.2,0.00084,1500\r\n"
        "bob,'=cmd|'/c calc',1,0,0,,,0\r\n"
    )


def test_the_table_shows_names_and_what_is_unpriced() -> None:
    assert table(by_user().as_json()) == [
        "user            exchanges  characters  audio out  EUR      USD           unpriced",
        "Ann                     3       1,042    1.500 s  0.2  0.00084  1.500 s audio out",
        "=cmd|'/c calc'          1           0    0.000 s    –        –                  –",
        "total                   4       1,042    1.500 s  0.2  0.00084  1.500 s audio out",
    ]


def test_the_table_says_when_nothing_was_used() -> None:
    empty = report(Question("acme", START, END, by=("user",)), [])
    assert table(empty.as_json()) == ["Nothing was used from 2026-11-29T00:00:00Z to 2026-11-30T00:00:00Z."]


def test_what_was_taken_back_is_not_unpriced() -> None:
    rows = [("characters", "USD", 0, Decimal("0E-18"), 0, 0), ("audio_out_ms", "", 0, Decimal(0), 0, 0)]
    total = report(Question("acme", START, END), rows).total
    assert (total.units, total.unpriced) == ({"characters": 0, "audio_out_ms": 0}, {})
    assert total.quantities()["cost"] == {"USD": "0"}


def test_amounts_are_plain_and_without_trailing_zeros() -> None:
    amounts = ["0.000000000000000001", "1E+3", "12.50", "-0.10", "0E-18"]
    assert [amount_text(Decimal(amount)) for amount in amounts] == ["0.000000000000000001", "1000", "12.5", "-0.1", "0"]


def test_a_cell_is_never_a_formula() -> None:
    assert [cell(text) for text in ("=1", "+1", "-1", "@x", "\tx", "plain")] == ["'=1", "'+1", "'-1", "'@x", "'\tx", "plain"]
