"""The configuration in force on this pod: swapped whole, never changed in place, known to be fresh or refused.

Whoever decides takes `world` once a decision. A swap or a revocation is told to subscribers, so that open sessions and
answers judge themselves again. Where revisions come from is not known here. Read next: `gateway.state.feed`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import structlog

from contracts.revocations import EndSession, Revocation
from policy.index import Index
from policy.providers.registry import NO_ROOT_MOUNTS
from policy.world import World

_log = structlog.get_logger("gateway.state.snapshot")


class SnapshotStore:
    """The store.

    max_age_seconds: how long a configuration is acted on after it was last confirmed. clock: Unix seconds.
    root_mounts: see policy.world; they are the operator's, and the same in every revision.
    """

    def __init__(
        self, max_age_seconds: float, clock: Callable[[], float], root_mounts: Mapping[bytes, str] = NO_ROOT_MOUNTS
    ) -> None:
        self._max_age = max_age_seconds
        self._clock = clock
        self._world = World(Index(0), root_mounts=root_mounts)
        self._confirmed_at = 0.0
        self._subscribers: list[Callable[[], None]] = []
        self._known_revocations: dict[tuple[str, str, str], Revocation] = {}
        self._revocations_known = False
        self.on_end_session: Callable[[EndSession], None] = lambda _: None
        """told of an admin's command to end one session"""

    @property
    def world(self) -> World:
        """Return the configuration in force; before the first snapshot, one that knows nobody."""
        return self._world

    @property
    def revision(self) -> int:
        """Return its revision; 0: there is none yet."""
        return self._world.index.revision

    @property
    def is_ready(self) -> bool:
        """Tell whether new exchanges are taken."""
        return self.closed_because() is None

    def age(self) -> float:
        """Return the seconds since the configuration was last confirmed to be the newest."""
        return max(self._clock() - self._confirmed_at, 0.0)

    def closed_because(self) -> str | None:
        """Return the refusal reason for every new exchange, `not_ready` or `config_stale`; None: they are taken."""
        if not self.revision or not self._revocations_known:
            return "not_ready"
        return "config_stale" if self.age() > self._max_age else None

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Have `callback` called after every swap and every change of the revocations; it must not take long."""
        self._subscribers.append(callback)

    def swap(self, index: Index) -> Index:
        """Put a new index in force; return the one before, which the caller may take apart slowly."""
        before = self._world.index
        self._world = replace(self._world, index=index)
        for gone in before.issuers.keys() - index.issuers.keys():
            self._world.keys.forget(gone)
        self._tell()
        return before

    def confirm(self, at: float) -> None:
        """Note that the configuration and the revocations were the newest at this time (Unix seconds)."""
        self._confirmed_at = max(self._confirmed_at, at)

    def revoke(self, revocation: Revocation) -> None:
        """Put a revocation in force."""
        self._known_revocations[revocation.workspace, revocation.kind, revocation.target] = revocation
        self._world.revocations.add(revocation)
        self._tell()

    def unrevoke(self, workspace: str, kind: str, target: str) -> None:
        """Take a revocation out of force, if it is in force and its time is not set.

        One that says when it ends stays until then: a deletion is not signed, and nobody needs one.
        """
        known = self._known_revocations.get((workspace, kind, target))
        if known is not None and not self._ends_by_itself(known):
            del self._known_revocations[workspace, kind, target]
            self._world.revocations.remove(known.workspace, known.kind, known.target)
            self._tell()

    def set_revocations(self, revocations: Iterable[Revocation]) -> None:
        """Put these revocations in force, and no others but known ones that end by themselves later."""
        known, in_force = self._known_revocations, self._world.revocations
        wanted = {key: one for key, one in known.items() if self._ends_by_itself(one)}
        wanted |= {(one.workspace, one.kind, one.target): one for one in revocations}
        for gone in known.keys() - wanted.keys():
            in_force.remove(known[gone].workspace, known[gone].kind, known[gone].target)
        for key, revocation in wanted.items():
            if known.get(key) != revocation:
                in_force.add(revocation)
        is_changed = known != wanted
        self._known_revocations = wanted
        self._revocations_known = True
        if is_changed:
            self._tell()

    @property
    def revocations(self) -> tuple[Revocation, ...]:
        """Return the revocations in force."""
        return tuple(self._known_revocations.values())

    def _ends_by_itself(self, revocation: Revocation) -> bool:
        """Tell whether a revocation is in force until a time that it names."""
        return revocation.expires_ms is not None and revocation.expires_ms > self._clock() * 1000

    def _tell(self) -> None:
        for callback in self._subscribers:
            try:
                callback()
            except Exception:  # one open session that fails to judge itself must not keep the others from it
                _log.exception("subscriber failed")
