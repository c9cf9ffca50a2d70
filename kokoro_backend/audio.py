"""Audio as bytes: resampling, encodings, WAV headers, frames of a fixed length, soft edges.

Everything streams: state is kept between pieces and `flush` hands out the tail. Samples are float32 mono in [-1, 1];
what exceeds that is clipped, never wrapped. No I/O.
"""

import importlib.util
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from kokoro_backend.engine import SAMPLE_RATE
from kokoro_backend.voices import FloatArray

Encoding = Literal["pcm_s16le", "pcm_f32le", "pcm_mulaw", "pcm_alaw"]
SAMPLE_BYTES: dict[Encoding, int] = {"pcm_s16le": 2, "pcm_f32le": 4, "pcm_mulaw": 1, "pcm_alaw": 1}
_WAV_TAGS: dict[Encoding, int] = {"pcm_s16le": 1, "pcm_f32le": 3, "pcm_alaw": 6, "pcm_mulaw": 7}
_ZERO_CROSSINGS = 24
_SEAM_SECONDS = 0.003
_SILENCE = 0.008
"""Below this a sample counts as silence: about -42 dB."""
_UNKNOWN_LENGTH = 0xFFFFFFFF
_AAC_SAMPLES = 1024
"""Of one AAC frame."""


def soften_edges(audio: FloatArray, sample_rate: int = SAMPLE_RATE, *, start: bool = True, end: bool = True) -> FloatArray:
    """Return a copy that fades in and out within 3 ms, so that a seam between two units cannot click."""
    count = min(int(_SEAM_SECONDS * sample_rate), len(audio) // 2)
    if count == 0:
        return audio
    ramp = np.linspace(0.0, 1.0, count, endpoint=False, dtype=np.float32)
    softened = audio.copy()
    if start:
        softened[:count] *= ramp
    if end:
        softened[-count:] *= ramp[::-1]
    return softened


def trimmed(audio: FloatArray, *, start_keep: float | None = None, end_keep: float | None = None) -> tuple[FloatArray, int]:
    """Return (audio with less silence at its ends, samples cut from the start).

    start_keep, end_keep: seconds of silence that stay before the first sound and after the last; None leaves that end
    alone. At least 30 ms before an onset must stay: a keen trim clips first vowels (nazdridoy/kokoro-tts#80).
    """
    loud = np.flatnonzero(np.abs(audio) > _SILENCE)
    if not len(loud):
        return audio, 0
    start = 0 if start_keep is None else max(0, int(loud[0]) - int(start_keep * SAMPLE_RATE))
    stop = len(audio) if end_keep is None else min(len(audio), int(loud[-1]) + 1 + int(end_keep * SAMPLE_RATE))
    return audio[start:stop], start


class Resampler:
    """Change the sample rate of a stream with a Kaiser-windowed sinc, polyphase, about 90 dB of stop band.

    `feed` returns what can be computed so far; `flush` the tail. In all, round-up(input * to / from) samples come out.
    """

    def __init__(self, from_rate: int, to_rate: int) -> None:
        """Both rates in Hz."""
        divisor = math.gcd(from_rate, to_rate)
        self._up = to_rate // divisor
        self._down = from_rate // divisor
        ratio = min(1.0, self._up / self._down)
        self._half = math.ceil(_ZERO_CROSSINGS / ratio)
        self._taps = _phase_table(self._up, self._half, cutoff=0.94 * ratio)
        # The filter looks half a window back and ahead; silence stands before the first sample.
        self._history = np.zeros(self._half, dtype=np.float32)
        self._consumed = 0
        self._produced = 0
        self._received = 0

    def feed(self, audio: FloatArray) -> FloatArray:
        """Take samples at the first rate; return samples at the second."""
        self._received += len(audio)
        return self._advance(np.concatenate([self._history, audio]), self._received)

    def flush(self) -> FloatArray:
        """Return the rest of the stream; the resampler must not be fed afterwards."""
        padded = np.concatenate([self._history, np.zeros(self._half + 1, dtype=np.float32)])
        due = math.ceil(self._received * self._up / self._down)
        return (
            self._advance(padded, self._received + self._half + 1)[: due - self._produced] if due > self._produced else padded[:0]
        )

    def _advance(self, samples: FloatArray, available: int) -> FloatArray:
        # `samples[0]` is input sample number `_consumed - half`.
        last = available - self._half - 1
        count = max(0, (last * self._up) // self._down + 1 - self._produced) if last >= 0 else 0
        numbers = np.arange(self._produced, self._produced + count, dtype=np.int64)
        positions = numbers * self._down
        base = positions // self._up - self._consumed
        phases = positions % self._up
        width = 2 * self._half
        output = np.empty(count, dtype=np.float32)
        windows = np.lib.stride_tricks.sliding_window_view(samples, width) if len(samples) >= width else None
        if windows is not None and count:
            for start in range(0, count, 4096):  # Bounds the gathered block to a few megabytes.
                part = slice(start, start + 4096)
                output[part] = np.einsum("ij,ij->i", windows[base[part] + 1], self._taps[phases[part]])
        self._produced += count
        keep_from = (self._produced * self._down) // self._up - self._consumed
        keep_from = min(max(keep_from, 0), len(samples))
        self._history = samples[keep_from:]
        self._consumed += keep_from
        return output


def _phase_table(up: int, half: int, cutoff: float) -> FloatArray:
    """Return the filter for each phase, shape (up, 2 * half); row p weighs the samples around position n + p/up."""
    offsets = np.arange(-half + 1, half + 1)[None, :] - (np.arange(up) / up)[:, None]
    window = np.i0(9.0 * np.sqrt(np.clip(1 - (offsets / half) ** 2, 0, None))) / np.i0(9.0)
    taps = cutoff * np.sinc(cutoff * offsets) * window
    taps /= taps.sum(axis=1, keepdims=True)
    return taps.astype(np.float32)


def encode(audio: FloatArray, encoding: Encoding) -> bytes:
    """Return the samples in `encoding`; out-of-range samples are clipped."""
    return _ENCODERS[encoding](np.clip(audio, -1.0, 1.0))


def _s16(audio: FloatArray) -> npt.NDArray[np.int16]:
    pcm: npt.NDArray[np.int16] = np.rint(audio * 32767.0).astype("<i2")
    return pcm


def _mulaw(audio: FloatArray) -> bytes:
    """ITU-T G.711 mu-law, through its 14-bit form."""
    pcm = _s16(audio).astype(np.int32) >> 2
    sign = (pcm < 0).astype(np.int32) << 7
    magnitude = np.minimum(np.abs(pcm), 8158) + 33
    exponent = np.floor(np.log2(magnitude)).astype(np.int32) - 5
    mantissa = (magnitude >> (exponent + 1)) & 0x0F
    return bytes((~(sign | (exponent << 4) | mantissa) & 0xFF).astype(np.uint8).tobytes())


def _alaw(audio: FloatArray) -> bytes:
    """ITU-T G.711 A-law, through its 13-bit form."""
    pcm = _s16(audio).astype(np.int32) >> 3
    positive = pcm >= 0
    magnitude = np.where(positive, pcm, -pcm - 1)
    exponent = np.maximum(np.floor(np.log2(np.maximum(magnitude, 1))).astype(np.int32) - 4, 0)
    mantissa = np.where(exponent == 0, magnitude >> 1, magnitude >> exponent) & 0x0F
    code = (exponent << 4) | mantissa
    return bytes((code ^ np.where(positive, 0xD5, 0x55)).astype(np.uint8).tobytes())


_ENCODERS: dict[Encoding, Callable[[FloatArray], bytes]] = {
    "pcm_s16le": lambda audio: _s16(audio).tobytes(),
    "pcm_f32le": lambda audio: audio.astype("<f4").tobytes(),
    "pcm_mulaw": _mulaw,
    "pcm_alaw": _alaw,
}


def wav_header(encoding: Encoding, sample_rate: int, data_bytes: int | None = None) -> bytes:
    """Return the header of a mono WAV. data_bytes: None if not known yet; players then read to the end of the data."""
    width = SAMPLE_BYTES[encoding]
    return struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        b"RIFF", _UNKNOWN_LENGTH if data_bytes is None else 36 + data_bytes, b"WAVE", b"fmt ", 16, _WAV_TAGS[encoding], 1,
        sample_rate, sample_rate * width, width, width * 8, b"data", _UNKNOWN_LENGTH if data_bytes is None else data_bytes,
    )  # fmt: skip


_MEDIA_TYPES = {"raw": "application/octet-stream", "wav": "audio/wav", "mp3": "audio/mpeg", "aac": "audio/mp4"}


@dataclass(frozen=True)
class OutputFormat:
    """How a caller wants the audio."""

    container: Literal["raw", "wav", "mp3", "aac"]
    """aac: AAC-LC in a fragmented MP4, where `can_encode_aac`."""
    encoding: Encoding
    sample_rate: int
    """Hz."""
    bit_rate: int = 128_000
    """Bits per second, for mp3 and aac."""

    @property
    def media_type(self) -> str:
        """Return the value for Content-Type."""
        return _MEDIA_TYPES[self.container]

    @property
    def is_compressed(self) -> bool:
        """Say whether bytes cannot be cut at samples."""
        return self.container in ("mp3", "aac")


class AudioEncoder(Protocol):
    """Turns float samples at 24 kHz into the bytes of a format, piece by piece."""

    def feed(self, audio: FloatArray) -> bytes:
        """Take samples; return the bytes that are ready."""
        ...

    def flush(self) -> bytes:
        """Return the tail, which holds real audio."""
        ...


class PcmEncoder:
    """Raw or WAV audio of any of the four encodings."""

    def __init__(self, output: OutputFormat) -> None:
        """output: container raw or wav."""
        self._encoding = output.encoding
        self._resampler = None if output.sample_rate == SAMPLE_RATE else Resampler(SAMPLE_RATE, output.sample_rate)
        self._prefix = wav_header(output.encoding, output.sample_rate) if output.container == "wav" else b""

    def feed(self, audio: FloatArray) -> bytes:
        """Take samples; return encoded ones, the WAV header before the first."""
        ready = audio if self._resampler is None else self._resampler.feed(audio)
        prefix, self._prefix = self._prefix, b""
        return prefix + encode(ready, self._encoding)

    def flush(self) -> bytes:
        """Return what the resampler still held."""
        prefix, self._prefix = self._prefix, b""
        return prefix + (b"" if self._resampler is None else encode(self._resampler.flush(), self._encoding))


class Mp3Encoder:
    """MP3 at a constant bit rate, mono."""

    def __init__(self, output: OutputFormat) -> None:
        """output: bit_rate in bits per second; LAME takes 8 to 320 kbit/s."""
        import lameenc

        self._encoder = lameenc.Encoder()
        self._encoder.set_in_sample_rate(output.sample_rate)
        self._encoder.set_channels(1)
        self._encoder.set_bit_rate(output.bit_rate // 1000)
        self._encoder.set_quality(2)
        self._encoder.silence()
        self._pcm = PcmEncoder(OutputFormat("raw", "pcm_s16le", output.sample_rate))

    def feed(self, audio: FloatArray) -> bytes:
        """Take samples; return whole or partial MP3 frames."""
        return bytes(self._encoder.encode(self._pcm.feed(audio)))

    def flush(self) -> bytes:
        """Return the last frames: without them the end of speech is cut."""
        return bytes(self._encoder.encode(self._pcm.flush())) + bytes(self._encoder.flush())


def can_encode_aac() -> bool:
    """Say whether PyAV is installed, which the operator decides (docs/adr/0088)."""
    return importlib.util.find_spec("av") is not None


class _Drain:
    """A file that forgets what was taken from it: an MP4 in fragments needs no way back."""

    def __init__(self) -> None:
        self._held = bytearray()

    def write(self, data: bytes) -> int:
        self._held += data
        return len(data)

    def taken(self) -> bytes:
        data, self._held = bytes(self._held), bytearray()
        return data


class AacEncoder:
    """AAC-LC in a fragmented MP4, mono, a fragment each quarter of a second: a smaller one would be mostly headers."""

    def __init__(self, output: OutputFormat) -> None:
        """output: bit_rate in bits per second."""
        import av

        self._av = av
        self._rate = output.sample_rate
        self._resampler = None if output.sample_rate == SAMPLE_RATE else Resampler(SAMPLE_RATE, output.sample_rate)
        self._drain = _Drain()
        options = {"movflags": "empty_moov+default_base_moof", "frag_duration": "250000"}
        self._container = av.open(self._drain, "w", format="mp4", options=options)
        self._stream = self._container.add_stream("aac", rate=output.sample_rate, layout="mono")
        self._stream.bit_rate = output.bit_rate
        self._rest = np.zeros(0, np.float32)
        self._fed = 0

    def feed(self, audio: FloatArray) -> bytes:
        """Take samples; return the fragments that are complete."""
        ready = audio if self._resampler is None else self._resampler.feed(audio)
        self._rest = np.concatenate([self._rest, np.clip(ready, -1.0, 1.0)])
        whole = len(self._rest) // _AAC_SAMPLES * _AAC_SAMPLES
        for start in range(0, whole, _AAC_SAMPLES):
            self._encode(self._rest[start : start + _AAC_SAMPLES])
        self._rest = self._rest[whole:]
        return self._drain.taken()

    def flush(self) -> bytes:
        """Return the rest, which holds real audio, and the end of the file."""
        if self._resampler is not None:
            self._rest = np.concatenate([self._rest, np.clip(self._resampler.flush(), -1.0, 1.0)])
        for start in range(0, len(self._rest), _AAC_SAMPLES):
            self._encode(self._rest[start : start + _AAC_SAMPLES])
        self._container.mux(self._stream.encode(None))
        self._container.close()
        return self._drain.taken()

    def _encode(self, samples: FloatArray) -> None:
        frame = self._av.AudioFrame.from_ndarray(np.ascontiguousarray(samples[None]), format="fltp", layout="mono")
        frame.sample_rate = self._rate
        frame.pts = self._fed
        self._fed += len(samples)
        self._container.mux(self._stream.encode(frame))


def encoder_for(output: OutputFormat) -> AudioEncoder:
    """Return a fresh encoder for one stream."""
    if output.container == "aac":
        return AacEncoder(output)
    return Mp3Encoder(output) if output.container == "mp3" else PcmEncoder(output)
