"""Where the SQL of a request ends and its data begins, and what format either has. No I/O, no engine.

ClickHouse's HTTP interface takes `INSERT INTO t FORMAT x` and the data in one body. Words inside quotes, comments and
brackets do not count, so the text is read token by token, as far as the answer needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_TOKEN: Final = re.compile(
    rb"""(?P<space>\s+|--[^\n]*|\#[ !][^\n]*|/\*.*?\*/)
       |(?P<quoted>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|`(?:[^`\\]|\\.|``)*`)
       |(?P<word>[A-Za-z_]\w*)
       |(?P<opening>[(\[{])
       |(?P<closing>[)\]}])
       |(?P<other>.)""",
    re.DOTALL | re.VERBOSE,
)
# ClickHouse's ParserInsertQuery: "Data starts after the first newline, if there was one, after all the whitespace
# characters, otherwise."
_BEFORE_DATA: Final = re.compile(rb"[ \t\f]*\r?\n?")
# An INSERT whose rows are in the SQL itself, or come from elsewhere.
_OWN_ROWS: Final = frozenset({b"SELECT", b"WITH", b"VALUES", b"FROM", b"WATCH"})


@dataclass(frozen=True, slots=True)
class InlineInsert:
    """`INSERT … FORMAT x` with its data behind it; head: the SQL before FORMAT; data_offset: where the data begins."""

    head: str
    format: str
    data_offset: int


def first_word(sql: bytes) -> str:
    """Return the statement's first word in capitals, "" if there is none."""
    for kind, token, _ in _tokens(sql):
        if kind == "word":
            return token.upper().decode()
        if kind != "opening":
            break
    return ""


def inline_insert(sql: bytes) -> InlineInsert | None:
    """Return how an INSERT with data in the body splits, None for every other statement.

    sql: the beginning of a body at least; what comes behind the format's name is not looked at.
    """
    if first_word(sql) != "INSERT":
        return None
    format_at: int | None = None
    depth = 0
    for kind, token, offset in _tokens(sql):
        if format_at is not None:
            if kind != "word":
                return None
            head = sql[:format_at].decode("utf-8", "surrogateescape")
            before_data = _BEFORE_DATA.match(sql, offset + len(token))
            data_offset = before_data.end() if before_data else offset + len(token)
            return InlineInsert(head, token.decode(), data_offset)
        depth += (kind == "opening") - (kind == "closing")
        if kind == "word" and depth == 0:
            if token.upper() in _OWN_ROWS:
                return None
            if token.upper() == b"FORMAT":
                format_at = offset
    return None


def output_format(sql: bytes) -> str | None:
    """Return the format that a statement asks for itself (`… FORMAT Native`), None if it leaves that to the request."""
    found: str | None = None
    depth = 0
    previous = b""
    for kind, token, _ in _tokens(sql):
        depth += (kind == "opening") - (kind == "closing")
        if found is not None and token != b";" and token.upper() != b"SETTINGS":
            found = None  # a column that is called `format`
        elif found is not None:
            return found
        if kind == "word" and depth == 0 and previous == b"FORMAT":
            found = token.decode()
        previous = token.upper() if kind == "word" and depth == 0 else b""
    return found


def _tokens(sql: bytes) -> Iterator[tuple[str, bytes, int]]:
    # Kind, text and offset of each token but spaces and comments.
    for match in _TOKEN.finditer(sql):
        kind = match.lastgroup
        if kind is not None and kind != "space":
            yield kind, match.group(), match.start()
