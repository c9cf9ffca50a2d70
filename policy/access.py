"""What one principal may use, derived from the index once and kept with it.

A grant attaches a subject to an account with a role; roles carry operations; a model narrows who of the account's
collaborators may use it. Nothing here looks at a token: its narrowing is applied by `policy.resolve`, on top.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from contracts.snapshot import Account, CollaboratorRole, Model
from policy.providers.profile import OPERATIONS, Profile

if TYPE_CHECKING:
    from policy.index import Index

ROLE_OPERATIONS: dict[CollaboratorRole, frozenset[str]] = {
    "user": frozenset(("tts", "stt", "voices.read")),
    # A manager may grant itself all but these two, which reach beyond what the profile knows: they are granted by name.
    "manager": frozenset(OPERATIONS) - {"account", "unlisted"},
}


@dataclass(slots=True)
class Permit:
    """An account that a principal may use, with the operations that its grants add up to."""

    account: Account
    operations: frozenset[str]
    team: str | None
    """the first of the principal's teams whose grant admits it; None where only a grant of its own does"""
    voices: frozenset[str] | None = None
    """what the lists of the teams add up to whose grants admit it; None: one of the grants opens any voice"""

    @property
    def takes_any_voice(self) -> bool:
        """Tell whether neither the account nor the teams have a list of voices."""
        return self.voices is None and self.account.allowed_voices is None


@dataclass(slots=True)
class Candidate:
    """A registered model that a principal may use, in one account."""

    model: Model
    permit: Permit


class Access:
    """What one principal may use. `permits`: by account id."""

    __slots__ = ("_candidates", "_ordered", "index", "permits", "subjects", "workspace")

    def __init__(self, index: Index, workspace: str, subject: str, teams: tuple[str, ...]) -> None:
        self.index = index
        self.workspace = workspace
        self.subjects = frozenset((subject, *(f"team:{team}" for team in teams)))
        self.permits: dict[str, Permit] = {}
        self._candidates: dict[tuple[str, str], tuple[Candidate, ...]] = {}
        self._ordered: dict[str, tuple[Permit, ...]] = {}
        for holder, team in ((subject, None), *((f"team:{team}", team) for team in teams)):
            record = index.teams.get((workspace, team)) if team is not None else None
            listed = record.allowed_voices if record is not None else None
            voices = frozenset(listed) if listed is not None else None
            for grant in index.grants.get((workspace, holder), ()):
                account = index.accounts[grant.account]
                if account.is_disabled:
                    continue
                operations = ROLE_OPERATIONS[grant.role].union(grant.operations)
                permit = self.permits.get(account.id)
                if permit is None:
                    self.permits[account.id] = Permit(account, operations, team, voices)
                else:
                    permit.operations |= operations
                    permit.team = permit.team or team
                    # Like operations, voices add up over grants: with one grant less there is never more.
                    permit.voices = None if permit.voices is None or voices is None else permit.voices | voices

    def accounts(self, profile: Profile) -> tuple[Permit, ...]:
        """Return the accounts that speak a profile: by the profile's order of providers, then priority, then name."""
        ordered = self._ordered.get(profile.name)
        if ordered is None:
            spoken = [permit for permit in self.permits.values() if permit.account.provider in profile.providers]
            spoken.sort(
                key=lambda permit: (
                    profile.providers.index(permit.account.provider),
                    permit.account.priority,
                    permit.account.name,
                )
            )
            ordered = self._ordered[profile.name] = tuple(spoken)
        return ordered

    def candidates(self, profile: Profile, model: str) -> tuple[Candidate, ...]:
        """Return the model's registrations that the principal may use: lowest priority first, then by account name."""
        key = (profile.name, model)
        found = self._candidates.get(key)
        if found is None:
            registered = self.index.models.get((self.workspace, model))
            if registered is None:
                return ()  # not kept: callers can name any number of models that do not exist
            usable = [
                Candidate(record, permit)
                for record in registered
                if (permit := self.permits.get(record.account)) is not None
                and permit.account.provider in profile.providers
                and self._admits(record)
            ]
            usable.sort(key=lambda candidate: (_priority(candidate), candidate.permit.account.name))
            found = self._candidates[key] = tuple(usable)
        return found

    def models(self, permit: Permit) -> list[Model]:
        """Return the models of an account that the principal may use."""
        return [model for model in self.index.models_of.get(permit.account.id, ()) if self._admits(model)]

    def _admits(self, model: Model) -> bool:
        return model.only is None or not self.subjects.isdisjoint(model.only)


def _priority(candidate: Candidate) -> int:
    priority = candidate.model.priority
    return candidate.permit.account.priority if priority is None else priority
