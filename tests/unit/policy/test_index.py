"""Lookups over a snapshot, built in slices."""

from contracts.snapshot import Grant, Model, Principal, Snapshot
from policy.index import LOOKUPS, at_once, index_of, index_steps, next_index_steps
from tests.kit.identities import voice_workspace


def test_the_index_is_the_same_built_in_slices_or_in_one_go() -> None:
    snapshot = voice_workspace()
    steps = index_steps(snapshot)
    slices = 0
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            index = stop.value
            break
        slices += 1

    whole = index_of(snapshot)
    assert slices > 0
    assert index.grants == whole.grants
    assert index.models == whole.models
    assert index.revision == 1


def large_snapshot() -> Snapshot:
    small = voice_workspace()
    return voice_workspace(
        principals=(
            *small.principals,
            *(
                Principal(id=f"u{n}", workspace="w1", kind="user", name=f"User {n}", issuer_id="i-idp", subject=f"s{n}")
                for n in range(20_000)
            ),
        ),
        grants=(
            *small.grants,
            *(Grant(id=f"x{n}", workspace="w1", account="a-eu", subject=f"user:u{n % 20_000}") for n in range(100_000)),
        ),
    )


def test_a_snapshot_of_many_grants_is_indexed_in_slices_of_bounded_size() -> None:
    index = index_of(large_snapshot())
    slices = sum(1 for _ in index_steps(large_snapshot()))

    assert len(index.grants) == 20_000 + 2
    assert slices >= 120


def test_records_that_point_into_another_workspace_are_left_out() -> None:
    crossing = voice_workspace(
        plus_grants=(Grant(id="g9", workspace="w2", account="a-eu", subject="user:u-eve"),),
        plus_models=(Model(id="m9", workspace="w2", account="a-eu", name="sonic-3", type="text-to-speech"),),
        plus_principals=(Principal(id="u-eve", workspace="w2", kind="user", name="Eve", issuer_id="i-idp", subject="eve"),),
    )
    index = index_of(crossing)

    assert ("w2", "user:u-eve") not in index.grants
    assert ("w2", "sonic-3") not in index.models
    assert ("i-idp", "eve") not in index.subjects


def test_records_that_point_nowhere_are_left_out() -> None:
    index = index_of(
        voice_workspace(
            plus_grants=(Grant(id="g9", workspace="w1", account="gone", subject="user:u-bob"),),
            plus_models=(Model(id="m9", workspace="w1", account="gone", name="sonic-9", type="text-to-speech"),),
        )
    )

    assert ("w1", "user:u-bob") not in index.grants
    assert ("w1", "sonic-9") not in index.models


def test_one_changed_grant_shares_every_other_lookup_with_the_index_before() -> None:
    snapshot = voice_workspace()
    before = index_of(snapshot)
    gone = Snapshot(revision=2, created_at_ms=0, grants=snapshot.grants[:1])

    after = at_once(next_index_steps(before, gone, Snapshot(revision=2, created_at_ms=0), lambda: snapshot))

    made_anew = {name for name in LOOKUPS if getattr(after, name) is not getattr(before, name)}
    assert made_anew == {"grants", "accounts_in_use", "_access"}
    assert [grant.id for grant in before.grants["w1", "team:voice"]] == ["g1", "g2"]
    assert [grant.id for grant in after.grants["w1", "team:voice"]] == ["g2"]


def test_what_a_principal_may_use_is_worked_out_once() -> None:
    index = index_of(voice_workspace())

    assert index.access_of("w1", "user:u-alice", ("voice",)) is index.access_of("w1", "user:u-alice", ("voice",))
    assert index.access_of("w1", "user:u-alice", ()).permits == {}
