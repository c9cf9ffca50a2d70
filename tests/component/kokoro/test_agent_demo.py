"""The demo agent: events in true order, an honest batch, errors in the stream, SSE for the caller."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import httpx
import uvicorn

from kokoro_backend.agent_demo import LanguageModel, Measured, Mode, Speech, agent_events, create_app, measure, summary
from kokoro_backend.client import SseReassembler
from tests.kit.speech_server import SpeechServer


def speech_of(server: SpeechServer, voice: str = "af_heart") -> Speech:
    return Speech(f"{server.websocket_url}/invocations-bidirectional-stream", None, voice)


async def two_sentences(prompt: str) -> AsyncIterator[str]:
    for word in ("Hello", " there.", " And", " good", "bye."):
        yield word


async def events_of(mode: Mode, speech: Speech, source: Any = two_sentences) -> list[dict[str, Any]]:
    async with asyncio.timeout(20):
        return [event async for event in agent_events("hi", mode, source, speech, "r1")]


async def test_both_modes_say_the_same_and_frame_it_with_start_and_end(tone_server: SpeechServer) -> None:
    bidi = await events_of("bidi", speech_of(tone_server))
    batch = await events_of("batch", speech_of(tone_server))
    for mode, events in (("bidi", bidi), ("batch", batch)):
        assert events[0] == {"type": "agent_start", "request_id": "r1", "mode": mode}
        assert events[-1] == {"type": "agent_end", "request_id": "r1"}
        assert "".join(event["text"] for event in events if event["type"] == "text_delta") == "Hello there. And goodbye."
    assert audio(bidi) == audio(batch)
    assert len(audio(bidi)) > 0


async def test_bidi_is_heard_before_the_text_is_whole_and_batch_only_after(tone_server: SpeechServer) -> None:
    async def long_text(prompt: str) -> AsyncIterator[str]:
        yield "Hello there. "
        for _ in range(40):
            await asyncio.sleep(0.01)
            yield "More words, "
        yield "and the end."

    for mode, is_early in (("bidi", True), ("batch", False)):
        kinds = [event["type"] for event in await events_of("bidi" if is_early else "batch", speech_of(tone_server), long_text)]
        last_text = len(kinds) - 1 - kinds[::-1].index("text_delta")
        assert (kinds.index("audio_chunk") < last_text) is is_early, mode


async def test_a_refused_voice_is_an_error_event_and_the_stream_ends(tone_server: SpeechServer) -> None:
    events = await events_of("bidi", speech_of(tone_server, voice="nobody"))
    assert [event["code"] for event in events if event["type"] == "error"] == ["voice_not_found"]
    assert events[-1]["type"] == "agent_end"


async def test_an_unreachable_backend_is_an_error_event() -> None:
    events = await events_of("bidi", Speech("ws://127.0.0.1:9/invocations-bidirectional-stream", None))
    assert [event["code"] for event in events if event["type"] == "error"] == ["speech_unreachable"]


async def test_a_failing_text_source_does_not_leak_its_exception(tone_server: SpeechServer) -> None:
    async def failing(prompt: str) -> AsyncIterator[str]:
        yield "Hello. "
        raise ValueError("secret detail")

    events = await events_of("bidi", speech_of(tone_server), failing)
    assert [event["code"] for event in events if event["type"] == "error"] == ["agent_failed"]
    assert "secret" not in str(events)


class Writing(BaseHTTPRequestHandler):
    """A chat model with an OpenAI-style API, whose answer comes in pieces."""

    asked: ClassVar[list[tuple[str, str, dict[str, Any]]]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append((self.path, self.headers.get("Authorization", ""), body))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for delta in ({"role": "assistant"}, {"content": "Hello there."}, {"content": " How"}, {"content": " now."}):
            self.wfile.write(f"data: {json.dumps({'choices': [{'delta': delta}]})}\n\n".encode())
        self.wfile.write(b'data: {"choices": []}\n\ndata: [DONE]\n\n')

    def log_message(self, *_: object) -> None:
        pass


async def test_a_language_model_that_is_set_writes_what_is_spoken(tone_server: SpeechServer) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Writing)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        source = LanguageModel(f"http://127.0.0.1:{server.server_port}/v1/", "small", "key of the model")
        events = await events_of("bidi", speech_of(tone_server), source)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert [event["text"] for event in events if event["type"] == "text_delta"] == ["Hello there.", " How", " now."]
    assert len(audio(events)) == (12 + 2 + 8 + 2) * 2 * 600 * 2
    ((path, authorization, body),) = Writing.asked
    assert (path, authorization) == ("/v1/chat/completions", "Bearer key of the model")
    assert body == {"model": "small", "stream": True, "messages": [{"role": "user", "content": "hi"}]}


def audio(events: list[dict[str, Any]]) -> bytes:
    return b"".join(base64.b64decode(event["data"]) for event in events if event["type"] == "audio_chunk")


@contextmanager
def served(speech: Speech) -> Iterator[str]:
    numbers = itertools.count()
    server = uvicorn.Server(uvicorn.Config(create_app(two_sentences, speech, lambda: f"id-{next(numbers)}"), log_config=None))
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def test_the_caller_gets_the_events_as_sse_with_base64(tone_server: SpeechServer) -> None:
    with served(speech_of(tone_server)) as url:
        answer = httpx.post(f"{url}/invocations", json={"prompt": "hi", "mode": "bidi"}, timeout=20)
        bad = httpx.post(f"{url}/invocations", json={"mode": "loud"}, timeout=20)
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = SseReassembler().feed(answer.content)
    assert (events[0]["type"], events[-1]["type"]) == ("agent_start", "agent_end")
    assert len(audio(events)) > 0
    assert (bad.status_code, bad.json()["code"]) == (400, "invalid_request")


async def test_both_modes_are_measured_in_pairs(tone_server: SpeechServer) -> None:
    asked: list[str] = []

    async def noting(prompt: str) -> AsyncIterator[str]:
        asked.append(prompt)
        async for word in two_sentences(prompt):
            yield word

    async with asyncio.timeout(20):
        measured = [pair async for pair in measure(3, "hi", noting, speech_of(tone_server), rest_seconds=0)]
    assert len(measured) == 3
    assert asked == ["hi"] * 6
    assert all(pair.bidi > 0 and pair.batch > 0 for pair in measured)


def test_the_summary_gives_medians_spread_and_how_often_bidi_was_first() -> None:
    text = summary([Measured(1.0, 3.0), Measured(2.0, 5.0), Measured(3.0, 2.0)])
    assert "bidi   first audio after agent_start: median 2.000 s, lowest 1.000 s, highest 3.000 s" in text
    assert "bidi is 1.50 times as fast by medians, and first in 2 of 3 pairs" in text
