"""Pipecat's services for Cartesia: arguments are the address (`http` and `ws` are put before it), the key, the model and the
voice, and `listen` to recognise too. Prints one line a service: how many bytes of audio, or which transcript, came.

Its recogniser with manual finalization drops the path of its address: it needs a gateway that has a host name of its own.
"""

import asyncio
import sys

import aiohttp
from loguru import logger
from pipecat.frames.frames import (
    EndFrame,
    ErrorFrame,
    Frame,
    InputAudioRawFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    TTSStoppedFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.cartesia.stt import CartesiaSTTService
from pipecat.services.cartesia.tts import CartesiaHttpTTSService, CartesiaTTSService
from pipecat.services.cartesia.turns.stt import CartesiaTurnsSTTService
from pipecat.workers.runner import WorkerRunner

ADDRESS, KEY, MODEL, VOICE, *LISTEN = sys.argv[1:]
logger.remove()


class Collector(FrameProcessor):
    """Keeps the audio and the transcripts, and tells when one is complete."""

    def __init__(self) -> None:
        super().__init__()
        self.audio = 0
        self.texts: list[str] = []
        self.is_complete = asyncio.Event()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, TTSAudioRawFrame):
            self.audio += len(frame.audio)
        if isinstance(frame, TranscriptionFrame):
            self.texts.append(frame.text)
        if isinstance(frame, TTSStoppedFrame | TranscriptionFrame):
            self.is_complete.set()
        await self.push_frame(frame, direction)


async def run(service: FrameProcessor, *frames: Frame) -> Collector:
    collector = Collector()
    errors: list[str] = []
    worker = PipelineWorker(
        Pipeline([service, collector]),
        params=PipelineParams(audio_in_sample_rate=16000, audio_out_sample_rate=24000),
        cancel_on_idle_timeout=False,
        enable_rtvi=False,
    )

    @worker.event_handler("on_pipeline_error")
    async def on_error(_: PipelineWorker, frame: ErrorFrame) -> None:
        errors.append(frame.error)
        collector.is_complete.set()

    async def feed() -> None:
        await worker.queue_frames(list(frames))
        await collector.is_complete.wait()
        await worker.queue_frame(EndFrame())

    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    await asyncio.gather(runner.run(), feed())
    for error in errors:
        print("error", error, file=sys.stderr)
    return collector


async def main() -> None:
    speech = TTSSpeakFrame("Hello there.")
    async with aiohttp.ClientSession() as session:
        settings = CartesiaHttpTTSService.Settings(model=MODEL, voice=VOICE)
        whole = CartesiaHttpTTSService(api_key=KEY, base_url=f"http://{ADDRESS}", aiohttp_session=session, settings=settings)
        print("bytes", (await run(whole, speech)).audio)
    settings = CartesiaTTSService.Settings(model=MODEL, voice=VOICE)
    socket = CartesiaTTSService(api_key=KEY, url=f"ws://{ADDRESS}/tts/websocket", settings=settings)
    print("socket", (await run(socket, speech)).audio)
    if LISTEN:
        audio = InputAudioRawFrame(audio=bytes(3200), sample_rate=16000, num_channels=1)
        root = ADDRESS.replace("127.0.0.1", "localhost").partition("/")[0]
        manual = CartesiaSTTService(api_key=KEY, base_url=f"ws://{root}")
        print("finalized", *(await run(manual, audio, VADUserStoppedSpeakingFrame())).texts)
        turns = CartesiaTurnsSTTService(api_key=KEY, url=f"ws://{ADDRESS}/stt/turns/websocket")
        print("turns", *(await run(turns, audio)).texts)


asyncio.run(main())
