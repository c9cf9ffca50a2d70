"""Cutting a snapshot into chunks and putting it together again."""

import pytest

from contracts import codec
from contracts.snapshot import Grant, Snapshot, Workspace, chunks_of, snapshot_of


def grants(count: int) -> tuple[Grant, ...]:
    return tuple(Grant(id=f"g-{n}", workspace="acme", account="a-1", subject=f"user:u-{n}") for n in range(count))


def snapshot_with(grants: tuple[Grant, ...]) -> Snapshot:
    return Snapshot(revision=5, created_at_ms=9, workspaces=(Workspace(id="acme", name="Acme"),), grants=grants)


def test_chunks_put_together_give_the_same_records() -> None:
    whole = snapshot_with(grants(1000))
    back = snapshot_of(5, 9, chunks_of(whole))
    assert back.workspaces == whole.workspaces
    assert sorted(back.grants, key=lambda grant: grant.id) == sorted(whole.grants, key=lambda grant: grant.id)


def test_the_order_of_records_does_not_change_the_chunks() -> None:
    assert list(chunks_of(snapshot_with(grants(700)))) == list(chunks_of(snapshot_with(grants(700)[::-1])))


def test_one_changed_grant_changes_one_chunk() -> None:
    before = grants(1000)
    after = (*before[:-1], Grant(id=before[-1].id, workspace="acme", account="a-1", subject="team:t-1"))
    assert len(set(chunks_of(snapshot_with(before))) ^ set(chunks_of(snapshot_with(after)))) == 2


def test_a_chunk_stays_small_however_many_grants_there_are() -> None:
    assert max(len(chunk) for chunk in chunks_of(snapshot_with(grants(20_000)))) < 64 * 1024


def test_a_chunk_of_another_shape_is_undecodable() -> None:
    with pytest.raises(codec.Undecodable):
        snapshot_of(1, 1, [b"\xc1"])
