"""What the rest of the backend knows of a speech model: symbols in, audio out, one utterance at a time.

Engines are blocking and are driven by the scheduler's worker thread only; one that speaks several utterances in one run is a
`BatchEngine` as well. `ToneEngine` here is deterministic and instant, for tests of everything around the model; the real ones
are `onnx_engine` and `torch_engine`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from kokoro_backend.voices import FloatArray

SAMPLE_RATE = 24_000
FRAME_SAMPLES = 600
"""The model's time step: 25 ms of audio."""


class EngineError(Exception):
    """The model could not speak; the message is for the operator's log."""


@dataclass(frozen=True)
class Utterance:
    """One run of the model."""

    tokens: tuple[int, ...]
    """Token ids without the pads; at most 510."""
    style: FloatArray
    """Shape (1, 256): the voice's row for this many symbols."""
    speed: float
    """1.0 is the voice's own pace; 2.0 is twice as fast."""
    is_urgent: bool = False
    """Somebody waits for the first sound: an engine may spend more work in all to deliver it sooner."""


@dataclass(frozen=True)
class Segment:
    """A piece of an utterance's audio, in order; joined without gaps they are the utterance."""

    audio: FloatArray
    """float32 mono, nominally in [-1, 1] but not clipped, 24 kHz."""
    durations: tuple[int, ...] | None = None
    """Frames of 25 ms of each token, pads included; in the first segment of an utterance only, which may have no audio."""
    is_last: bool = False
    """The utterance ends with this segment; told here, so that nobody has to wait for the next one to know."""


class Engine(Protocol):
    """A speech model."""

    @property
    def name(self) -> str:
        """Return the name for metrics and logs, an enum of a few values."""
        ...

    @property
    def has_timings(self) -> bool:
        """Say whether utterances come with the durations of their tokens."""
        ...

    def warm_up(self) -> None:
        """Run once or twice, so that the first caller does not pay for allocation; blocking."""
        ...

    def run(self, utterance: Utterance) -> Iterator[Segment]:
        """Yield the audio of `utterance`. Raises EngineError. Closing the iterator stops the work between segments."""
        ...


@runtime_checkable
class BatchEngine(Engine, Protocol):
    """A speech model that speaks utterances together in less time than one by one."""

    @property
    def batch_limit(self) -> int:
        """Return how many utterances one run takes at most."""
        ...

    def run_batch(self, utterances: Sequence[Utterance]) -> list[Segment]:
        """Return one segment for each utterance, the same as if it were alone. Raises EngineError."""
        ...


class ToneEngine:
    """Two frames a symbol, a pitch for each token id: the same symbols give the same bytes, everywhere, at once."""

    name = "tone"
    has_timings = True

    def warm_up(self) -> None:
        """Do nothing: there is nothing to load."""

    def run(self, utterance: Utterance) -> Iterator[Segment]:
        """Yield the tones of the utterance in segments of at most 20 symbols."""
        frames = max(round(2 / utterance.speed), 1)
        tokens = (0, *utterance.tokens, 0)
        durations: tuple[int, ...] | None = (frames,) * len(tokens)
        time = np.arange(frames * FRAME_SAMPLES, dtype=np.float32) / np.float32(SAMPLE_RATE)
        for start in range(0, len(tokens), 20):
            is_last = start + 20 >= len(tokens)
            tones = [np.sin(2 * np.pi * (120 + 5 * token) * time) * (token > 0) * 0.4 for token in tokens[start : start + 20]]
            yield Segment(np.concatenate(tones).astype(np.float32), durations, is_last)
            durations = None
