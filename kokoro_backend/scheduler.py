"""Decide which utterance the model runs next, and run it off the event loop.

One worker thread drives one engine. First sounds go first, fairly across sessions (start-time fair queueing); then the
stream whose listener will run out of audio soonest. Decisions fall between segments, so nobody holds the model for a
whole message, and a cancelled job stops at once. The queue is bounded; beyond it `QueueFull` is raised. An engine that
speaks several utterances in one run gets those that wait when it becomes free; nobody waits for company.
"""

import asyncio
import heapq
import itertools
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field

import structlog

from kokoro_backend.engine import SAMPLE_RATE, BatchEngine, Engine, EngineError, Segment, Utterance

log = structlog.get_logger()


class QueueFull(Exception):
    """More work is waiting than the operator allows; the caller should come back later."""


@dataclass
class Session:
    """One caller's connection, for fairness. Touched by the scheduler only."""

    finish_tag: float = 0.0


@dataclass
class Stream:
    """One message or context: what its listener has already got. Touched by the scheduler only."""

    session: Session
    started_at: float | None = None
    audio_seconds: float = 0.0
    is_admitted: bool = False
    """Its first unit was taken: the rest of the message is not refused any more, however full the queue gets."""

    def runs_out_at(self, now: float) -> float:
        """Return when a listener that plays since the first sound will have nothing left to play."""
        return now if self.started_at is None else self.started_at + self.audio_seconds


@dataclass
class _Failure:
    error: EngineError


@dataclass
class Job:
    """One utterance on its way through the model; iterate `segments`, and `cancel` when nobody listens any more."""

    utterance: Utterance
    stream: Stream
    loop: asyncio.AbstractEventLoop
    submitted_at: float
    results: "asyncio.Queue[Segment | _Failure | None]" = field(default_factory=asyncio.Queue)
    is_cancelled: bool = False
    started_at: float | None = None
    compute_seconds: float = 0.0
    start_tag: float = 0.0
    work: Iterator[Segment] | None = None

    def cancel(self) -> None:
        """Stop the job; the worker drops it at the next segment. May be called from any thread, more than once."""
        self.is_cancelled = True

    async def segments(self) -> AsyncIterator[Segment]:
        """Yield the utterance's audio as it comes. Raises EngineError if the model failed."""
        try:
            while True:
                result = await self.results.get()
                if result is None:
                    return
                if isinstance(result, _Failure):
                    raise result.error
                yield result
        finally:
            self.cancel()


