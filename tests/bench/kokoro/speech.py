"""How soon Kokoro is heard, how fast it speaks, what its transport costs, whether it is understood, whether it grows.

Run it with `make bench-kokoro`; options: --runs N, --only PART (several times), --memory N, --precision P. What is compared
is interleaved, and every figure has its lowest, median and highest; at the end stands the table of the Kokoro issue's
targets, and under what conditions it was taken. Figures of a busy machine are worth what its load average says; CPU seconds
stay what they are. On two quiet cores all parts take six minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import platform
import random
import resource
import statistics
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx
import numpy as np
import onnxruntime
import structlog
from websockets.asyncio.client import connect

from kokoro_backend import backend
from kokoro_backend.backend import Backend
from kokoro_backend.cartesia_api import narrate_whole
from kokoro_backend.client import SpeechClient
from kokoro_backend.engine import SAMPLE_RATE, Engine, Utterance
from kokoro_backend.onnx_engine import HALVES, load_engine
from kokoro_backend.phonemes import MAX_SYMBOLS, MisakiPhonemizer, split_units
from kokoro_backend.scheduler import Session
from kokoro_backend.settings import Settings
from kokoro_backend.synthesis import Manner
from kokoro_backend.voices import FloatArray, VoiceCatalogue, load_voices
from tests.kit.recogniser import Recogniser, word_error_rate
from tests.kit.sentences import ARTICLE, EIGHT_SECONDS, FOUR_SENTENCES, TWENTY
from tests.kit.speech_server import SpeechServer, speech_server, tone_backend

PARTS = ("engine", "server", "transport", "listening", "memory")
PRECISIONS = ("int8", "fp32", "int8+fp32")
"""Listened to in any case: the graph's own, the de-quantised one, and what most CPUs choose for front and back."""
SHORT = "Hello there."
_IDLE_SECONDS = 30


def say(line: str = "") -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def spread(values: list[float], scale: float = 1000, unit: str = "ms", places: int = 0) -> str:
    low, middle, high = (value * scale for value in (min(values), statistics.median(values), max(values)))
    return f"{middle:.{places}f} {unit} ({low:.{places}f} to {high:.{places}f})".replace(" (", "(" if not unit else " (")


@dataclass
class Targets:
    """The issue's targets and what was measured."""

    rows: list[tuple[str, str, str, str]] = field(default_factory=list)

    def check(self, what: str, measured: str, value: float, close: float, aim: float | None = None) -> None:
        """Note one target: `value` must be at most `close`, and is wanted at `aim`, in the unit of `measured`."""
        verdict = "aim met" if aim is not None and value <= aim else "met" if value <= close else "**not met**"
        bound = f"{close:g}" if aim is None else f"{close:g}, aim {aim:g}"
        self.rows.append((what, bound, measured, verdict))

    def note(self, what: str, measured: str) -> None:
        """Note a figure that has no target and helps to read the others."""
        self.rows.append((what, "", measured, ""))

    def tell(self) -> None:
        say("\n| target | at most | measured: median (lowest to highest) | |\n|---|--:|--:|---|")
        for row in self.rows:
            say("| " + " | ".join(row) + " |")


def conditions(settings: Settings) -> str:
    model = next((line.split(":")[1].strip() for line in _cpuinfo() if line.startswith("model name")), platform.machine())
    return (
        f"{os.cpu_count()} cores ({model}), {settings.threads} threads a run, Python {platform.python_version()}, "
        f"onnxruntime {onnxruntime.__version__}"
    )


def load_average() -> float:
    """Return the load average of the last minute."""
    return os.getloadavg()[0]


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


