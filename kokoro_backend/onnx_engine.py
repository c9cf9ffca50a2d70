"""Kokoro-82M through ONNX Runtime on the CPU: one model, all its threads, one run at a time.

An urgent utterance is spoken in windows: the front of the graph once, then its back over growing windows of frames, so
that the first sound leaves after about a third of the work. The others run the back in one piece, which costs less.
Precision (int8 or fp32) is chosen by a self-test for each half, since CPUs differ in which is faster, and the halves do
too: one is mostly products of matrices, the other convolutions. Knows nothing of text.
"""

import functools
import hashlib
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnxruntime as ort
import structlog
from onnxruntime.capi import onnxruntime_pybind11_state as native

from kokoro_backend.engine import EngineError, Segment, Utterance
from kokoro_backend.voices import FloatArray

log = structlog.get_logger()

Precision = Literal["int8", "fp32"]
# ONNX Runtime's C++ module has fifteen error classes, one for each of its status codes, which share no base of their own.
_RUNTIME_ERRORS: tuple[type[Exception], ...] = (
    RuntimeError,
    ValueError,
    MemoryError,
    *(found for found in vars(native).values() if isinstance(found, type) and issubclass(found, Exception)),
)
_PRECISIONS: tuple[Precision, ...] = ("int8", "fp32")
HALVES: dict[str, tuple[Precision, Precision]] = {
    front if front == back else f"{front}+{back}": (front, back) for front in _PRECISIONS for back in _PRECISIONS
}
"""Precisions of (front, back) by their name for settings and logs."""

FRAME = 300
"""Samples of one frame between front and back: 12.5 ms."""
CONTEXT_FRAMES = 10
"""Frames computed on either side of a window and thrown away: the vocoder looks that far."""
FIRST_WINDOW = 32
"""Frames of the first window: 0.4 s."""
WINDOW_GROWTH = 1.6
"""Each window may take as long as the audio before it lasts; a real-time factor of 0.5 leaves room for this growth."""
_LAST_WINDOW = 24
_CROSSFADE = 120
_SOURCE_PER_FRAME = 60
_GRAPH_VERSION = 2
_GRAPH_FOLDER = re.compile(r"graphs-[0-9a-f]{12}-(?P<version>[0-9]+)")
_TEST_TOKENS = 60
"""Of the self-test's utterance: a sentence of ordinary length."""


class CannotSplit(Exception):
    """The graph is another export than the one whose parts are known."""


def _session(path: Path, threads: int) -> ort.InferenceSession:
    options = ort.SessionOptions()
    # Stated, not left to the runtime: it would take every core of the machine (hexgrad/kokoro PR #361).
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Threads that spin while they wait cost 30 % more CPU, and a shared machine several times the wall time (measured).
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except _RUNTIME_ERRORS as error:
        raise EngineError(f"{path} cannot be loaded: {type(error).__name__}") from error


@dataclass(frozen=True)
class Features:
    """What the front hands to the back."""

    features: FloatArray
    source: FloatArray
    style: FloatArray
    durations: tuple[int, ...]

    @property
    def frames(self) -> int:
        return int(self.features.shape[2])


