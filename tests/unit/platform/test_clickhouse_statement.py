"""Where a request's SQL ends and its data begins, and which format it asks for."""

from __future__ import annotations

import pytest

from glottis.clickhouse.statement import InlineInsert, first_word, inline_insert, output_format


@pytest.mark.parametrize(
    ("sql", "split"),
    [
        (b"INSERT INTO t (a, b) FORMAT Native\nDATA", InlineInsert("INSERT INTO t (a, b) ", "Native", 35)),
        (b"insert into t format CSV 1,2", InlineInsert("insert into t ", "CSV", 25)),
        (b"INSERT INTO t FORMAT CSV\r\n1,2", InlineInsert("INSERT INTO t ", "CSV", 26)),
        (
            b"INSERT INTO t SETTINGS async_insert=1 FORMAT JSONEachRow\n{}",
            InlineInsert("INSERT INTO t SETTINGS async_insert=1 ", "JSONEachRow", 57),
        ),
        (
            b"/* FORMAT X */ INSERT INTO t -- FORMAT Y\nFORMAT CSV\n1",
            InlineInsert("/* FORMAT X */ INSERT INTO t -- FORMAT Y\n", "CSV", 52),
        ),
        (
            b'INSERT INTO t (`FORMAT`, "format", format) FORMAT CSV\n1',
            InlineInsert('INSERT INTO t (`FORMAT`, "format", format) ', "CSV", 54),
        ),
        (b"INSERT INTO t FORMAT CSV\n\n1", InlineInsert("INSERT INTO t ", "CSV", 25)),
        (b"INSERT INTO t VALUES ('FORMAT it')", None),
        (b"INSERT INTO t SELECT 1 FORMAT Native", None),
        (b"INSERT INTO t WITH x AS (SELECT 1) SELECT * FROM x", None),
        (b"INSERT INTO t FORMAT", None),
        (b"INSERT INTO t FORMAT 'CSV'", None),
        (b"SELECT 1 FORMAT CSV", None),
        (b"", None),
        (b"\x00\xff'", None),
    ],
)
def test_an_insert_is_split_at_its_format(sql: bytes, split: InlineInsert | None) -> None:
    assert inline_insert(sql) == split


@pytest.mark.parametrize(
    ("sql", "format"),
    [
        (b"SELECT 1 FORMAT Native", "Native"),
        (b"SELECT 1\n FORMAT Native", "Native"),
        (b"SELECT 1 format JSON;", "JSON"),
        (b"SELECT 1 FORMAT CSV SETTINGS max_threads = 1", "CSV"),
        (b"SELECT format FROM t", None),
        (b"SELECT format FROM t FORMAT Native", "Native"),
        (b"SELECT 'FORMAT CSV'", None),
        (b"SELECT (SELECT 1 FORMAT CSV)", None),
        (b"SELECT 1 -- FORMAT CSV", None),
        (b"", None),
    ],
)
def test_the_format_is_the_one_at_the_end(sql: bytes, format: str | None) -> None:
    assert output_format(sql) == format


@pytest.mark.parametrize(
    ("sql", "word"),
    [(b"  select 1", "SELECT"), (b"-- x\n/* y */ (WITH a AS (SELECT 1) SELECT 2)", "WITH"), (b"1", ""), (b"", "")],
)
def test_the_first_word_is_found_behind_comments_and_brackets(sql: bytes, word: str) -> None:
    assert first_word(sql) == word
