"""The spool: what was written is read back, whatever ended the writer."""

from __future__ import annotations

from pathlib import Path

import pytest

from contracts import codec
from contracts.events import Attribution, Outcome, Span, SpanEvent, UsageEvent, usage_event, usage_events
from gateway.telemetry.ring import Ring, RingUnusable
from gateway.telemetry.spool import Kind, Spool
from policy.usage import Tally
from tests.kit.tallies import delta_of, final_of

CAPACITY = 64 * 1024
TO = Attribution(
    workspace="acme",
    principal="ada",
    principal_kind="user",
    account="a1",
    provider="cartesia",
    operation="tts",
    endpoint="tts.bytes",
)


def opened(folder: Path, name: str = "one") -> Spool:
    return Spool.open(folder, CAPACITY, name)


def abandoned(spool: Spool) -> None:
    """End the spool as a kill does: the lock goes, nothing is tidied."""
    for ring in spool.rings:
        ring.ring.close()


def waiting(spool: Spool) -> list[UsageEvent]:
    return [usage_event(event.encoded) for ring in spool.rings for event in ring.waiting() if event.kind == Kind.USAGE]


def admitted(spool: Spool, key: str, characters: int = 42) -> Tally:
    tally = Tally(key, TO, "pod-1")
    tally.add("characters", characters)
    spool.offer_delta(tally, 1000)
    return tally


def settle(spool: Spool, tally: Tally, now_ms: int = 2000, outcome: Outcome = "completed") -> None:
    spool.offer_final(tally, outcome, now_ms, tally.owed(outcome, None))


def span_event(number: int) -> SpanEvent:
    span = Span(span_id="1", name="x", start_ns=1, end_ns=2, attributes={"filler": "x" * 800})
    return SpanEvent(id=str(number), workspace="acme", pod="pod-1", trace_id="1", spans=(span,))


