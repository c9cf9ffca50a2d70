"""The official Cartesia SDK works on the backend unchanged: only its addresses differ from normal use."""

from __future__ import annotations

import io
import wave
from collections.abc import Iterator
from typing import Any

import pytest
from cartesia import BadRequestError, Cartesia

from tests.kit.speech_server import SpeechServer

RAW: Any = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24000}
# Two frames of 600 samples for each letter, mark, space and pad: "Hello." is 8 of them.
HELLO_BYTES = 8 * 2 * 600 * 2


@pytest.fixture
def client(tone_server: SpeechServer) -> Iterator[Cartesia]:
    with Cartesia(api_key="any", base_url=tone_server.url, websocket_base_url=tone_server.websocket_url, max_retries=0) as client:
        yield client


def speak(client: Cartesia, **changes: Any) -> bytes:
    request: dict[str, Any] = {"model_id": "kokoro-82m", "transcript": "Hello.", "voice": "af_heart", "output_format": RAW}
    return client.tts.generate(**(request | changes)).read()


def test_bytes_of_a_raw_request_are_samples(client: Cartesia) -> None:
    assert len(speak(client)) == HELLO_BYTES


def test_float_samples_have_four_bytes(client: Cartesia) -> None:
    assert len(speak(client, output_format=RAW | {"encoding": "pcm_f32le"})) == 2 * HELLO_BYTES


def test_a_wav_of_unknown_length_is_read_by_a_wav_reader(client: Cartesia) -> None:
    audio = speak(client, output_format={"container": "wav", "encoding": "pcm_s16le", "sample_rate": 16000})
    with wave.open(io.BytesIO(audio)) as reader:
        assert reader.getframerate() == 16000
        assert len(reader.readframes(10**6)) == HELLO_BYTES * 2 // 3


def test_a_voice_is_found_by_name_by_uuid_and_in_an_object(client: Cartesia) -> None:
    voice = client.voices.get("af_heart")
    assert voice.name == "af_heart"
    assert len(speak(client, voice=voice.id)) == HELLO_BYTES
    assert len(speak(client, voice={"id": voice.id})) == HELLO_BYTES
    assert len(speak(client, voice={"mode": "id", "id": "af_heart"})) == HELLO_BYTES


def test_a_voice_of_cartesias_own_is_refused_with_the_way_to_list_voices(client: Cartesia) -> None:
    with pytest.raises(BadRequestError) as refused:
        speak(client, voice="6ccbfb76-1fc6-48f7-b71d-91ac6298247b")
    body: Any = refused.value.body
    assert body["error_code"] == "voice_not_found"
    assert "GET /voices" in body["message"]
    assert body["request_id"] == refused.value.response.headers["x-request-id"]
    assert refused.value.response.headers["x-should-retry"] == "false"


def test_all_voices_are_listed_page_by_page(client: Cartesia) -> None:
    voices = list(client.voices.list(limit=10))
    assert len(voices) == 54
    assert len({voice.id for voice in voices}) == 54


def test_server_sent_events_carry_the_same_audio_and_end_with_done(client: Cartesia) -> None:
    events = list(client.tts.generate_sse(model_id="kokoro-82m", transcript="Hello.", voice="af_heart", output_format=RAW))
    audio = b"".join(event.audio or b"" for event in events if event.type == "chunk")
    assert audio == speak(client)
    assert [event.type for event in events][-1] == "done"


def test_two_contexts_on_one_socket_are_complete_and_end_once(client: Cartesia) -> None:
    with client.tts.websocket_connect() as connection:
        first = connection.context(model_id="kokoro-82m", voice="af_heart", output_format=RAW)
        second = connection.context(model_id="kokoro-82m", voice="bm_george", output_format=RAW)
        first.push("Good ")
        second.push("Hello.")
        first.push("morning to you. And")
        second.no_more_inputs()
        first.push(" hello.")
        first.no_more_inputs()
        received = {name: list(context.receive()) for name, context in (("first", first), ("second", second))}
    assert b"".join(event.audio or b"" for event in received["second"] if event.type == "chunk") == speak(client)
    expected = speak(client, transcript="Good morning to you. And hello.")
    assert b"".join(event.audio or b"" for event in received["first"] if event.type == "chunk") == expected
    assert [[event.type for event in events].count("done") for events in received.values()] == [1, 1]


def test_a_flush_is_answered_after_its_audio(client: Cartesia) -> None:
    with client.tts.websocket_connect() as connection:
        context = connection.context(model_id="kokoro-82m", voice="af_heart", output_format=RAW)
        context.send(model_id="kokoro-82m", transcript="Hello", voice="af_heart", output_format=RAW, continue_=True, flush=True)
        context.no_more_inputs()
        kinds = [event.type for event in context.receive()]
    assert kinds.index("flush_done") == kinds.count("chunk")
    assert kinds[-1] == "done"


def test_a_break_tag_is_silence_of_its_length(client: Cartesia) -> None:
    with_break = speak(client, transcript='Hello.<break time="500ms"/> Hello.')
    assert len(with_break) == 2 * HELLO_BYTES + 24000
    assert with_break[HELLO_BYTES : HELLO_BYTES + 24000] == bytes(24000)


def test_formats_of_telephony_have_one_byte_a_sample_at_8_khz(client: Cartesia) -> None:
    for encoding in ("pcm_mulaw", "pcm_alaw"):
        audio = speak(client, output_format={"container": "raw", "encoding": encoding, "sample_rate": 8000})
        assert len(audio) == HELLO_BYTES // 6


def test_mp3_is_streamed_and_its_tail_is_sent(client: Cartesia) -> None:
    audio = speak(client, output_format={"container": "mp3", "sample_rate": 44100, "bit_rate": 128000})
    # 0.4 s at 128 kbit/s is 6400 bytes; whole frames and the encoder's delay make it a little more, a lost tail less.
    assert 6400 <= len(audio) <= 9000


def test_speed_shortens_and_volume_does_not(client: Cartesia) -> None:
    assert len(speak(client, speed="fast")) == HELLO_BYTES
    assert len(speak(client, generation_config={"speed": 1.5})) == HELLO_BYTES // 2
    assert len(speak(client, generation_config={"volume": 2.0})) == HELLO_BYTES
