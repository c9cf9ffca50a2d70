"""A pod that follows revision after revision decides by the index that a pod which starts with the last one builds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from contracts import codec
from contracts.manifest import chunk_name
from contracts.snapshot import (
    KINDS,
    Account,
    Chunk,
    Grant,
    Issuer,
    Model,
    Principal,
    Snapshot,
    Team,
    Workspace,
    chunks_of,
    snapshot_of,
)
from gateway.state.difference import difference_steps
from policy.index import LOOKUPS, Index, at_once, index_of, next_index_steps

WORKSPACES = st.sampled_from(["w1", "w2"])
IDS = st.integers(0, 5).map(str)
FEW = st.integers(0, 2).map(str)

RECORDS: dict[str, st.SearchStrategy[Any]] = {
    "workspaces": st.builds(Workspace, id=WORKSPACES, name=FEW),
    "issuers": st.builds(
        Issuer,
        id=IDS,
        workspace=WORKSPACES,
        issuer=FEW,
        audiences=st.lists(FEW, max_size=3).map(tuple),
        leeway_seconds=st.just(1),
    ),
    "principals": st.builds(
        Principal,
        id=IDS,
        workspace=WORKSPACES,
        kind=st.just("user"),
        name=FEW,
        issuer_id=st.none() | IDS,
        subject=st.none() | FEW,
    ),
    "teams": st.builds(Team, id=IDS, workspace=WORKSPACES, name=FEW),
    "accounts": st.builds(
        Account, id=IDS, workspace=WORKSPACES, name=FEW, provider=st.just("cartesia"), origin=st.just("https://a.test")
    ),
    "models": st.builds(Model, id=IDS, workspace=WORKSPACES, account=IDS, name=FEW, type=st.just("text-to-speech")),
    "grants": st.builds(Grant, id=IDS, workspace=WORKSPACES, account=IDS, subject=FEW),
}


def history_of(*kinds: str) -> st.SearchStrategy[list[list[tuple[str, Any, str]]]]:
    """Return revisions, each some changes of records of these kinds."""
    change = st.one_of(*(st.tuples(st.just(kind), RECORDS[kind], st.sampled_from(["put", "put", "drop"])) for kind in kinds))
    return st.lists(st.lists(change, max_size=12), min_size=1, max_size=8)


# Kinds of which one leads to another on their own too: among all of them some record nearly always points nowhere.
FLAWED = st.one_of(
    history_of(*KINDS),
    history_of("accounts"),
    history_of("issuers"),
    history_of("principals", "issuers"),
    history_of("accounts", "models"),
    history_of("accounts", "grants"),
)
Held = dict[str, dict[tuple[str, str], Any]]  # Any: a record of the kind


def identity(record: Any) -> tuple[str, str]:
    return getattr(record, "workspace", ""), record.id


def made(held: Held, changes: Iterable[tuple[str, Any, str]]) -> None:
    for kind, record, what in changes:
        if what == "drop":
            held[kind].pop(identity(record), None)
        else:
            held[kind][identity(record)] = record


def tidy(held: Held) -> Held:
    """Return what a database with its unique and foreign keys could hold of this."""

    def unique(records: Iterable[Any], *keys: Any) -> list[Any]:
        found: list[Any] = []
        taken: list[set[Any]] = [set() for _ in keys]
        for record in records:
            wanted = [set(key(record)) for key in keys]
            if all(before.isdisjoint(mine) for before, mine in zip(taken, wanted, strict=True)):
                found.append(record)
                for before, mine in zip(taken, wanted, strict=True):
                    before |= mine
        return found

    kept: dict[str, list[Any]] = {kind: list(records.values()) for kind, records in held.items()}
    kept["issuers"] = unique(kept["issuers"], lambda one: [one.id], lambda one: [(one.issuer, aud) for aud in one.audiences])
    kept["accounts"] = unique(kept["accounts"], lambda one: [one.id], lambda one: [(one.workspace, one.name)])
    issuers = {(one.workspace, one.id) for one in kept["issuers"]}
    accounts = {(one.workspace, one.id) for one in kept["accounts"]}
    kept["principals"] = unique(
        [one for one in kept["principals"] if one.issuer_id is None or (one.workspace, one.issuer_id) in issuers],
        lambda one: [] if one.subject is None or one.issuer_id is None else [(one.issuer_id, one.subject)],
    )
    for kind in ("models", "grants"):
        kept[kind] = [one for one in kept[kind] if (one.workspace, one.account) in accounts]
    return {kind: {identity(one): one for one in records} for kind, records in kept.items()}


def snapshot(held: Held, revision: int) -> Snapshot:
    records: dict[str, Any] = {kind: tuple(of_kind.values()) for kind, of_kind in held.items()}
    return Snapshot(revision=revision, created_at_ms=0, **records)


def contents(index: Index) -> dict[str, Any]:
    """Return everything that an index says; order within a list carries no meaning."""

    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return sorted(value, key=identity)
        if isinstance(value, dict):
            return {key: plain(one) for key, one in value.items()}
        return value

    return {name: plain(getattr(index, name)) for name in ("revision", "is_regular", *LOOKUPS) if name != "_access"}


class Pod:
    """What a pod holds. `built_whole`: how often it had to go through everything."""

    def __init__(self) -> None:
        self.index = Index(0)
        self.chunks: dict[str, Chunk] = {}
        self.built_whole = 0

    def follow(self, new: Snapshot) -> None:
        wanted = {chunk_name(chunk): codec.decode(chunk, Chunk) for chunk in chunks_of(new)}
        difference = at_once(difference_steps(self.chunks, wanted))

        def whole() -> Snapshot:
            self.built_whole += 1
            return snapshot_of(new.revision, 0, difference.chunks.values())

        gone, come = (snapshot_of(new.revision, 0, side) for side in (difference.gone, difference.come))
        self.index = at_once(next_index_steps(self.index, gone, come, whole))
        self.chunks = difference.chunks


def followed(history: list[list[tuple[str, Any, str]]], is_tidy: bool) -> Pod:
    """Follow a history, and compare after each of its revisions: the pod's index, its chunks, and the index before it."""
    pod = Pod()
    held: Held = {kind: {} for kind in KINDS}
    for revision, changes in enumerate(history, 1):
        made(held, changes)
        new = snapshot(tidy(held) if is_tidy else held, revision)
        before, before_contents = pod.index, contents(pod.index)
        pod.follow(new)
        assert contents(pod.index) == contents(index_of(snapshot_of(revision, 0, pod.chunks.values())))
        assert {name: codec.encode(chunk) for name, chunk in pod.chunks.items()} == {
            chunk_name(chunk): chunk for chunk in chunks_of(new)
        }
        assert contents(before) == before_contents
    return pod


@given(history_of(*KINDS))
@settings(max_examples=100, deadline=None)
def test_what_a_database_could_hold_is_followed_without_going_through_everything(
    history: list[list[tuple[str, Any, str]]],
) -> None:
    assert followed(history, is_tidy=True).built_whole == 0


@given(FLAWED)
@settings(max_examples=200, deadline=None)
def test_records_that_clash_or_point_nowhere_are_followed_as_a_pod_that_starts_would_read_them(
    history: list[list[tuple[str, Any, str]]],
) -> None:
    followed(history, is_tidy=False)
