"""What is different between the chunks that a pod holds and those of a new revision."""

from __future__ import annotations

from contracts.snapshot import Chunk, Team
from gateway.state.difference import difference_steps
from policy.index import at_once


def team(identity: str, name: str = "a") -> Team:
    return Team(id=identity, workspace="w1", name=name)


def test_a_chunk_that_changed_keeps_the_records_that_did_not() -> None:
    held = {"old": Chunk(teams=(team("1"), team("2"))), "same": Chunk(teams=(team("3"),))}
    wanted = {"new": Chunk(teams=(team("1"), team("2", "b"))), "same": Chunk(teams=(team("3"),))}

    difference = at_once(difference_steps(held, wanted))

    assert difference.gone == (Chunk(teams=(team("2"),)),)
    assert difference.come == (Chunk(teams=(team("2", "b"),)),)
    assert difference.chunks == wanted
    assert difference.chunks["new"].teams[0] is held["old"].teams[0]
    assert difference.chunks["same"] is held["same"]


def test_records_that_only_moved_to_other_chunks_are_no_difference() -> None:
    held = {"one": Chunk(teams=(team("1"), team("2")))}
    wanted = {"first": Chunk(teams=(team("1"),)), "second": Chunk(teams=(team("2"),))}

    difference = at_once(difference_steps(held, wanted))

    assert (difference.gone, difference.come) == ((Chunk(),), (Chunk(),))


def test_a_pod_that_holds_nothing_takes_everything() -> None:
    wanted = {"one": Chunk(teams=(team("1"),))}

    difference = at_once(difference_steps({}, wanted))

    assert (difference.gone, difference.come, difference.chunks) == ((), (wanted["one"],), wanted)
