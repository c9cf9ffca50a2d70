"""Units of speech, windows of sound, unknown words, timings: the arithmetic around the model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kokoro_backend.letters import is_readable, pronounce
from kokoro_backend.onnx_engine import FIRST_WINDOW, window_plan
from kokoro_backend.phonemes import Unit, Word, split_units
from kokoro_backend.synthesis import timings
from kokoro_backend.voices import STYLE_ROWS, STYLE_WIDTH, voice_named
from tests.kit.speech_server import silent_voices


@given(st.lists(st.text(alphabet="abˈ,.; ", min_size=1, max_size=40), max_size=60), st.integers(20, 250))
def test_units_lose_nothing_and_stay_below_the_limit(sounds: list[str], limit: int) -> None:
    units = split_units([Word("w", sound) for sound in sounds], limit)
    assert "".join(word.symbols for unit in units for word in unit.words) == "".join(sounds)
    assert all(len(unit.symbols) <= limit for unit in units)


def test_a_long_sentence_is_cut_after_a_comma() -> None:
    words = [Word(f"w{number}", "abcd, " if number == 9 else "abcd ") for number in range(16)]
    first, second = split_units(words, limit=60)
    assert first.symbols.endswith("abcd,")
    assert len(first.words) == 10
    assert len(second.words) == 6


@given(st.integers(1, 3000))
def test_windows_cover_every_frame_once_and_begin_small(frames: int) -> None:
    plan = window_plan(frames)
    assert [start for start, _ in plan] == [0, *(stop for _, stop in plan[:-1])]
    assert plan[-1][1] == frames
    assert frames <= FIRST_WINDOW + 24 or plan[0] == (0, FIRST_WINDOW)


def test_words_are_timed_by_the_frames_of_their_symbols() -> None:
    unit = Unit((Word("Hi,", "hˈI, "), Word("you.", "ju.")))
    # pad, h, stress, I, comma, space, j, u, stop, pad
    words, phonemes = timings(unit, (4, 2, 1, 5, 3, 2, 2, 6, 8, 4), position=1.0)
    assert [(word.text, word.start, word.end) for word in words] == [("Hi,", 1.1, 1.3), ("you.", 1.425, 1.625)]
    assert [phoneme.text for phoneme in phonemes] == ["h", "I", "j", "u"]


def test_the_style_row_of_exactly_510_symbols_exists() -> None:
    voices = silent_voices()
    for count in (0, 1, STYLE_ROWS, STYLE_ROWS + 1):
        assert voices.style(voices.voices[0], count).shape == (1, STYLE_WIDTH)


def test_a_voice_has_the_same_id_everywhere() -> None:
    assert voice_named("af_heart").id == "2d7d1bd7-2f9b-54d9-8428-54747a02cd8b"
    assert (voice_named("bm_george").locale, voice_named("bm_george").gender) == ("en-GB", "masculine")
    assert voice_named("my_voice").language == "en"


@pytest.mark.parametrize("word", ["flibbertigibbet", "zorble", "Tryphene"])
def test_words_with_a_shape_are_readable(word: str) -> None:
    assert is_readable(word)
    assert "ˈ" in pronounce(word)


@pytest.mark.parametrize("word", ["qwrt", "JSN", "bcdf", "aaab"])
def test_words_without_one_are_spelled(word: str) -> None:
    assert not is_readable(word)
