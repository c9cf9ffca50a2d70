"""Jobs: what an admin asks of the aggregators, through the table `jobs`. Blocks.

A job may be done twice (its worker died, or two took it at once): doing it again changes nothing. Read next:
`control_plane.aggregator.jobs`, which does them; `control_plane.reports`, which asks.
"""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

from clickhouse_connect.driver.client import Client

JobKind: TypeAlias = Literal["reprice", "erase"]
JobState: TypeAlias = Literal["asked", "running", "done", "failed"]

_COLUMNS = ("workspace", "id", "kind", "start", "end", "subject", "asked_by", "asked_at", "state", "detail", "version")
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM jobs FINAL"
_LONGEST_LIST = 200


@dataclass(frozen=True)
class Job:
    """start (inclusive), end (exclusive): the time that is meant; subject: of an erasure; detail: counts of what was done."""

    workspace: str
    id: str
    kind: JobKind
    start: datetime
    end: datetime
    subject: str
    asked_by: str
    asked_at: datetime
    state: JobState = "asked"
    detail: dict[str, int] = field(default_factory=dict)
    version: int = 0
    """when it was written last, Unix nanoseconds"""


def write(client: Client, job: Job, now_ns: int, *, state: JobState, detail: dict[str, int] | None = None) -> Job:
    """Write a job in a new state, and return it as written."""
    written = replace(job, state=state, detail=job.detail if detail is None else detail, version=max(now_ns, job.version + 1))
    client.insert("jobs", [[getattr(written, name) for name in _COLUMNS]], column_names=_COLUMNS)
    return written


def open_jobs(client: Client) -> list[Job]:
    """Return the jobs of all workspaces that are to be done, the oldest first."""
    return _jobs(client, f"{_SELECT} WHERE state IN ('asked', 'running') ORDER BY asked_at, id", {})


def erasures(client: Client) -> list[Job]:
    """Return every erasure that was ever asked for, of all workspaces."""
    return _jobs(client, f"{_SELECT} WHERE kind = 'erase'", {})


def jobs_of(client: Client, workspace: str, job_id: str = "") -> list[Job]:
    """Return a workspace's jobs, the newest first; job_id: only this one."""
    only = " AND id = {id:String}" if job_id else ""
    statement = f"{_SELECT} WHERE workspace = {{workspace:String}}{only} ORDER BY asked_at DESC LIMIT {_LONGEST_LIST}"
    return _jobs(client, statement, {"workspace": workspace, "id": job_id})


def _jobs(client: Client, statement: str, parameters: dict[str, Any]) -> list[Job]:
    rows = client.query(statement, parameters=parameters).result_rows
    return [_job(dict(zip(_COLUMNS, row, strict=True))) for row in rows]


def _job(fields: dict[str, Any]) -> Job:
    times = {name: fields[name].replace(tzinfo=UTC) for name in ("start", "end", "asked_at")}  # ClickHouse gives naive UTC
    return Job(**{**fields, **times, "detail": {name: int(count) for name, count in fields["detail"].items()}})
