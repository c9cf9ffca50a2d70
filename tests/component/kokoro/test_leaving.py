"""A caller who leaves frees the model at once, on every transport, and a failing model is told, not swallowed."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator

import httpx
import numpy as np
import pytest
from websockets.sync.client import connect

from kokoro_backend.engine import EngineError, Segment, Utterance
from tests.kit.speech_server import SpeechServer, speech_server, tone_backend

BODY = {
    "model_id": "kokoro-82m",
    "transcript": "This goes on for a while. " * 40,
    "voice": "af_heart",
    "output_format": {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24000},
}


class SlowEngine:
    """Speaks 10 ms of audio in 10 ms, in many segments, so that a caller can leave in between; fails on demand."""

    name = "slow"
    has_timings = False

    def __init__(self) -> None:
        self.segments = 0
        self.is_broken = False
        self.has_begun = threading.Event()

    def warm_up(self) -> None:
        pass

    def run(self, utterance: Utterance) -> Iterator[Segment]:
        for number in range(50):
            if self.is_broken:
                raise EngineError("broken on purpose")
            time.sleep(0.01)
            self.segments += 1
            self.has_begun.set()
            yield Segment(np.full(240, 0.1, np.float32), is_last=number == 49)


@pytest.fixture
def slow() -> Iterator[tuple[SpeechServer, SlowEngine]]:
    engine = SlowEngine()
    with speech_server(lambda: tone_backend(engine)) as server:
        yield server, engine


def becomes_idle(server: SpeechServer, engine: SlowEngine) -> bool:
    """Say whether the queue is empty within 5 s, long before all would have been spoken."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        if server.backend.speaker.queue_depth == 0:
            return engine.segments < 40 * 50
        time.sleep(0.01)
    return False


@pytest.mark.parametrize(
    ("path", "changes"),
    [
        ("/tts/bytes", {}),
        ("/tts/sse", {}),
        ("/invocations", {"text": BODY["transcript"]}),
        ("/invocations", {"text": BODY["transcript"], "transport": "sse"}),
    ],
)
def test_an_http_caller_who_leaves_in_mid_stream_frees_the_model(
    slow: tuple[SpeechServer, SlowEngine], path: str, changes: dict[str, object]
) -> None:
    server, engine = slow
    with httpx.stream("POST", f"{server.url}{path}", json=BODY | changes) as answer:
        next(answer.iter_raw())
    assert becomes_idle(server, engine)


def test_a_caller_who_leaves_before_a_whole_file_is_there_frees_the_model(slow: tuple[SpeechServer, SlowEngine]) -> None:
    server, engine = slow
    body = json.dumps({"text": BODY["transcript"], "stream": False}).encode()
    head = f"POST /invocations HTTP/1.1\r\nHost: kokoro\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", server.port)) as caller:
        caller.sendall(head + body)
        assert engine.has_begun.wait(10)
    assert becomes_idle(server, engine)


def test_a_websocket_caller_who_leaves_frees_the_model(slow: tuple[SpeechServer, SlowEngine]) -> None:
    server, engine = slow
    with connect(f"{server.websocket_url}/tts/websocket") as session:
        session.send(json.dumps(BODY | {"context_id": "c"}))
        session.recv()
    assert becomes_idle(server, engine)


def test_a_stream_caller_who_vanishes_frees_the_model(slow: tuple[SpeechServer, SlowEngine]) -> None:
    server, engine = slow
    session = connect(f"{server.websocket_url}/invocations-bidirectional-stream")
    for _ in range(5):
        session.send(json.dumps({"text": BODY["transcript"]}))
    assert engine.has_begun.wait(10)
    session.socket.close()
    assert becomes_idle(server, engine)


def test_two_callers_at_once_one_of_whom_leaves_do_not_disturb_each_other(slow: tuple[SpeechServer, SlowEngine]) -> None:
    server, _ = slow
    with httpx.stream("POST", f"{server.url}/tts/bytes", json=BODY) as answer:
        pieces = answer.iter_raw()  # kept: a forgotten iterator closes the connection
        next(pieces)
        other = httpx.post(f"{server.url}/tts/bytes", json=BODY | {"transcript": "Hi."}, timeout=30)
    assert (other.status_code, len(other.content)) == (200, 50 * 480)


