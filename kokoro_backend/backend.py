"""The loaded backend: engine, scheduler, phonemizer, voices, put together once, off the event loop.

`load` is the composition root of the speaking side; `server` holds the result and knows when it is ready.
"""

from dataclasses import dataclass

import structlog

from kokoro_backend.engine import Engine, EngineError, ToneEngine
from kokoro_backend.metrics import Metrics
from kokoro_backend.onnx_engine import load_engine
from kokoro_backend.phonemes import MisakiPhonemizer, Phonemizer, load_lexicon
from kokoro_backend.scheduler import Scheduler
from kokoro_backend.settings import Settings
from kokoro_backend.synthesis import Manner, Speaker
from kokoro_backend.voices import VoiceCatalogue, load_voices
from kokoro_backend.weights import Weights, WeightsError, own_weights, packaged_weights, storage_error

log = structlog.get_logger()


@dataclass(frozen=True)
class Backend:
    """Everything that speaking needs."""

    speaker: Speaker
    metrics: Metrics
    has_timings: bool
    """Word and phoneme timestamps can be given."""

    @property
    def voices(self) -> VoiceCatalogue:
        """Return the voices that can be used."""
        return self.speaker.voices

    def close(self) -> None:
        """Stop the workers; blocks for at most the segment in work."""
        self.speaker.close()


def load(settings: Settings) -> Backend:
    """Load weights, voices and lexicons and warm the model up; blocks for several seconds.

    Raises WeightsError, LexiconError or EngineError.
    """
    weights = find_weights(settings)
    try:
        voices = load_voices(weights.voices)
    except ValueError as error:
        raise WeightsError(str(error)) from error
    lexicon = load_lexicon(settings.lexicon, weights.vocab) if settings.lexicon else {}
    phonemizer = MisakiPhonemizer(weights.vocab, lexicon)
    engine = _engine(settings, weights)
    backend = assemble(engine, phonemizer, voices, weights.vocab, settings.queue_limit)
    engine.warm_up()
    phonemizer.words("Warm up: it costs $3.50 at 10:30 a.m.", language="en", british=False)
    log.info(
        "model loaded",
        engine=engine.name,
        precision=getattr(engine, "precision", None),
        threads=settings.threads,
        voices=len(voices.voices),
        packaged_weights=weights.is_packaged,
    )
    return backend


def assemble(engine: Engine, phonemizer: Phonemizer, voices: VoiceCatalogue, vocab: dict[str, int], queue_limit: int) -> Backend:
    """Return a backend of these parts, with a scheduler and metrics of its own."""
    metrics = Metrics(engine.name)
    return Backend(Speaker(Scheduler(engine, queue_limit), phonemizer, voices, vocab, metrics), metrics, engine.has_timings)


def find_weights(settings: Settings) -> Weights:
    """Return the weights that the settings name. Raises WeightsError."""
    if settings.weights is not None:
        # The authors publish a checkpoint, which torch alone can read.
        return own_weights(settings.weights, (".pth", ".onnx") if settings.engine == "torch" else (".onnx",))
    return packaged_weights(settings.cache, lambda line: log.info("preparing weights", step=line))


def _engine(settings: Settings, weights: Weights) -> Engine:
    if settings.engine == "tone":
        return ToneEngine()
    if settings.engine == "torch":
        return _torch_engine(settings, weights)
    try:
        return load_engine(weights.model, settings.cache, settings.threads, settings.precision)
    except OSError as error:
        raise storage_error(settings.cache, error) from error


def _torch_engine(settings: Settings, weights: Weights) -> Engine:
    try:
        # Only now: torch is behind an extra, and takes seconds and a gigabyte.
        from kokoro_backend import torch_engine
    except ModuleNotFoundError as error:
        raise EngineError(
            "GLOTTIS_KOKORO_ENGINE is torch, but torch is not installed: install the extra kokoro-torch, or write onnx."
        ) from error
    return torch_engine.load_engine(weights.model, settings.threads)


__all__ = ["Backend", "Manner", "assemble", "find_weights", "load"]
