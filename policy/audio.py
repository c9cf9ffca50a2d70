"""How long audio is, told by its bytes: raw samples by their rate, WAV by its header, MP3 by its bit rate.

Nothing is decoded and nothing is kept but a file's first bytes. What cannot be told with certainty is None, never a guess
and never zero. Knows no request and no provider. Read next: `policy.events` (audio inside events), `gateway.edge.metering`.
"""

from typing import Final

_WIDTHS: Final = {"pcm_s16le": 2, "pcm_s32le": 4, "pcm_f16le": 2, "pcm_f32le": 4, "pcm_mulaw": 1, "pcm_alaw": 1}
"""encoding -> bytes a sample (Cartesia docs, speech-to-text and output formats; mono)"""

_MOST_HEAD_BYTES: Final = 4096
"""of a WAV before its samples: chunks of notes may stand there"""
_UNKNOWN_SIZES: Final = (0, 0xFFFFFFFF)
"""what a WAV says of its length when it is written before that is known"""


def bytes_a_second(encoding: object, sample_rate: object) -> int:
    """Return bytes a second of raw mono audio; 0 if it cannot be known. The arguments are what a request says: not checked."""
    if type(encoding) is not str or type(sample_rate) is not int or sample_rate <= 0:
        return 0
    return _WIDTHS.get(encoding, 0) * sample_rate


def raw_rate(output: object) -> int:
    """Return bytes a second of what a request's `output_format` asks for, where that is raw; 0 if it is not, or unknown."""
    if type(output) is not dict or output.get("container", "raw") != "raw":
        return 0
    return bytes_a_second(output.get("encoding"), output.get("sample_rate"))


def base64_bytes(text: str) -> int:
    """Return how many bytes a base64 text stands for (RFC 4648 §4; also one whose padding was left out)."""
    return len(text) * 3 // 4 - (text[-2:].count("=") if len(text) >= 4 else 0)


class AudioGauge:
    """Tells how long audio is that goes by in pieces, all of one file or stream.

    A file that begins like a WAV is one, whatever was announced; else rate (bytes a second of raw samples, or of an MP3 of a
    constant bit rate) decides; 0: unknown.
    """

    __slots__ = ("_data_at", "_data_size", "_head", "_rate", "_size")

    def __init__(self, rate: int = 0) -> None:
        self._rate = rate
        self._size = 0
        self._head: bytes | None = b""
        self._data_at = 0
        self._data_size = 0

    @classmethod
    def of_output(cls, output: object) -> "AudioGauge":
        """Return a gauge for the audio that a request's `output_format` asks for, as it stands in JSON."""
        if type(output) is dict and output.get("container") == "mp3":
            bit_rate = output.get("bit_rate")
            return cls(bit_rate // 8 if type(bit_rate) is int and bit_rate > 0 else 0)
        return cls(raw_rate(output))

    @property
    def size(self) -> int:
        """Return how many bytes went by."""
        return self._size

    def feed(self, piece: bytes | memoryview) -> None:
        """Take the next bytes."""
        self._size += len(piece)
        if self._head is not None:
            self._head = self._read(self._head + bytes(piece[: _MOST_HEAD_BYTES - len(self._head)]))

    def milliseconds(self) -> int | None:
        """Return how long the audio is that went by so far, rounded down; None if that cannot be known."""
        if self._rate <= 0 or (self._head is not None and self._head[:4] == b"RIFF"):
            return None
        size = self._size - self._data_at
        if self._data_at and self._data_size not in _UNKNOWN_SIZES:
            size = min(size, self._data_size)
        return self.duration_ms(size)

    def duration_ms(self, size: int) -> int | None:
        """Return how long so many bytes of audio are at the rate that is known, rounded down; None if none is."""
        return size * 1000 // self._rate if self._rate > 0 else None

    def _read(self, head: bytes) -> bytes | None:
        """Read a WAV's header (RIFF WAVE, chunks `fmt ` and `data`); return what is to be read again with more, else None."""
        if not b"RIFF".startswith(head[:4]) or not (len(head) < 9 or b"WAVE".startswith(head[8:12])):
            return None
        at = 12
        rate = 0
        while len(head) >= at + 8:
            kind, size = head[at : at + 4], int.from_bytes(head[at + 4 : at + 8], "little")
            if kind == b"data":
                self._rate, self._data_at, self._data_size = rate, at + 8, size
                return None
            if kind == b"fmt " and len(head) >= at + 20:
                rate = int.from_bytes(head[at + 16 : at + 20], "little")
            at += 8 + size + size % 2
        if len(head) >= _MOST_HEAD_BYTES:
            self._rate = 0
            return None
        return head
