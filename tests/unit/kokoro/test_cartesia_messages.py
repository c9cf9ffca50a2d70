"""What each field of a request means here: voices and speeds of all versions, what is ignored, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from kokoro_backend.cartesia_messages import parse_request, voice_page
from kokoro_backend.errors import ProblemError
from tests.kit.speech_server import silent_voices

VOICES = silent_voices()
BODY: dict[str, Any] = {
    "model_id": "kokoro-82m",
    "transcript": "Hi.",
    "voice": "af_heart",
    "output_format": {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24000},
}


def parsed(**changes: Any) -> Any:
    return parse_request(BODY | changes, VOICES, raw_only=True)


@pytest.mark.parametrize(
    "voice",
    [
        "af_heart",
        "2d7d1bd7-2f9b-54d9-8428-54747a02cd8b",
        "2D7D1BD7-2F9B-54D9-8428-54747A02CD8B",
        {"id": "af_heart"},
        {"mode": "id", "id": "2d7d1bd7-2f9b-54d9-8428-54747a02cd8b"},
        {"mode": "id", "id": "af_heart", "__experimental_controls": {"speed": "normal", "emotion": ["anger:high"]}},
    ],
)
def test_a_voice_is_named_as_in_any_version(voice: Any) -> None:
    assert parsed(voice=voice).manner.voice.name == "af_heart"


@pytest.mark.parametrize(
    ("fields", "speed"),
    [
        ({}, 1.0),
        ({"generation_config": {"speed": 0.6}}, 0.6),
        ({"generation_config": {"speed": 1.5}, "speed": "slow"}, 1.5),
        ({"speed": "slow"}, 0.8),
        ({"speed": "fast"}, 1.25),
        ({"speed": 2}, 2.0),
        ({"voice": {"mode": "id", "id": "af_heart", "__experimental_controls": {"speed": "slowest"}}}, 0.7),
        ({"voice": {"mode": "id", "id": "af_heart", "__experimental_controls": {"speed": "fastest"}}}, 1.4),
        ({"voice": {"mode": "id", "id": "af_heart", "__experimental_controls": {"speed": -1}}}, 0.6),
        ({"voice": {"mode": "id", "id": "af_heart", "__experimental_controls": {"speed": 0.5}}}, 1.2),
    ],
)
def test_the_pace_is_told_as_in_any_version(fields: dict[str, Any], speed: float) -> None:
    assert parsed(**fields).manner.speed == pytest.approx(speed)


def test_an_emotion_changes_nothing() -> None:
    assert parsed(generation_config={"emotion": "angry"}).manner == parsed().manner


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"generation_config": {"volume": 3}}, "invalid_request"),
        ({"generation_config": "loud"}, "invalid_request"),
        ({"normalization": "off"}, "unsupported_option"),
        ({"normalization": "de"}, "unsupported_option"),
        ({"max_buffer_delay_ms": 6000}, "invalid_request"),
        ({"add_timestamps": "yes"}, "invalid_request"),
        ({"output_format": BODY["output_format"] | {"container": "wav"}}, "invalid_request"),
        ({"output_format": BODY["output_format"] | {"encoding": "opus"}}, "invalid_request"),
        ({"voice": {"mode": "id"}}, "invalid_request"),
        ({"voice": {"mode": "id", "id": "af_heart", "__experimental_controls": {"speed": 2}}}, "invalid_request"),
    ],
)
def test_what_has_no_meaning_here_is_refused(fields: dict[str, Any], code: str) -> None:
    with pytest.raises(ProblemError) as refused:
        parsed(**fields)
    assert refused.value.problem.code == code


def names(**query: str) -> list[str]:
    return [voice["name"] for voice in voice_page(VOICES, query)["data"]]


def test_voices_are_found_by_what_they_are() -> None:
    assert names(q="heart") == ["af_heart"]
    assert names(language="ja", gender="masculine") == ["jm_kumo"]
    assert names(language="en-GB", gender="feminine") == ["bf_alice", "bf_emma", "bf_isabella", "bf_lily"]
    assert names(is_owner="true") == []


def test_voices_are_listed_forwards_and_backwards() -> None:
    first = voice_page(VOICES, {"limit": "2"})
    second = voice_page(VOICES, {"limit": "2", "starting_after": first["next_page"]})
    back = voice_page(VOICES, {"limit": "2", "ending_before": second["data"][0]["id"]})
    assert [voice["name"] for voice in second["data"]] == ["af_bella", "af_heart"]
    assert (back["data"], back["has_more"]) == (first["data"], False)
    assert voice_page(VOICES, {"limit": "100"})["has_more"] is False


@pytest.mark.parametrize("query", [{"limit": "0"}, {"limit": "101"}, {"limit": "x"}, {"starting_after": "nobody"}])
def test_a_page_that_cannot_be_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(ProblemError):
        voice_page(VOICES, query)
