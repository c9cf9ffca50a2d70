"""The ONNX engine: both halves together are the whole graph, windows have no clicks, limits hold, memory is flat."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from kokoro_backend import graph
from kokoro_backend.backend import find_weights, load
from kokoro_backend.engine import FRAME_SAMPLES, EngineError, Utterance
from kokoro_backend.onnx_engine import OnnxEngine, Precision, WholeGraphEngine, graph_folder, load_engine, window_plan
from kokoro_backend.settings import Settings
from kokoro_backend.voices import FloatArray, VoiceCatalogue, load_voices
from kokoro_backend.weights import Weights

pytestmark = pytest.mark.timeout(900)

THREADS = 2
HELLO = "həlˈO ðˈɛɹ."
LONG = "ðə kwˈɪk bɹˈWn fˈɑks ʤˈʌmps ˈOvəɹ ðə lˈAzi dˈɔɡ, ænd ðˈɛn ɪt ɹˈʌnz ɐwˈA."


@pytest.fixture(scope="module")
def weights() -> Weights:
    return find_weights(Settings.from_env(os.environ))


@pytest.fixture(scope="module")
def voices(weights: Weights) -> VoiceCatalogue:
    return load_voices(weights.voices)


def engine_of(weights: Weights, precision: Precision) -> OnnxEngine:
    engine = load_engine(weights.model, Settings.from_env(os.environ).cache, THREADS, precision)
    assert isinstance(engine, OnnxEngine)
    return engine


@pytest.fixture(scope="module")
def fp32(weights: Weights) -> OnnxEngine:
    return engine_of(weights, "fp32")


def utterance(weights: Weights, voices: VoiceCatalogue, symbols: str, *, is_urgent: bool) -> Utterance:
    tokens = tuple(weights.vocab[symbol] for symbol in symbols)
    voice = voices.find("af_heart")
    assert voice is not None
    return Utterance(tokens, voices.style(voice, len(tokens)), 1.0, is_urgent)


def spoken(engine: OnnxEngine | WholeGraphEngine, what: Utterance) -> FloatArray:
    return np.concatenate([segment.audio for segment in engine.run(what)])


def test_the_two_halves_make_the_same_sound_as_the_whole_graph(weights: Weights, voices: VoiceCatalogue, tmp_path: Path) -> None:
    what = utterance(weights, voices, HELLO, is_urgent=False)
    whole = spoken(WholeGraphEngine(weights.model, THREADS), what)
    sessions = []
    for part, name in zip(graph.split(onnx.load(weights.model)), ("front", "back"), strict=True):
        onnx.save(part, tmp_path / name)
        sessions.append(onnxruntime.InferenceSession(str(tmp_path / name), providers=["CPUExecutionProvider"]))
    halves = spoken(OnnxEngine(sessions[0], sessions[1], "int8"), what)
    assert len(halves) == len(whole)
    assert np.abs(halves - whole).max() < 0.01


def test_rewritten_operators_leave_the_features_alone(fp32: OnnxEngine, weights: Weights, voices: VoiceCatalogue) -> None:
    what = utterance(weights, voices, HELLO, is_urgent=False)
    dequantised_front, _ = graph.split(graph.dequantised(onnx.load(weights.model)))
    session = onnxruntime.InferenceSession(dequantised_front.SerializeToString(), providers=["CPUExecutionProvider"])
    plain = OnnxEngine(session, session, "fp32").features(what)
    made = fp32.features(what)
    assert made.durations == plain.durations
    assert np.abs(made.features - plain.features).max() < 1e-3
    # Half of the source is magnitudes, half phases; the phases of what has no magnitude are rounding errors in both.
    assert np.abs(made.source[:, :11] - plain.source[:, :11]).max() < 0.02


def test_the_self_tests_choice_is_remembered_for_each_half(weights: Weights, tmp_path: Path) -> None:
    cut = graph_folder(weights.model, Settings.from_env(os.environ).cache)
    home = graph_folder(weights.model, tmp_path)
    home.mkdir()
    precisions: tuple[Precision, ...] = ("int8", "fp32")
    for precision in precisions:
        engine_of(weights, precision)
        (home / precision).symlink_to(cut / precision)
    # The clock runs at a pace that lets int8 win the front and fp32 the back.
    ticks = iter([0.0, 1.0, 3.0, 3.0, 5.0, 6.0] * 3)
    chosen = load_engine(weights.model, tmp_path, THREADS, None, clock=lambda: next(ticks))
    again = load_engine(weights.model, tmp_path, THREADS, None, clock=lambda: pytest.fail("nothing is timed again"))
    assert isinstance(chosen, OnnxEngine)
    assert isinstance(again, OnnxEngine)
    assert (chosen.precision, again.precision) == ("int8+fp32", "int8+fp32")


def test_graphs_of_earlier_releases_are_removed_and_nothing_else(weights: Weights, tmp_path: Path) -> None:
    home = graph_folder(weights.model, tmp_path)
    engine_of(weights, "fp32")
    home.mkdir()
    (home / "fp32").symlink_to(graph_folder(weights.model, Settings.from_env(os.environ).cache) / "fp32")
    version = int(home.name.rpartition("-")[2])
    kept = [home.name, f"graphs-{'a' * 12}-{version}", f"graphs-{'a' * 12}-{version + 1}", "graphs-of-my-own", "graphs-1"]
    dropped = [f"graphs-{'a' * 12}-{version - 1}", f"graphs-{'b' * 12}-0"]
    for name in [*kept[1:], *dropped]:
        (tmp_path / name / "int8").mkdir(parents=True)
        (tmp_path / name / "int8" / "front.onnx").write_bytes(b"x")
    load_engine(weights.model, tmp_path, THREADS, "fp32")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)


def test_windows_have_the_length_of_one_shot_and_the_first_is_short(
    fp32: OnnxEngine, weights: Weights, voices: VoiceCatalogue
) -> None:
    whole = spoken(fp32, utterance(weights, voices, LONG, is_urgent=False))
    segments = [segment for segment in fp32.run(utterance(weights, voices, LONG, is_urgent=True)) if len(segment.audio)]
    assert sum(len(segment.audio) for segment in segments) == len(whole)
    assert len(segments[0].audio) == 9600
    assert [segment.is_last for segment in segments] == [False] * (len(segments) - 1) + [True]


def test_durations_add_up_to_the_audio(fp32: OnnxEngine, weights: Weights, voices: VoiceCatalogue) -> None:
    first, *rest = list(fp32.run(utterance(weights, voices, HELLO, is_urgent=False)))
    assert first.durations is not None
    assert len(first.durations) == len(HELLO) + 2
    assert sum(first.durations) * FRAME_SAMPLES == sum(len(segment.audio) for segment in rest)


def test_seams_between_windows_do_not_click(fp32: OnnxEngine, weights: Weights, voices: VoiceCatalogue) -> None:
    audio = spoken(fp32, utterance(weights, voices, LONG, is_urgent=True))
    steps = np.abs(np.diff(audio))
    seams = [300 * stop for _, stop in window_plan(len(audio) // 300)[:-1]]
    # A click is a step that stands out of the second around it.
    for seam in seams:
        around = np.sort(steps[max(0, seam - 12000) : seam + 12000])
        assert steps[seam - 3 : seam + 123].max() <= around[-1]
        assert steps[seam - 1 : seam + 1].max() < 0.15


def test_exactly_510_symbols_are_spoken(fp32: OnnxEngine, weights: Weights, voices: VoiceCatalogue) -> None:
    symbols = (LONG + " ") * 8
    audio = spoken(fp32, utterance(weights, voices, symbols[:510], is_urgent=False))
    assert len(audio) > 20 * 24_000


def test_memory_is_flat_over_many_lengths(fp32: OnnxEngine, weights: Weights, voices: VoiceCatalogue) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def speak(count: int) -> None:
        what = utterance(weights, voices, LONG[:count], is_urgent=count % 2 == 0)
        spoken(fp32, Utterance(what.tokens, what.style, 2.0, what.is_urgent))

    for count in (60, 10, 40):
        speak(count)
    before = resident()
    for count in range(8, 60, 2):
        speak(count)
    assert resident() - before < 60_000_000


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed")
def test_without_torch_its_engine_is_refused_with_what_to_install() -> None:
    settings = replace(Settings.from_env(os.environ), engine="torch")
    with pytest.raises(EngineError, match="install the extra kokoro-torch"):
        load(settings)
