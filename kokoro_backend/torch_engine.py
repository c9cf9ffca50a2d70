"""Kokoro-82M through torch: on a GPU the utterances that wait are spoken together, on a CPU one after the other.

The model is `torch_model`, its parameters `torch_weights`; which utterances share a batch is the scheduler's choice. There are
no windows here: one run of a GPU is shorter than a window's gain. Needs the extra kokoro-torch; see docs/adr/0087.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import structlog
import torch

from kokoro_backend.engine import FRAME_SAMPLES, EngineError, Segment, Utterance
from kokoro_backend.torch_model import FRAME_MULTIPLE, TOKEN_MULTIPLE, TorchKokoro
from kokoro_backend.torch_weights import read_parameters

log = structlog.get_logger()

GPU_BATCH = 16
"""Utterances of one run at most. On a CPU a batch takes longer than its utterances one by one, so there it is 1."""


class TorchEngine:
    """The model on one device."""

    name = "torch"
    has_timings = True

    def __init__(self, model: TorchKokoro, batch_limit: int) -> None:
        """batch_limit: utterances of one run at most."""
        self.batch_limit = batch_limit
        self._model = model

    def warm_up(self) -> None:
        """Run a few lengths, alone and as many as may be together, so that kernels are chosen and memory is there."""
        for count in sorted({1, self.batch_limit}):
            for tokens in (12, 60, 140):
                self.run_batch([Utterance((50,) * tokens, np.zeros((1, 256), np.float32), 1.0)] * count)

    def run(self, utterance: Utterance) -> Iterator[Segment]:
        """Yield the utterance in one segment."""
        yield from self.run_batch([utterance])

    def run_batch(self, utterances: Sequence[Utterance]) -> list[Segment]:
        """Return a segment for each utterance, the same as if it were alone. Raises EngineError."""
        try:
            styles = torch.from_numpy(np.concatenate([utterance.style for utterance in utterances])).to(self._model.device)
            made = self._model.acoustics(
                [utterance.tokens for utterance in utterances], styles, [utterance.speed for utterance in utterances]
            )
            sounds = [sound.float().cpu().numpy() for sound in self._model.sound(made)]
        except (RuntimeError, ValueError, IndexError) as error:  # torch's own errors, out of memory too, are RuntimeErrors
            raise EngineError(f"a run of {len(utterances)} failed: {type(error).__name__}") from error
        for sound, durations in zip(sounds, made.durations, strict=True):
            if len(sound) != sum(durations) * FRAME_SAMPLES:
                raise EngineError("a row of a batch has another length than its tokens")
        return [Segment(sound, durations, is_last=True) for sound, durations in zip(sounds, made.durations, strict=True)]


def load_engine(model: Path, threads: int) -> TorchEngine:
    """Return the engine for a checkpoint (*.pth) or a graph (*.onnx), on the GPU if there is one. Raises EngineError."""
    torch.set_num_threads(threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batch = GPU_BATCH if device.type == "cuda" else 1
    log.info(
        "torch engine", version=torch.__version__, device=device.type, batch=batch, multiples=[TOKEN_MULTIPLE, FRAME_MULTIPLE]
    )
    try:
        return TorchEngine(TorchKokoro(read_parameters(model), device), batch)
    except RuntimeError as error:
        raise EngineError(f"{model} cannot be loaded onto {device.type}: {type(error).__name__}") from error