class Direct:
    """Engines without server, scheduler or sockets."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.weights = backend.find_weights(settings)
        self.voices: VoiceCatalogue = load_voices(self.weights.voices)
        self.phonemizer = MisakiPhonemizer(self.weights.vocab)
        self.engine = self.load(settings.precision)
        self.engine.warm_up()

    def load(self, precision: str | None) -> Engine:
        return load_engine(self.weights.model, self._settings.cache, self._settings.threads, precision)

    def utterance(self, text: str, *, is_urgent: bool) -> Utterance:
        words = self.phonemizer.words(text, language="en", british=False)
        (unit,) = split_units(words, MAX_SYMBOLS)
        tokens = tuple(self.weights.vocab[symbol] for symbol in unit.symbols)
        voice = self.voices.find("af_heart")
        assert voice is not None
        return Utterance(tokens, self.voices.style(voice, len(tokens)), 1.0, is_urgent)

    def spoken(self, text: str, *, is_urgent: bool, engine: Engine | None = None) -> tuple[float, float, FloatArray]:
        """Return (seconds to first audio, seconds in all, audio), text work included."""
        began = time.perf_counter()
        first: float | None = None
        pieces = []
        for segment in (engine or self.engine).run(self.utterance(text, is_urgent=is_urgent)):
            if len(segment.audio) and first is None:
                first = time.perf_counter() - began
            pieces.append(segment.audio)
        total = time.perf_counter() - began
        return first or total, total, np.concatenate(pieces)


def engine_figures(direct: Direct, runs: int, targets: Targets) -> None:
    say("\nEngine alone, text work included")
    say("| text | way | first audio | real-time factor | CPU seconds a second |\n|---|---|--:|--:|--:|")
    factors: dict[bool, list[float]] = {False: [], True: []}
    costs: dict[bool, list[float]] = {False: [], True: []}
    for name, text in (("short", SHORT), ("eight seconds", EIGHT_SECONDS)):
        firsts: dict[bool, list[float]] = {False: [], True: []}
        totals: dict[bool, list[float]] = {False: [], True: []}
        cpu: dict[bool, list[float]] = {False: [], True: []}
        seconds = 0.0
        for _ in range(runs):
            for is_urgent in (False, True):
                began = time.process_time()
                first, total, audio = direct.spoken(text, is_urgent=is_urgent)
                seconds = len(audio) / SAMPLE_RATE
                cpu[is_urgent].append((time.process_time() - began) / seconds)
                firsts[is_urgent].append(first)
                totals[is_urgent].append(total / seconds)
        for is_urgent, way in ((False, "one shot"), (True, "windows")):
            factors[is_urgent].append(statistics.median(totals[is_urgent]))
            costs[is_urgent].append(statistics.median(cpu[is_urgent]))
            say(
                f"| {name}, {seconds:.2f} s | {way} | {spread(firsts[is_urgent])} | {spread(totals[is_urgent], 1, '', 2)} "
                f"| {spread(cpu[is_urgent], 1, '', 2)} |"
            )
    for is_urgent, way, close in ((False, "one shot", 0.6), (True, "in windows", 0.9)):
        worst = max(factors[is_urgent])
        targets.check(f"real-time factor {way}, the worse of two sentences", f"{worst:.2f}", worst, close)
        targets.note(f"CPU seconds of both cores for a second of speech {way}, the worse of two", f"{max(costs[is_urgent]):.2f}")


async def _until_idle(server: SpeechServer) -> None:
    """Wait until the segment that was in work when the last caller left is done: it is nobody's first audio."""
    deadline = time.monotonic() + _IDLE_SECONDS
    while server.backend.speaker.queue_depth and time.monotonic() < deadline:
        await asyncio.sleep(0.005)


async def _piecewise(server: SpeechServer, pieces: Iterable[str]) -> float:
    """Return the time to the first audio of a text that comes word by word, without pauses."""

    async def tokens() -> AsyncIterator[str]:
        for piece in pieces:
            yield piece

    await _until_idle(server)
    async with SpeechClient(f"{server.websocket_url}/invocations-bidirectional-stream") as speech:
        began = time.perf_counter()
        async with aclosing(speech.speak(tokens())) as audio:
            async for _ in audio:
                return time.perf_counter() - began
    raise RuntimeError("no audio came")


async def _whole(server: SpeechServer, text: str) -> float:
    """Return the time to the first audio of a text that is sent as one message."""
    await _until_idle(server)
    url = f"{server.websocket_url}/invocations-bidirectional-stream"
    async with connect(url, compression=None, max_size=None) as socket:
        began = time.perf_counter()
        await socket.send(json.dumps({"text": text, "request_id": "whole"}))
        async for frame in socket:
            if isinstance(frame, bytes):
                return time.perf_counter() - began
    raise RuntimeError("no audio came")


