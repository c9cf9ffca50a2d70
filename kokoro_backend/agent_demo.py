"""A voice agent over Glottis: text while it is written, speech while it is spoken, in one stream of events.

`agent_events` is the agent; `create_app` serves it as server-sent events, as an agent runtime would; `measure` compares
bidi (each sentence is spoken as soon as it is complete) with batch (the whole text first, then one synthesis), in
interleaved pairs. The text comes from a paced script, or from a language model with an OpenAI-style streaming API.
Event names and fields are those of AWS's sample agent (docs/kokoro.md).
"""

import asyncio
import base64
import json
import os
import statistics
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import click
import structlog
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from kokoro_backend.client import SpeechClient, SpeechError, SpeechInterrupted
from kokoro_backend.tasks import start_task

log = structlog.get_logger()

Mode = Literal["bidi", "batch"]
TextSource = Callable[[str], AsyncIterable[str]]

SAMPLE_RATE = 24_000
SCRIPT = (
    "Thank you for calling. Your order left our warehouse this morning and is now on its way to you. "
    "It should arrive on Friday, some time between nine and noon. If you are not at home, the driver will leave it "
    "with a neighbor and put a card into your mailbox. Is there anything else that I can do for you today?"
)
WORD_SECONDS = 0.05
REST_SECONDS = 3.0


@dataclass(frozen=True)
class Speech:
    """Where the agent's voice comes from: the bidirectional stream of Kokoro, through the gateway or directly."""

    url: str
    key: str | None = field(repr=False)
    voice: str = "af_heart"

    def client(self) -> SpeechClient:
        """Return a client for one session."""
        return SpeechClient(self.url, key=self.key, voice=self.voice, sample_rate=SAMPLE_RATE)


async def paced_script(prompt: str) -> AsyncIterator[str]:
    """Yield the script word by word, at the pace of a language model; the prompt is not read."""
    del prompt
    for number, word in enumerate(SCRIPT.split()):
        await asyncio.sleep(WORD_SECONDS)
        yield word if number == 0 else f" {word}"


@dataclass(frozen=True)
class LanguageModel:
    """A chat model behind an OpenAI-style API; `key` may be None for a local one."""

    url: str
    model: str
    key: str | None

    async def __call__(self, prompt: str) -> AsyncIterator[str]:
        """Yield the answer to `prompt` as it is generated."""
        import httpx  # Not needed for the script, and not in every image.

        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        body = {"model": self.model, "stream": True, "messages": [{"role": "user", "content": prompt}]}
        async with (
            httpx.AsyncClient(timeout=60) as client,
            client.stream("POST", f"{self.url.rstrip('/')}/chat/completions", json=body, headers=headers) as answer,
        ):
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if not line.startswith("data:") or line[5:].strip() == "[DONE]":
                    continue
                for choice in json.loads(line[5:]).get("choices", []):
                    if text := choice.get("delta", {}).get("content"):
                        yield text


