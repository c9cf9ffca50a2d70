"""Do the jobs that admins ask for: re-price a time, erase a subject (ADR 0034).

Both end in the same recomputation as a new event, and both can be done twice. An erasure waits until every aggregator
has surely heard of it, so that none stores the subject behind its back; a workspace's jobs are done one after another, so
that none writes back what another one has changed meanwhile. Blocks, but for the loops.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog

from control_plane.aggregator.erasures import ERASED, Erasures
from control_plane.aggregator.intake import STORE_FAULTS
from control_plane.aggregator.prices import Prices
from control_plane.aggregator.pricing import PriceIndex
from control_plane.aggregator.rows import USAGE_COLUMNS, Row
from control_plane.aggregator.store import Store
from control_plane.clickhouse import jobs
from control_plane.clickhouse.connection import ClickHouse
from control_plane.clickhouse.jobs import Job

_log = structlog.get_logger()

POLL_SECONDS = 2.0
_HEARD_BY_ALL_SECONDS = 3 * POLL_SECONDS
_TAKEN_BY_ANOTHER_NS = 60_000_000_000
"""a running job that nobody wrote to for this long is taken over"""
_BOTH_HAVE_WRITTEN_SECONDS = 0.5
_SLOTS_AT_ONCE = 50

_IN_TIME = "workspace = {workspace:String} AND slot >= {start:DateTime('UTC')} AND slot < {end:DateTime('UTC')}"
_SLOTS = f"SELECT DISTINCT slot FROM usage_events WHERE {_IN_TIME} ORDER BY slot"
_EVENTS = (
    f"SELECT {', '.join(USAGE_COLUMNS)} FROM usage_events FINAL"
    " WHERE workspace = {workspace:String} AND slot IN {slots:Array(DateTime('UTC'))}"
)
_SUBJECT = "workspace = {workspace:String} AND principal = {subject:String}"
_SLOTS_OF_SUBJECT = f"SELECT DISTINCT slot FROM usage_rollups WHERE {_SUBJECT} AND slot < {{end:DateTime('UTC')}} ORDER BY slot"
_COUNT_EVENTS = f"SELECT count() FROM usage_events FINAL WHERE {_SUBJECT} AND at < {{end:DateTime('UTC')}}"
_FORGET_EVENTS = (
    f"ALTER TABLE usage_events UPDATE principal = '{ERASED}', principal_name = '', token = '', metadata = map()"
    f" WHERE {_SUBJECT} AND at < {{end:DateTime('UTC')}}"
)
# Only of older generations: the subject may have been active again since, and a job may be done twice.
_FORGET_ROLLUPS = (
    f"DELETE FROM usage_rollups WHERE {_SUBJECT} AND slot IN {{slots:Array(DateTime('UTC'))}} AND version < {{version:UInt64}}"
)
_EXCHANGES = (
    "SELECT DISTINCT request_id FROM spans WHERE workspace = {workspace:String}"
    " AND attributes['glottis.principal.id'] = {subject:String} AND start < {end:DateTime('UTC')}"
)
_COUNT_SPANS = f"SELECT count() FROM spans FINAL WHERE workspace = {{workspace:String}} AND request_id IN ({_EXCHANGES})"
_FORGET_SPANS = f"DELETE FROM spans WHERE workspace = {{workspace:String}} AND request_id IN ({_EXCHANGES})"
_FORGET_ASIDE = (
    "DELETE FROM set_aside WHERE endsWith(subject, concat('.', {workspace:String})) AND position(payload, {subject:String}) > 0"
)
_WAIT_FOR_MUTATION = {"mutations_sync": 2, "lightweight_deletes_sync": 2}


@dataclass(frozen=True)
class _Stored:
    """What decides the price of a stored event."""

    workspace: str
    provider: str
    account: str
    model: str
    operation: str
    endpoint: str


class Jobs:
    """The jobs of all workspaces, looked for every few seconds; `erasures` is what to apply to new events."""

    def __init__(self, clickhouse: ClickHouse, prices: Prices) -> None:
        self.erasures = Erasures({})
        self.known = asyncio.Event()
        """set once the erasures have been read: nothing may be stored before"""
        self._clickhouse = clickhouse
        self._prices = prices
        self._store = Store(clickhouse)
        self._ears = Store(clickhouse)

    async def listen(self) -> None:
        """Hear of erasures, for ever; also while a job is done, which may take long."""
        while True:
            try:
                asked = await asyncio.to_thread(lambda: jobs.erasures(self._ears.client()))
            except STORE_FAULTS as error:
                _log.warning("cannot look for erasures, will retry", error=type(error).__name__)
            else:
                self.erasures = Erasures({(job.workspace, job.subject): _milliseconds(job.end) for job in _newest_last(asked)})
                self.known.set()
            await asyncio.sleep(POLL_SECONDS)

    async def work(self) -> None:
        """Look for jobs and do them, for ever."""
        await self.known.wait()
        await self._prices.known.wait()
        while True:
            try:
                job = await asyncio.to_thread(self.next_job)
                if job is not None:
                    await asyncio.to_thread(self._do, job)
            except STORE_FAULTS as error:
                _log.warning("cannot look for jobs, will retry", error=type(error).__name__)
            await asyncio.sleep(POLL_SECONDS)

    def next_job(self) -> Job | None:
        """Return the first job that nobody does, of a workspace in which no older one is open."""
        now = datetime.now(UTC)
        seen: set[str] = set()
        for job in jobs.open_jobs(self._store.client()):
            if job.workspace in seen:
                continue
            seen.add(job.workspace)
            is_heard = job.kind != "erase" or now - job.asked_at > timedelta(seconds=_HEARD_BY_ALL_SECONDS)
            is_free = job.state == "asked" or time.time_ns() - job.version > _TAKEN_BY_ANOTHER_NS
            if is_heard and is_free:
                return job
        return None

    def _do(self, job: Job) -> None:
        client = self._store.client()
        job = jobs.write(client, job, time.time_ns(), state="running")
        time.sleep(_BOTH_HAVE_WRITTEN_SECONDS)
        if [one.version for one in jobs.jobs_of(client, job.workspace, job.id)] != [job.version]:
            return  # another aggregator took it at the same moment, and wrote last
        _log.info("job begun", job=job.id, kind=job.kind, workspace=job.workspace)

        def progress(detail: dict[str, int]) -> None:
            jobs.write(client, job, time.time_ns(), state="running", detail=detail)

        try:
            detail = (
                reprice(self._store, job, self._prices.current, progress)
                if job.kind == "reprice"
                else erase(self._store, job, progress)
            )
        except STORE_FAULTS:
            raise  # taken up again in a while
        except Exception:  # an edge: one job must not end the loop, nor come back for ever
            _log.exception("job failed", job=job.id, kind=job.kind, workspace=job.workspace)
            jobs.write(client, job, time.time_ns(), state="failed")
            return
        jobs.write(client, job, time.time_ns(), state="done", detail=detail)
        _log.info("job done", job=job.id, kind=job.kind, workspace=job.workspace, **detail)


def reprice(store: Store, job: Job, prices: PriceIndex, progress: Callable[[dict[str, int]], None]) -> dict[str, int]:
    """Price the events of a time anew and recompute their slots; return counts of events seen and of those that changed."""
    client = store.client()
    parameters = {"workspace": job.workspace, "start": job.start, "end": job.end}
    slots = [slot for (slot,) in client.query(_SLOTS, parameters=parameters).result_rows]
    detail = {"slots": len(slots), "events": 0, "changed": 0, "price_revision": prices.revision}
    for some in _some(slots):
        changed = 0
        with client.query_row_block_stream(_EVENTS, parameters={"workspace": job.workspace, "slots": some}) as blocks:
            for block in blocks:
                rows = [row for row in (_repriced(list(row), prices) for row in block) if row is not None]
                detail["events"] += len(block)
                changed += len(rows)
                if rows:
                    store.insert_usage(rows)
        if changed:
            store.recompute((job.workspace, slot) for slot in some)
        detail["changed"] += changed
        progress(detail)
    return detail


def erase(store: Store, job: Job, progress: Callable[[dict[str, int]], None]) -> dict[str, int]:
    """Take a subject's name from its usage, and its spans away; return counts.

    The slots are found in the rollups, which lose the subject last: a job that broke off finds them again.
    """
    client = store.client()
    parameters: dict[str, Any] = {"workspace": job.workspace, "subject": job.subject, "end": job.end}
    detail = {
        "events": int(client.query(_COUNT_EVENTS, parameters=parameters).result_rows[0][0]),
        "spans": int(client.query(_COUNT_SPANS, parameters=parameters).result_rows[0][0]),
    }
    client.command(_FORGET_EVENTS, parameters=parameters, settings=_WAIT_FOR_MUTATION)
    client.command(_FORGET_SPANS, parameters=parameters, settings=_WAIT_FOR_MUTATION)
    client.command(_FORGET_ASIDE, parameters=parameters, settings=_WAIT_FOR_MUTATION)
    slots = [slot for (slot,) in client.query(_SLOTS_OF_SUBJECT, parameters=parameters).result_rows]
    for some in _some(slots):
        version = store.recompute((job.workspace, slot) for slot in some)
        older = {**parameters, "slots": some, "version": version}
        client.command(_FORGET_ROLLUPS, parameters=older, settings=_WAIT_FOR_MUTATION)
        progress(detail)
    return detail


def _repriced(row: Row, prices: PriceIndex) -> Row | None:
    """Return the row with what it costs now; None if that is what it says already."""
    fields = dict(zip(USAGE_COLUMNS, row, strict=True))
    at_ms = _milliseconds(fields["at"].replace(tzinfo=UTC))
    to = _Stored(*(fields[name] for name in ("workspace", "provider", "account", "model", "operation", "endpoint")))
    priced = prices.priced(to, fields["units"], at_ms)
    if priced.costs == fields["costs"] and priced.currencies == fields["currencies"]:
        return None
    times = {name: fields[name].replace(tzinfo=UTC) for name in ("slot", "at")}
    prices_now = {"costs": priced.costs, "currencies": priced.currencies, "price_revision": priced.revision}
    return [*(fields | times | prices_now).values()]


def _some(slots: list[datetime]) -> Iterator[list[datetime]]:
    for first in range(0, len(slots), _SLOTS_AT_ONCE):
        yield [slot.replace(tzinfo=UTC) for slot in slots[first : first + _SLOTS_AT_ONCE]]


def _newest_last(asked: Iterable[Job]) -> list[Job]:
    return sorted(asked, key=lambda job: job.end)


def _milliseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1000 + 0.5)
