"""The TTS WebSocket on the wire: many contexts, order, cancel, errors in band."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest
import websockets
from websockets.asyncio.client import ClientConnection, connect

from tests.kit.speech_server import SpeechServer

RAW = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24000}


def message(context_id: str, transcript: str, **fields: Any) -> str:
    return json.dumps(
        {
            "context_id": context_id,
            "model_id": "kokoro-82m",
            "transcript": transcript,
            "voice": "af_heart",
            "output_format": RAW,
        }
        | fields
    )


async def received_until_done(socket: ClientConnection, count: int) -> list[dict[str, Any]]:
    """Return events until `count` contexts are over."""
    events: list[dict[str, Any]] = []
    over = 0
    async with asyncio.timeout(30):
        while over < count:
            events.append(json.loads(await socket.recv()))
            over += events[-1]["done"]
    return events


def audio_of(events: list[dict[str, Any]], context_id: str) -> bytes:
    return b"".join(
        base64.b64decode(event["data"]) for event in events if event["type"] == "chunk" and event["context_id"] == context_id
    )


async def test_sixty_four_interleaved_contexts_are_each_complete_and_in_order(tone_server: SpeechServer) -> None:
    names = [f"context-{number}" for number in range(64)]
    pieces = ["The first ", "sentence is here. The sec", "ond one follows. ", "And a third, at last."]
    async with connect(f"{tone_server.websocket_url}/tts/websocket") as socket:
        await socket.send(message("alone", "".join(pieces)))
        alone = audio_of(await received_until_done(socket, 1), "alone")
        for piece in pieces:
            for name in names:
                await socket.send(message(name, piece, **{"continue": True}))
        for name in names:
            await socket.send(message(name, ""))
        events = await received_until_done(socket, 64)
    assert len(alone) > 0
    assert {name: audio_of(events, name) == alone for name in names} == dict.fromkeys(names, True)
    assert sorted(event["context_id"] for event in events if event["type"] == "done") == sorted(names)


async def test_a_cancelled_context_ends_at_once_and_the_others_go_on(tone_server: SpeechServer) -> None:
    async with connect(f"{tone_server.websocket_url}/tts/websocket") as socket:
        await socket.send(message("stays", "Hello there.", **{"continue": True}))
        await socket.send(message("goes", "This will not be heard to its end. " * 200, **{"continue": True}))
        await socket.send('{\n  "cancel": true,\n  "context_id": "goes"\n}')
        await socket.send(message("stays", ""))
        events = await received_until_done(socket, 2)
        assert len(audio_of(events, "goes")) < 200 * 35 * 2400
        assert len(audio_of(events, "stays")) == 14 * 2400
        after = events.index(next(event for event in events if event["done"] and event["context_id"] == "goes"))
        assert audio_of(events[after:], "goes") == b""


async def test_an_error_ends_its_context_only(tone_server: SpeechServer) -> None:
    async with connect(f"{tone_server.websocket_url}/tts/websocket") as socket:
        await socket.send(message("good", "Hello ", **{"continue": True}))
        await socket.send(message("bad", "Hello.", voice="nobody"))
        await socket.send(message("good", "there."))
        events = await received_until_done(socket, 2)
    error = next(event for event in events if event["type"] == "error")
    assert (error["context_id"], error["status_code"], error["error_code"]) == ("bad", 400, "voice_not_found")
    assert len(audio_of(events, "good")) == 14 * 2400


async def test_old_versions_get_their_own_error_shape(tone_server: SpeechServer) -> None:
    async with connect(f"{tone_server.websocket_url}/tts/websocket?cartesia_version=2025-04-16") as socket:
        await socket.send(message("bad", "Hello.", model_id="sonic-3"))
        (error,) = await received_until_done(socket, 1)
    assert error["error"].startswith("Invalid request: This server has no model 'sonic-3'")
    assert "error_code" not in error


async def test_junk_is_answered_and_the_socket_stays_open(tone_server: SpeechServer) -> None:
    async with connect(f"{tone_server.websocket_url}/tts/websocket") as socket:
        for junk in ("", "[1]", "{", b"\x00\xff", '{"context_id": 5, "transcript": "x"}', '{"transcript": "\\ud83d"}'):
            await socket.send(junk)
        errors = await received_until_done(socket, 6)
        await socket.send(message("good", "Hello there."))
        events = await received_until_done(socket, 1)
    assert [error["type"] for error in errors] == ["error"] * 6
    assert len(audio_of(events, "good")) == 14 * 2400


async def test_the_handshake_is_answered_with_a_request_id(tone_server: SpeechServer) -> None:
    async with connect(f"{tone_server.websocket_url}/tts/websocket", additional_headers={"X-Request-Id": "given-1"}) as socket:
        assert socket.response is not None
        assert socket.response.headers["X-Request-Id"] == "given-1"
        assert isinstance(socket.response.headers.get("Sec-WebSocket-Extensions", None), type(None))


async def test_text_that_waits_is_spoken_when_the_buffer_delay_is_over(tone_server: SpeechServer) -> None:
    async with connect(f"{tone_server.websocket_url}/tts/websocket") as socket:
        await socket.send(message("slow", "Hello the", **{"continue": True}, max_buffer_delay_ms=50))
        async with asyncio.timeout(10):
            first = json.loads(await socket.recv())
        await socket.send(message("slow", "re.", **{"continue": False}))
        events = [first, *await received_until_done(socket, 1)]
    assert first["type"] == "chunk"
    # "Hello" alone, then "there." whole: a word that may be cut off waits for its end.
    # Between the two a comma's pause is left at most, so a little of their silence is cut.
    assert 14 * 2400 < len(audio_of(events, "slow")) <= (7 + 8) * 2400


async def test_words_and_phonemes_are_timed_from_the_start_of_their_context(tone_server: SpeechServer) -> None:
    async with connect(f"{tone_server.websocket_url}/tts/websocket") as socket:
        wanted = {"add_timestamps": True, "add_phoneme_timestamps": True}
        await socket.send(message("c", "Hi you. See me", **wanted, **{"continue": True, "max_buffer_delay_ms": 0}))
        await socket.send(message("c", " now.", **wanted))
        events = await received_until_done(socket, 1)
    words = [event["word_timestamps"] for event in events if event["type"] == "timestamps"]
    phonemes = [event["phoneme_timestamps"] for event in events if event["type"] == "phoneme_timestamps"]
    # 50 ms for each letter, mark and blank, and for the pad before the first.
    assert words[0] == {"words": ["hi", "you.", "see", "me"], "start": [0.05, 0.2, 0.45, 0.65], "end": [0.15, 0.35, 0.6, 0.75]}
    assert words[1]["words"] == ["now."]
    assert ["".join(part["phonemes"]) for part in phonemes] == ["hiyouseeme", "now"]
    assert (phonemes[0]["start"][:3], phonemes[0]["end"][:3]) == ([0.05, 0.1, 0.2], [0.1, 0.15, 0.25])
    starts = [start for part in words for start in part["start"]]
    ends = [end for part in words for end in part["end"]]
    assert starts == sorted(starts)
    assert 0 < len(audio_of(events, "c")) / 48000 - ends[-1] < 0.2


async def test_a_missing_path_refuses_the_handshake(tone_server: SpeechServer) -> None:
    with pytest.raises(websockets.InvalidStatus) as refused:
        await connect(f"{tone_server.websocket_url}/tts/nothing")
    assert refused.value.response.status_code == 403
