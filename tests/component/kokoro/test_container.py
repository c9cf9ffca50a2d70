"""SageMaker's container contract on the wire: invocations, and sessions that answer in order and survive bad input."""

from __future__ import annotations

import asyncio
import base64
import json
import time
import wave
from io import BytesIO
from typing import Any

import httpx
import numpy as np
import pytest
from websockets.asyncio.client import ClientConnection, connect

from kokoro_backend.backend import Backend, assemble
from kokoro_backend.client import SseReassembler
from kokoro_backend.engine import ToneEngine
from kokoro_backend.phonemes import Word
from kokoro_backend.weights import packaged_vocab
from tests.kit.speech_server import LetterPhonemizer, SpeechServer, silent_voices, speech_server

HELLO_BYTES = 8 * 2 * 600 * 2
PATH = "/invocations-bidirectional-stream"


def invoke(server: SpeechServer, **fields: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/invocations", json={"text": "Hello."} | fields, timeout=30)


def test_a_plain_invocation_streams_a_wav(tone_server: SpeechServer) -> None:
    answer = invoke(tone_server)
    assert answer.headers["content-type"] == "audio/wav"
    with wave.open(BytesIO(answer.content)) as reader:
        assert len(reader.readframes(10**6)) == HELLO_BYTES


def test_a_whole_wav_has_its_length_and_the_sample_headers(tone_server: SpeechServer) -> None:
    answer = invoke(tone_server, stream=False)
    with wave.open(BytesIO(answer.content)) as reader:
        assert reader.getnframes() == HELLO_BYTES // 2
    assert answer.headers["x-audio-duration"] == "0.400"
    assert float(answer.headers["x-rtf"]) > 0


def test_pcm_is_bare_samples_at_the_rate_that_was_asked_for(tone_server: SpeechServer) -> None:
    assert len(invoke(tone_server, format="pcm", sample_rate=8000).content) == HELLO_BYTES // 3


def test_mp3_is_decoded_to_its_last_sample(tone_server: SpeechServer) -> None:
    av = pytest.importorskip("av", reason="PyAV, which the recogniser brings, is not installed")
    with av.open(BytesIO(invoke(tone_server, format="mp3").content)) as file:
        decoded = np.concatenate([frame.to_ndarray()[0] for frame in file.decode(audio=0)])
    # 0.4 s; the encoder adds what it needs to begin and to fill its last frame.
    assert 9600 <= len(decoded) <= 9600 + 3 * 1152


def test_a_wav_of_unknown_length_is_played_to_its_end(tone_server: SpeechServer) -> None:
    av = pytest.importorskip("av", reason="PyAV, which the recogniser brings, is not installed")
    with av.open(BytesIO(invoke(tone_server, text="Hello. Goodbye, then.").content)) as file:
        decoded = np.concatenate([frame.to_ndarray()[0] for frame in file.decode(audio=0)])
    assert decoded.tobytes() == invoke(tone_server, text="Hello. Goodbye, then.", format="pcm").content


def test_mp3_begins_with_a_frame(tone_server: SpeechServer) -> None:
    answer = invoke(tone_server, format="mp3")
    assert answer.headers["content-type"] == "audio/mpeg"
    assert (answer.content[0], answer.content[1] & 0xE0) == (0xFF, 0xE0)


def test_aac_is_a_fragmented_mp4_that_a_player_decodes_to_its_last_word(tone_server: SpeechServer) -> None:
    av = pytest.importorskip("av", reason="PyAV, which the recogniser brings, is not installed")
    answer = invoke(tone_server, format="aac", sample_rate=48000)
    assert answer.headers["content-type"] == "audio/mp4"
    assert answer.content[4:8] == b"ftyp"
    assert answer.content.count(b"moof") >= 1
    with av.open(BytesIO(answer.content)) as file:
        decoded = np.concatenate([frame.to_ndarray()[0] for frame in file.decode(audio=0)])
    samples = len(invoke(tone_server, format="pcm", sample_rate=48000).content) // 2
    # The encoder adds what it needs to begin and to fill its last frame; nothing is missing.
    assert samples <= len(decoded) <= samples + 3 * 1024
    assert np.abs(decoded[samples // 2 : samples]).max() > 0.1


def test_aac_events_hold_the_whole_file(tone_server: SpeechServer) -> None:
    pytest.importorskip("av", reason="PyAV, which the recogniser brings, is not installed")
    events = SseReassembler().feed(invoke(tone_server, transport="sse", format="aac").content)
    audio = b"".join(base64.b64decode(event["data"]) for event in events if event["type"] == "audio_chunk")
    assert events[0]["format"] == "aac"
    assert audio[4:8] == b"ftyp"
    assert audio.count(b"moof") >= 1


def test_without_its_encoder_aac_is_refused_with_what_to_write_instead(
    tone_server: SpeechServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kokoro_backend.container_messages.can_encode_aac", lambda: False)
    answer = invoke(tone_server, format="aac")
    assert (answer.status_code, answer.json()["error_code"]) == (400, "unsupported_option")


def test_events_carry_the_audio_as_base64_between_start_and_end(tone_server: SpeechServer) -> None:
    answer = invoke(tone_server, transport="sse", request_id="r1")
    events = SseReassembler().feed(answer.content)
    assert events[0] == {
        "type": "audio_stream_start", "request_id": "r1", "format": "pcm16", "voice": "af_heart", "sample_rate": 24000,
    }  # fmt: skip
    audio = b"".join(base64.b64decode(event["data"]) for event in events[1:-1])
    assert audio == invoke(tone_server, format="pcm").content
    assert events[-1] == {"type": "audio_stream_end", "total_chunks": len(events) - 2, "duration_s": 0.4}


def test_a_foreign_voice_speaks_english_only_if_it_is_asked_to(tone_server: SpeechServer) -> None:
    spoken = invoke(tone_server, voice="ff_siwis", language="en")
    refused = invoke(tone_server, voice="ff_siwis").json()
    assert spoken.status_code == 200
    assert refused["message"] == (
        "Voice ff_siwis speaks French; text can be pronounced in English only. "
        'Set language to "en" to let the voice speak English.'
    )


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"text": ""}, 400, "invalid_request"),
        ({"text": "   "}, 400, "invalid_request"),
        ({"voice": "../../etc/passwd"}, 400, "voice_not_found"),
        ({"voice": "ff_siwis", "text": "Bonjour"}, 400, "language_not_supported"),
        ({"voice": "af_heart", "language": "fr"}, 400, "language_not_supported"),
        ({"speed": 9}, 400, "invalid_request"),
        ({"format": "ogg"}, 400, "invalid_request"),
        ({"transport": "smoke"}, 400, "invalid_request"),
        ({"request_timestamp": time.time() - 60}, 408, "request_stale"),
        ({"text": "你好"}, 400, "script_not_supported"),
    ],
)
def test_what_cannot_be_spoken_is_refused(tone_server: SpeechServer, fields: dict[str, Any], status: int, code: str) -> None:
    answer = invoke(tone_server, **fields)
    assert (answer.status_code, answer.json()["error_code"]) == (status, code)


