"""The voice catalogue: names, stable ids, languages, and the style tensors of the voices that are loaded.

A voice is named the way the model's authors name it (`af_heart`: American, feminine, "heart"); since SDKs pass ids,
each name also has a stable UUID. This module must not know of HTTP; `cartesia_messages` shapes voices for the wire.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]

STYLE_ROWS = 510
STYLE_WIDTH = 256
STYLE_BYTES = STYLE_ROWS * STYLE_WIDTH * 4

# Ids are derived, not stored: the same name has the same id on every machine and in every release.
_VOICE_NAMESPACE = uuid.UUID("6f2d3c1e-8a47-5d0b-9c55-3b8f0a61e9d4")

# First letter of a voice's name -> (language, BCP-47 locale, English name), from the model card of Kokoro-82M.
_LANGUAGES = {
    "a": ("en", "en-US", "American English"),
    "b": ("en", "en-GB", "British English"),
    "e": ("es", "es-ES", "Spanish"),
    "f": ("fr", "fr-FR", "French"),
    "h": ("hi", "hi-IN", "Hindi"),
    "i": ("it", "it-IT", "Italian"),
    "j": ("ja", "ja-JP", "Japanese"),
    "p": ("pt", "pt-BR", "Brazilian Portuguese"),
    "z": ("zh", "zh-CN", "Mandarin Chinese"),
}
_GENDERS: dict[str, Literal["feminine", "masculine"]] = {"f": "feminine", "m": "masculine"}


@dataclass(frozen=True)
class Voice:
    """One voice of the catalogue; `language` is an ISO 639-1 code, `locale` a BCP-47 tag."""

    name: str
    id: str
    language: str
    locale: str
    language_name: str
    gender: Literal["feminine", "masculine", "gender_neutral"]


def voice_named(name: str) -> Voice:
    """Return the catalogue entry of `name`; a name outside the model's scheme is an English voice of one's own."""
    known = len(name) > 3 and name[2] == "_" and name[0] in _LANGUAGES and name[1] in _GENDERS
    language, locale, language_name = _LANGUAGES[name[0] if known else "a"]
    gender = _GENDERS[name[1]] if known else "gender_neutral"
    return Voice(name, str(uuid.uuid5(_VOICE_NAMESPACE, name)), language, locale, language_name, gender)


class VoiceCatalogue:
    """The voices that this process can speak with, found by name or by id."""

    def __init__(self, styles: Mapping[str, FloatArray]) -> None:
        """styles: voice name -> float32 array, shape (rows, 256); row n-1 is the style for n phonemes."""
        self._styles = MappingProxyType(dict(styles))
        self.voices = tuple(voice_named(name) for name in sorted(styles))
        self._by_key = {voice.name: voice for voice in self.voices} | {voice.id: voice for voice in self.voices}

    def find(self, name_or_id: str) -> Voice | None:
        """Return the voice of that name or UUID (in any case), or None."""
        return self._by_key.get(name_or_id) or self._by_key.get(name_or_id.lower())

    def style(self, voice: Voice, phoneme_count: int) -> FloatArray:
        """Return the style vector, shape (1, 256), for an utterance of `phoneme_count` symbols.

        The row is count - 1, clamped: upstream's off-by-one at exactly 510 symbols raised an IndexError
        (thewh1teagle/kokoro-onnx#95).
        """
        rows = self._styles[voice.name]
        row: FloatArray = rows[min(max(phoneme_count, 1), len(rows)) - 1][None, :]
        return row


def load_voices(folder: Path) -> VoiceCatalogue:
    """Read every `*.bin` of `folder` once into memory (about 28 MB for the 54 voices).

    Raises ValueError, naming the file, if one does not have the size of a voice.
    """
    styles: dict[str, FloatArray] = {}
    for path in sorted(folder.glob("*.bin")):
        data = path.read_bytes()
        if not data or len(data) % (STYLE_WIDTH * 4):
            raise ValueError(f"{path} is not a Kokoro voice: {len(data)} bytes is no multiple of {STYLE_WIDTH * 4}")
        array = np.frombuffer(data, dtype="<f4").reshape(-1, STYLE_WIDTH)
        styles[path.stem] = array
    if not styles:
        raise ValueError(f"{folder} holds no voices (*.bin)")
    return VoiceCatalogue(styles)
