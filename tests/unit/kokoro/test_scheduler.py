"""Who speaks next: first sounds first, fairly; then whoever runs dry soonest; cancelled work stops; the queue is bounded."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest

from kokoro_backend.engine import EngineError, Segment, Utterance
from kokoro_backend.scheduler import Job, QueueFull, Scheduler, Session, Stream

STYLE = np.zeros((1, 256), dtype=np.float32)


def utterance(name: int, segments: int = 1) -> Utterance:
    """Return an utterance that the recording engine speaks in `segments` pieces and records under `name`."""
    return Utterance((name,) * segments, STYLE, 1.0)


class RecordingEngine:
    """Holds its first segment until released, then records the order in which segments are made."""

    name = "recording"
    has_timings = False

    def __init__(self) -> None:
        self.order: list[int] = []
        self.is_held = threading.Event()
        self.may_go = threading.Event()
        self.closed: list[int] = []

    def warm_up(self) -> None:
        pass

    def run(self, utterance: Utterance) -> Iterator[Segment]:
        try:
            for token in utterance.tokens:
                if token == 0:
                    self.is_held.set()
                    assert self.may_go.wait(10)
                if token == 666:
                    raise EngineError("broken")
                if token == 667:
                    raise ZeroDivisionError
                self.order.append(token)
                yield Segment(np.zeros(24_000, dtype=np.float32))
        finally:
            self.closed.append(utterance.tokens[0])


@contextmanager
def scheduling(limit: int = 100) -> Iterator[tuple[Scheduler, RecordingEngine]]:
    engine = RecordingEngine()
    scheduler = Scheduler(engine, limit, clock=lambda: 0.0)
    try:
        yield scheduler, engine
    finally:
        engine.may_go.set()
        scheduler.close()


def occupy(scheduler: Scheduler, engine: RecordingEngine) -> Job:
    """Keep the worker busy, so that what is submitted next really waits."""
    job = scheduler.submit(utterance(0), Stream(Session()))
    assert engine.is_held.wait(10)
    return job


def refuses(scheduler: Scheduler) -> bool:
    """Say whether the scheduler takes no more work."""
    try:
        scheduler.submit(utterance(9), Stream(Session())).cancel()
    except QueueFull:
        return True
    return False


async def spoken(job: Job) -> int:
    return len([segment async for segment in job.segments()])


async def test_first_sounds_go_before_the_rest_of_other_streams() -> None:
    with scheduling() as (scheduler, engine):
        busy = occupy(scheduler, engine)
        long_one = scheduler.submit(utterance(1, segments=3), Stream(Session()))
        late_one = scheduler.submit(utterance(2), Stream(Session()))
        engine.may_go.set()
        await asyncio.gather(spoken(busy), spoken(long_one), spoken(late_one))
    assert engine.order == [0, 1, 2, 1, 1]


async def test_a_session_with_many_contexts_gets_no_larger_share_of_first_sounds() -> None:
    with scheduling() as (scheduler, engine):
        busy = occupy(scheduler, engine)
        greedy, modest = Session(), Session()
        jobs = [scheduler.submit(utterance(1), Stream(greedy)) for _ in range(4)]
        jobs += [scheduler.submit(utterance(2), Stream(modest)) for _ in range(2)]
        engine.may_go.set()
        await asyncio.gather(spoken(busy), *(spoken(job) for job in jobs))
    assert engine.order == [0, 1, 2, 1, 2, 1, 1]


async def test_the_stream_that_runs_dry_soonest_goes_first() -> None:
    with scheduling() as (scheduler, engine):
        ahead, behind = Stream(Session(), 0.0, audio_seconds=9.0), Stream(Session(), 0.0, audio_seconds=1.0)
        busy = occupy(scheduler, engine)
        jobs = [scheduler.submit(utterance(1, 2), ahead), scheduler.submit(utterance(2, 2), behind)]
        engine.may_go.set()
        await asyncio.gather(spoken(busy), *(spoken(job) for job in jobs))
    assert engine.order == [0, 2, 2, 1, 1]


async def test_a_cancelled_job_stops_at_the_next_segment_and_its_generator_is_closed() -> None:
    with scheduling() as (scheduler, engine):
        job = scheduler.submit(Utterance((1, 0, 1, 1), STYLE, 1.0), Stream(Session()))
        assert engine.is_held.wait(10)
        job.cancel()
        engine.may_go.set()
        assert await spoken(job) == 2
    assert engine.order == [1, 0]
    assert engine.closed == [1]


async def test_leaving_the_iteration_cancels() -> None:
    with scheduling() as (scheduler, engine):
        job = scheduler.submit(Utterance((1, 0, 1, 1), STYLE, 1.0), Stream(Session()))
        pieces = job.segments()
        await anext(pieces)
        assert engine.is_held.wait(10)
        await pieces.aclose()  # type: ignore[attr-defined]
        engine.may_go.set()
    assert engine.order == [1, 0]


async def test_beyond_the_limit_work_is_refused_and_then_taken_again() -> None:
    with scheduling(limit=2) as (scheduler, engine):
        jobs = [occupy(scheduler, engine), scheduler.submit(utterance(1), Stream(Session()))]
        with pytest.raises(QueueFull):
            scheduler.submit(utterance(2), Stream(Session()))
        engine.may_go.set()
        await asyncio.gather(*(spoken(job) for job in jobs))
        assert await spoken(scheduler.submit(utterance(3), Stream(Session()))) == 1
        assert scheduler.depth == 0


@pytest.mark.parametrize("token", [666, 667])
async def test_an_engine_that_fails_is_heard_of_and_the_next_job_runs(token: int) -> None:
    with scheduling() as (scheduler, _):
        with pytest.raises(EngineError):
            await spoken(scheduler.submit(utterance(token), Stream(Session())))
        assert await spoken(scheduler.submit(utterance(1), Stream(Session()))) == 1


async def test_closing_ends_jobs_that_wait() -> None:
    with scheduling() as (scheduler, engine):
        occupy(scheduler, engine)
        waiting = scheduler.submit(utterance(1), Stream(Session()))
        closing = threading.Thread(target=scheduler.close)
        closing.start()
        async with asyncio.timeout(10):
            while not refuses(scheduler):
                await asyncio.sleep(0)
        engine.may_go.set()
        await asyncio.to_thread(closing.join)
        with pytest.raises(EngineError, match="stopping"):
            await spoken(waiting)


class TogetherEngine(RecordingEngine):
    """Speaks up to four utterances in one run, and notes which were together; 666 breaks every run that it is in."""

    batch_limit = 4

    def __init__(self) -> None:
        super().__init__()
        self.runs: list[list[int]] = []

    def run_batch(self, utterances: Sequence[Utterance]) -> list[Segment]:
        names = [utterance.tokens[0] for utterance in utterances]
        self.runs.append(names)
        if 666 in names:
            raise EngineError("broken")
        return [Segment(np.zeros(24_000 * name, dtype=np.float32), is_last=True) for name in names]


@contextmanager
def batching() -> Iterator[tuple[Scheduler, TogetherEngine]]:
    engine = TogetherEngine()
    scheduler = Scheduler(engine, 100, clock=lambda: 0.0)
    try:
        yield scheduler, engine
    finally:
        engine.may_go.set()
        scheduler.close()


async def test_what_waits_shares_a_run_up_to_the_engines_limit_and_each_gets_its_own_audio() -> None:
    with batching() as (scheduler, engine):
        first = occupy(scheduler, engine)
        jobs = [scheduler.submit(utterance(name), Stream(Session())) for name in (1, 2, 3, 4, 5)]
        engine.may_go.set()
        assert await spoken(first) == 1
        lengths = [[len(segment.audio) // 24_000 async for segment in job.segments()] for job in jobs]
        # The fifth is alone, and alone an utterance of this engine lasts a second.
        assert lengths == [[1], [2], [3], [4], [1]]
        assert engine.runs == [[1, 2, 3, 4]]
        assert engine.order == [0, 5]
        assert scheduler.depth == 0


async def test_first_sounds_are_not_kept_waiting_by_the_rest_of_a_message() -> None:
    with batching() as (scheduler, engine):
        first = occupy(scheduler, engine)
        long = Stream(Session())
        jobs = [scheduler.submit(utterance(name), long) for name in (1, 2)]
        jobs.append(scheduler.submit(utterance(3), Stream(Session())))
        engine.may_go.set()
        for job in (first, *jobs):
            assert await spoken(job) == 1
        assert engine.runs == [[1, 3]]
        assert engine.order == [0, 2]


async def test_a_cancelled_job_takes_no_place_in_a_run() -> None:
    with batching() as (scheduler, engine):
        first = occupy(scheduler, engine)
        jobs = [scheduler.submit(utterance(name), Stream(Session())) for name in (1, 2, 3)]
        jobs[1].cancel()
        engine.may_go.set()
        assert [await spoken(job) for job in (first, *jobs)] == [1, 1, 0, 1]
        assert engine.runs == [[1, 3]]


async def test_an_utterance_that_breaks_a_run_fails_alone() -> None:
    with batching() as (scheduler, engine):
        first = occupy(scheduler, engine)
        jobs = [scheduler.submit(utterance(name), Stream(Session())) for name in (1, 666, 2)]
        engine.may_go.set()
        assert await spoken(first) == 1
        assert await spoken(jobs[0]) == 1
        with pytest.raises(EngineError):
            await spoken(jobs[1])
        assert await spoken(jobs[2]) == 1
        assert scheduler.depth == 0
