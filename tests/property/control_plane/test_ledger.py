"""The publisher's ledger: whatever the history of changes, its chunks are those of the records that are left."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.manifest import chunk_name
from contracts.snapshot import Grant, Snapshot, Team, chunks_of
from control_plane.publish.ledger import Ledger

IDS = st.integers(0, 400).map(str)
CHANGES = st.lists(st.tuples(st.sampled_from(["teams", "grants"]), st.lists(IDS, max_size=60), st.integers(0, 3)), max_size=30)


def record(kind: str, identity: str, version: int) -> Team | Grant:
    """Return a record; version 0 is none."""
    if kind == "teams":
        return Team(id=identity, workspace="w", name=f"team {version}")
    return Grant(id=identity, workspace="w", account=f"a{version}", subject="user:u")


@given(CHANGES)
@settings(max_examples=60, deadline=None)
def test_chunks_are_those_of_a_snapshot_of_what_is_left(changes: list[tuple[str, list[str], int]]) -> None:
    ledger = Ledger()
    left: dict[str, dict[str, Team | Grant]] = {"teams": {}, "grants": {}}
    for kind, ids, version in changes:
        records = [record(kind, identity, version) for identity in set(ids)] if version else []
        ledger.replace(kind, ids, records)
        for identity in ids:
            left[kind].pop(identity, None)
        left[kind].update({one.id: one for one in records})
        chunks = dict(ledger.chunks())
    whole = Snapshot(
        revision=1,
        created_at_ms=0,
        teams=tuple(one for one in left["teams"].values() if isinstance(one, Team)),
        grants=tuple(one for one in left["grants"].values() if isinstance(one, Grant)),
    )
    expected = {chunk_name(chunk): chunk for chunk in chunks_of(whole)}
    assert (chunks if changes else {}) == expected


@given(st.lists(IDS, min_size=300, max_size=400, unique=True), IDS)
@settings(max_examples=20, deadline=None)
def test_one_change_alters_one_chunk(ids: list[str], changed: str) -> None:
    ledger = Ledger()
    ledger.replace("teams", (), [Team(id=identity, workspace="w", name="a") for identity in {*ids, changed}])
    before = dict(ledger.chunks())
    ledger.replace("teams", [changed], [Team(id=changed, workspace="w", name="b")])
    after = dict(ledger.chunks())
    assert len(after.keys() - before.keys()) == 1
    assert len(before.keys() - after.keys()) == 1