class Scheduler:
    """The queue in front of one engine, and the thread that drives it."""

    def __init__(self, engine: Engine, queue_limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        """queue_limit: jobs that may wait or run before new streams are refused."""
        self._engine = engine
        self._batcher = engine if isinstance(engine, BatchEngine) and engine.batch_limit > 1 else None
        self._limit = queue_limit
        self._clock = clock
        self._heap: list[tuple[int, float, int, Job]] = []
        self._order = itertools.count()
        self._virtual_time = 0.0
        self._open = 0
        self._ready = threading.Condition()
        self._is_closing = False
        self._thread = threading.Thread(target=self._drive, name="kokoro-inference", daemon=True)
        self._thread.start()

    @property
    def depth(self) -> int:
        """Return how many jobs wait or run."""
        return self._open

    def submit(self, utterance: Utterance, stream: Stream) -> Job:
        """Queue `utterance` for `stream`; call it on the event loop that will read the segments.

        Raises QueueFull for a stream's first unit beyond the limit: half a message would be worse than none.
        """
        with self._ready:
            if self._is_closing or (self._open >= self._limit and not stream.is_admitted):
                raise QueueFull
            stream.is_admitted = True
            job = Job(utterance, stream, asyncio.get_running_loop(), self._clock())
            session = stream.session
            job.start_tag = max(self._virtual_time, session.finish_tag)
            session.finish_tag = job.start_tag + len(utterance.tokens) + 1
            self._open += 1
            self._push(job)
            self._ready.notify()
        return job

    def close(self) -> None:
        """Stop the worker after the segment in work and end all jobs; blocks for at most that segment."""
        with self._ready:
            self._is_closing = True
            self._ready.notify()
        self._thread.join()

    def _push(self, job: Job) -> None:
        is_first_sound = job.stream.started_at is None
        key = job.start_tag if is_first_sound else job.stream.runs_out_at(self._clock())
        heapq.heappush(self._heap, (0 if is_first_sound else 1, key, next(self._order), job))

    def _drive(self) -> None:
        while True:
            with self._ready:
                while not self._heap and not self._is_closing:
                    self._ready.wait()
                if self._is_closing:
                    for *_, job in self._heap:
                        self._end(job, _Failure(EngineError("the process is stopping")))
                    self._heap.clear()
                    return
                rank, key, _, job = heapq.heappop(self._heap)
                if rank == 0:
                    if job.stream.started_at is not None and not job.is_cancelled:
                        # Its stream got sound from an earlier unit meanwhile: now it is one of the others.
                        self._push(job)
                        continue
                    self._virtual_time = max(self._virtual_time, key)
                company = self._company(self._batcher, job, rank) if self._batcher is not None else []
            if self._batcher is not None and company:
                self._step_together(self._batcher, [job, *company])
            else:
                self._step(job)

    def _company(self, batcher: BatchEngine, first: Job, rank: int) -> list[Job]:
        """Take the jobs that come next and may share the run of `first`; call with the lock held.

        First sounds go with first sounds of other streams only, so that none comes later for company that nobody waits for.
        """
        company: list[Job] = []
        left: list[tuple[int, float, int, Job]] = []
        streams = {id(first.stream)}
        if first.is_cancelled or first.work is not None:
            return company
        while self._heap and self._heap[0][0] == rank and len(company) + 1 < batcher.batch_limit:
            entry = heapq.heappop(self._heap)
            _, key, _, job = entry
            is_in_turn = rank > 0 or (job.stream.started_at is None and id(job.stream) not in streams)
            if job.is_cancelled or job.work is not None or not is_in_turn:
                left.append(entry)
                continue
            streams.add(id(job.stream))
            if rank == 0:
                self._virtual_time = max(self._virtual_time, key)
            company.append(job)
        for entry in left:
            heapq.heappush(self._heap, entry)
        return company

    def _step_together(self, batcher: BatchEngine, jobs: list[Job]) -> None:
        """Speak `jobs` in one run; if that fails, one by one, so that an utterance fails for its own fault only."""
        began = self._clock()
        try:
            segments = batcher.run_batch([job.utterance for job in jobs])
        except Exception:  # As in `_step`: the worker thread must outlive any run.
            log.exception("inference failed", engine=self._engine.name, utterances=len(jobs), effect="each is tried alone")
            for job in jobs:
                self._step(job)
            return
        now = self._clock()
        for job, segment in zip(jobs, segments, strict=True):
            job.started_at = began
            job.compute_seconds = (now - began) / len(jobs)
            self._note(job, segment, now)
            self._deliver(job, segment)
            self._end(job, None)

    def _step(self, job: Job) -> None:
        """Run one segment of `job` and put the job back, or end it."""
        if job.is_cancelled:
            if job.work is not None:
                job.work.close()  # type: ignore[attr-defined]  # engines' run() is a generator
            self._end(job, None)
            return
        began = self._clock()
        if job.work is None:
            job.started_at = began
            job.work = self._engine.run(job.utterance)
        try:
            segment = next(job.work, None)
        except EngineError as error:
            log.exception("inference failed", engine=self._engine.name, tokens=len(job.utterance.tokens))
            self._end(job, _Failure(error))
            return
        except Exception:  # The worker thread must outlive any run: without it nothing is ever spoken again.
            log.exception("inference failed", engine=self._engine.name, tokens=len(job.utterance.tokens))
            self._end(job, _Failure(EngineError("the engine failed unexpectedly")))
            return
        now = self._clock()
        job.compute_seconds += now - began
        if segment is None:
            self._end(job, None)
            return
        self._note(job, segment, now)
        with self._ready:
            self._push(job)
        self._deliver(job, segment)

    def _note(self, job: Job, segment: Segment, now: float) -> None:
        """Take note of what the job's listener has now."""
        with self._ready:
            if job.stream.started_at is None and len(segment.audio):
                job.stream.started_at = now
            job.stream.audio_seconds += len(segment.audio) / SAMPLE_RATE

    def _end(self, job: Job, result: _Failure | None) -> None:
        with self._ready:
            self._open -= 1
        self._deliver(job, result)

    @staticmethod
    def _deliver(job: Job, result: Segment | _Failure | None) -> None:
        try:
            job.loop.call_soon_threadsafe(job.results.put_nowait, result)
        except RuntimeError:
            # The event loop has ended before the worker: nobody is left to tell.
            job.cancel()
