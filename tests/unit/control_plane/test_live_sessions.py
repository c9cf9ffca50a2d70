"""The list of open sessions: what pods told, and nothing of pods that fell silent."""

from contracts import codec
from contracts.events import LiveSession, SessionsHeard
from control_plane.publish.live_sessions import LiveSessions


class Clock:
    """Seconds that a test sets."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def told(pod: str, *exchanges: str, ended: tuple[str, ...] = (), characters: int = 0) -> bytes:
    sessions = tuple(
        LiveSession(
            exchange=exchange,
            workspace="acme",
            principal="ada",
            account="a-eu",
            provider="cartesia",
            endpoint="tts.websocket",
            since_ms=1,
            characters=characters,
        )
        for exchange in exchanges
    )
    return codec.encode(SessionsHeard(pod=pod, sessions=sessions, ended=ended))


def listed(live: LiveSessions, workspace: str = "acme") -> list[tuple[str, str, int]]:
    return [(heard.session.exchange, heard.pod, heard.session.characters) for heard in live.of(workspace)]


def test_what_is_told_again_takes_the_place_of_what_was_told() -> None:
    live = LiveSessions(Clock())
    live.hear(told("pod-1", "s1", "s2"))
    live.hear(told("pod-1", "s1", characters=7))
    assert listed(live) == [("s1", "pod-1", 7), ("s2", "pod-1", 0)]


def test_an_ended_session_is_gone_and_an_end_that_comes_twice_is_nothing() -> None:
    live = LiveSessions(Clock())
    live.hear(told("pod-1", "s1", "s2"))
    for _ in range(2):
        live.hear(told("pod-1", ended=("s1",)))
    assert listed(live) == [("s2", "pod-1", 0)]


def test_a_pod_that_falls_silent_takes_its_sessions_with_it() -> None:
    clock = Clock()
    live = LiveSessions(clock)
    live.hear(told("pod-1", "s1"))
    clock.now += 44
    live.hear(told("pod-2", "s2"))
    assert len(listed(live)) == 2
    clock.now += 2
    assert listed(live) == [("s2", "pod-2", 0)]


def test_another_workspace_sees_nothing_and_what_cannot_be_read_changes_nothing() -> None:
    live = LiveSessions(Clock())
    live.hear(told("pod-1", "s1"))
    live.hear(b"\xc1")
    live.hear(codec.encode({"schema": 1}))
    assert (listed(live, "other"), len(listed(live))) == ([], 1)
