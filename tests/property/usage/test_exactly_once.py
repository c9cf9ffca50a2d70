"""Whatever two aggregators do to each other, and wherever they die: each event counts exactly once.

The steps of a batch (insert, take a version, write the rollup) are interleaved in any order between two aggregators that
share a stream: any of them may be the last thing that one did before it was killed, any batch may come again, and clocks
may disagree. What was not finished is delivered again at the end, as the bus does it.
"""

import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import combinations, product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contracts.events import UsageEvent
from contracts.prices import PriceBook
from control_plane.aggregator.pricing import PriceIndex
from control_plane.aggregator.rows import usage_rows
from control_plane.aggregator.store import Store
from control_plane.clickhouse.connection import ClickHouse
from control_plane.clickhouse.schema import migrate
from tests.kit.services import ClickhouseDatabase
from tests.kit.usage import NOW_MS, attribution, usage_event

PRICES = PriceIndex(PriceBook(revision=1))
MOST_EVENTS = 8
SLOT_MS = 300_000

# An event of the stream: its number decides its content, so that every copy of it is the same.
batches = st.lists(st.integers(0, MOST_EVENTS - 1), min_size=1, max_size=5)

Plan = list[tuple[list[int], int]]
"""batches, each with the number of its steps that are done: 3 means all of them"""
plans = st.lists(st.tuples(batches, st.sampled_from([3, 3, 0, 1, 2])), min_size=1, max_size=4)


def event(workspace: str, number: int) -> UsageEvent:
    """Event `number`: 10 to the power of its place, so that a sum tells which events are in it, over two slots."""
    at_ms = NOW_MS - (number % 2) * SLOT_MS
    return usage_event(f"r{number}", at_ms=at_ms, units={"characters": 10**number}, to=attribution(workspace=workspace))


@dataclass
class Batch:
    """A delivery on its way through one aggregator, a step a call."""

    store: Store
    events: list[UsageEvent]
    steps_left: int
    steps: Iterator[None] = field(init=False)

    def __post_init__(self) -> None:
        self.steps = self._run()

    @property
    def is_over(self) -> bool:
        return self.steps_left == 0

    def step(self) -> None:
        """Do the next step."""
        self.steps_left -= 1
        next(self.steps)

    def _run(self) -> Iterator[None]:
        batch = usage_rows(self.events, PRICES)
        touched = sorted(batch.touched)
        self.store.insert_usage(batch.rows)
        yield
        version = self.store.next_version(touched)
        yield
        self.store.write_generation(touched, version)
        yield


@pytest.fixture
def clickhouse(clickhouse_database: ClickhouseDatabase) -> ClickHouse:
    """The test's database, with our tables; every example has a workspace of its own in it."""
    database = clickhouse_database
    address = ClickHouse(database.url, database.name, database.user, database.password)
    migrate(address)
    return address


def counted(store: Store, workspace: str) -> int:
    """Return the sum of the newest generation of each slot."""
    newest = "SELECT slot, max(version) FROM usage_rollups WHERE workspace = {w:String} GROUP BY slot"
    rows = store.client().query(
        "SELECT sum(quantity) FROM usage_rollups FINAL WHERE workspace = {w:String} AND unit = 'characters'"
        f" AND (slot, version) IN ({newest})",
        parameters={"w": workspace},
    )
    return int(rows.result_rows[0][0])


def finished(store: Store, workspace: str, plans: Iterable[Plan]) -> int:
    """Deliver again what was not finished, as the bus does, and return what is counted then."""
    for numbers, steps in (batch for plan in plans for batch in plan):
        again = Batch(store, [event(workspace, number) for number in numbers], 3 if steps < 3 else 0)
        while not again.is_over:
            again.step()
    return counted(store, workspace)


@pytest.mark.parametrize(("our_steps", "their_steps"), list(product(range(4), repeat=2)))
def test_every_overlap_of_two_batches_of_one_slot_counts_each_event_once(
    clickhouse: ClickHouse, our_steps: int, their_steps: int
) -> None:
    store = Store(clickhouse)
    for ours in combinations(range(our_steps + their_steps), our_steps):
        workspace = secrets.token_hex(8)
        batches = [
            Batch(store, [event(workspace, number) for number in numbers], steps)
            for numbers, steps in (([0, 2], our_steps), ([2, 4], their_steps))
        ]
        for turn in range(our_steps + their_steps):
            batches[0 if turn in ours else 1].step()
        assert finished(store, workspace, [[([0, 2], our_steps)], [([2, 4], their_steps)]]) == 10101, ours
    store.close()


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), ours=plans, theirs=plans)
def test_each_event_counts_once_whatever_two_aggregators_do(
    clickhouse: ClickHouse, data: st.DataObject, ours: Plan, theirs: Plan
) -> None:
    workspace = secrets.token_hex(8)
    stores = (Store(clickhouse), Store(clickhouse))
    queues = [
        [Batch(store, [event(workspace, number) for number in numbers], steps) for numbers, steps in plan]
        for store, plan in zip(stores, (ours, theirs), strict=True)
    ]
    while any(queues):
        queue = data.draw(st.sampled_from([queue for queue in queues if queue]))
        if queue[0].is_over:
            queue.pop(0)
        else:
            queue[0].step()
    published = {number for numbers, _ in (*ours, *theirs) for number in numbers}
    assert finished(stores[0], workspace, (ours, theirs)) == sum(10**number for number in published)
    for store in stores:
        store.close()
