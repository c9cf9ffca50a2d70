"""A provider's export beside ours."""

import csv
import io
from decimal import Decimal
from pathlib import Path

import pytest
from click.testing import CliRunner

from glottis.commands.reconcile import Key, compare, lines, our_usage, read_export, reconcile
from glottis.errors import SetupError


def export(text: str, **columns: str | None) -> dict[Key, Decimal]:
    """Read an export from its text."""
    names: dict[str, str | None] = {"time_column": None, "quantity_column": None, "model_column": None}
    return read_export(csv.DictReader(io.StringIO(text)), **{**names, **columns})


def quantities(*values: int) -> dict[Key, Decimal]:
    """One quantity a day from the 1st on; 0 leaves the day out."""
    return {(f"2026-11-{day:02d}", ""): Decimal(value) for day, value in enumerate(values, 1) if value}


def causes(ours: dict[Key, Decimal], theirs: dict[Key, Decimal]) -> list[str]:
    """The cause of each day."""
    return [one.cause for one in compare(ours, theirs).differences]


def test_equal_accounts_have_nothing_to_explain() -> None:
    assert lines(compare(quantities(10, 20), quantities(10, 20))) == ["2 of 2 days and models are the same."]


def test_what_one_side_alone_has_is_coverage() -> None:
    assert causes(quantities(10, 0, 30), quantities(10, 20, 0)) == ["same", "coverage", "coverage"]


def test_a_constant_factor_is_a_rate() -> None:
    compared = compare(quantities(100, 200, 40), quantities(150, 300, 60))
    assert [one.cause for one in compared.differences] == ["rate", "rate", "rate"]
    assert lines(compared)[-1] == (
        "rate: +170 – theirs is 1.5 times ours (the rate of Pro Voice Clones): put this rate into the price book."
    )


def test_one_day_alone_shows_no_rate_unless_it_is_a_known_one() -> None:
    assert causes(quantities(455), quantities(433)) == ["units"]
    assert causes(quantities(100), quantities(150)) == ["rate"]
    assert causes(quantities(100, 200), quantities(-5, -10)) == ["units", "units"]


def test_what_no_factor_explains_is_units() -> None:
    assert causes(quantities(100, 200, 300, 400), quantities(100, 200, 300, 444)) == ["same", "same", "same", "units"]


def test_an_export_is_read_whatever_its_columns_are_called() -> None:
    expected = {("2026-11-01", "sonic-3"): Decimal("1500"), ("2026-11-02", "sonic-3"): Decimal("0.5")}
    assert (
        export("Date,Model,Credits\n2026-11-01,sonic-3,1000\n2026-11-01T23:00:00Z,sonic-3,500\n2026-11-02,sonic-3,.5\n")
        == expected
    )
    assert export('start_ts,model_id,Quantity\n1793491200,sonic-3,"1,500"\n1793577600000,sonic-3,0.5\n') == expected
    named = {"time_column": "when", "quantity_column": "n", "model_column": "what"}
    assert export("when,what,n\n2026-11-01,sonic-3,1500\n2026-11-02,sonic-3,0.5\n", **named) == expected


def test_a_day_without_a_quantity_counts_as_nothing() -> None:
    assert export("day,credits\n2026-11-01\n2026-11-01,5\n") == {("2026-11-01", ""): Decimal(5)}


def test_a_time_with_an_offset_is_the_day_in_utc() -> None:
    assert export("time,credits\n2026-11-02T01:00:00+02:00,5\n") == {("2026-11-01", ""): Decimal(5)}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no column for --time-column"),
        ("day,words\n2026-11-01,5\n", "no column for --quantity-column; it has day, words"),
        ("day,credits\n", "holds no rows"),
        ("day,credits\n2026-11-01,5\nyesterday,5\n", "Line 3 of the export cannot be read"),
        ("day,credits\n2026-11-01,many\n", "Line 2 of the export cannot be read"),
        ("day,credits\n2026-11-01,NaN\n", "Line 2 of the export cannot be read"),
        ("day,credits\n2026-11-01,Infinity\n", "Line 2 of the export cannot be read"),
        ("day,credits\n99999999999999999999999999,5\n", "Line 2 of the export cannot be read"),
        ("day,credits\n9999-12-31,5\n", "Line 2 of the export cannot be read"),
        ("day,credits\n1999-12-31,5\n", "Line 2 of the export cannot be read"),
    ],
)
def test_an_export_that_cannot_be_read_says_where(text: str, said: str) -> None:
    with pytest.raises(SetupError) as told:
        export(text)
    assert said in str(told.value)


@pytest.mark.parametrize("content", [b"day,credits,caf\xe9\n2026-11-01,5,\xe9\n", b'day,credits\n2026-11-01,"' + b"5" * 200_000])
def test_a_file_that_is_no_csv_in_utf_8_is_told_so(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "usage-export.csv"
    file.write_bytes(content)

    told = CliRunner().invoke(reconcile, [str(file), "--data-dir", str(tmp_path)])

    assert str(told.exception).startswith("The export is not CSV in UTF-8.")


@pytest.mark.parametrize("option", [["--per", "0"], ["--unit", "words"]])
def test_what_cannot_be_compared_is_refused(tmp_path: Path, option: list[str]) -> None:
    file = tmp_path / "usage-export.csv"
    file.write_text("day,credits\n2026-11-01,5\n")

    told = CliRunner().invoke(reconcile, [str(file), "--data-dir", str(tmp_path), *option])

    assert (told.exit_code, f"Invalid value for '{option[0]}'" in told.output) == (2, True)


def test_our_side_is_read_from_the_report_in_the_exports_unit() -> None:
    report = {
        "rows": [
            {"time": "2026-11-01T00:00:00Z", "model": "ink-2", "units": {"audio_in_ms": 1500}},
            {"time": "2026-11-01T00:00:00Z", "model": "ink-whisper", "units": {"audio_in_ms": 500, "requests": 1}},
            {"time": "2026-11-02T00:00:00Z", "model": "ink-2", "units": {"requests": 1}},
        ]
    }
    assert our_usage(report, "audio_in_ms", 1000, has_models=False) == {("2026-11-01", ""): Decimal(2)}
    assert our_usage(report, "audio_in_ms", 1000, has_models=True) == {
        ("2026-11-01", "ink-2"): Decimal("1.5"),
        ("2026-11-01", "ink-whisper"): Decimal("0.5"),
    }
