"""Lookups over one snapshot.

Built in slices, so that the event loop of a busy pod never waits for it, and never changed afterwards. The first is built
whole; each later one is made from the one before and what is different, and shares with it every lookup that did not
change: one changed grant costs a pod a millisecond or two, however many there are (ADR 0080). What is derived for a
principal is kept beside an index and dies with it. Records that point into another workspace are left out, so that no
mistake of the publisher crosses tenants. Read next: `policy.resolve`, its main reader.
"""

from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterable, Sequence
from typing import TypeAlias, TypeVar

from contracts.snapshot import Account, Grant, Issuer, Model, Principal, Record, Snapshot, Team, Workspace
from policy.access import Access

_SLICE = 1000
"""records between two yields: about 1 ms"""

_MEMO_LIMIT = 20_000
"""principals whose access is kept; beyond it the memo starts anew"""

_NOTHING = Snapshot(revision=0, created_at_ms=0)

R = TypeVar("R")
K = TypeVar("K", bound=Hashable)
P = TypeVar("P", bound=Record)
T = TypeVar("T", Account, Issuer)
Steps: TypeAlias = Generator[None, None, R]
"""work in slices: yields after each, so that the one who drives it can let other work in; returns what it made"""


LOOKUPS = (
    "workspaces",
    "issuers",
    "audiences",
    "principals",
    "subjects",
    "teams",
    "accounts",
    "account_named",
    "models",
    "models_of",
    "grants",
    "accounts_in_use",
    "issuers_in_use",
    "_access",
)
"""the attributes of an index that are dictionaries; two indexes may share any of them but the last"""


class Index:
    """Immutable lookups over one snapshot. Make one with `index_of`, `index_steps` or `next_index_steps`."""

    __slots__ = (
        "_access",
        "account_named",
        "accounts",
        "accounts_in_use",
        "audiences",
        "grants",
        "is_regular",
        "issuers",
        "issuers_in_use",
        "models",
        "models_of",
        "principals",
        "revision",
        "subjects",
        "teams",
        "workspaces",
    )

    def __init__(self, revision: int) -> None:
        self.revision = revision
        self.is_regular = True
        """False: records clash, or point at what is not there, as a correct publisher's never do. Then what is in force
        depends on records that are not, and the index that follows is built whole."""
        self.workspaces: dict[str, Workspace] = {}
        self.issuers: dict[str, Issuer] = {}
        """by id"""
        self.audiences: dict[str, dict[str, Issuer]] = {}
        """`iss` -> `aud` -> issuer"""
        self.principals: dict[tuple[str, str], Principal] = {}
        """by workspace and id"""
        self.subjects: dict[tuple[str, str], Principal] = {}
        """by issuer id and subject"""
        self.teams: dict[tuple[str, str], Team] = {}
        """by workspace and id"""
        self.accounts: dict[str, Account] = {}
        """by id"""
        self.account_named: dict[tuple[str, str], Account] = {}
        """by workspace and name"""
        self.models: dict[tuple[str, str], list[Model]] = {}
        """by workspace and name"""
        self.models_of: dict[str, list[Model]] = {}
        """by account id"""
        self.grants: dict[tuple[str, str], list[Grant]] = {}
        """by workspace and subject"""
        self.accounts_in_use: dict[tuple[str, str], int] = {}
        """workspace and account id -> how many grants and models in the index point at it"""
        self.issuers_in_use: dict[tuple[str, str], int] = {}
        """workspace and issuer id -> how many subjects in the index are its own"""
        self._access: dict[tuple[str, str, tuple[str, ...]], Access] = {}

    def access_of(self, workspace: str, subject: str, teams: tuple[str, ...]) -> Access:
        """Return what a principal may use, through itself and its teams. subject: `user:<id>` or `service_account:<id>`."""
        key = (workspace, subject, teams)
        access = self._access.get(key)
        if access is None:
            if len(self._access) >= _MEMO_LIMIT:
                self._access.clear()
            access = self._access[key] = Access(self, workspace, subject, teams)
        return access


def index_of(snapshot: Snapshot) -> Index:
    """Return the index over a snapshot, in one go."""
    return at_once(index_steps(snapshot))


