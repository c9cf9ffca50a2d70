"""chDB as a server's engine: a handle a request, named sessions, results piece by piece. Blocking; no HTTP in here.

Facts about chDB 26.9 (each seen by running): USE, SET and temporary tables belong to a handle, and opening one takes
half a millisecond; a streaming query must be cancelled before its handle is closed; only SELECT can be streamed; every
piece of a streamed result is a document of its own, so that only formats without head and foot may be streamed;
tearing the engine down can crash, so the process leaves with `os._exit`.
"""

from __future__ import annotations

import importlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

from glottis.clickhouse.statement import InlineInsert, first_word, output_format

# Any: an extension module that ships no types.
_chdb: Any = importlib.import_module("chdb._chdb")

# Formats whose pieces, one after the other, are a whole: no head, no foot.
_STREAMED_FORMATS: Final = frozenset({"Native", "TabSeparated", "TSV", "CSV", "RowBinary", "JSONEachRow", "JSONCompactEachRow"})
_SETTING_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_ERROR_CODE: Final = re.compile(r"Code: (\d+)\. ")
_PIECE_BYTES: Final = 1024 * 1024

UNKNOWN_SETTING: Final = 115
READ_ONLY: Final = 164
SESSION_NOT_FOUND: Final = 372
SESSION_IS_LOCKED: Final = 373
SYNTAX_ERROR: Final = 62
UNKNOWN_EXCEPTION: Final = 1002


class QueryFault(Exception):
    """A query that failed: code: ClickHouse's error code; text: `Code: 60. DB::Exception: … (UNKNOWN_TABLE)`."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text

    @classmethod
    def named(cls, code: int, name: str, sentence: str) -> QueryFault:
        return cls(code, f"Code: {code}. DB::Exception: {sentence}. ({name})")


@dataclass(frozen=True, slots=True)
class ExternalTable:
    """A temporary table that a request brings along."""

    name: str
    structure: str
    format: str
    data: BinaryIO


@dataclass(frozen=True, slots=True)
class Query:
    """One request. sql: the statement (for an insert its head only counts); data: the rows of an insert."""

    sql: bytes
    insert: InlineInsert | None = None
    data: BinaryIO | None = None
    database: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    tables: tuple[ExternalTable, ...] = ()
    default_format: str = "TabSeparated"
    session_id: str = ""
    session_timeout_seconds: float = 60.0
    session_must_exist: bool = False
    is_read_only: bool = False
    may_stream: bool = True


class Running:
    """A query under way: format: of the result, None if the statement has none; summary: what it read and wrote.

    `next_piece` gives the result bit by bit; `close` must be called, at any time and from any thread.
    """

    def __init__(
        self,
        format: str | None,
        summary: Mapping[str, int],
        next_piece: Callable[[], bytes | None],
        close: Callable[[], None],
    ) -> None:
        self.format = format
        self.summary = summary
        self._next_piece = next_piece
        self._close = close
        self._lock = threading.Lock()
        self._is_closed = False

    def next_piece(self) -> bytes | None:
        """Return the next bytes of the result, None at its end. Raises QueryFault."""
        with self._lock:
            return None if self._is_closed else self._next_piece()

    def close(self) -> None:
        """Cancel what still runs and give the handle back; waits for a `next_piece` under way."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._close()


class _Session:
    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.lock = threading.Lock()
        self.expires_at = 0.0


