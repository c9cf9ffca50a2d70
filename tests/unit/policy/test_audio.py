"""How long audio is, told by its bytes."""

import io
import wave

import pytest

from policy.audio import AudioGauge, base64_bytes, bytes_a_second, raw_rate


def wav(seconds: float, rate: int = 16_000, width: int = 2) -> bytes:
    """A whole WAV of silence, as the standard library writes it."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(width)
        writer.setframerate(rate)
        writer.writeframes(bytes(int(seconds * rate) * width))
    return file.getvalue()


def measured(audio: bytes, gauge: AudioGauge, piece: int = 1 << 20) -> int | None:
    for at in range(0, len(audio), piece):
        gauge.feed(audio[at : at + piece])
    return gauge.milliseconds()


@pytest.mark.parametrize(
    ("encoding", "milliseconds"),
    [("pcm_s16le", 100), ("pcm_f16le", 100), ("pcm_s32le", 50), ("pcm_f32le", 50), ("pcm_mulaw", 200), ("pcm_alaw", 200)],
)
def test_raw_audio_is_measured_by_its_encoding_and_rate(encoding: str, milliseconds: int) -> None:
    assert measured(bytes(3200), AudioGauge(bytes_a_second(encoding, 16_000))) == milliseconds


@pytest.mark.parametrize(
    ("encoding", "rate"), [("opus", 16_000), ("pcm_s16le", 0), ("pcm_s16le", "16000"), (None, 16_000), ("pcm_s16le", True)]
)
def test_what_cannot_be_known_has_no_rate(encoding: object, rate: object) -> None:
    assert bytes_a_second(encoding, rate) == 0


@pytest.mark.parametrize("piece", [1, 7, 44, 45, 1000, 1 << 20])
def test_a_wav_says_itself_how_long_it_is_however_it_is_cut(piece: int) -> None:
    assert measured(wav(1.5), AudioGauge(), piece) == 1500


def test_a_wav_beats_what_was_announced() -> None:
    assert measured(wav(1.5, 8000), AudioGauge(32_000)) == 1500


def test_a_wav_that_broke_off_is_as_long_as_what_came() -> None:
    assert measured(wav(1.5)[: 44 + 16_000], AudioGauge()) == 500


@pytest.mark.parametrize("unknown", [b"\xff\xff\xff\xff", bytes(4)])
def test_a_wav_written_before_its_length_was_known_is_as_long_as_what_came(unknown: bytes) -> None:
    whole = wav(0.25)
    assert measured(whole[:40] + unknown + whole[44:], AudioGauge()) == 250


def test_a_note_behind_the_samples_is_no_audio() -> None:
    assert measured(wav(0.5) + b"LIST\x04\x00\x00\x00abcd", AudioGauge()) == 500


def test_notes_before_the_samples_are_stepped_over() -> None:
    whole = wav(0.5)
    assert measured(whole[:36] + b"LIST\x03\x00\x00\x00abc\x00" + whole[36:], AudioGauge()) == 500


@pytest.mark.parametrize(
    "head", [b"RIFF", b"RIFF\x24\x00\x00\x00WAVEfmt " + bytes(5000), b"RIFF\x24\x00\x00\x00WAVE" + bytes(900)]
)
def test_a_wav_whose_samples_are_not_found_is_not_measured(head: bytes) -> None:
    assert measured(head, AudioGauge(32_000)) is None


def test_a_wav_that_names_no_rate_is_not_measured() -> None:
    whole = wav(0.5)
    assert measured(whole[:28] + bytes(4) + whole[32:], AudioGauge(32_000)) is None


def test_an_mp3_is_measured_by_the_bit_rate_that_was_asked_for() -> None:
    assert measured(bytes(12_000), AudioGauge.of_output({"container": "mp3", "bit_rate": 48_000, "sample_rate": 24_000})) == 2000
    assert measured(bytes(12_000), AudioGauge.of_output({"container": "mp3", "sample_rate": 24_000})) is None


@pytest.mark.parametrize(
    ("output", "rate"),
    [
        ({"container": "raw", "encoding": "pcm_f32le", "sample_rate": 44_100}, 176_400),
        ({"encoding": "pcm_s16le", "sample_rate": 8000}, 16_000),
        ({"container": "wav", "encoding": "pcm_s16le", "sample_rate": 8000}, 0),
        ({"container": "raw"}, 0),
        (None, 0),
        ("raw", 0),
        ([], 0),
    ],
)
def test_the_rate_of_raw_audio_is_in_what_was_asked_for(output: object, rate: int) -> None:
    assert raw_rate(output) == rate


@pytest.mark.parametrize(
    ("text", "size"), [("", 0), ("QQ==", 1), ("QUI=", 2), ("QUJD", 3), ("QQ", 1), ("QUI", 2), ("QUJDRA==", 4)]
)
def test_base64_is_as_long_as_what_it_stands_for(text: str, size: int) -> None:
    assert base64_bytes(text) == size