def at_once(steps: Steps[R]) -> R:
    """Return what the steps lead to, without letting anything in between."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: R = stop.value
            return result


def index_steps(snapshot: Snapshot) -> Steps[Index]:
    """Build the index over a snapshot; yields after every slice of at most 5 ms."""
    return _changed_steps(Index(0), _NOTHING, snapshot)


def next_index_steps(before: Index, gone: Snapshot, come: Snapshot, whole: Callable[[], Snapshot]) -> Steps[Index]:
    """Build the index that follows `before`, which stays as it is; yields as `index_steps` does.

    gone: records that `before` holds and the new one does not. come: those that only the new one holds, and its revision; a
    record that changed is in both. whole: everything that the new one holds, called only where that must be gone through.
    """
    if before.is_regular:
        index = yield from _changed_steps(before, gone, come)
        if index.is_regular:
            return index
    return (yield from index_steps(whole()))


def _changed_steps(before: Index, gone: Snapshot, come: Snapshot) -> Steps[Index]:
    index = Index(come.revision)
    index.workspaces = yield from _keyed(index, before.workspaces, gone.workspaces, come.workspaces, lambda one: one.id)
    index.issuers = yield from _keyed(index, before.issuers, gone.issuers, come.issuers, lambda one: one.id)
    index.audiences = _audiences(index, before.audiences, gone.issuers, come.issuers)
    index.teams = yield from _keyed(index, before.teams, gone.teams, come.teams, _by_id)
    index.accounts = yield from _keyed(index, before.accounts, gone.accounts, come.accounts, lambda one: one.id)
    index.account_named = yield from _keyed(index, before.account_named, gone.accounts, come.accounts, _by_name)
    index.principals = yield from _keyed(index, before.principals, gone.principals, come.principals, _by_id)
    # What `before` holds of these points somewhere, for it is regular or empty; what comes is looked at.
    unidentified = _identified(gone.principals)
    identified = yield from _pointing(index, _identified(come.principals), index.issuers, _issuer_of)
    index.subjects = yield from _keyed(index, before.subjects, unidentified, identified, _by_subject)
    models = yield from _pointing(index, come.models, index.accounts, _account_of)
    index.models = yield from _listed(index, before.models, gone.models, models, _by_name)
    index.models_of = yield from _listed(index, before.models_of, gone.models, models, _account_of)
    grants = yield from _pointing(index, come.grants, index.accounts, _account_of)
    index.grants = yield from _listed(index, before.grants, gone.grants, grants, _by_holder)

    left: list[Grant | Model] = [*gone.models, *gone.grants]
    arrived: list[Grant | Model] = [*models, *grants]
    index.accounts_in_use = yield from _counted(before.accounts_in_use, left, arrived, _by_account)
    index.issuers_in_use = yield from _counted(before.issuers_in_use, unidentified, identified, _by_issuer)
    if _is_lost(gone.accounts, index.accounts, index.accounts_in_use) or _is_lost(
        gone.issuers, index.issuers, index.issuers_in_use
    ):
        index.is_regular = False
    return index


def _keyed(index: Index, held: dict[K, R], gone: Sequence[R], come: Sequence[R], key_of: Callable[[R], K]) -> Steps[dict[K, R]]:
    """Return the lookup `held` without what is gone and with what came; `held` itself where nothing did."""
    if not gone and not come:
        return held
    table = held.copy()
    for some in _slices(gone):
        for record in some:
            if table.pop(key_of(record), None) is not record:
                index.is_regular = False
        yield
    for some in _slices(come):
        for record in some:
            key = key_of(record)
            if key in table:
                index.is_regular = False
            table[key] = record
        yield
    return table


def _listed(
    index: Index, held: dict[K, list[P]], gone: Sequence[P], come: Sequence[P], key_of: Callable[[P], K]
) -> Steps[dict[K, list[P]]]:
    """As `_keyed`, where many records share a key; only the lists of keys that are touched are made anew."""
    if not gone and not come:
        return held
    leaving: dict[K, set[str]] = {}
    for some in _slices(gone):
        for record in some:
            leaving.setdefault(key_of(record), set()).add(record.id)
        yield
    arriving: dict[K, list[P]] = {}
    for some in _slices(come):
        for record in some:
            key = key_of(record)
            listed = arriving.get(key)
            if listed is None:
                arriving[key] = [record]
            else:
                listed.append(record)
        yield
    if not held:
        index.is_regular &= not leaving
        return arriving
    table = held.copy()
    for keys in _slices(tuple(leaving.keys() | arriving.keys())):
        for key in keys:
            before, left = held.get(key, []), leaving.get(key, set())
            stayed = [record for record in before if record.id not in left]
            if len(before) - len(stayed) != len(left):
                index.is_regular = False
            stayed += arriving.get(key, [])
            if stayed:
                table[key] = stayed
            else:
                table.pop(key, None)
        yield
    return table


def _audiences(
    index: Index, held: dict[str, dict[str, Issuer]], gone: Sequence[Issuer], come: Sequence[Issuer]
) -> dict[str, dict[str, Issuer]]:
    touched = {issuer.issuer for issuer in (*gone, *come)}
    if not touched:
        return held
    table = {**held, **{name: dict(held.get(name, {})) for name in touched}}
    for issuer in gone:
        for audience in dict.fromkeys(issuer.audiences):
            if table[issuer.issuer].pop(audience, None) is not issuer:
                index.is_regular = False
    for issuer in come:
        for audience in issuer.audiences:
            if table[issuer.issuer].get(audience, issuer) is not issuer:
                index.is_regular = False
            table[issuer.issuer][audience] = issuer
    return {name: audiences for name, audiences in table.items() if audiences}


def _pointing(index: Index, records: Sequence[P], targets: dict[str, T], target_of: Callable[[P], str]) -> Steps[list[P]]:
    """Return the records whose target is there, in their own workspace."""
    found: list[P] = []
    for some in _slices(records):
        for record in some:
            target = targets.get(target_of(record))
            if target is not None and target.workspace == record.workspace:
                found.append(record)
        yield
    if len(found) != len(records):
        index.is_regular = False
    return found


def _counted(held: dict[K, int], gone: Sequence[R], come: Sequence[R], target_of: Callable[[R], K]) -> Steps[dict[K, int]]:
    """Return how many records point at each target, after those that are gone and those that came."""
    if not gone and not come:
        return held
    counts = Counter(held)
    for count, records in ((counts.subtract, gone), (counts.update, come)):
        for some in _slices(records):
            count(map(target_of, some))
            yield
    return {target: count for target, count in counts.items() if count}


def _is_lost(gone: Sequence[T], held: dict[str, T], in_use: dict[tuple[str, str], int]) -> bool:
    """Tell whether a target went, or went to another workspace, while records that stayed point at it."""
    return any(
        (before.workspace, before.id) in in_use and ((now := held.get(before.id)) is None or now.workspace != before.workspace)
        for before in gone
    )


def _by_id(record: Team | Principal) -> tuple[str, str]:
    return record.workspace, record.id


def _by_name(record: Account | Model) -> tuple[str, str]:
    return record.workspace, record.name


def _by_holder(grant: Grant) -> tuple[str, str]:
    return grant.workspace, grant.subject


def _by_subject(principal: Principal) -> tuple[str, str]:
    return principal.issuer_id or "", principal.subject or ""


def _by_account(record: Grant | Model) -> tuple[str, str]:
    return record.workspace, record.account


def _by_issuer(principal: Principal) -> tuple[str, str]:
    return principal.workspace, principal.issuer_id or ""


def _account_of(record: Grant | Model) -> str:
    return record.account


def _issuer_of(principal: Principal) -> str:
    return principal.issuer_id or ""


def _identified(principals: Iterable[Principal]) -> list[Principal]:
    """Return those that an issuer knows by a subject."""
    return [one for one in principals if one.issuer_id is not None and one.subject is not None]


def _slices(records: Sequence[R]) -> Iterable[Sequence[R]]:
    return (records[at : at + _SLICE] for at in range(0, len(records), _SLICE))
