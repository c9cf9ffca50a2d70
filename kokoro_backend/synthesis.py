"""Text in, audio out: sentences become words, units and utterances, and their audio comes back in order and in time.

`Speaker.narrate` is what the protocols use. While one unit is being spoken, the next ones are being pronounced and queued,
so the model never waits for text work. Knows nothing of HTTP; see `scheduler` for who goes first.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from kokoro_backend.audio import soften_edges, trimmed
from kokoro_backend.engine import FRAME_SAMPLES, SAMPLE_RATE, Segment, Utterance
from kokoro_backend.markup import Pause, speech_parts
from kokoro_backend.phonemes import Phonemizer, Unit, Word, split_units
from kokoro_backend.scheduler import Job, Scheduler, Session, Stream
from kokoro_backend.tasks import start_task
from kokoro_backend.voices import FloatArray, Voice, VoiceCatalogue

_UNITS_AHEAD = 3
_SENTENCE_ENDS = tuple(".!?…")
_INNER_START_SECONDS = 0.04
_INNER_END_SECONDS = 0.14
"""Silence kept between two units of one sentence: a comma's pause. The model leaves two or three times as much."""
_STRESS = "ˈˌ"
"""Marks that the model gives frames to but nobody calls phonemes."""


@dataclass(frozen=True)
class Manner:
    """How to speak; fixed for a message or context."""

    voice: Voice
    language: str
    speed: float = 1.0
    volume: float = 1.0
    phoneme_markup: bool = False


@dataclass(frozen=True)
class Timed:
    """A word or phoneme and when it is spoken, in seconds from the start of the stream."""

    text: str
    start: float
    end: float


@dataclass(frozen=True)
class Spoken:
    """A piece of audio, float32 at 24 kHz, and the words that begin in its unit (with the unit's first piece only)."""

    audio: FloatArray
    words: tuple[Timed, ...] = ()
    phonemes: tuple[Timed, ...] = ()


@dataclass(frozen=True)
class Mark:
    """A point in the text that the caller wants to hear of when all audio before it is out."""

    flush_id: int


@dataclass
class Figures:
    """What one narration amounted to, for metrics and the log line."""

    characters: int = 0
    symbols: int = 0
    audio_seconds: float = 0.0
    queue_seconds: float = 0.0
    compute_seconds: float = 0.0
    first_audio_seconds: float | None = None


class Observer(Protocol):
    """Told of each finished narration."""

    def narrated(self, figures: Figures, outcome: str) -> None:
        """Count `figures`; outcome: completed, cancelled or failed."""
        ...


@dataclass
class _Silence:
    seconds: float


@dataclass
class _Planned:
    unit: Unit
    job: Job


@dataclass
class Narration:
    """Hands sentences and marks to a running `narrate`; `close` ends it."""

    manner: Manner
    session: Session
    items: "asyncio.Queue[str | Mark | None]" = field(default_factory=asyncio.Queue)

    def say(self, sentence: str) -> None:
        """Queue a sentence."""
        self.items.put_nowait(sentence)

    def mark(self, flush_id: int) -> None:
        """Queue a mark after everything said so far."""
        self.items.put_nowait(Mark(flush_id))

    def close(self) -> None:
        """Say that nothing more will come."""
        self.items.put_nowait(None)