def test_a_failing_model_is_a_500_before_the_first_byte(slow: tuple[SpeechServer, SlowEngine]) -> None:
    server, engine = slow
    engine.is_broken = True
    answer = httpx.post(f"{server.url}/tts/bytes", json=BODY)
    assert (answer.status_code, answer.json()["error_code"]) == (500, "synthesis_failed")
    assert "broken on purpose" not in answer.text


def test_a_model_that_fails_in_mid_stream_breaks_bytes_and_is_told_in_events(slow: tuple[SpeechServer, SlowEngine]) -> None:
    server, engine = slow
    with httpx.stream("POST", f"{server.url}/tts/bytes", json=BODY) as answer:
        pieces = answer.iter_raw()
        next(pieces)
        engine.is_broken = True
        with pytest.raises(httpx.RemoteProtocolError):
            list(pieces)
    engine.is_broken = False
    with httpx.stream("POST", f"{server.url}/tts/sse", json=BODY) as answer:
        lines = answer.iter_lines()
        next(lines)
        engine.is_broken = True
        events = [json.loads(line[5:]) for line in lines if line.startswith("data:")]
    assert (events[-1]["type"], events[-1]["error_code"]) == ("error", "synthesis_failed")


def test_a_model_that_fails_in_mid_message_is_an_error_of_that_message_and_the_session_goes_on(
    slow: tuple[SpeechServer, SlowEngine],
) -> None:
    server, engine = slow
    with connect(f"{server.websocket_url}/invocations-bidirectional-stream") as session:
        session.send(json.dumps({"text": "Hi.", "request_id": "1"}))
        while not isinstance(session.recv(10), bytes):
            pass
        engine.is_broken = True
        while isinstance(frame := session.recv(10), bytes):
            pass
        engine.is_broken = False
        session.send(json.dumps({"text": "Hi.", "request_id": "2"}))
        frames = [session.recv(10)]
        while not (isinstance(frames[-1], str) and json.loads(frames[-1])["type"] == "synthesis_complete"):
            frames.append(session.recv(10))
    failed = json.loads(frame)
    assert (failed["type"], failed["request_id"], failed["code"], failed["retryable"]) == ("error", "1", "synthesis_failed", True)
    assert sum(len(frame) for frame in frames if isinstance(frame, bytes)) == 50 * 480


def test_beyond_the_queue_limit_callers_are_told_to_come_back() -> None:
    engine = SlowEngine()
    with (
        speech_server(lambda: tone_backend(engine, queue_limit=2)) as server,
        httpx.stream("POST", f"{server.url}/tts/bytes", json=BODY) as answer,
        connect(f"{server.websocket_url}/invocations-bidirectional-stream") as session,
    ):
        pieces = answer.iter_raw()
        next(pieces)
        deadline = time.monotonic() + 10
        while server.backend.speaker.queue_depth < 2:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        refused = [
            httpx.post(f"{server.url}/tts/bytes", json=BODY),
            httpx.post(f"{server.url}/invocations", json={"text": "Hi."}),
            httpx.post(f"{server.url}/invocations", json={"text": "Hi.", "stream": False}),
            httpx.post(f"{server.url}/invocations", json={"text": "Hi.", "transport": "sse"}),
        ]
        session.send(json.dumps({"text": "Hi.", "request_id": "r"}))
        told = json.loads(session.recv(10))
        next(pieces)  # The admitted one goes on.
    assert [(one.status_code, one.json()["error_code"]) for one in refused] == [(503, "queue_saturated")] * 4
    assert [one.headers["retry-after"] for one in refused] == ["1"] * 4
    assert (told["type"], told["request_id"], told["code"], told["retryable"]) == ("error", "r", "queue_saturated", True)


def test_ping_is_answered_while_the_model_works(slow: tuple[SpeechServer, SlowEngine]) -> None:
    server, _ = slow
    with httpx.Client() as client, httpx.stream("POST", f"{server.url}/tts/bytes", json=BODY) as answer:
        pieces = answer.iter_raw()  # kept: a forgotten iterator closes the connection
        next(pieces)
        answers = [client.get(f"{server.url}/ping").status_code for _ in range(20)]
        # It was at work all the time: there is more.
        assert next(pieces)
    assert answers == [200] * 20
