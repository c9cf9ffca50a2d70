"""The WebSocket sessions that are open now, as pods tell them: kept in memory alone, and forgotten with a silent pod.

Each replica of the control plane listens by itself and knows the whole list a heartbeat after its start. Knows no database.
Read before: `gateway.state.sessions`, which tells; next: `control_plane.workspaces.api`, which shows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from contracts import codec
from contracts.events import SESSION_HEARTBEAT_SECONDS, LiveSession, SessionsHeard

_GONE_AFTER_SECONDS: Final = 3 * SESSION_HEARTBEAT_SECONDS
_MOST: Final = 200_000
"""sessions of all pods; beyond it new ones are not listed until others have ended"""


@dataclass(frozen=True, slots=True)
class Heard:
    """A session, the pod that has it, and when we last heard of it, on our clock."""

    session: LiveSession
    pod: str
    at: float


class LiveSessions:
    """The list. clock: Unix seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._by_exchange: dict[str, Heard] = {}
        self._swept_at = 0.0

    def hear(self, data: bytes) -> None:
        """Take what a pod told; what cannot be read is left out: the next heartbeat follows."""
        try:
            told = codec.decode(data, SessionsHeard)
        except codec.Undecodable:
            return
        now = self._clock()
        if now - self._swept_at > SESSION_HEARTBEAT_SECONDS:
            self._sweep(now)
        for exchange in told.ended:
            self._by_exchange.pop(exchange, None)
        for session in told.sessions:
            if session.exchange in self._by_exchange or len(self._by_exchange) < _MOST:
                self._by_exchange[session.exchange] = Heard(session, told.pod, now)

    def of(self, workspace: str) -> list[Heard]:
        """Return a workspace's open sessions, the oldest first."""
        self._sweep(self._clock())
        found = [heard for heard in self._by_exchange.values() if heard.session.workspace == workspace]
        return sorted(found, key=lambda heard: (heard.session.since_ms, heard.session.exchange))

    def _sweep(self, now: float) -> None:
        """Forget the sessions of pods that fell silent."""
        self._swept_at = now
        for exchange, heard in list(self._by_exchange.items()):
            if now - heard.at > _GONE_AFTER_SECONDS:
                del self._by_exchange[exchange]
