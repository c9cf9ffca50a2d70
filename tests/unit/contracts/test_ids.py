"""Ids sort by time; handles are safe in paths, subjects and host labels."""

import pytest

from contracts import ids


def test_a_uuid7_has_its_version_variant_and_time() -> None:
    assert ids.uuid7(0x0192_0000_0001, 0) == "01920000-0001-7000-8000-000000000000"
    assert ids.uuid7(0x0192_0000_0001, (1 << 74) - 1) == "01920000-0001-7fff-bfff-ffffffffffff"


def test_a_later_id_sorts_after_an_earlier_one() -> None:
    assert ids.uuid7(1, (1 << 74) - 1) < ids.uuid7(2, 0)


def test_a_fresh_id_has_its_version_variant_and_time_and_all_random_bits_that_were_given() -> None:
    low, high = ids.FreshIds(lambda: 1.5, lambda _: 0), ids.FreshIds(lambda: 1.5, lambda count: (1 << count) - 1)

    assert low.new() == "00000000-05dc-7000-8000-000000000000"
    assert high.new() == "00000000-05dc-7fff-bfff-ffffffffffff"


def test_fresh_ids_of_later_milliseconds_sort_after_earlier_ones() -> None:
    times = iter([1.5, 1.5004, 1.75])
    fresh = ids.FreshIds(lambda: next(times), lambda _: 1)

    assert [fresh.new()[:13] for _ in range(3)] == ["00000000-05dc", "00000000-05dc", "00000000-06d6"]


@pytest.mark.parametrize("text", ["a", "voice-team", "a1", "x" * 63])
def test_a_handle_is_accepted(text: str) -> None:
    assert ids.is_handle(text)


@pytest.mark.parametrize("text", ["", "-a", "a-", "A", "a.b", "a b", "a>b", "a*", "x" * 64, "a\n", "ä"])
def test_what_could_break_a_path_or_subject_is_no_handle(text: str) -> None:
    assert not ids.is_handle(text)
