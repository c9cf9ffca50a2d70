"""Tells the control plane which WebSocket sessions are open on this pod: new and ended ones at once, figures now and then.

Plain messages on the pod's subject: one that is lost is followed by the next heartbeat, and a pod that is silent takes its
sessions with it (`contracts.events.SESSION_HEARTBEAT_SECONDS`). No text, no token. Reads thousands of sessions in slices.
Read next: `control_plane.publish.live_sessions`, which listens.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Final, Protocol

import nats.errors

from contracts import codec, subjects
from contracts.events import SESSION_HEARTBEAT_SECONDS, LiveSession, SessionsHeard
from gateway.bus import Bus

_ROUND_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 5.0
"""how often a session's figures are looked at"""
_AT_ONCE: Final = 100
"""sessions looked at before others get the loop"""
_A_MESSAGE: Final = 500
"""sessions of about 300 bytes each"""


class Open(Protocol):
    """An open session; see `gateway.edge.websocket_relay`."""

    request_id: str

    def live(self) -> LiveSession | None:
        """Return what to tell of it; None before it is open."""


class SessionTeller:
    """Tells what `sessions` returns. clock: any seconds that grow."""

    def __init__(self, bus: Bus, pod: str, sessions: Callable[[], Iterable[Open]], clock: Callable[[], float]) -> None:
        self._bus = bus
        self._pod = pod
        self._sessions = sessions
        self._clock = clock
        self._told: dict[str, tuple[LiveSession, float, float]] = {}
        """by exchange: what was told last, when, and when to look again"""

    async def run(self) -> None:
        """Tell until cancelled."""
        while True:
            await self._bus.up()
            await self.tell()
            await asyncio.sleep(_ROUND_SECONDS)

    async def tell(self) -> None:
        """Tell what is due, if the bus is there; what could not be told is due again."""
        now = self._clock()
        open_now = {session.request_id: session for session in self._sessions()}
        ended = [exchange for exchange in self._told if exchange not in open_now]
        due = [session for exchange, session in open_now.items() if self._looks_at(exchange) <= now]
        news: list[LiveSession] = []
        for number, session in enumerate(due, start=1):
            live = session.live()
            if live is not None and self._is_news(live, now):
                news.append(live)
            if not number % _AT_ONCE:
                await asyncio.sleep(0)
        for at in range(0, max(len(news), len(ended)), _A_MESSAGE):
            some, gone = tuple(news[at : at + _A_MESSAGE]), tuple(ended[at : at + _A_MESSAGE])
            heard = SessionsHeard(pod=self._pod, sessions=some, ended=gone)
            with contextlib.suppress(nats.errors.Error):
                await self._bus.client.publish(subjects.sessions_subject(self._pod), codec.encode(heard))
                self._told |= {live.exchange: (live, now, now + _LOOK_SECONDS) for live in some}
                for exchange in gone:
                    self._told.pop(exchange, None)

    def _looks_at(self, exchange: str) -> float:
        known = self._told.get(exchange)
        return 0.0 if known is None else known[2]

    def _is_news(self, live: LiveSession, now: float) -> bool:
        known = self._told.get(live.exchange)
        if known is None or known[0] != live or now - known[1] >= SESSION_HEARTBEAT_SECONDS - _LOOK_SECONDS:
            return True
        self._told[live.exchange] = (live, known[1], now + _LOOK_SECONDS)
        return False
