"""Ask ClickHouse. Degrades alone: without ClickHouse reports are unavailable and everything else goes on.

Each statement is bounded in time, memory and rows. Knows no HTTP. Read next: `api`.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import structlog
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError
from urllib3.exceptions import HTTPError

from control_plane.clickhouse import jobs
from control_plane.clickhouse.connection import ClickHouse, error_code
from control_plane.clickhouse.jobs import Job
from control_plane.reports.question import LARGEST_ANSWER, Question, QuestionRefused
from control_plane.reports.report import Report, report
from control_plane.reports.spans import MOST_GROUPS, SpanQuestion, SummaryOf, span_of, summary_of

_log = structlog.get_logger()

T = TypeVar("T")

_LONGEST_SECONDS = 20
_LIMITS = {"max_execution_time": _LONGEST_SECONDS, "max_memory_usage": 2_000_000_000}
_TOO_MUCH = frozenset({159, 160, 241, 307})  # time, estimated time, memory, bytes: ask for less
_DEFECTS = frozenset({36, 42, 43, 46, 47, 53, 62, 386})  # a statement of ours that ClickHouse does not understand
_AT_ONCE = 4


class ReportsUnavailable(RuntimeError):
    """ClickHouse is not configured, away, or does not have our tables."""


class Reports:
    """Answers questions. clickhouse: None where none is configured."""

    def __init__(self, clickhouse: ClickHouse | None) -> None:
        self._clickhouse = clickhouse
        self._client: Client | None = None
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def usage(self, question: Question) -> Report:
        """Return the report. Raises QuestionRefused if the answer is too large, ReportsUnavailable."""
        statement, parameters = question.statement()
        rows = await self.rows(statement, parameters)
        if len(rows) > LARGEST_ANSWER:
            raise QuestionRefused("by", "The answer is too large. Ask for a shorter time or fewer dimensions.")
        return report(question, rows)

    async def spans(self, question: SpanQuestion, limit: int) -> list[dict[str, Any]]:
        """Return single spans as JSON holds them, newest first. Raises QuestionRefused, ReportsUnavailable."""
        return [span_of(row) for row in await self.rows(*question.search(limit))]

    async def span_summary(
        self, question: SpanQuestion, by: Sequence[str], bucket: str, of: SummaryOf = "exchanges"
    ) -> list[dict[str, Any]]:
        """Return durations by group, as JSON holds them. Raises QuestionRefused, ReportsUnavailable."""
        rows = await self.rows(*question.summary(by, bucket, of))
        if len(rows) > MOST_GROUPS:
            raise QuestionRefused("by", "The answer is too large. Ask for a shorter time or fewer dimensions.")
        return summary_of(rows, by, is_bucketed=bool(bucket))

    async def ask_job(self, job: Job) -> None:
        """Write a job for the aggregators to do. Raises ReportsUnavailable."""
        await self._with_client(lambda client: jobs.write(client, job, time.time_ns(), state="asked"))

    async def jobs(self, workspace: str, job_id: str = "") -> list[Job]:
        """Return a workspace's jobs, the newest first; job_id: only this one. Raises ReportsUnavailable."""
        return await self._with_client(lambda client: jobs.jobs_of(client, workspace, job_id))

    async def rows(self, statement: str, parameters: dict[str, Any]) -> Sequence[Sequence[Any]]:
        """Return the rows of a statement (Any: whatever was selected). Raises QuestionRefused, ReportsUnavailable."""

        def ask(client: Client) -> Sequence[Sequence[Any]]:
            rows: Sequence[Sequence[Any]] = client.query(statement, parameters=parameters, settings=_LIMITS).result_rows
            return rows

        return await self._with_client(ask)

    async def close(self) -> None:
        """Close the connection."""
        client, self._client = self._client, None
        if client is not None:
            await asyncio.to_thread(client.close)

    async def _with_client(self, work: Callable[[Client], T]) -> T:
        async with self._turns:
            return await asyncio.to_thread(self._translated, work)

    def _translated(self, work: Callable[[Client], T]) -> T:
        if self._clickhouse is None:
            raise ReportsUnavailable("ClickHouse is not configured")
        try:
            if self._client is None:
                self._client = self._clickhouse.open(timeout_seconds=_LONGEST_SECONDS + 5)
            return work(self._client)
        except (ClickHouseError, HTTPError, OSError) as error:
            code = error_code(error) if isinstance(error, ClickHouseError) else None
            if code in _TOO_MUCH:
                raise QuestionRefused("from", "The question takes too long to answer. Ask for a shorter time.") from error
            if code in _DEFECTS:
                raise
            _log.warning("report failed", error=type(error).__name__, code=code)
            raise ReportsUnavailable("ClickHouse does not answer") from error
