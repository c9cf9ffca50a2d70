"""The same head decided again and again, as a client's connection brings it: what was decided holds while nothing changed.

`decide` depends on the head, the facts, the world and the time, and on nothing else. `Repeated` keeps its last answers for
one head together with all of these, and gives them again only where each is the same: the very world, the same revocations,
a key that is still its issuer's, the same facts that are judged, and a time at which the token cannot have expired.
Refusals are never kept. Read next: `policy.decide`.
"""

import math
from typing import Final, TypeAlias

from policy.decide import Admit, Decision, NeedFacts, decide
from policy.facts import Facts, RequestHead, Unjudgeable
from policy.keyring import Key
from policy.peek import facts_of_json
from policy.providers.profile import Endpoint
from policy.recall import Recall
from policy.route import Route
from policy.world import World

_ROUTES_KEPT: Final = 16
_BODIES_KEPT: Final = 8

_Judged: TypeAlias = tuple[str | None, str | None, bool, bool]
"""what of the facts is judged: model, voice, whether it is embedded, whether audio is kept"""


class Repeated:
    """Decides about one head, any number of times."""

    __slots__ = ("_from", "_has_read", "_key", "_need", "_recall", "_revocations", "_routes", "_until", "_world", "head")

    def __init__(self, head: RequestHead) -> None:
        self.head = head
        self._world: World | None = None
        self._revocations = -1
        self._key: Key | None = None
        self._from = math.inf
        self._until = 0.0
        self._need: NeedFacts | None = None
        self._routes: dict[_Judged, Route] = {}
        self._has_read = False
        self._recall: Recall | None = None

    def facts(self, body: bytes, endpoint: Endpoint) -> Facts | Unjudgeable:
        """Return what `policy.peek.facts_of_json` returns. endpoint: the one that this head leads to."""
        recall = self._recall
        if recall is None:
            if not self._has_read:  # most heads are seen once, and then remembering is for nothing
                self._has_read = True
                return facts_of_json(body, endpoint)
            recall = self._recall = Recall(endpoint, _BODIES_KEPT)
        return recall.facts(body)

    def decide(self, facts: Facts | None, world: World, now: float) -> Decision:
        """Return what `policy.decide.decide` returns."""
        if self._holds(world, now):
            if facts is None:
                if self._need is not None:
                    return self._need
            else:
                route = self._routes.get((facts.model, facts.voice, facts.is_voice_embedded, facts.saves_audio))
                if route is not None:
                    return Admit(route, facts)
        decision = decide(self.head, facts, world, now)
        if facts is None and type(decision) is NeedFacts:
            if self._is_kept(world, now):
                self._need = decision
        elif facts is not None and type(decision) is Admit and self._is_kept(world, now):
            if len(self._routes) >= _ROUTES_KEPT:
                self._routes.clear()
            self._routes[facts.model, facts.voice, facts.is_voice_embedded, facts.saves_audio] = decision.route
        return decision

    def _holds(self, world: World, now: float) -> bool:
        return (
            world is self._world
            and world.revocations.version == self._revocations
            and self._from <= now < self._until
            and self._key is not None
            and self._key.is_current
        )

    def _is_kept(self, world: World, now: float) -> bool:
        """Make room for an answer that was decided just now; False if the token's own facts are not at hand."""
        if self._holds(world, now):
            return True
        scan = self.head.scan
        known = world.keys.verified(scan.digest) if scan is not None and scan.digest is not None else None
        if known is None:
            return False
        self._world = world
        self._revocations = world.revocations.version
        self._key = known.key
        self._from = now
        # without the leeway that is forgiven: in that minute everything is decided anew
        self._until = known.caller.expires_at
        self._need = None
        self._routes = {}
        return True