class OnnxEngine:
    """The two halves of the graph, loaded once."""

    name = "onnx"
    has_timings = True

    def __init__(self, front: ort.InferenceSession, back: ort.InferenceSession, precision: str) -> None:
        """front, back: the loaded halves; precision: for the log, such as "int8", or "int8+fp32" where the halves differ."""
        self.precision = precision
        self._front = front
        self._back = back
        self._back_inputs = [value.name for value in back.get_inputs()]

    def warm_up(self) -> None:
        """Run short and long, whole and in windows, so that the arena has grown before the first caller."""
        for count, is_urgent in ((12, True), (60, False)):
            for _ in self.run(Utterance((50,) * count, np.zeros((1, 256), np.float32), 1.0, is_urgent)):
                pass

    def run(self, utterance: Utterance) -> Iterator[Segment]:
        """Yield the utterance: in windows if it is urgent, else in one piece."""
        made = self.features(utterance)
        # Between the halves somebody more urgent may go first, and a cancelled run stops.
        yield Segment(np.zeros(0, np.float32), made.durations)
        if not utterance.is_urgent or made.frames <= FIRST_WINDOW + _LAST_WINDOW:
            yield Segment(self.sound(made, 0, made.frames), is_last=True)
            return
        yield from self._windows(made)

    def features(self, utterance: Utterance) -> Features:
        """Return what the front makes of an utterance. Raises EngineError."""
        # Exactly one pad at each end: more gives an odd sound (lucasjinreal/Kokoros#72), a padded run is unintelligible.
        tokens = np.array([[0, *utterance.tokens, 0]], dtype=np.int64)
        feeds: dict[str, Any] = {"tokens": tokens, "style": utterance.style}
        feeds["speed"] = np.array([utterance.speed], dtype=np.float32)
        features, source, style, durations = self._run(self._front, feeds)
        return Features(features, source, style, tuple(int(frames) for frames in durations.ravel()))

    def sound(self, made: Features, start: int, stop: int) -> FloatArray:
        """Return the samples of frames [start, stop), computed from just these. Raises EngineError."""
        source = made.source[:, :, _SOURCE_PER_FRAME * start : _SOURCE_PER_FRAME * stop + 1]
        feeds = dict(zip(self._back_inputs, (made.features[:, :, start:stop], source, made.style), strict=True))
        (audio,) = self._run(self._back, feeds)
        sound: FloatArray = audio.ravel()
        return sound

    @staticmethod
    def _run(session: ort.InferenceSession, feeds: dict[str, Any]) -> list[FloatArray]:
        try:
            return [np.asarray(output, dtype=np.float32) for output in session.run(None, feeds)]
        except _RUNTIME_ERRORS as error:
            raise EngineError(f"a run failed: {type(error).__name__}") from error

    def _windows(self, made: Features) -> Iterator[Segment]:
        tail: FloatArray | None = None
        for start, stop in window_plan(made.frames):
            low, high = max(0, start - CONTEXT_FRAMES), min(made.frames, stop + CONTEXT_FRAMES)
            sound = self.sound(made, low, high)
            audio = sound[FRAME * (start - low) : FRAME * (stop - low)].copy()
            if tail is not None:
                # Two windows differ a little where they meet: cross over within 5 ms instead of stepping.
                count = min(len(tail), len(audio))
                ramp = np.linspace(0, 1, count, dtype=np.float32)
                audio[:count] = tail[:count] * (1 - ramp) + audio[:count] * ramp
            tail = sound[FRAME * (stop - low) : FRAME * (stop - low) + _CROSSFADE].copy() if stop < made.frames else None
            yield Segment(audio, is_last=stop == made.frames)


def window_plan(frames: int) -> list[tuple[int, int]]:
    """Return the windows [start, stop) that cover `frames`: a small one first, then each larger than the one before."""
    plan: list[tuple[int, int]] = []
    start, size = 0, float(FIRST_WINDOW)
    while start < frames:
        stop = start + int(size)
        if frames - stop < _LAST_WINDOW:
            stop = frames  # A tiny last window would be mostly context.
        plan.append((start, stop))
        start, size = stop, size * WINDOW_GROWTH
    return plan


class WholeGraphEngine:
    """A Kokoro graph of another export, which cannot be taken apart: one segment an utterance, no timings."""

    name = "onnx"
    has_timings = False

    def __init__(self, model: Path, threads: int) -> None:
        """Load the graph. Raises EngineError if it is no Kokoro graph."""
        self._session = _session(model, threads)
        names = {value.name for value in self._session.get_inputs()}
        # Exports of the same model disagree on the name of their first input.
        self._tokens = "tokens" if "tokens" in names else "input_ids"
        if not {self._tokens, "style", "speed"} <= names:
            raise EngineError(f"{model} is no Kokoro graph: its inputs are {sorted(names)}")

    def warm_up(self) -> None:
        """Run once."""
        for _ in self.run(Utterance((50,) * 30, np.zeros((1, 256), np.float32), 1.0)):
            pass

    def run(self, utterance: Utterance) -> Iterator[Segment]:
        """Yield the whole utterance as one segment."""
        tokens = np.array([[0, *utterance.tokens, 0]], dtype=np.int64)
        feeds = {self._tokens: tokens, "style": utterance.style, "speed": np.array([utterance.speed], dtype=np.float32)}
        try:
            (audio, *_) = self._session.run(None, feeds)
        except _RUNTIME_ERRORS as error:
            raise EngineError(f"a run failed: {type(error).__name__}") from error
        yield Segment(np.asarray(audio, dtype=np.float32).ravel(), is_last=True)


def load_engine(
    model: Path, cache: Path, threads: int, precision: str | None, clock: Callable[[], float] = time.process_time
) -> OnnxEngine | WholeGraphEngine:
    """Return the engine for `model`, its halves kept in `cache`.

    precision: a name of HALVES; None lets a self-test choose, whose choice is remembered for this CPU and number of threads.
    Raises EngineError if the graph cannot be loaded, OSError if the cache cannot be written.
    """
    home = graph_folder(model, cache)
    try:
        engine = _fastest(model, home, threads, clock) if precision is None else _engine(model, home, threads, precision)
    except CannotSplit as error:
        log.warning("graph cannot be split", reason=str(error), effect="no early first audio, no timestamps")
        return WholeGraphEngine(model, threads)
    _remove_outdated(cache)
    return engine