def test_what_was_written_waits_in_order(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    first, second = admitted(spool, "r1"), admitted(spool, "r2")
    [ring] = spool.rings
    ring.take(2)
    settle(spool, second)
    settle(spool, first)

    assert [event.id for event in waiting(spool)] == ["r1:0", "r2:0", "r2:1", "r1:1"]


def test_a_final_event_says_what_nobody_has_taken_yet(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    settle(spool, admitted(spool, "r1", 7))

    [event] = waiting(spool)

    assert (event.id, event.is_final, event.units) == ("r1:1", True, {"requests": 1, "characters": 7})
    assert event.totals == {"requests": 1, "characters": 7}


def test_what_is_not_owed_leaves_no_units(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    settle(spool, admitted(spool, "r1"), 2000, "provider_error")

    [event] = waiting(spool)

    assert (event.outcome, event.units, event.totals) == ("provider_error", {}, {})


def test_an_admission_that_its_final_event_says_stays_unpublished_after_a_kill(tmp_path: Path) -> None:
    dead = opened(tmp_path)
    settle(dead, admitted(dead, "r1"))
    admitted(dead, "r2")
    abandoned(dead)

    assert [event.id for event in waiting(opened(tmp_path, "two"))] == ["r1:1", "r2:0", "r2:1"]


def test_an_admission_that_may_have_been_published_counts_as_it_is_after_a_kill(tmp_path: Path) -> None:
    dead = opened(tmp_path)
    first = admitted(dead, "r1")
    [ring] = dead.rings
    ring.take(1)  # on its way to the stream, whose answer nobody will read
    settle(dead, first)
    abandoned(dead)

    assert [(event.id, event.units) for event in waiting(opened(tmp_path, "two"))] == [
        ("r1:0", {"requests": 1, "characters": 42}),
        ("r1:1", {}),
    ]


def test_what_was_measured_long_before_keeps_its_time(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    settle(spool, admitted(spool, "r1"), 2001)

    assert [(event.id, event.at_ms) for event in waiting(spool)] == [("r1:0", 1000), ("r1:1", 2001)]


def test_a_carried_key_was_published_and_ends_with_an_event_of_its_own(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    [ring] = spool.rings
    carried = admitted(spool, "carried", 5)
    for number in range(200):
        settle(spool, admitted(spool, f"r{number}"))
        ring.published_to(ring.ring.head)
    settle(spool, carried)

    [event] = waiting(spool)

    assert (event.id, event.units) == ("carried:1", {})


def taken(spool: Spool, most: int = 10) -> list[str]:
    """Return the ids of the usage events of the next batch."""
    batch = spool.rings[-1].take(most)
    messages = [] if batch is None else batch.messages("one")
    return [event.id for message in messages for event in usage_events(bytes(message.payload))]


def test_a_batch_tells_of_what_is_open_as_well(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    admitted(spool, "r1")
    settle(spool, admitted(spool, "r2"))

    assert taken(spool) == ["r2:1", "r1:0"]


def test_an_open_exchange_that_counts_more_is_told_from_its_first_event_on(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    tally = admitted(spool, "r1")
    tally.add("characters", 7)
    spool.offer_delta(tally, 1500)
    settle(spool, tally)

    assert taken(spool) == ["r1:0", "r1:1", "r1:2"]


def test_a_batch_is_the_same_until_it_was_published(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    admitted(spool, "r1")
    first = taken(spool)
    admitted(spool, "r2")
    again = taken(spool)
    [ring] = spool.rings
    batch = ring.take(1)
    assert batch is not None
    ring.published_to(batch.end)

    assert (first, again, taken(spool)) == (["r1:0"], ["r1:0"], ["r2:0"])


def test_more_than_is_gathered_is_read_from_the_file_in_order(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    for number in range(120):  # more than an eighth of the file
        settle(spool, admitted(spool, f"r{number}"))
    [ring] = spool.rings
    found: list[str] = []
    while (batch := ring.take(50)) is not None:
        found += taken(spool)
        if len(found) <= 50:
            admitted(spool, "r120")
        ring.published_to(batch.end)

    assert found == [*(f"r{number}:1" for number in range(120)), "r120:0"]


def test_a_successor_settles_what_a_dead_gateway_left_open(tmp_path: Path) -> None:
    dead = opened(tmp_path)
    admitted(dead, "r1", 7)
    admitted(dead, "r2")
    abandoned(dead)

    events = waiting(opened(tmp_path, "two"))

    assert [event.id for event in events] == ["r1:0", "r2:0", "r1:1", "r2:1"]
    assert [(event.outcome, event.totals) for event in events[2:]] == [
        ("gateway_lost", {"requests": 1, "characters": 7}),
        ("gateway_lost", {"requests": 1, "characters": 42}),
    ]


def test_a_settled_exchange_is_not_settled_again(tmp_path: Path) -> None:
    dead = opened(tmp_path)
    settle(dead, admitted(dead, "r1"))
    abandoned(dead)

    assert [event.outcome for event in waiting(opened(tmp_path, "two"))] == ["completed"]


def test_what_was_published_is_not_published_again_but_its_key_stays_open(tmp_path: Path) -> None:
    dead = opened(tmp_path)
    admitted(dead, "r1")
    [ring] = dead.rings
    ring.published_to(ring.ring.head)
    abandoned(dead)

    [lost] = waiting(opened(tmp_path, "two"))

    assert (lost.id, lost.outcome, lost.totals) == ("r1:1", "gateway_lost", {"requests": 1, "characters": 42})


def test_a_restart_goes_on_in_the_file_of_its_predecessor(tmp_path: Path) -> None:
    dead = opened(tmp_path)
    admitted(dead, "r1")
    abandoned(dead)

    opened(tmp_path, "two")

    assert [path.name for path in tmp_path.iterdir()] == ["one.spool"]


def test_a_file_of_an_older_release_is_read_and_marked_as_this_ones(tmp_path: Path) -> None:
    tally = Tally("r1", TO, "pod-1")
    event = delta_of(tally, 1000)
    assert event is not None
    older = Ring.create(tmp_path / "one.spool", CAPACITY)
    older.append(1, b"\x04acme" + codec.encode(event))
    older.close()
    path = tmp_path / "one.spool"
    path.write_bytes(b"GLSPOOL1" + path.read_bytes()[8:])

    spool = opened(tmp_path, "two")

    assert [(event.id, event.outcome) for event in waiting(spool)] == [("r1:0", None), ("r1:1", "gateway_lost")]
    assert path.read_bytes()[:8] == b"GLSPOOL2"


def test_a_living_gateways_file_is_left_alone(tmp_path: Path) -> None:
    living = opened(tmp_path)
    admitted(living, "r1")

    assert waiting(opened(tmp_path, "two")) == []


def test_inherited_files_go_when_they_are_empty(tmp_path: Path) -> None:
    first, second = opened(tmp_path, "one"), opened(tmp_path, "two")
    admitted(first, "r1")
    admitted(second, "r2")
    abandoned(first)
    abandoned(second)

    spool = opened(tmp_path, "three")
    for ring in spool.rings:
        ring.published_to(ring.ring.head)
    spool.tidy()

    assert len(list(tmp_path.iterdir())) == 1
    assert spool.unpublished == 0


def test_a_clean_end_with_nothing_waiting_leaves_no_file(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    settle(spool, admitted(spool, "r1"))
    [ring] = spool.rings
    ring.published_to(ring.ring.head)

    spool.close()

    assert list(tmp_path.iterdir()) == []


def test_a_full_spool_drops_and_counts_and_keeps_room_for_usage(tmp_path: Path) -> None:
    dropped: list[Kind] = []
    spool = Spool.open(tmp_path, CAPACITY, "one", dropped.append)
    while spool.offer_spans("acme", codec.encode(span_event(1))):
        pass

    admitted(spool, "r1")

    assert dropped == [Kind.SPANS]
    assert [event.id for event in waiting(spool)] == ["r1:0"]


def test_usage_that_finds_no_room_is_counted(tmp_path: Path) -> None:
    dropped: list[Kind] = []
    spool = Spool.open(tmp_path, CAPACITY, "one", dropped.append)
    for number in range(1000):
        admitted(spool, f"r{number}")

    assert set(dropped) == {Kind.USAGE}
    assert len(waiting(spool)) + len(dropped) == 1000


def test_a_call_of_an_hour_does_not_hold_up_what_comes_after_it(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    [ring] = spool.rings
    long_call = admitted(spool, "long", 5)
    for number in range(2000):
        settle(spool, admitted(spool, f"r{number}"))
        ring.published_to(ring.ring.head)
    abandoned(spool)

    [lost] = waiting(opened(tmp_path, "two"))

    assert (lost.key, lost.totals) == ("long", {"requests": 1, "characters": 5})
    assert final_of(long_call, "completed", 3000).id == lost.id


def test_a_damaged_record_ends_what_is_read(tmp_path: Path) -> None:
    dead = opened(tmp_path)
    admitted(dead, "r1")
    [ring] = dead.rings
    position = ring.ring.head
    admitted(dead, "r2")
    abandoned(dead)
    path = tmp_path / "one.spool"
    content = bytearray(path.read_bytes())
    content[4096 + position + 40] ^= 0xFF
    path.write_bytes(content)

    assert [event.key for event in waiting(opened(tmp_path, "two"))] == ["r1", "r1"]


def test_a_record_may_wrap_around_the_end(tmp_path: Path) -> None:
    ring = Ring.create(tmp_path / "ring", CAPACITY)
    ring.append(1, bytes(40_000))
    ring.release(ring.head, ring.head)

    position = ring.append(2, bytes(range(256)) * 150)

    assert position is not None
    record = ring.read(position)
    assert record is not None
    assert record.payload == bytes(range(256)) * 150


def test_a_ring_has_all_its_pages_before_anything_is_written(tmp_path: Path) -> None:
    path = tmp_path / "ring"
    ring = Ring.create(path, CAPACITY)

    assert (mapped(path, "Size"), mapped(path, "Rss")) == (68, 68)
    ring.close()


def mapped(path: Path, what: str) -> int:
    """Return what the kernel says of this process's mapping of a file, in KiB."""
    mapping = Path("/proc/self/smaps").read_text().partition(f"{path}\n")[2]
    return int(mapping.partition(f"{what}:")[2].split()[0])


def test_a_full_disk_is_said_at_the_start(tmp_path: Path) -> None:
    # No file system holds so much: the reservation fails as on a full disk.
    with pytest.raises(RingUnusable, match=r"Cannot reserve .* for the spool .* Free space there"):
        Ring.create(tmp_path / "ring", 1 << 55)

    assert list(tmp_path.iterdir()) == []


def test_a_stranger_in_the_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.spool").write_text("not a ring")

    admitted(opened(tmp_path), "r1")

    assert (tmp_path / "notes.spool").read_text() == "not a ring"
