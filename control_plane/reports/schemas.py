"""What comes in and goes out of the routes for jobs."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from control_plane.clickhouse.jobs import Job
from control_plane.kit.shapes import Answer, Moment, Reference, Shape
from control_plane.reports.question import LONGEST_RANGE, QuestionRefused

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

NOT_ERASED = (
    "spans that were exported to OTLP receivers, or are on their way there",
    "backups",
    "logs of gateways, which hold ids and no content",
)
"""where an erasure does not reach (ADR 0034)"""


class JobAsked(Shape):
    """A job to be done. `reprice` needs `from` and may have `to`; `erase` needs `principal`."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    kind: Literal["reprice", "erase"]
    start: Annotated[datetime | None, Field(alias="from", description="reprice: from this time on")] = None
    end: Annotated[datetime | None, Field(alias="to", description="reprice: before this time; empty: now")] = None
    principal: Annotated[
        Reference | None, Field(description="erase: the id, not the name, of a user or service account, also of one that is gone")
    ] = None

    def job(self, workspace: str, job_id: str, asked_by: str, now: datetime) -> Job:
        """Return the job. Raises QuestionRefused if fields are missing, do not belong, or do not fit."""
        next_second = now.replace(microsecond=0) + timedelta(seconds=1)
        if self.kind == "erase":
            if self.principal is None or self.start is not None or self.end is not None:
                raise QuestionRefused("principal", "An erasure needs `principal`, and no times: it is about all that is stored.")
            return Job(workspace, job_id, "erase", _EPOCH, next_second, self.principal, asked_by, now)
        if self.start is None or self.principal is not None:
            raise QuestionRefused("from", "Re-pricing needs `from`, and no `principal`.")
        start, end = _aware(self.start), next_second if self.end is None else _aware(self.end)
        if not timedelta(0) < end - start <= LONGEST_RANGE or start < _EPOCH:
            raise QuestionRefused("from", f"`from` must be before `to`, by at most {LONGEST_RANGE.days} days.")
        return Job(workspace, job_id, "reprice", start, end, "", asked_by, now)


class JobShown(Answer):
    """A job and how it stands. `counts`: what was done so far; `not_erased`: where an erasure does not reach."""

    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=True)

    id: str
    kind: Literal["reprice", "erase"]
    state: Literal["asked", "running", "done", "failed"]
    start: Annotated[Moment | None, Field(alias="from")] = None
    end: Annotated[Moment, Field(alias="to")]
    principal: str | None = None
    asked_by: str
    asked_at: Moment
    counts: dict[str, int]
    not_erased: tuple[str, ...] = ()

    @classmethod
    def of(cls, job: Job) -> "JobShown":
        """Return the job as it is shown."""
        is_erasure = job.kind == "erase"
        return cls(
            id=job.id,
            kind=job.kind,
            state=job.state,
            start=None if is_erasure else job.start,
            end=job.end,
            principal=job.subject if is_erasure else None,
            asked_by=job.asked_by,
            asked_at=job.asked_at,
            counts=job.detail,
            not_erased=NOT_ERASED if is_erasure else (),
        )


class Jobs(Answer):
    """Jobs, the newest first."""

    items: list[JobShown]


def _aware(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