def server_figures(server: SpeechServer, direct: Direct, runs: int, targets: Targets) -> None:
    say("\nThrough the server, one stream: from sending the text to the first audio")
    words = [word if number == 0 else f" {word}" for number, word in enumerate(FOUR_SENTENCES.split())]
    ways: dict[str, Callable[[], float]] = {
        "short": lambda: asyncio.run(_whole(server, SHORT)),
        "eight seconds": lambda: asyncio.run(_whole(server, EIGHT_SECONDS)),
        "four sentences, whole": lambda: asyncio.run(_whole(server, FOUR_SENTENCES)),
        "four sentences, word by word": lambda: asyncio.run(_piecewise(server, words)),
        "four sentences, one-shot synthesis": lambda: direct.spoken(FOUR_SENTENCES, is_urgent=False)[0],
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(runs):
        for way, measure in ways.items():
            seconds[way].append(measure())
    say("| text | first audio |\n|---|--:|")
    for way, times in seconds.items():
        say(f"| {way} | {spread(times)} |")
    for way, close, aim in (("short", 0.6, 0.35), ("eight seconds", 1.2, 0.5)):
        targets.check(f"first audio, {way} (s)", spread(seconds[way], 1, "s", 2), statistics.median(seconds[way]), close, aim)
    one_shot, whole, piecewise = (seconds[way] for way in list(ways)[2:][-1:] + list(ways)[2:4])
    for name, times in (("whole", whole), ("word by word", piecewise)):
        shares = [first / shot for first, shot in zip(times, one_shot, strict=True)]
        targets.check(
            f"first audio of {len(FOUR_SENTENCES)} characters {name}, share of the one-shot synthesis",
            spread(shares, 1, "", 2), statistics.median(shares), round(1 / 2.1, 3),
        )  # fmt: skip
    later = [second - first for first, second in zip(whole, piecewise, strict=True)]
    targets.check("first audio word by word, later than whole (ms)", spread(later), statistics.median(later) * 1000, 5)


def through_the_server(settings: Settings, direct: Direct, runs: int, targets: Targets) -> None:
    with speech_server(lambda: backend.load(settings)) as server:
        server_figures(server, direct, runs, targets)
        health_figures(server, targets)


def health_figures(server: SpeechServer, targets: Targets) -> None:
    """Ask for the health check again and again while a long text is spoken: SageMaker gives it 250 ms to be accepted."""
    seconds: list[float] = []

    async def speak() -> None:
        async with SpeechClient(f"{server.websocket_url}/invocations-bidirectional-stream") as speech:
            await speech.say(FOUR_SENTENCES)

    speaking = threading.Thread(target=lambda: asyncio.run(speak()))
    with httpx.Client() as client:
        speaking.start()
        while speaking.is_alive():
            began = time.perf_counter()
            client.get(f"{server.url}/ping").raise_for_status()
            seconds.append(time.perf_counter() - began)
            time.sleep(0.02)
        speaking.join()
    say(f"\nHealth checks while a long text is spoken: {len(seconds)} of them, {spread(seconds, places=1)}")
    targets.check("/ping while the model speaks, the slowest (ms)", spread(seconds, places=1), max(seconds) * 1000, 250)


def transport_figures(runs: int, targets: Targets) -> None:
    """Compare a warm message over the WebSocket with the same narration in the process, with an instant engine."""

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
    say("\nTransport: a warm message, with an engine that takes no time")
    say(f"  in the process {spread(inside, places=2)}\n  over WebSocket {spread(outside, places=2)}")
    costs = [there - here for here, there in zip(inside, outside, strict=True)]
    targets.check(
        "transport of a warm message, more than in the process (ms)", spread(costs, places=2), statistics.median(costs) * 1000, 5
    )


def listening(direct: Direct, targets: Targets, *, all_engines: bool) -> None:
    recogniser = Recogniser.shared()
    chosen = getattr(direct.engine, "precision", "of the graph")
    engines = {chosen: direct.engine}
    if all_engines:
        engines |= {name: direct.load(name) for name in PRECISIONS if name != chosen} | torch_engine(direct)
    ways = {"one shot": False, "in windows": True}
    for name, engine in engines.items():
        # torch has no windows: one run of a GPU is shorter than a window's gain.
        for way, is_urgent in ways.items() if name != "torch" else (("one shot", False),):
            pairs = []
            for text in TWENTY:
                audio = direct.spoken(text, is_urgent=is_urgent, engine=engine)[2]
                pairs.append((text, recogniser.heard(audio, SAMPLE_RATE)))
            rate = word_error_rate(pairs) * 100
            targets.check(f"word error rate of {len(TWENTY)} sentences, {name} {way} (%)", f"{rate:.1f}", rate, 5)
            say(f"\nHeard by Whisper tiny.en, {name} {way}")
            for text, heard in pairs:
                say(f"  {heard}" if heard == text else f"  {heard}   [said: {text}]")
        off = {text: len(direct.spoken(text, is_urgent=False, engine=engine)[2]) * 2 / ARTICLE[text] - 1 for text in ARTICLE}
        worst = max(map(abs, off.values())) * 100
        told = ", ".join(f"{share * 100:+.1f}" for share in off.values())
        targets.check(f"lengths of the article's sentences, {name} (% off)", told, worst, 3)


def torch_engine(direct: Direct) -> dict[str, Engine]:
    """Return the torch engine where it is installed."""
    if importlib.util.find_spec("torch") is None:
        say("\nThe torch engine is not listened to: torch is not installed")
        return {}
    from kokoro_backend.torch_engine import load_engine as load_torch_engine

    return {"torch": load_torch_engine(direct.weights.model, os.cpu_count() or 1)}


def memory(direct: Direct, lengths: int, targets: Targets) -> None:
    """Speak `lengths` different lengths, no pair of tokens and frames twice, and print the resident size along the way."""
    say(f"\nMemory over {lengths} different lengths")
    page = os.sysconf("SC_PAGE_SIZE")
    sizes: list[float] = []
    spoken: set[tuple[int, int]] = set()
    chance = random.Random(1)
    while len(sizes) < lengths:
        tokens = tuple(45 + (len(sizes) + index) % 60 for index in range(chance.randrange(4, 44)))
        pace = 1 / chance.uniform(0.25, 1.1)
        segments = direct.engine.run(Utterance(tokens, np.zeros((1, 256), np.float32), pace, chance.random() < 0.5))
        made = (len(tokens), sum(next(segments).durations or ()))
        if made in spoken:
            continue
        spoken.add(made)
        for _ in segments:
            pass
        sizes.append(int(Path("/proc/self/statm").read_text().split()[1]) * page / 1e6)
        if len(sizes) % max(lengths // 10, 1) == 1 or len(sizes) == lengths:
            say(f"  after {len(sizes):5}: {sizes[-1]:6.0f} MB")
    # The arena reaches its size within the first tenth of lengths that are drawn at random.
    settled = max(sizes[: max(lengths // 10, 1)])
    grown = max(sizes) - settled
    told = f"{grown:.0f}, from {settled:.0f}"
    targets.check(
        f"memory over {lengths} different lengths, growth after the first tenth (MB)", told, grown, round(0.1 * settled)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=6, help="of each figure (default 6)")
    parser.add_argument("--only", choices=PARTS, action="append", help="measure this part alone; may be repeated")
    parser.add_argument("--memory", type=int, default=100, help="utterances of the memory figure (default 100)")
    parser.add_argument("--precision", choices=tuple(HALVES), help="this one alone, instead of the self-test's choice")
    options = parser.parse_args()
    parts = options.only or PARTS
    # The server's log lines would stand in the middle of the tables.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    settings = replace(Settings.from_env(os.environ), engine="onnx")
    if options.precision:
        settings = replace(settings, precision=options.precision)
    began = time.monotonic()
    loads = [load_average()]
    targets = Targets()
    direct = Direct(settings)
    described = f"{conditions(settings)}, {getattr(direct.engine, 'precision', 'of the graph')} (front+back)"
    say(f"{described}, load average {loads[0]:.1f}")
    measures: dict[str, Callable[[], None]] = {
        "engine": lambda: engine_figures(direct, options.runs, targets),
        "server": lambda: through_the_server(settings, direct, options.runs, targets),
        "transport": lambda: transport_figures(options.runs, targets),
        "listening": lambda: listening(direct, targets, all_engines=options.precision is None),
        "memory": lambda: memory(direct, options.memory, targets),
    }
    for part in PARTS:
        if part in parts:
            measures[part]()
            loads.append(load_average())
    targets.tell()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    say(
        f"\n{described}; {options.runs} runs of each figure, {time.monotonic() - began:.0f} s in all; load average "
        f"{loads[0]:.1f} at the start, {min(loads):.1f} to {max(loads):.1f} at the end of its parts; "
        f"peak resident size, all engines and the recogniser in it, {peak:.0f} MB"
    )


if __name__ == "__main__":
    main()
