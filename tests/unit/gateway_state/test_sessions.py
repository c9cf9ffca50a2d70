"""What a pod tells of its open sessions: new and ended ones at once, figures when they changed, everything now and then."""

from typing import Any, cast

import nats.errors

from contracts import codec
from contracts.events import LiveSession, SessionsHeard
from gateway.bus import Bus
from gateway.state.sessions import SessionTeller


class Client:
    """Keeps what is published."""

    def __init__(self) -> None:
        self.heard: list[SessionsHeard] = []
        self.is_away = False

    async def publish(self, subject: str, data: bytes) -> None:
        if self.is_away:
            raise nats.errors.ConnectionClosedError
        assert subject == "glottis.sessions.pod-1"
        self.heard.append(codec.decode(data, SessionsHeard))


class Session:
    """An open session with one figure."""

    def __init__(self, request_id: str, *, is_open: bool = True) -> None:
        self.request_id = request_id
        self.characters = 0
        self.is_open = is_open

    def live(self) -> LiveSession | None:
        if not self.is_open:
            return None
        return LiveSession(
            exchange=self.request_id,
            workspace="w1",
            principal="ada",
            account="a",
            provider="cartesia",
            endpoint="tts.websocket",
            since_ms=1,
            characters=self.characters,
        )


class Pod:
    """A teller and what it tells about."""

    def __init__(self, *sessions: Session) -> None:
        self.sessions = list(sessions)
        self.now = 100.0
        self.client = Client()
        bus: Any = type("KeptBus", (), {"client": self.client})()
        self.teller = SessionTeller(cast(Bus, bus), "pod-1", lambda: self.sessions, lambda: self.now)

    async def told(self, after: float = 0.0) -> list[tuple[list[tuple[str, int]], list[str]]]:
        """What is told so many seconds later: sessions with their figure, and ends."""
        self.now += after
        self.client.heard.clear()
        await self.teller.tell()
        return [([(one.exchange, one.characters) for one in heard.sessions], list(heard.ended)) for heard in self.client.heard]


async def test_new_and_ended_sessions_are_told_at_once_and_once() -> None:
    pod = Pod(Session("s1"))
    assert await pod.told() == [([("s1", 0)], [])]
    assert await pod.told(1) == []
    pod.sessions = [Session("s2")]
    assert await pod.told(1) == [([("s2", 0)], ["s1"])]
    pod.sessions = []
    assert await pod.told(1) == [([], ["s2"])]
    assert await pod.told(1) == []


async def test_a_session_that_is_not_open_yet_is_told_when_it_is() -> None:
    opening = Session("s1", is_open=False)
    pod = Pod(opening)
    assert await pod.told() == []
    opening.is_open = True
    assert await pod.told(1) == [([("s1", 0)], [])]


async def test_figures_are_told_every_five_seconds_if_they_changed() -> None:
    session = Session("s1")
    pod = Pod(session)
    await pod.told()
    session.characters = 9
    assert await pod.told(4) == []
    assert await pod.told(1) == [([("s1", 9)], [])]


async def test_a_quiet_session_is_told_within_fifteen_seconds() -> None:
    pod = Pod(Session("s1"))
    await pod.told()
    assert [bool(await pod.told(1)) for _ in range(15)].count(True) == 1


async def test_what_could_not_be_told_is_told_when_the_bus_is_back() -> None:
    pod = Pod(Session("s1"), Session("s2"))
    await pod.told()
    pod.sessions = [*pod.sessions[:1], Session("s3")]
    pod.client.is_away = True
    assert await pod.told(1) == []
    pod.client.is_away = False
    assert await pod.told(1) == [([("s3", 0)], ["s2"])]


async def test_many_sessions_are_told_in_several_messages() -> None:
    pod = Pod(*(Session(f"s{number}") for number in range(1201)))
    assert [len(sessions) for sessions, _ in await pod.told()] == [500, 500, 201]
