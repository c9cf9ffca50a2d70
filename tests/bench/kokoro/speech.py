"""How soon Kokoro is heard, how fast it speaks, what its transport costs, and whether it is understood.

Run it with `make bench-kokoro`; options: --runs N, --memory N, --without-listening. It prints the conditions, every target
of the Kokoro issue with lowest, median and highest of N interleaved runs, and the recogniser's transcripts. It judges
nothing: figures of a busy machine are worth what its load average says.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime

from kokoro_backend import backend
from kokoro_backend.backend import Backend
from kokoro_backend.client import SpeechClient
from kokoro_backend.engine import SAMPLE_RATE, Engine, Utterance
from kokoro_backend.onnx_engine import load_engine
from kokoro_backend.phonemes import MAX_SYMBOLS, MisakiPhonemizer, split_units
from kokoro_backend.settings import Settings
from kokoro_backend.voices import FloatArray, VoiceCatalogue, load_voices
from tests.kit.recogniser import Recogniser, word_error_rate
from tests.kit.sentences import ARTICLE, EIGHT_SECONDS, FOUR_SENTENCES, TWENTY
from tests.kit.speech_server import SpeechServer, speech_server, tone_backend

SHORT = "Hello there."


def say(line: str = "") -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def spread(seconds: list[float], unit: str = "ms") -> str:
    scale = 1000 if unit == "ms" else 1
    low, middle, high = min(seconds) * scale, statistics.median(seconds) * scale, max(seconds) * scale
    return f"lowest {low:8.1f} {unit}   median {middle:8.1f} {unit}   highest {high:8.1f} {unit}"


def conditions(settings: Settings) -> None:
    model = next((line.split(":")[1].strip() for line in _cpuinfo() if line.startswith("model name")), platform.machine())
    say(f"CPU {model}, {os.cpu_count()} cores, {settings.threads} threads a run")
    say(f"Python {platform.python_version()}, onnxruntime {onnxruntime.__version__}")
    say(f"load average at the start {', '.join(f'{load:.2f}' for load in os.getloadavg())}")


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


class Direct:
    """The engine without server, scheduler or sockets."""

    def __init__(self, settings: Settings) -> None:
        self.weights = backend.find_weights(settings)
        self.voices: VoiceCatalogue = load_voices(self.weights.voices)
        self.phonemizer = MisakiPhonemizer(self.weights.vocab)
        self.engine: Engine = load_engine(self.weights.model, settings.cache, settings.threads, settings.precision)
        self.engine.warm_up()

    def utterance(self, text: str, *, is_urgent: bool) -> Utterance:
        words = self.phonemizer.words(text, language="en", british=False)
        (unit,) = split_units(words, MAX_SYMBOLS)
        tokens = tuple(self.weights.vocab[symbol] for symbol in unit.symbols)
        voice = self.voices.find("af_heart")
        assert voice is not None
        return Utterance(tokens, self.voices.style(voice, len(tokens)), 1.0, is_urgent)

    def spoken(self, text: str, *, is_urgent: bool) -> tuple[float, float, FloatArray]:
        """Return (seconds to first audio, seconds in all, audio)."""
        began = time.perf_counter()
        first: float | None = None
        pieces = []
        for segment in self.engine.run(self.utterance(text, is_urgent=is_urgent)):
            if len(segment.audio) and first is None:
                first = time.perf_counter() - began
            pieces.append(segment.audio)
        total = time.perf_counter() - began
        return first or total, total, np.concatenate(pieces)


def engine_figures(direct: Direct, runs: int) -> None:
    say("\nEngine alone, text work included")
    for name, text in (("short", SHORT), ("eight seconds", EIGHT_SECONDS)):
        figures: dict[bool, list[tuple[float, float, float]]] = {False: [], True: []}
        cpu: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(runs):
            for is_urgent in (False, True):
                began = time.process_time()
                first, total, audio = direct.spoken(text, is_urgent=is_urgent)
                cpu[is_urgent].append((time.process_time() - began) / (len(audio) / SAMPLE_RATE))
                figures[is_urgent].append((first, total, len(audio) / SAMPLE_RATE))
        for is_urgent, label in ((False, "one shot"), (True, "windows")):
            firsts, totals, lengths = zip(*figures[is_urgent], strict=True)
            factor = min(total / length for total, length in zip(totals, lengths, strict=True))
            middle = statistics.median(total / length for total, length in zip(totals, lengths, strict=True))
            say(f"  {name:14} {lengths[0]:5.2f} s  {label:9} first audio {spread(list(firsts))}")
            used = statistics.median(cpu[is_urgent])
            say(f"  {'':34} real-time factor lowest {factor:.2f}, median {middle:.2f}; CPU seconds a second {used:.2f}")


async def _first_audio(server: SpeechServer, pieces: Iterable[str] | str) -> float:
    async def tokens() -> object:
        for piece in pieces:
            yield piece

    async with SpeechClient(f"{server.websocket_url}/invocations-bidirectional-stream") as speech:
        began = time.perf_counter()
        text = pieces if isinstance(pieces, str) else tokens()
        async with aclosing(speech.speak(text)) as audio:  # type: ignore[arg-type]  # an async generator of strings
            async for _ in audio:
                return time.perf_counter() - began
    raise RuntimeError("no audio came")


def server_figures(server: SpeechServer, direct: Direct, runs: int) -> None:
    say("\nThrough the server, one stream: from sending the text to the first audio")
    for name, text in (("short", SHORT), ("eight seconds", EIGHT_SECONDS)):
        say(f"  {name:14} {spread([asyncio.run(_first_audio(server, text)) for _ in range(runs)])}")
    words = [word if number == 0 else f" {word}" for number, word in enumerate(FOUR_SENTENCES.split())]
    ways: dict[str, Callable[[], float]] = {
        "sent whole": lambda: asyncio.run(_first_audio(server, FOUR_SENTENCES)),
        "word by word": lambda: asyncio.run(_first_audio(server, words)),
        "one shot": lambda: direct.spoken(FOUR_SENTENCES, is_urgent=False)[0],
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(runs):
        for way, measure in ways.items():
            seconds[way].append(measure())
    say(f"The text of four sentences, {len(FOUR_SENTENCES)} characters: first audio")
    for way, times in seconds.items():
        say(f"  {way:14} {spread(times)}")
    for way in ("sent whole", "word by word"):
        ratio = statistics.median(seconds["one shot"]) / statistics.median(seconds[way])
        say(f"  one-shot synthesis of the whole text takes {ratio:.1f} times as long as the first audio {way}")


def transport_figures(runs: int) -> None:
    """Compare a warm message over the WebSocket with the same narration in the process, with an instant engine."""
    from kokoro_backend.cartesia_api import narrate_whole
    from kokoro_backend.scheduler import Session
    from kokoro_backend.synthesis import Manner

    async def direct(parts: Backend) -> float:
        voice = parts.voices.find("af_heart")
        assert voice is not None
        began = time.perf_counter()
        async with aclosing(narrate_whole(parts, SHORT, Manner(voice, "en"), Session())) as pieces:
            async for _ in pieces:
                pass
        return time.perf_counter() - began

    async def both(server: SpeechServer, parts: Backend) -> tuple[list[float], list[float]]:
        inside, outside = [], []
        async with SpeechClient(f"{server.websocket_url}/invocations-bidirectional-stream") as speech:
            for number in range(runs * 20 + 10):
                inside.append(await direct(parts))
                began = time.perf_counter()
                await speech.say(SHORT)
                outside.append(time.perf_counter() - began)
                if number == 9:
                    inside.clear(), outside.clear()
        return inside, outside

    parts = tone_backend()
    with speech_server(tone_backend) as server:
        inside, outside = asyncio.run(both(server, parts))
    parts.close()
    say("\nTransport: a warm message over the WebSocket, with an engine that takes no time")
    say(f"  in the process {spread(inside)}")
    say(f"  over WebSocket {spread(outside)}")
    say(f"  overhead of a message, by medians: {(statistics.median(outside) - statistics.median(inside)) * 1000:.2f} ms")


def listening(direct: Direct) -> None:
    recogniser = Recogniser.shared()
    for is_urgent, label in ((False, "one shot"), (True, "windows")):
        pairs = []
        for text in TWENTY:
            heard = recogniser.heard(direct.spoken(text, is_urgent=is_urgent)[2], SAMPLE_RATE)
            pairs.append((text, heard))
        say(f"\nHeard by Whisper tiny.en, {label}: word error rate {word_error_rate(pairs) * 100:.1f} % on 20 sentences")
        for text, heard in pairs:
            say(f"  {heard}" if heard == text else f"  {heard}   [said: {text}]")
    say("\nLengths of the AWS article's sentences")
    for text, expected in ARTICLE.items():
        length = len(direct.spoken(text, is_urgent=False)[2]) * 2
        say(f"  {length:7} bytes, the article {expected:7}: {(length / expected - 1) * 100:+.1f} %  {text}")


def memory(direct: Direct, lengths: int) -> None:
    """Speak `lengths` different lengths and print the resident size along the way."""
    say(f"\nMemory over {lengths} utterances of different lengths")
    page = os.sysconf("SC_PAGE_SIZE")
    for number in range(lengths):
        tokens = tuple(45 + (number + index) % 60 for index in range(5 + number * 37 % 120))
        for _ in direct.engine.run(Utterance(tokens, np.zeros((1, 256), np.float32), 2.0, number % 2 == 0)):
            pass
        if number % max(lengths // 10, 1) == 0 or number == lengths - 1:
            resident = int(Path("/proc/self/statm").read_text().split()[1]) * page / 1e6
            say(f"  after {number + 1:5}: {resident:6.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=8, help="of each figure (default 8)")
    parser.add_argument("--memory", type=int, default=100, help="utterances of the memory figure, 0 for none (default 100)")
    parser.add_argument("--without-listening", action="store_true", help="skip the recogniser")
    options = parser.parse_args()
    settings = replace(Settings.from_env(os.environ), engine="onnx")
    conditions(settings)
    direct = Direct(settings)
    say(f"precision {getattr(direct.engine, 'precision', 'of the graph')}")
    engine_figures(direct, options.runs)
    with speech_server(lambda: backend.load(settings)) as server:
        server_figures(server, direct, options.runs)
    transport_figures(options.runs)
    if not options.without_listening:
        listening(direct)
    if options.memory:
        memory(direct, options.memory)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    say(f"\npeak resident size of this process, two models and the recogniser in it: {peak:.0f} MB")
    say(f"load average at the end {', '.join(f'{load:.2f}' for load in os.getloadavg())}")


if __name__ == "__main__":
    main()
