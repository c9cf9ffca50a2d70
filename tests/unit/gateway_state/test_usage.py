"""Usage events are deltas that add up to what is owed."""

import msgspec
import pytest

from contracts import codec, events
from contracts.events import Attribution
from gateway.telemetry.usage import UsageRecords
from policy.journal import Journal
from policy.usage import Tally
from tests.kit.tallies import delta_of, final_of
from tests.kit.usage import batch_of

TO = Attribution(
    workspace="acme",
    principal="ada",
    principal_kind="user",
    account="a1",
    provider="cartesia",
    model="sonic-3",
    operation="tts",
    endpoint="tts.bytes",
)


def tally() -> Tally:
    return Tally("r1", TO, "pod-1", {"call": "17"})


def test_the_first_delta_counts_one_request_and_what_was_added() -> None:
    counted = tally()
    counted.add("characters", 42)

    delta = delta_of(counted, 1000)

    assert (delta.id, delta.key, delta.seq, delta.is_final) == ("r1:0", "r1", 0, False)
    assert delta.units == {"requests": 1, "characters": 42}
    assert delta.metadata == {"call": "17"}


def test_nothing_added_makes_no_delta() -> None:
    counted = tally()
    counted.new_units()

    assert counted.new_units() == {}


def test_a_completed_exchange_ends_with_its_totals() -> None:
    counted = tally()
    counted.add("characters", 42)
    counted.new_units()
    counted.add("audio_out_ms", 900)

    final = final_of(counted, "completed", 2000)

    assert (final.id, final.is_final, final.outcome) == ("r1:1", True, "completed")
    assert final.units == {"audio_out_ms": 900}
    assert final.totals == {"requests": 1, "characters": 42, "audio_out_ms": 900}


def test_a_provider_error_takes_back_what_was_counted() -> None:
    counted = tally()
    counted.add("characters", 42)
    counted.new_units()

    final = final_of(counted, "provider_error", 2000)

    assert final.units == {"requests": -1, "characters": -42}
    assert final.totals == {}


def test_a_failure_before_the_first_delta_counts_nothing() -> None:
    counted = tally()
    counted.add("characters", 42)

    assert final_of(counted, "upstream_fault", 2000).units == {}


def test_a_fault_after_the_text_left_is_owed_when_the_edge_says_so() -> None:
    counted = tally()
    counted.add("characters", 42)
    counted.new_units()

    assert final_of(counted, "upstream_fault", 2000, is_owed=True).totals == {"requests": 1, "characters": 42}


def test_figures_of_the_provider_stand_beside_ours_on_the_final_event() -> None:
    counted = tally()
    counted.provider_said("audio_in_ms", 1500)

    assert delta_of(counted, 1000).provider_units == {}
    assert final_of(counted, "completed", 2000).provider_units == {"audio_in_ms": 1500}


def test_a_lost_key_is_settled_with_what_was_sent() -> None:
    counted = tally()
    counted.add("characters", 42)
    journal = Journal()
    first = delta_of(counted, 1000)
    journal.note(first)
    counted.add("characters", 8)
    second = delta_of(counted, 2000)
    journal.note(second)
    journal.note(second)

    [open_key] = journal
    lost = open_key.lost()

    assert (lost.id, lost.outcome, lost.units, lost.at_ms) == ("r1:2", "gateway_lost", {}, 2000)
    assert lost.totals == {"requests": 1, "characters": 50}
    assert lost.metadata == {"call": "17"}


def test_a_carried_event_opens_the_key_as_it_was() -> None:
    counted = tally()
    counted.add("characters", 42)
    first = delta_of(counted, 1000)
    before = Journal()
    before.note(first)
    after = Journal()
    [known] = before

    after.restore(known.carried(), 7)

    [carried] = after
    assert carried.lost() == known.lost()


def test_a_final_event_closes_its_key() -> None:
    counted = tally()
    journal = Journal()
    first = delta_of(counted, 1000)
    journal.note(first)

    journal.note(final_of(counted, "completed", 2000))

    assert len(journal) == 0


def test_a_record_says_what_its_event_says() -> None:
    counted = tally()
    counted.add("characters", 42)
    counted.provider_said("audio_in_ms", 1500)
    event = final_of(counted, "completed", 2000)

    assert events.usage_event(UsageRecords().of_event(event)) == event


def test_the_record_of_a_delta_says_what_was_added() -> None:
    counted = tally()
    counted.add("characters", 42)

    record = UsageRecords().of_delta(counted, 1000, counted.new_units())

    assert events.usage_event(record) == delta_of(tally_with(42), 1000)


def tally_with(characters: int) -> Tally:
    counted = tally()
    counted.add("characters", characters)
    return counted


def test_a_final_record_may_leave_its_units_to_its_totals() -> None:
    counted = tally_with(0)
    counted.provider_said("audio_out_ms", 900)
    counted.new_units()
    counted.end()

    event = events.usage_event(UsageRecords().of_final(counted, "cancelled", 2000, None, counted.owed("cancelled", None)))

    assert (event.id, event.is_final, event.outcome) == ("r1:1", True, "cancelled")
    assert (event.units, event.totals) == ({"requests": 1}, {"requests": 1, "characters": 0})
    assert event.provider_units == {"audio_out_ms": 900}


def test_a_record_has_every_field_of_its_shape() -> None:
    final = msgspec.msgpack.decode(UsageRecords().of_event(final_of(tally(), "completed", 1)))

    assert len(final) == 1 + len(events.UsageRecord.__struct_fields__)
    assert len(final[6]) == len(events.Attribution.__struct_fields__)


def test_a_record_of_a_newer_schema_is_not_read() -> None:
    record = msgspec.msgpack.decode(UsageRecords().of_event(final_of(tally(), "completed", 1)))

    with pytest.raises(codec.UnsupportedSchema):
        events.usage_event(msgspec.msgpack.encode([record[0], 2, *record[2:]]))


def test_a_message_carries_one_event_or_many() -> None:
    first, second = final_of(tally(), "completed", 1), final_of(tally(), "cancelled", 2)

    assert events.usage_events(codec.encode(first)) == (first,)
    assert events.usage_events(batch_of([codec.encode(first), codec.encode(second)])) == (first, second)