class Engine:
    """The engine over one data folder; safe to use from many threads."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        _chdb.set_signal_handlers_enabled(False)
        self._folder = str(folder)
        self._clock = clock
        self._sessions: dict[str, _Session] = {}
        self._sessions_lock = threading.Lock()
        self._root = _chdb.connect(self._folder)  # keeps the engine open between requests
        self.version = self._scalar("SELECT version()")
        self.timezone = self._scalar("SELECT timezone()")

    def start(self, query: Query) -> Running:
        """Run a query up to its first bytes. Raises QueryFault; then nothing is left to close."""
        handle, give_back = self._lease(query)
        undo: list[str] = []

        def close() -> None:
            try:
                for statement in undo:
                    handle.query(statement, "Null")
            finally:
                give_back()

        try:
            with _engine_faults():
                self._arrange(handle, query, undo)
                if query.insert is not None:
                    return self._insert(handle, query, query.insert, close)
                return self._select(handle, query, close)
        except BaseException:
            close()
            raise

    def _lease(self, query: Query) -> tuple[Any, Callable[[], None]]:
        # A handle of the engine and what gives it back. Any: the library has no types.
        if not query.session_id:
            handle = _chdb.connect(self._folder)
            return handle, handle.close
        with self._sessions_lock:
            self._forget_idle_sessions()
            session = self._sessions.get(query.session_id)
            if session is None:
                if query.session_must_exist:
                    raise QueryFault.named(SESSION_NOT_FOUND, "SESSION_NOT_FOUND", f"Session {query.session_id} not found")
                session = self._sessions[query.session_id] = _Session(_chdb.connect(self._folder))
            if not session.lock.acquire(blocking=False):
                raise QueryFault.named(
                    SESSION_IS_LOCKED,
                    "SESSION_IS_LOCKED",
                    f"Session {query.session_id} is locked by a concurrent client",
                )
        leased = session

        def give_back() -> None:
            leased.expires_at = self._clock() + query.session_timeout_seconds
            leased.lock.release()

        return session.handle, give_back

    def _forget_idle_sessions(self) -> None:
        now = self._clock()
        for name, session in list(self._sessions.items()):
            if session.expires_at < now and session.lock.acquire(blocking=False):
                del self._sessions[name]
                session.handle.close()

    def _arrange(self, handle: Any, query: Query, undo: list[str]) -> None:
        # Database, settings and tables of the request; `undo` collects what a session must not keep.
        if query.database:
            handle.query(f"USE {_identifier(query.database)}", "Null")
        for name in query.settings:
            if not _SETTING_NAME.fullmatch(name):
                raise QueryFault.named(UNKNOWN_SETTING, "UNKNOWN_SETTING", f"Unknown setting {name!r}")
        if query.settings:
            if query.session_id:
                undo += self._settings_now(handle, query.settings)
            values = ", ".join(f"{name} = {_literal(value)}" for name, value in query.settings.items())
            handle.query(f"SET {values}", "Null")
        for table in query.tables:
            name = _identifier(table.name)
            handle.query(f"CREATE TEMPORARY TABLE {name} ({table.structure})", "Null")
            undo.append(f"DROP TEMPORARY TABLE IF EXISTS {name}")
            self._append(handle, f"INSERT INTO {name}", table.format, table.data)

    def _settings_now(self, handle: Any, settings: Mapping[str, str]) -> list[str]:
        names = ", ".join(_literal(name) for name in settings)
        rows = handle.query(f"SELECT name, value, changed FROM system.settings WHERE name IN ({names})", "JSONCompactEachRow")
        return [
            f"SET {name} = {_literal(value) if is_changed else 'DEFAULT'}"
            for name, value, is_changed in map(json.loads, rows.bytes().splitlines())
        ]

    def _append(self, handle: Any, head: str, format: str, data: BinaryIO | None) -> Any:
        stream = handle.send_insert(head, format)
        try:
            while data is not None and (piece := data.read(_PIECE_BYTES)):
                handle.insert_append(stream, piece)
        except BaseException:
            handle.insert_cancel(stream)
            raise
        return handle.insert_done(stream)

    def _insert(self, handle: Any, query: Query, insert: InlineInsert, close: Callable[[], None]) -> Running:
        if query.is_read_only:
            raise QueryFault.named(READ_ONLY, "READONLY", "Cannot execute query in readonly mode")
        done = self._append(handle, insert.head, insert.format, query.data)
        return Running(None, _summary(done), lambda: None, close)

    def _select(self, handle: Any, query: Query, close: Callable[[], None]) -> Running:
        sql = query.sql.decode("utf-8", "surrogateescape")
        facts = handle.classify_query(sql)
        if facts["statement_count"] > 1:
            raise QueryFault.named(SYNTAX_ERROR, "SYNTAX_ERROR", "Syntax error: Multi-statements are not allowed")
        is_read = facts["query_class"] == _chdb.query_class.READ_ONLY
        if query.is_read_only and not is_read:
            raise QueryFault.named(READ_ONLY, "READONLY", "Cannot execute query in readonly mode")
        format = output_format(query.sql) or query.default_format
        is_streamed = query.may_stream and is_read and format in _STREAMED_FORMATS
        if is_streamed and first_word(query.sql) in ("SELECT", "WITH"):
            return self._stream(handle, sql, format, query.parameters, close)
        result = handle.query(sql, format, params=dict(query.parameters))
        pieces = iter([result.bytes() or b""])
        return Running(format if is_read or result.size() else None, _summary(result), lambda: next(pieces, None), close)

    def _stream(self, handle: Any, sql: str, format: str, parameters: Mapping[str, str], close: Callable[[], None]) -> Running:
        stream = handle.send_query(sql, format, params=dict(parameters))

        def cancel() -> None:
            try:
                handle.streaming_cancel_query(stream)
            finally:
                close()

        def fetch() -> bytes | None:
            with _engine_faults():
                while (piece := handle.streaming_fetch_result(stream)) is not None:
                    if piece.has_error():
                        raise RuntimeError(piece.error_message())
                    if content := piece.bytes():
                        return bytes(content)
                    if not piece.rows_read():
                        break
            return None

        try:
            # The first piece is fetched at once: a fault before it still gets a status of its own.
            ready = [fetch()]
        except BaseException:
            handle.streaming_cancel_query(stream)
            raise
        return Running(format, {}, lambda: ready.pop() if ready else fetch(), cancel)

    def _scalar(self, sql: str) -> str:
        answer: str = self._root.query(sql, "TabSeparated").bytes().decode().strip()
        return answer


def _summary(result: Any) -> dict[str, int]:
    return {
        "read_rows": result.rows_read(),
        "read_bytes": result.bytes_read(),
        "written_rows": result.rows_written(),
        "written_bytes": result.bytes_written(),
    }


@contextmanager
def _engine_faults() -> Iterator[None]:
    # The library raises RuntimeError with ClickHouse's own text, sometimes with words before it.
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        match = _ERROR_CODE.search(text)
        if match is None:
            raise QueryFault.named(UNKNOWN_EXCEPTION, "UNKNOWN_EXCEPTION", "The engine failed") from error
        raise QueryFault(int(match[1]), text[match.start() :].strip()) from error


def _identifier(name: str) -> str:
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def _literal(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