class Speaker:
    """The synthesizer: pronounces on a thread of its own, speaks through the scheduler."""

    def __init__(
        self,
        scheduler: Scheduler,
        phonemizer: Phonemizer,
        voices: VoiceCatalogue,
        vocab: dict[str, int],
        observer: Observer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.voices = voices
        self._scheduler = scheduler
        self._phonemizer = phonemizer
        self._vocab = vocab
        self._observer = observer
        self._clock = clock
        # spaCy and misaki hold the interpreter for milliseconds a sentence: never on the event loop.
        self._text_worker = ThreadPoolExecutor(1, thread_name_prefix="kokoro-text")

    @property
    def queue_depth(self) -> int:
        """Return how many units wait for the model or run."""
        return self._scheduler.depth

    def close(self) -> None:
        """Stop both workers; blocks for at most the segment in work."""
        self._text_worker.shutdown(wait=False, cancel_futures=True)
        self._scheduler.close()

    async def narrate(self, narration: Narration) -> AsyncGenerator[Spoken | Mark, None]:
        """Speak the narration's sentences in order until it is closed; marks come back in their place.

        Closing the iterator cancels what is queued or running. Raises UnsupportedScript, UnsupportedLanguage, QueueFull
        or EngineError.
        """
        began = self._clock()
        figures = Figures()
        plan: asyncio.Queue[_Planned | _Silence | Mark | Exception | None] = asyncio.Queue(_UNITS_AHEAD)
        planner = start_task(self._plan(narration, plan, figures), name="kokoro plan")
        running: Job | None = None
        position = 0.0
        follows_open_unit = False
        outcome = "cancelled"
        try:
            while (planned := await plan.get()) is not None:
                if isinstance(planned, Exception):
                    outcome = "failed"
                    raise planned
                if isinstance(planned, Mark):
                    yield planned
                    continue
                if isinstance(planned, _Silence):
                    yield Spoken(np.zeros(int(planned.seconds * SAMPLE_RATE), np.float32))
                    position += planned.seconds
                    continue
                running = planned.job
                shaper = _Shaper(planned.unit, narration.manner, follows_open_unit=follows_open_unit)
                follows_open_unit = shaper.is_open
                async for segment in running.segments():
                    if len(segment.audio) and figures.first_audio_seconds is None:
                        figures.first_audio_seconds = self._clock() - began
                    if spoken := shaper.shape(segment, position):
                        yield spoken
                        position += len(spoken.audio) / SAMPLE_RATE
                figures.compute_seconds += running.compute_seconds
                figures.queue_seconds += (running.started_at or began) - running.submitted_at
                figures.audio_seconds = position
                running = None
            outcome = "completed"
        finally:
            planner.cancel()
            if running is not None:
                running.cancel()
            while not plan.empty():
                left = plan.get_nowait()
                if isinstance(left, _Planned):
                    left.job.cancel()
            figures.audio_seconds = position
            self._observer.narrated(figures, outcome)

    async def _plan(
        self, narration: Narration, plan: "asyncio.Queue[_Planned | _Silence | Mark | Exception | None]", figures: Figures
    ) -> None:
        """Pronounce and submit ahead of the audio, at most _UNITS_AHEAD units."""
        stream = Stream(narration.session)
        is_first = True
        submitted: Job | None = None
        try:
            while (item := await narration.items.get()) is not None:
                if isinstance(item, Mark):
                    await plan.put(item)
                    continue
                figures.characters += len(item)
                for part in speech_parts(item):
                    if isinstance(part, Pause):
                        await plan.put(_Silence(part.seconds))
                        continue
                    for unit in await self.units(part, narration.manner):
                        utterance = self._utterance(unit, narration.manner, is_urgent=is_first)
                        figures.symbols += len(utterance.tokens)
                        submitted = self._scheduler.submit(utterance, stream)
                        is_first = False
                        await plan.put(_Planned(unit, submitted))
                        submitted = None
            await plan.put(None)
        except asyncio.CancelledError:
            if submitted is not None:
                submitted.cancel()
            raise
        except Exception as error:  # Raised again by `narrate`, which alone has a caller to tell.
            await plan.put(error)

    async def units(self, sentence: str, manner: Manner) -> list[Unit]:
        """Return the units of speech of one sentence; empty if it holds nothing that could be said.

        Raises UnsupportedScript or UnsupportedLanguage.
        """
        words = await asyncio.get_running_loop().run_in_executor(self._text_worker, self._words, sentence, manner)
        return [unit for unit in split_units(words) if any(char.isalpha() for char in unit.symbols)]

    def _words(self, sentence: str, manner: Manner) -> list[Word]:
        british = manner.voice.locale == "en-GB"
        return self._phonemizer.words(sentence, language=manner.language, british=british, phoneme_markup=manner.phoneme_markup)

    def _utterance(self, unit: Unit, manner: Manner, *, is_urgent: bool) -> Utterance:
        tokens = tuple(self._vocab[symbol] for symbol in unit.symbols)
        return Utterance(tokens, self.voices.style(manner.voice, len(tokens)), manner.speed, is_urgent)


class _Shaper:
    """Turns the segments of one unit into what is heard: soft at its ends, and closer to its neighbour inside a sentence."""

    def __init__(self, unit: Unit, manner: Manner, *, follows_open_unit: bool) -> None:
        """follows_open_unit: the unit before did not end its sentence."""
        self.is_open = unit.symbols[-1:] not in _SENTENCE_ENDS
        self._unit = unit
        self._manner = manner
        self._start_keep = _INNER_START_SECONDS if follows_open_unit else None
        self._end_keep = _INNER_END_SECONDS if self.is_open else None
        self._durations: tuple[int, ...] | None = None
        self._is_first = True

    def shape(self, segment: Segment, position: float) -> Spoken | None:
        """Return what to play at `position` seconds, None if there is nothing yet."""
        self._durations = segment.durations or self._durations
        if not len(segment.audio):
            return None
        is_first, self._is_first = self._is_first, False
        audio, cut = trimmed(
            segment.audio,
            start_keep=self._start_keep if is_first else None,
            end_keep=self._end_keep if segment.is_last else None,
        )
        audio = soften_edges(audio, start=is_first, end=segment.is_last)
        if self._manner.volume != 1.0:
            audio = audio * self._manner.volume
        if not is_first or self._durations is None:
            return Spoken(audio)
        words, phonemes = timings(self._unit, self._durations, position - cut / SAMPLE_RATE)
        return Spoken(audio, words, phonemes)


def timings(unit: Unit, durations: tuple[int, ...], position: float) -> tuple[tuple[Timed, ...], tuple[Timed, ...]]:
    """Return when each word and each phoneme of `unit` is spoken.

    durations: frames of each token, pads included; position: seconds of audio before the unit.
    """
    step = FRAME_SAMPLES / SAMPLE_RATE
    starts = [position]
    for frames in durations:
        starts.append(starts[-1] + frames * step)
    symbols = unit.symbols
    words: list[Timed] = []
    phonemes: list[Timed] = []
    index = 0
    leading = len("".join(word.symbols for word in unit.words)) - len("".join(word.symbols for word in unit.words).lstrip())
    index -= leading
    for word in unit.words:
        first = last = None
        for _ in word.symbols:
            if 0 <= index < len(symbols) and (symbols[index].isalpha()):
                # Token 0 is the pad, so symbol i is token i + 1.
                first = index + 1 if first is None else first
                last = index + 1
                if symbols[index] not in _STRESS:
                    phonemes.append(Timed(symbols[index], round(starts[index + 1], 3), round(starts[index + 2], 3)))
            index += 1
        if first is not None and last is not None and word.text:
            words.append(Timed(word.text, round(starts[first], 3), round(starts[last + 1], 3)))
    return tuple(words), tuple(phonemes)
