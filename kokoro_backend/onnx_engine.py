"""Kokoro-82M through ONNX Runtime on the CPU: the whole graph for throughput.

One session, all its threads for one run at a time: two sessions at once were measured slower than one with both cores.
Knows nothing of text; see `engine` for the interface.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime as ort

from kokoro_backend.engine import EngineError, Segment, Utterance


class OnnxEngine:
    """The ONNX graph, loaded once."""

    name = "onnx"

    def __init__(self, model: Path, threads: int) -> None:
        """Load the graph (about 1 s). threads: of one run. Raises EngineError if it is no Kokoro graph."""
        options = ort.SessionOptions()
        # Stated, not left to the runtime: it would take every core of the machine (hexgrad/kokoro PR #361).
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        try:
            self._session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime raises classes of its own C++ module
            raise EngineError(f"{model} cannot be loaded: {type(error).__name__}") from error
        names = {value.name for value in self._session.get_inputs()}
        if not {"tokens", "style", "speed"} <= names:
            raise EngineError(f"{model} is no Kokoro graph: its inputs are {sorted(names)}")

    def warm_up(self) -> None:
        """Run two lengths, so that the arena has grown before the first caller."""
        for count in (12, 60):
            for _ in self.run(Utterance((50,) * count, np.zeros((1, 256), np.float32), 1.0)):
                pass

    def run(self, utterance: Utterance) -> Iterator[Segment]:
        """Yield the whole utterance as one segment."""
        # Exactly one pad at each end: more gives an odd sound (lucasjinreal/Kokoros#72), a padded run is unintelligible.
        tokens = np.array([[0, *utterance.tokens, 0]], dtype=np.int64)
        feeds = {"tokens": tokens, "style": utterance.style, "speed": np.array([utterance.speed], dtype=np.float32)}
        try:
            (audio, *_) = self._session.run(None, feeds)
        except Exception as error:
            raise EngineError(f"a run of {tokens.shape[1]} tokens failed: {type(error).__name__}") from error
        yield Segment(np.asarray(audio, dtype=np.float32).ravel())
