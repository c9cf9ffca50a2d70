"""Lookups over one snapshot.

Built once per revision, in slices so that the event loop of a busy pod never waits for it, and never changed afterwards;
what is derived for a principal is kept beside it and dies with it. Records that point into another workspace are left out,
so that no mistake of the publisher crosses tenants. Read next: `policy.resolve`, its main reader.
"""

from collections.abc import Generator, Iterable
from typing import TypeVar

from contracts.snapshot import Account, Grant, Issuer, Model, Principal, Snapshot, Team, Workspace
from policy.access import Access

_SLICE = 1000
"""records between two yields: about 1 ms"""

_MEMO_LIMIT = 20_000
"""principals whose access is kept; beyond it the memo starts anew"""

R = TypeVar("R")


class Index:
    """Immutable lookups over one snapshot. Make one with `index_of` or `index_steps`."""

    __slots__ = (
        "_access",
        "account_named",
        "accounts",
        "audiences",
        "grants",
        "issuers",
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
    steps = index_steps(snapshot)
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            index: Index = stop.value
            return index


def index_steps(snapshot: Snapshot) -> Generator[None, None, Index]:
    """Build the index over a snapshot; yields after every slice of at most 5 ms, so that other work can go on."""
    index = Index(snapshot.revision)
    for workspace in snapshot.workspaces:
        index.workspaces[workspace.id] = workspace
    yield
    for issuer in snapshot.issuers:
        index.issuers[issuer.id] = issuer
        audiences = index.audiences.setdefault(issuer.issuer, {})
        for audience in issuer.audiences:
            audiences[audience] = issuer
    for principals in _slices(snapshot.principals):
        for principal in principals:
            index.principals[principal.workspace, principal.id] = principal
            if principal.issuer_id is not None and principal.subject is not None:
                issuer_of = index.issuers.get(principal.issuer_id)
                if issuer_of is not None and issuer_of.workspace == principal.workspace:
                    index.subjects[principal.issuer_id, principal.subject] = principal
        yield
    for teams in _slices(snapshot.teams):
        for team in teams:
            index.teams[team.workspace, team.id] = team
        yield
    for accounts in _slices(snapshot.accounts):
        for account in accounts:
            index.accounts[account.id] = account
            index.account_named[account.workspace, account.name] = account
        yield
    for models in _slices(snapshot.models):
        for model in models:
            owner = index.accounts.get(model.account)
            if owner is not None and owner.workspace == model.workspace:
                index.models.setdefault((model.workspace, model.name), []).append(model)
                index.models_of.setdefault(owner.id, []).append(model)
        yield
    held_by = index.grants
    for grants in _slices(snapshot.grants):
        for grant in grants:
            granted = index.accounts.get(grant.account)
            if granted is not None and granted.workspace == grant.workspace:
                key = (grant.workspace, grant.subject)
                held = held_by.get(key)
                if held is None:
                    held_by[key] = [grant]
                else:
                    held.append(grant)
        yield
    return index


def _slices(records: tuple[R, ...]) -> Iterable[tuple[R, ...]]:
    return (records[at : at + _SLICE] for at in range(0, len(records), _SLICE))
