"""The routes of reports: `/usage`, `/usage/jobs`, `/spans`. Parameters to a question, answers to JSON or CSV.

Every question is asked for the workspace of the caller's token, and no parameter can name another. Only owners and admins
ask: usage tells what each person did. Read next: `question` and `spans` for what can be asked, `service` for who answers.
"""

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel

from control_plane.kit.http import PROBLEMS, Caller, IdempotencyKey, created, require_admin
from control_plane.kit.problems import Problem, invalid, not_found
from control_plane.kit.unit import Unit
from control_plane.people import service as people
from control_plane.reports import question, spans
from control_plane.reports.question import QuestionRefused
from control_plane.reports.schemas import JobAsked, Jobs, JobShown
from control_plane.reports.service import Reports, ReportsUnavailable

_MOST_VALUES = 100

By = Annotated[str, Query(max_length=500, description="Dimensions, comma-separated")]
From = Annotated[str, Query(alias="from", max_length=40, description="From this date or time on (UTC unless it says otherwise)")]
To = Annotated[str, Query(alias="to", max_length=40, description="Before this date or time; empty: now")]
Bucket = Annotated[str, Query(max_length=10, description="Cut time into pieces; empty: one sum")]


def router_of(reports: Reports) -> APIRouter:
    """Return the routes, to be mounted under `/api/v1`."""
    router = APIRouter(responses=PROBLEMS)

    @router.get("/usage", response_model=None, tags=["usage"], summary="What was used and what it cost")
    async def usage(
        request: Request,
        caller: Caller,
        by: By = "",
        start: From = "",
        end: To = "",
        bucket: Bucket = "",
        form: Annotated[Literal["json", "csv"], Query(alias="format", description="`csv` for spreadsheets")] = "json",
    ) -> Response | dict[str, Any]:  # Any: the report's own JSON
        """Dimensions: user, team, account, provider, model, operation, kind, endpoint, exchange, token, pod, outcome and
        metadata.<key>; each is a filter as well: `model=sonic-3&team=voice`, a name given twice takes either value.
        Buckets: 5m, hour, day, month. Without `from`, the last 30 days.

        Amounts are decimal texts by currency; `unpriced` is the part of `units` that no price was found for. Usage shows
        about a second after it was published; a long session's at least every 15 s.
        """
        require_admin(caller.actor)
        async with _answering():
            asked = question.question(
                caller.workspace,
                by=_names(by),
                bucket=bucket,
                start=start,
                end=end,
                filters=_filters(request, {"by", "from", "to", "bucket", "format"}),
                now=datetime.now(UTC),
            )
            answer = await reports.usage(asked)
        if form == "json":
            return answer.as_json()
        name = f"usage-{asked.start:%Y%m%d}-{asked.end:%Y%m%d}.csv"
        disposition = {"Content-Disposition": f'attachment; filename="{name}"'}
        return Response(answer.as_csv(), media_type="text/csv; charset=utf-8", headers=disposition)

    @router.get("/spans", response_model=None, tags=["spans"], summary="Find spans, the newest first")
    async def find_spans(
        request: Request,
        caller: Caller,
        start: From = "",
        end: To = "",
        errors: Annotated[bool, Query(description="Only spans that failed")] = False,
        min_ms: Annotated[float, Query(ge=0, le=1e9, description="Only spans that took at least so long")] = 0,
        limit: Annotated[int, Query(ge=1, le=spans.MOST_SPANS, description="How many at most")] = 100,
    ) -> dict[str, Any]:  # Any: spans as JSON
        """Filters: exchange, trace, name, kind, pod, user, team, account, provider, model, voice, operation, endpoint,
        outcome, reason, status and `attribute.<name>`. Without `from`, the last 24 hours. For older spans than those of an
        answer, ask again with `to` set to the last one's `start`.
        """
        require_admin(caller.actor)
        async with _answering():
            asked = spans.span_question(
                caller.workspace,
                start=start,
                end=end,
                filters=_filters(request, {"from", "to", "errors", "min_ms", "limit"}),
                only_errors=errors,
                least_ms=min_ms,
                now=datetime.now(UTC),
            )
            return {"items": await reports.spans(asked, limit)}

    @router.get("/spans/summary", response_model=None, tags=["spans"], summary="Durations and times to first audio")
    async def summarise_spans(
        request: Request,
        caller: Caller,
        by: By = "",
        start: From = "",
        end: To = "",
        bucket: Bucket = "",
        of: Annotated[spans.SummaryOf, Query(description="Whole exchanges, or contexts of multiplexed sockets")] = "exchanges",
        errors: Annotated[bool, Query(description="Only those that failed")] = False,
    ) -> dict[str, Any]:  # Any: groups as JSON
        """By any of the filters of `/spans`, in buckets of minute, 5m or hour."""
        require_admin(caller.actor)
        async with _answering():
            asked = spans.span_question(
                caller.workspace,
                start=start,
                end=end,
                filters=_filters(request, {"by", "from", "to", "bucket", "of", "errors"}),
                only_errors=errors,
                least_ms=0,
                now=datetime.now(UTC),
            )
            return {"rows": await reports.span_summary(asked, _names(by), bucket, of)}

    @router.post(
        "/usage/jobs", status_code=202, response_model=JobShown, tags=["usage"], summary="Price a time anew, or erase a subject"
    )
    async def ask_job(caller: Caller, request: Request, asked: JobAsked, idempotency_key: IdempotencyKey = None) -> Response:
        """`reprice`: price the usage from `from` to `to` by today's price book. `erase`: take a principal's name out of
        what was stored so far; what was used stays in the sums as that of `erased`. An aggregator does it in the
        background: follow `/usage/jobs/<id>`.
        """
        require_admin(caller.actor)

        async def make(unit: Unit) -> tuple[BaseModel, None, str]:
            async with _answering():
                job = asked.job(caller.workspace, unit.new_id(), caller.actor.id, unit.now)
                if job.kind == "erase":
                    await people.check_is_id(unit.connection, "principal", job.subject)
                await reports.ask_job(job)
            shown = JobShown.of(job)
            unit.record("create", "usage_job", job.id, job.kind, after=shown.model_dump(mode="json", by_alias=True))
            return shown, None, f"/api/v1/usage/jobs/{job.id}"

        return await created(caller, request, idempotency_key, make, status=202)

    @router.get("/usage/jobs", tags=["usage"], summary="List jobs, the newest first")
    async def list_jobs(caller: Caller) -> Jobs:
        """Return what was asked for in the last two years, 200 at most."""
        require_admin(caller.actor)
        async with _answering():
            return Jobs(items=[JobShown.of(job) for job in await reports.jobs(caller.workspace)])

    @router.get("/usage/jobs/{job}", tags=["usage"], summary="Show how a job stands")
    async def show_job(caller: Caller, job: Annotated[str, Path(max_length=100)]) -> JobShown:
        """Return one job."""
        require_admin(caller.actor)
        async with _answering():
            found = await reports.jobs(caller.workspace, job)
        if not found:
            raise not_found("job", job)
        return JobShown.of(found[0])

    return router


@asynccontextmanager
async def _answering() -> AsyncIterator[None]:
    """Turn refusals of questions, and an absence of ClickHouse, into problems."""
    try:
        yield
    except QuestionRefused as refused:
        raise invalid(refused.field, str(refused)) from refused
    except ReportsUnavailable as unavailable:
        raise Problem("reports_unavailable", headers={"Retry-After": "5"}) from unavailable


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _filters(request: Request, parameters: Collection[str]) -> dict[str, list[str]]:
    """Every query parameter that is not one of ours is a filter; the question refuses what is no dimension."""
    filters: dict[str, list[str]] = {}
    for name, value in request.query_params.multi_items():
        if name not in parameters:
            filters.setdefault(name, []).append(value)
    for name, values in filters.items():
        if len(values) > _MOST_VALUES:
            raise invalid(name, f"Name {_MOST_VALUES} values at most.")
    return filters