async def agent_events(
    prompt: str, mode: Mode, source: TextSource, speech: Speech, request_id: str
) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the agent's events in the order in which they happen, the first being agent_start.

    Two tasks, one writing and one speaking, feed one queue: an event leaves when it is true, not when its kind is due.
    """
    events: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
    yield {"type": "agent_start", "request_id": request_id, "mode": mode}
    working = start_task(_work(prompt, mode, source, speech, events), name="agent")
    try:
        while (event := await events.get()) is not None:
            yield {"request_id": request_id} | event
    finally:
        if not working.done():
            working.cancel()
            await asyncio.wait([working])
    yield {"type": "agent_end", "request_id": request_id}


async def _work(
    prompt: str, mode: Mode, source: TextSource, speech: Speech, events: "asyncio.Queue[dict[str, Any] | None]"
) -> None:
    tokens: asyncio.Queue[str | None] = asyncio.Queue()

    async def write() -> None:
        sequence = 0
        held: list[str] = []
        try:
            async for text in source(prompt):
                await events.put({"type": "text_delta", "seq": sequence, "text": text})
                sequence += 1
                if mode == "bidi":
                    await tokens.put(text)
                else:
                    held.append(text)
            if held:
                await tokens.put("".join(held))
        finally:
            await tokens.put(None)

    async def spoken() -> AsyncIterator[str]:
        while (text := await tokens.get()) is not None:
            yield text

    async def speak() -> None:
        chunks = size = 0
        async with speech.client() as session:
            # Batch is honest: it has nothing to say before the text is whole, and then asks for it in one request.
            what: str | AsyncIterable[str] = spoken() if mode == "bidi" else "".join([text async for text in spoken()])
            async with aclosing(session.speak(what, in_one=mode == "batch")) as pieces:
                async for audio in pieces:
                    if chunks == 0:
                        await events.put(
                            {
                                "type": "audio_stream_start",
                                "format": "pcm16",
                                "voice": speech.voice,
                                "sample_rate": SAMPLE_RATE,
                            }
                        )
                    await events.put({"type": "audio_chunk", "seq": chunks, "data": base64.b64encode(audio).decode()})
                    chunks += 1
                    size += len(audio)
        duration = round(size / 2 / SAMPLE_RATE, 3)
        await events.put({"type": "audio_stream_end", "total_chunks": chunks, "duration_s": duration})

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(write(), name="agent text")
            group.create_task(speak(), name="agent speech")
    except* SpeechError as errors:
        first = _first(errors)
        await events.put({"type": "error", "code": first.code, "message": first.message})
    except* (SpeechInterrupted, OSError) as errors:
        log.warning("speech unreachable", exc_info=errors)
        message = "The speech backend cannot be reached or ended the connection."
        await events.put({"type": "error", "code": "speech_unreachable", "message": message})
    except* Exception as errors:  # The edge of one request: the stream ends with an error, never with a torn connection.
        log.error("agent failed", exc_info=errors)
        await events.put({"type": "error", "code": "agent_failed", "message": "The agent could not finish its answer."})
    finally:
        await events.put(None)


def _first(group: ExceptionGroup[SpeechError]) -> SpeechError:
    error: BaseException = group
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, SpeechError)
    return error


def create_app(source: TextSource, speech: Speech, new_id: Callable[[], str]) -> FastAPI:
    """Return an application with POST /invocations ({"prompt", "mode"}) answering in server-sent events, and GET /ping."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)

    @app.get("/ping")
    async def ping() -> Response:
        return JSONResponse({"status": "Healthy"})

    @app.post("/invocations")
    async def invocations(request: Request) -> Response:
        request_id = new_id()
        try:
            payload = json.loads(await request.body())
        except ValueError:
            payload = None
        prompt = payload.get("prompt") if isinstance(payload, dict) else None
        mode = payload.get("mode", "bidi") if isinstance(payload, dict) else None
        if not isinstance(prompt, str) or not prompt.strip() or mode not in ("bidi", "batch"):
            message = 'Send {"prompt": "...", "mode": "bidi" or "batch"}.'
            return JSONResponse({"type": "error", "code": "invalid_request", "message": message, "request_id": request_id}, 400)

        async def stream() -> AsyncIterator[bytes]:
            async with aclosing(agent_events(prompt, mode, source, speech, request_id)) as events:
                async for event in events:
                    yield f"data: {json.dumps(event, separators=(',', ':'))}\n\n".encode()

        return StreamingResponse(stream(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    return app


@dataclass(frozen=True)
class Measured:
    """Seconds from agent_start to the first audio_chunk, of one run of each mode, one after the other."""

    bidi: float
    batch: float


async def first_audio_seconds(prompt: str, mode: Mode, source: TextSource, speech: Speech) -> float:
    """Return the time from agent_start to the first audio, and cancel the rest. Raises SpeechInterrupted if none comes."""
    began = time.perf_counter()
    async with aclosing(agent_events(prompt, mode, source, speech, "measured")) as events:
        async for event in events:
            if event["type"] == "audio_chunk":
                return time.perf_counter() - began
            if event["type"] == "error":
                raise SpeechInterrupted(f"{event['code']}: {event['message']}")
    raise SpeechInterrupted("the agent said nothing")


async def measure(
    pairs: int, prompt: str, source: TextSource, speech: Speech, rest_seconds: float = REST_SECONDS
) -> AsyncIterator[Measured]:
    """Yield `pairs` measurements; which mode goes first alternates, so that a drift of the machine hits both.

    rest_seconds: between two runs. The model ends a sentence that it has begun for a run that is over, and the next run would
    wait for it; bidi more often, since it asks sooner.
    """
    seconds: dict[Mode, float] = {}
    for number in range(pairs):
        order: tuple[Mode, Mode] = ("bidi", "batch") if number % 2 == 0 else ("batch", "bidi")
        for mode in order:
            if seconds:
                await asyncio.sleep(rest_seconds)
            seconds[mode] = await first_audio_seconds(prompt, mode, source, speech)
        yield Measured(seconds["bidi"], seconds["batch"])


def summary(measured: list[Measured]) -> str:
    """Return medians and spread of both modes, and how often bidi was first."""
    lines = []
    for mode in ("bidi", "batch"):
        times = sorted(getattr(pair, mode) for pair in measured)
        lines.append(
            f"{mode:5}  first audio after agent_start: median {statistics.median(times):.3f} s, "
            f"lowest {times[0]:.3f} s, highest {times[-1]:.3f} s"
        )
    ratio = statistics.median(pair.batch for pair in measured) / statistics.median(pair.bidi for pair in measured)
    earlier = sum(pair.bidi < pair.batch for pair in measured)
    lines.append(f"bidi is {ratio:.2f} times as fast by medians, and first in {earlier} of {len(measured)} pairs")
    return "\n".join(lines)


@click.command("agent")
@click.option("--mode", type=click.Choice(["bidi", "batch", "both"]), default="both", show_default=True)
@click.option(
    "--url",
    envvar="GLOTTIS_AGENT_SPEECH_URL",
    help="The stream: ws://GATEWAY/kokoro/invocations-bidirectional-stream; left out, that of `glottis up` on this machine.",
)
@click.option("--key-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A file with the caller token.")
@click.option("--pairs", default=20, show_default=True, help="With --mode both: how many interleaved pairs to measure.")
@click.option("--prompt", default="Where is my order?", show_default=True)
@click.option("--voice", default="af_heart", show_default=True, help="A voice of GET /voices.")
@click.option("--events", is_flag=True, help="With one mode: print the agent's events as server-sent events.")
@click.option("--llm-url", envvar="GLOTTIS_AGENT_LLM_URL", help="An OpenAI-style API (…/v1); without it a paced script speaks.")
@click.option("--llm-model", envvar="GLOTTIS_AGENT_LLM_MODEL", default="default", show_default=True)
@click.option("--llm-key-file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.pass_obj
def agent(
    local: Callable[[], Speech | None] | None, mode: str, url: str | None, key_file: Path | None, pairs: int, prompt: str,
    voice: str, events: bool, llm_url: str | None, llm_model: str, llm_key_file: Path | None,
) -> None:  # fmt: skip
    """Run a voice agent over Kokoro and say how soon it is heard."""
    key = key_file.read_text().strip() if key_file else None
    if url:
        speech = Speech(url, key or os.environ.get("GLOTTIS_TOKEN"), voice)
    elif (found := local() if local else None) is not None:
        speech = replace(found, key=key or found.key, voice=voice)
    else:
        raise click.UsageError(
            "There is no stack to speak through: start `glottis up`, or name the stream with --url or GLOTTIS_AGENT_SPEECH_URL."
        )
    llm_key = llm_key_file.read_text().strip() if llm_key_file else None
    source: TextSource = LanguageModel(llm_url, llm_model, llm_key) if llm_url else paced_script
    try:
        if mode == "both":
            asyncio.run(_measure_and_tell(pairs, prompt, source, speech))
        else:
            asyncio.run(_tell(prompt, "bidi" if mode == "bidi" else "batch", source, speech, events=events))
    except SpeechInterrupted as error:
        raise click.ClickException(str(error)) from error


async def _measure_and_tell(pairs: int, prompt: str, source: TextSource, speech: Speech) -> None:
    measured: list[Measured] = []
    async for pair in measure(pairs, prompt, source, speech):
        measured.append(pair)
        click.echo(f"pair {len(measured)} of {pairs}: bidi {pair.bidi:.3f} s, batch {pair.batch:.3f} s", err=True)
    click.echo(summary(measured))


async def _tell(prompt: str, mode: Mode, source: TextSource, speech: Speech, *, events: bool) -> None:
    began = time.perf_counter()
    async with aclosing(agent_events(prompt, mode, source, speech, "demo")) as stream:
        async for event in stream:
            at = time.perf_counter() - began
            if events:
                sys.stdout.write(f"data: {json.dumps(event, separators=(',', ':'))}\n\n")
            elif event["type"] == "audio_chunk":
                if event["seq"] == 0:
                    click.echo(f"{at:7.3f} s  first audio")
            elif event["type"] == "text_delta":
                click.echo(f"{at:7.3f} s  {event['text'].strip()}")
            else:
                click.echo(f"{at:7.3f} s  {event['type']} {event.get('message', '')}".rstrip())
