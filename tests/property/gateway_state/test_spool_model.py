"""Whatever is written, published and killed in whatever order: the spool tells each event once, and every key ends."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from contracts import codec
from contracts.events import Attribution, Outcome, Span, SpanEvent, UsageEvent, usage_events
from gateway.telemetry.batches import Batch
from gateway.telemetry.ring import SMALLEST_CAPACITY
from gateway.telemetry.spool import Spool
from policy.usage import Tally

TO = Attribution(
    workspace="w1",
    principal="ada",
    principal_kind="user",
    account="a1",
    provider="cartesia",
    operation="tts",
    endpoint="tts.bytes",
)


def total(events: list[UsageEvent]) -> Counter[str]:
    units: Counter[str] = Counter()
    for event in events:
        units.update(event.units)
    return units


class SpoolModel(RuleBasedStateMachine):
    """The spool beside what it was given. A kill is a close without tidying: the kernel gives the lock back in the same way."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="glottis-spool-"))
        self.tallies: dict[str, Tally] = {}
        self.dropped: set[str] = set()
        """keys of which a delta found no room: counted and alerted, and their events do not add up any more"""
        self.taken: dict[str, UsageEvent] = {}
        self.published: dict[str, UsageEvent] = {}
        self.messages: set[str] = set()
        self.told: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.number = 0
        self.starts = 0

    @initialize()
    def start(self) -> None:
        self.starts += 1
        self.spool = Spool.open(self.folder, SMALLEST_CAPACITY, f"spool-{self.starts}")

    def teardown(self) -> None:
        self.kill_and_start()
        self.publish(None)
        finals = {event.key: event for event in self.published.values() if event.is_final}
        assert finals.keys() == {event.key for event in self.taken.values()}
        assert {event.id for event in self.published.values() if event.outcome != "gateway_lost"} <= self.taken.keys()
        for key in finals.keys() - self.dropped:
            events = [event for event in self.published.values() if event.key == key]
            assert sum(event.is_final for event in events) == 1
            assert total(events) == total([event for event in self.taken.values() if event.key == key])
            assert sum(event.units.get("characters", 0) for event in events) == finals[key].totals.get("characters", 0)
        assert self.spool.unpublished == 0
        assert self.spool.open_keys == 0
        self.spool.close()
        assert list(self.folder.iterdir()) == []
        shutil.rmtree(self.folder)

    @rule(characters=st.integers(0, 5000), padding=st.integers(0, 2000))
    def admit(self, characters: int, padding: int) -> None:
        self.number += 1
        tally = Tally(f"r{self.number}", TO, "pod-1", {"padding": "x" * padding})
        tally.add("characters", characters)
        if self.offer(tally):
            self.tallies[tally.key] = tally

    @precondition(lambda self: self.tallies)
    @rule(data=st.data(), characters=st.integers(1, 5000))
    def count_more(self, data: st.DataObject, characters: int) -> None:
        tally = self.tallies[data.draw(st.sampled_from(sorted(self.tallies)))]
        tally.add("characters", characters)
        if not self.offer(tally):
            self.dropped.add(tally.key)

    @precondition(lambda self: self.tallies)
    @rule(data=st.data(), later=st.sampled_from((0, 2000)), outcome=st.sampled_from(("completed", "provider_error")))
    def settle(self, data: st.DataObject, later: int, outcome: Outcome) -> None:
        tally = self.tallies.pop(data.draw(st.sampled_from(sorted(self.tallies))))
        totals = tally.owed(outcome, None)
        event = self.event_of(tally, totals, outcome)
        if self.spool.offer_final(tally, outcome, self.number + later, totals):
            self.taken[event.id] = event

    @rule(size=st.integers(0, 3000))
    def offer_spans(self, size: int) -> None:
        span = Span(span_id="1", name="x" * size, start_ns=1, end_ns=2)
        event = SpanEvent(id="1", workspace="w1", pod="pod-1", trace_id="1", spans=(span,))
        self.spool.offer_spans("w1", codec.encode(event))

    @rule(count=st.integers(1, 200), is_stored=st.booleans())
    def send_some(self, count: int, is_stored: bool) -> None:
        """Send events whose acknowledgement does not come: they are sent again, by this process or by its successor."""
        batch = self.spool.rings[-1].take(count)
        if is_stored and batch is not None:
            self.store(self.spool.rings[-1].ring.path.stem, batch)

    @rule(count=st.integers(1, 200))
    def publish_some(self, count: int) -> None:
        self.publish(count)

    @rule()
    def kill_and_start(self) -> None:
        for ring in self.spool.rings:
            ring.ring.close()
        self.tallies.clear()
        self.start()

    @invariant()
    def no_ring_is_overfull(self) -> None:
        if self.starts:
            assert all(ring.ring.used <= ring.ring.capacity for ring in self.spool.rings)

    def publish(self, count: int | None) -> None:
        """Publish so many events of each ring; None: everything, with what that makes room for."""
        is_working = True
        while is_working:
            is_working = False
            for ring in self.spool.rings:
                batch = ring.take(10_000 if count is None else count)
                if batch is not None:
                    self.store(ring.ring.path.stem, batch)
                    ring.published_to(batch.end)
                    is_working = count is None
            self.spool.tidy()

    def store(self, file: str, batch: Batch) -> None:
        """Store as the stream does: a message whose id it knows is dropped."""
        for message in batch.messages(file):
            if message.id not in self.messages and message.subject == "glottis.usage.w1":
                for usage in usage_events(bytes(message.payload)):
                    assert self.published.setdefault(usage.id, usage) == usage
            self.messages.add(message.id)

    def offer(self, tally: Tally) -> bool:
        event = self.event_of(tally, tally.totals, None)
        is_taken = self.spool.offer_delta(tally, self.number)
        if is_taken:
            self.taken[event.id] = event
        return is_taken

    def event_of(self, tally: Tally, totals: Mapping[str, int], outcome: Outcome | None) -> UsageEvent:
        """Return what the tally's next event adds to what was taken of it."""
        units = Counter(totals)
        units.subtract(self.told[tally.key])
        self.told[tally.key] = Counter(totals)
        return UsageEvent(
            id=f"{tally.key}:{tally.events}",
            key=tally.key,
            seq=tally.events,
            is_final=outcome is not None,
            at_ms=self.number,
            pod="pod-1",
            to=TO,
            units={unit: n for unit, n in units.items() if n},
            totals=dict(totals) if outcome else {},
            outcome=outcome,
        )


SpoolModel.TestCase.settings = settings(
    max_examples=60, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
TestSpool = SpoolModel.TestCase
