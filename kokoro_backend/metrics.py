"""What the process counts, for /metrics: narrations, characters, symbols, audio, waiting, computing, first audio.

Labels come from enums only. Texts, voices of one's own and ids never become a label.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from kokoro_backend.synthesis import Figures

_SECONDS = (0.025, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0)
_FACTORS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.5, 2.5)


class Metrics:
    """The registry of one process."""

    def __init__(self, engine: str) -> None:
        """engine: the engine's name, a label of everything that depends on it."""
        self._registry = CollectorRegistry()
        self._engine = engine
        label = ("engine",)
        registry = self._registry
        self._narrations = Counter(
            "kokoro_narrations", "Messages and contexts spoken, by outcome", ("engine", "outcome"), registry=registry
        )
        self._characters = Counter("kokoro_characters", "Characters of text taken", label, registry=registry)
        self._symbols = Counter("kokoro_phonemes", "Phoneme symbols given to the model", label, registry=registry)
        self._audio = Counter("kokoro_audio_seconds", "Seconds of audio made", label, registry=registry)
        self._queue = Histogram(
            "kokoro_queue_seconds", "Time that a narration's units waited for the model", label, buckets=_SECONDS,
            registry=registry,
        )  # fmt: skip
        self._first = Histogram(
            "kokoro_first_audio_seconds", "From the start of a narration to its first audio", label, buckets=_SECONDS,
            registry=registry,
        )  # fmt: skip
        self._factor = Histogram(
            "kokoro_real_time_factor", "Compute time per second of audio", label, buckets=_FACTORS, registry=registry
        )
        self.depth = Gauge("kokoro_queue_depth", "Units that wait or run", registry=registry)
        self.ready = Gauge("kokoro_ready", "1 when the model is loaded and warm", registry=registry)

    def narrated(self, figures: Figures, outcome: str) -> None:
        """Count one narration; outcome: completed, cancelled or failed."""
        self._narrations.labels(self._engine, outcome).inc()
        self._characters.labels(self._engine).inc(figures.characters)
        self._symbols.labels(self._engine).inc(figures.symbols)
        self._audio.labels(self._engine).inc(figures.audio_seconds)
        if figures.first_audio_seconds is not None:
            self._first.labels(self._engine).observe(figures.first_audio_seconds)
            self._queue.labels(self._engine).observe(figures.queue_seconds)
        if figures.audio_seconds > 0 and figures.compute_seconds > 0:
            self._factor.labels(self._engine).observe(figures.compute_seconds / figures.audio_seconds)

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)