def session(server: SpeechServer) -> connect:
    return connect(f"{server.websocket_url}{PATH}")


async def answers(socket: ClientConnection, count: int) -> list[Any]:
    """Return frames until `count` messages are answered: dictionaries for control, bytes for audio."""
    frames: list[Any] = []
    over = 0
    async with asyncio.timeout(30):
        while over < count:
            frame = await socket.recv()
            frames.append(json.loads(frame) if isinstance(frame, str) else frame)
            over += isinstance(frames[-1], dict) and frames[-1]["type"] in ("synthesis_complete", "error")
    return frames


def audio(frames: list[Any]) -> bytes:
    return b"".join(frame for frame in frames if isinstance(frame, bytes))


async def test_text_binary_and_fragmented_messages_are_answered_alike(tone_server: SpeechServer) -> None:
    message = json.dumps({"text": "Hello.", "request_id": "r"})
    async with session(tone_server) as socket:
        for form in (message, message.encode(), [message[:9], message[9:]]):
            await socket.send(form)
            frames = await answers(socket, 1)
            assert frames[0] == {"type": "synthesis_start", "request_id": "r", "sample_rate": 24000}
            assert len(audio(frames)) == HELLO_BYTES
            assert frames[-1].items() >= {"type": "synthesis_complete", "request_id": "r", "total_duration_s": 0.4}.items()


async def test_messages_sent_ahead_are_answered_strictly_in_order(tone_server: SpeechServer) -> None:
    async with session(tone_server) as socket:
        for number in range(20):
            await socket.send(json.dumps({"text": f"Message {number}.", "request_id": str(number)}))
        frames = await answers(socket, 20)
    control = [(frame["type"], frame["request_id"]) for frame in frames if isinstance(frame, dict)]
    assert control == [(kind, str(number)) for number in range(20) for kind in ("synthesis_start", "synthesis_complete")]


async def test_errors_are_answered_in_turn_and_the_session_stays_open(tone_server: SpeechServer) -> None:
    bad = ["{", "[1]", json.dumps({"text": ""}), json.dumps({"text": "x", "voice": "nobody", "request_id": "v"}), b"\xff\x00"]
    async with session(tone_server) as socket:
        await socket.send(json.dumps({"text": "Hello.", "request_id": "first"}))
        for message in bad:
            await socket.send(message)
        await socket.send(json.dumps({"text": "Hello.", "request_id": "last"}))
        frames = await answers(socket, 7)
    kinds = [(frame["type"], frame["request_id"]) for frame in frames if isinstance(frame, dict)]
    assert kinds[1] == ("synthesis_complete", "first")
    assert kinds[2:7] == [("error", "unknown")] * 3 + [("error", "v"), ("error", "unknown")]
    assert kinds[-1] == ("synthesis_complete", "last")