def _engine(model: Path, home: Path, threads: int, precision: str) -> OnnxEngine:
    front, back = HALVES[precision]
    return OnnxEngine(
        _session(_half(model, home, front, "front"), threads), _session(_half(model, home, back, "back"), threads), precision
    )


def cut(model: Path, cache: Path) -> None:
    """Cut the graph in both precisions into `cache`, ahead of the first start. Raises CannotSplit or OSError."""
    for precision in _PRECISIONS:
        _half(model, graph_folder(model, cache), precision, "front")
    _remove_outdated(cache)


def _remove_outdated(cache: Path) -> None:
    """Remove what earlier releases cut, half a gigabyte each; a release that is newer than this one keeps its own."""
    for folder in cache.glob("graphs-*"):
        named = _GRAPH_FOLDER.fullmatch(folder.name)
        if named is None or int(named["version"]) >= _GRAPH_VERSION or folder.is_symlink():
            continue
        try:
            shutil.rmtree(folder)
        except OSError as error:  # Space, not speech: a cache that belongs to another user stays as it is.
            log.warning("outdated graphs not removed", path=str(folder), reason=error.strerror)
        else:
            log.info("outdated graphs removed", path=str(folder))


def graph_folder(model: Path, cache: Path) -> Path:
    """Return where the halves of this very graph are kept, as this release cuts them."""
    with model.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:12]
    return cache / f"graphs-{digest}-{_GRAPH_VERSION}"


def _half(model: Path, home: Path, precision: Precision, name: str) -> Path:
    """Return the file of one half, cutting the graph first if that has not been done yet."""
    folder = home / precision
    halves = {half: folder / f"{half}.onnx" for half in ("front", "back")}
    if not all(path.is_file() for path in halves.values()):
        folder.mkdir(parents=True, exist_ok=True)
        log.info("splitting the graph", precision=precision)
        # Imported only when there is something to cut: onnx takes 30 MB that a running server does not need.
        from kokoro_backend import graph

        try:
            graph.write_parts(model, folder, as_float=precision == "fp32", replace=Path.replace)
        except graph.GraphError as error:
            raise CannotSplit(str(error)) from error
    return halves[name]


def _fastest(model: Path, home: Path, threads: int, clock: Callable[[], float]) -> OnnxEngine:
    remembered = home / f"fastest-{_cpu_key()}-{threads}"
    known = _named(remembered.read_text().split()) if remembered.is_file() else None
    if known is not None:
        return _engine(model, home, threads, known)
    engines = {precision: _engine(model, home, threads, precision) for precision in _PRECISIONS}
    utterance = Utterance((50,) * _TEST_TOKENS, np.zeros((1, 256), np.float32), 1.0)
    seconds = {half: dict.fromkeys(_PRECISIONS, float("inf")) for half in ("front", "back")}
    # CPU time, interleaved, the best of three: other load on the machine must not decide. The back is timed over the first
    # window and the one after it, for which listeners wait.
    for _ in range(3):
        for precision, engine in engines.items():
            began = clock()
            made = engine.features(utterance)
            between = clock()
            engine.sound(made, 0, min(made.frames, 2 * FIRST_WINDOW))
            seconds["front"][precision] = min(seconds["front"][precision], between - began)
            seconds["back"][precision] = min(seconds["back"][precision], clock() - between)
    fastest = [min(_PRECISIONS, key=seconds[half].__getitem__) for half in ("front", "back")]
    chosen = _named(fastest)
    assert chosen is not None
    log.info("precision chosen", precision=chosen, threads=threads, cpu_seconds=seconds)
    try:
        remembered.write_text(" ".join(fastest))
    except OSError as error:  # The graph is there: a cache that cannot be written to costs a self-test a start, no more.
        log.warning("choice not remembered", path=str(remembered), reason=error.strerror)
    return _engine(model, home, threads, chosen)


def _named(halves: Sequence[str]) -> str | None:
    """Return the name in HALVES of these precisions of (front, back), None if there is none."""
    return next((name for name, known in HALVES.items() if known == tuple(halves)), None)


@functools.cache
def _cpu_key() -> str:
    """Return a short name for this kind of CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "unknown"
    described = "".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))}))
    return hashlib.sha256(described.encode()).hexdigest()[:12]
