"""The torch engine: it speaks as the ONNX engine does, and a batch gives what one by one gives. Skipped without torch."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from kokoro_backend.backend import find_weights
from kokoro_backend.engine import BatchEngine, EngineError, Utterance
from kokoro_backend.onnx_engine import OnnxEngine, load_engine
from kokoro_backend.settings import Settings
from kokoro_backend.voices import FloatArray, VoiceCatalogue, load_voices
from kokoro_backend.weights import Weights
from tests.kit.recogniser import Recogniser, word_error_rate

torch = pytest.importorskip("torch", minversion="2.10", reason="the extra kokoro-torch (torch >= 2.10) is not installed")
torch_engine = pytest.importorskip("kokoro_backend.torch_engine")
torch_model = pytest.importorskip("kokoro_backend.torch_model")
torch_weights = pytest.importorskip("kokoro_backend.torch_weights")

pytestmark = pytest.mark.timeout(900)

# The AWS article's sentences in Kokoro's alphabet; and their words.
SAID = {
    "həlˈO ðˈɛɹ.": "Hello there.",
    "ðˌɪs ɪz ɐ pˈOst dəplˈYmənt ʧˈɛk.": "This is a post deployment check.",
    "ˌɪt hæz θɹˈi sˈɛntᵊnsᵻz.": "It has three sentences.",
}


@pytest.fixture(scope="module")
def weights() -> Weights:
    return find_weights(Settings.from_env(os.environ))


@pytest.fixture(scope="module")
def utterances(weights: Weights) -> list[Utterance]:
    voices: VoiceCatalogue = load_voices(weights.voices)
    voice = voices.find("af_heart")
    assert voice is not None
    return [
        Utterance(tuple(weights.vocab[symbol] for symbol in symbols), voices.style(voice, len(symbols)), speed)
        for symbols, speed in zip(SAID, (1.0, 1.25, 1.0), strict=True)
    ]


@pytest.fixture(scope="module")
def parameters(weights: Weights) -> dict[str, FloatArray]:
    return torch_weights.read_parameters(weights.model)


@pytest.fixture(scope="module")
def model(parameters: dict[str, FloatArray]) -> object:
    torch.set_num_threads(2)
    return torch_model.TorchKokoro(parameters, torch.device("cpu"), with_noise=False)


def acoustics(model, utterances: list[Utterance]):
    return model.acoustics(
        [utterance.tokens for utterance in utterances],
        torch.from_numpy(np.concatenate([utterance.style for utterance in utterances])),
        [utterance.speed for utterance in utterances],
    )


def decibels(signal, other) -> float:
    return float(10 * torch.log10((signal**2).sum() / ((signal - other) ** 2).sum().clamp(min=1e-20)))


def test_features_and_durations_are_those_of_the_onnx_engine(
    model: object, weights: Weights, utterances: list[Utterance]
) -> None:
    onnx = load_engine(weights.model, Settings.from_env(os.environ).cache, 2, "fp32")
    assert isinstance(onnx, OnnxEngine)
    for utterance in utterances:
        expected = onnx.features(utterance)
        made = acoustics(model, [utterance])
        assert made.durations == [expected.durations]
        assert np.abs(made.features[0, :, : expected.frames].numpy() - expected.features[0]).max() < 5e-3


def test_a_batch_has_the_lengths_and_the_features_of_one_by_one(model: object, utterances: list[Utterance]) -> None:
    together = acoustics(model, utterances)
    for row, utterance in enumerate(utterances):
        alone = acoustics(model, [utterance])
        own = 2 * int(alone.frames[0])
        assert together.durations[row] == alone.durations[0]
        assert float((together.features[row, :, :own] - alone.features[0, :, :own]).abs().max()) < 1e-3
        assert float((together.pitch[row, :own] - alone.pitch[0, :own]).abs().max()) < 0.05


def test_a_batchs_vocoder_gives_the_same_sound_from_the_same_source(model, utterances: list[Utterance]) -> None:
    # The source's phase multiplies rounding errors of the pitch, so whole runs are compared from the same source spectra.
    alone = [acoustics(model, [utterance]) for utterance in utterances]
    together = acoustics(model, utterances)
    spectra = torch.zeros_like(model.source(together))
    for row, made in enumerate(alone):
        own = model.source(made)[0]
        spectra[row, :, : own.shape[1]] = own
    sounds = model.sound(together, spectra)
    assert min(decibels(model.sound(made)[0], sound) for made, sound in zip(alone, sounds, strict=True)) > 80


def test_without_its_masks_a_batch_is_another_sound(model, utterances: list[Utterance], monkeypatch: pytest.MonkeyPatch) -> None:
    # The control: the comparisons above can fail.
    alone = acoustics(model, utterances[:1])
    monkeypatch.setattr(torch_model, "_mask", lambda lengths, width: torch.ones(len(lengths), width))
    together = acoustics(model, utterances)
    own = 2 * int(alone.frames[0])
    assert (
        together.durations[0] != alone.durations[0]
        or float((together.features[0, :, :own] - alone.features[0, :, :own]).abs().max()) > 0.05
    )


def test_a_batch_is_understood(parameters: dict[str, FloatArray], utterances: list[Utterance]) -> None:
    engine = torch_engine.TorchEngine(torch_model.TorchKokoro(parameters, torch.device("cpu")), batch_limit=4)
    segments = engine.run_batch(utterances)
    recogniser = Recogniser.shared()
    heard = [(said, recogniser.heard(segment.audio, 24_000)) for said, segment in zip(SAID.values(), segments, strict=True)]
    assert isinstance(engine, BatchEngine)
    assert [sum(segment.durations) * 600 for segment in segments] == [len(segment.audio) for segment in segments]
    # "post deployment" is heard as "post-employment" from every engine.
    assert word_error_rate(heard) <= 2 / 12, heard


def test_the_same_utterance_sounds_the_same_every_time(parameters: dict[str, FloatArray], utterances: list[Utterance]) -> None:
    engine = torch_engine.TorchEngine(torch_model.TorchKokoro(parameters, torch.device("cpu")), batch_limit=4)
    (first,) = engine.run(utterances[0])
    (second,) = engine.run(utterances[0])
    assert np.array_equal(first.audio, second.audio)


def test_a_checkpoint_in_the_authors_form_gives_the_same_parameters(parameters: dict[str, FloatArray], tmp_path: Path) -> None:
    parts: dict[str, dict[str, object]] = {}
    for name, array in parameters.items():
        part, _, rest = name.partition(".")
        tensor = torch.from_numpy(array.copy())
        is_normalised = rest.endswith(".weight") and array.ndim == 3 and bool((np.abs(array).max(axis=(1, 2)) > 0).all())
        own = parts.setdefault(part, {})
        if is_normalised:
            own[f"module.{rest}_g"] = tensor.flatten(1).norm(dim=1)[:, None, None]
            own[f"module.{rest}_v"] = tensor * 3
        else:
            own[f"module.{rest}"] = tensor
    torch.save(parts, tmp_path / "kokoro-v1_0.pth")
    read = torch_weights.read_parameters(tmp_path / "kokoro-v1_0.pth")
    assert read.keys() == parameters.keys()
    assert max(float(np.abs(read[name] - parameters[name]).max()) for name in parameters) < 1e-4


@pytest.mark.parametrize("content", [b"not a checkpoint", b""], ids=["junk", "empty"])
def test_what_is_no_checkpoint_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.pth").write_bytes(content)
    with pytest.raises(EngineError, match=r"model\.pth is no checkpoint"):
        torch_weights.read_parameters(tmp_path / "model.pth")


def test_a_checkpoint_of_another_model_is_refused_with_what_is_missing(tmp_path: Path) -> None:
    torch.save({"bert": {"other.weight": torch.zeros(2)}}, tmp_path / "model.pth")
    with pytest.raises(EngineError, match=r"is no Kokoro-82M: it has no bert\."):
        torch_weights.read_parameters(tmp_path / "model.pth")