async def test_only_close_ends_the_session_and_after_what_was_sent(tone_server: SpeechServer) -> None:
    async with session(tone_server) as socket:
        await socket.send(json.dumps({"text": "Hello.", "request_id": "r"}))
        await socket.send('{"type": "close"}')
        frames = await answers(socket, 1)
        async with asyncio.timeout(10):
            await socket.wait_closed()
    assert len(audio(frames)) == HELLO_BYTES
    assert socket.close_code == 1000


async def test_cancel_cuts_the_running_message_short_and_skips_the_waiting_ones(tone_server: SpeechServer) -> None:
    async with session(tone_server) as socket:
        for number in range(3):
            await socket.send(json.dumps({"text": "A long message. " * 400, "request_id": str(number)}))
        await socket.send('{"type": "cancel"}')
        frames = await answers(socket, 3)
        await socket.send(json.dumps({"text": "Hello.", "request_id": "next"}))
        after = await answers(socket, 1)
    completed = [frame for frame in frames if isinstance(frame, dict) and frame["type"] == "synthesis_complete"]
    assert [frame.get("cancelled") for frame in completed] == [True, True, True]
    assert completed[2]["total_duration_s"] == 0
    assert len(audio(after)) == HELLO_BYTES


async def test_a_cancel_that_names_a_message_leaves_the_others_alone(tone_server: SpeechServer) -> None:
    async with session(tone_server) as socket:
        await socket.send(json.dumps({"text": "A long message. " * 400, "request_id": "long"}))
        await socket.send(json.dumps({"text": "Hello.", "request_id": "dropped"}))
        await socket.send(json.dumps({"text": "Hello.", "request_id": "kept"}))
        await socket.send('{"type": "cancel", "request_id": "dropped"}')
        await socket.send('{"type": "cancel", "request_id": "long"}')
        frames = await answers(socket, 3)
    completed = [frame for frame in frames if isinstance(frame, dict) and frame["type"] == "synthesis_complete"]
    assert [(frame["request_id"], frame.get("cancelled", False)) for frame in completed] == [
        ("long", True), ("dropped", True), ("kept", False),
    ]  # fmt: skip
    assert [frame["total_duration_s"] for frame in completed[1:]] == [0, 0.4]


async def test_a_message_that_is_too_old_is_an_error_and_the_next_one_is_spoken(tone_server: SpeechServer) -> None:
    async with session(tone_server) as socket:
        await socket.send(json.dumps({"text": "Hello.", "request_id": "old", "request_timestamp": time.time() - 60}))
        await socket.send(json.dumps({"text": "Hello.", "request_id": "new", "request_timestamp": time.time()}))
        frames = await answers(socket, 2)
    assert (frames[0]["type"], frames[0]["request_id"], frames[0]["code"]) == ("error", "old", "request_stale")
    assert len(audio(frames)) == HELLO_BYTES


async def test_audio_goes_out_in_frames_of_a_tenth_of_a_second_at_most(tone_server: SpeechServer) -> None:
    for rate in (8000, 24000, 48000):
        async with session(tone_server) as socket:
            await socket.send(json.dumps({"text": "Hello there, my friend.", "sample_rate": rate}))
            frames = await answers(socket, 1)
        sizes = [len(frame) for frame in frames if isinstance(frame, bytes)]
        assert max(sizes) == rate // 10 * 2
        assert sum(sizes) == 25 * 2 * 600 * 2 * rate // 24000


class UnreadablePhonemizer(LetterPhonemizer):
    """Fails on one text as no code foresaw, with an error that a closed socket raises as well."""

    def words(self, text: str, *, language: str, british: bool, phoneme_markup: bool = False) -> list[Word]:
        if text == "Deep.":
            raise RuntimeError("secret detail")
        return super().words(text, language=language, british=british, phoneme_markup=phoneme_markup)


async def test_a_failure_that_nobody_foresaw_is_answered_and_the_session_goes_on() -> None:
    def load() -> Backend:
        return assemble(ToneEngine(), UnreadablePhonemizer(), silent_voices(), packaged_vocab(), 100)

    with speech_server(load) as server:
        async with session(server) as socket:
            await socket.send(json.dumps({"text": "Deep.", "request_id": "deep"}))
            await socket.send(json.dumps({"text": "Hello.", "request_id": "next"}))
            frames = await answers(socket, 2)
    assert (frames[0]["type"], frames[0]["request_id"], frames[0]["code"]) == ("error", "deep", "internal_error")
    assert "secret" not in str(frames[0])
    assert len(audio(frames)) == HELLO_BYTES


async def test_more_than_sixty_four_waiting_messages_are_refused(tone_server: SpeechServer) -> None:
    async with session(tone_server) as socket:
        for number in range(66):
            await socket.send(json.dumps({"text": "A long message. " * 200, "request_id": str(number)}))
        await socket.send('{"type": "cancel"}')
        frames = await answers(socket, 66)
    refused = [frame for frame in frames if isinstance(frame, dict) and frame["type"] == "error"]
    assert {frame["code"] for frame in refused} == {"queue_saturated"}
    assert all(frame["retryable"] for frame in refused)
