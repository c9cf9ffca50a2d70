"""Bytes of audio: exact lengths, clean resampling, G.711 by the book, clipping, seams without clicks."""

from __future__ import annotations

import io
import wave

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kokoro_backend.audio import OutputFormat, PcmEncoder, Resampler, encode, encoder_for, soften_edges, trimmed, wav_header

RATES = (8000, 16000, 22050, 44100, 48000)


def tone(frequency: float, rate: int, seconds: float = 1.0) -> np.ndarray:
    return np.sin(2 * np.pi * frequency * np.arange(int(rate * seconds)) / rate).astype(np.float32)


def resampled(audio: np.ndarray, rate: int) -> np.ndarray:
    resampler = Resampler(24000, rate)
    return np.concatenate([resampler.feed(audio), resampler.flush()])


@pytest.mark.parametrize("rate", RATES)
def test_a_tone_keeps_its_shape_at_another_rate(rate: int) -> None:
    result = resampled(tone(1000, 24000), rate)
    expected = tone(1000, rate)
    assert len(result) == rate
    inner = slice(rate // 50, -rate // 50)
    noise = ((result[inner] - expected[inner]) ** 2).mean()
    assert 10 * np.log10((expected[inner] ** 2).mean() / noise) > 90


def test_what_the_lower_rate_cannot_carry_is_filtered_out() -> None:
    result = resampled(tone(6000, 24000), 8000)
    assert np.abs(result[400:-400]).max() < 10 ** (-80 / 20)


@settings(deadline=None)
@given(st.lists(st.integers(0, 700), max_size=12), st.sampled_from(RATES))
def test_a_stream_is_resampled_alike_however_it_is_cut(sizes: list[int], rate: int) -> None:
    audio = tone(440, 24000, 0.2)
    resampler = Resampler(24000, rate)
    parts = []
    start = 0
    for size in sizes:
        parts.append(resampler.feed(audio[start : start + size]))
        start += size
    parts += [resampler.feed(audio[start:]), resampler.flush()]
    assert np.array_equal(np.concatenate(parts), resampled(audio, rate))


def test_loud_samples_are_clipped_and_never_wrapped() -> None:
    pcm = np.frombuffer(encode(np.array([2.0, -2.0, 1.0], dtype=np.float32), "pcm_s16le"), dtype="<i2")
    assert pcm.tolist() == [32767, -32767, 32767]


def test_g711_has_its_known_codes() -> None:
    # ITU-T G.711, tables 1 and 2: silence, the extremes, and a small positive step.
    samples = np.array([0, 32767, -32767, 1000, -1000], dtype=np.float32) / 32767
    assert encode(samples, "pcm_mulaw").hex(" ") == "ff 80 00 ce 4e"
    assert encode(samples, "pcm_alaw").hex(" ") == "d5 aa 2a fa 7a"


def test_a_wav_of_known_length_says_so() -> None:
    data = bytes(4800)
    with wave.open(io.BytesIO(wav_header("pcm_s16le", 24000, len(data)) + data)) as reader:
        assert (reader.getnframes(), reader.getframerate(), reader.getsampwidth()) == (2400, 24000, 2)


def test_the_header_of_a_stream_comes_once_even_without_audio() -> None:
    encoder = PcmEncoder(OutputFormat("wav", "pcm_s16le", 24000))
    assert encoder.feed(np.zeros(0, np.float32)) == wav_header("pcm_s16le", 24000)
    assert encoder.feed(np.zeros(10, np.float32)) == bytes(20)


def test_seams_start_and_end_at_zero() -> None:
    softened = soften_edges(np.ones(2400, dtype=np.float32))
    assert softened[0] == 0
    assert softened[-1] == 0
    assert (softened[100:-100] == 1).all()
    assert np.abs(np.diff(softened)).max() < 0.02


def test_the_tail_of_an_mp3_holds_audio_that_must_be_sent() -> None:
    encoder = encoder_for(OutputFormat("mp3", "pcm_s16le", 24000, 48000))
    body = encoder.feed(tone(440, 24000))
    tail = encoder.flush()
    assert len(tail) > 0
    # One second at 48 kbit/s is 6000 bytes; without the tail some of it is missing.
    assert len(body) < 6000 <= len(body + tail)


def test_trimming_leaves_the_onset_alone_and_says_what_it_cut() -> None:
    silence, sound = np.zeros(12000, np.float32), np.full(2400, 0.5, np.float32)
    audio, cut = trimmed(np.concatenate([silence, sound, silence]), start_keep=0.04, end_keep=0.14)
    assert cut == 12000 - 960
    assert len(audio) == 960 + 2400 + 3360
    assert audio[959] == 0
    assert audio[960] == 0.5


def test_pure_silence_is_not_trimmed_away() -> None:
    audio, cut = trimmed(np.zeros(2400, np.float32), start_keep=0.04, end_keep=0.14)
    assert (len(audio), cut) == (2400, 0)
