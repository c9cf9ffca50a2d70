"""A process that is told to stop finishes what it owes, on every transport, and takes nothing new."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import numpy as np
import pytest
from structlog.testing import capture_logs
from websockets.asyncio.client import ClientConnection, connect

from kokoro_backend.engine import Segment, Utterance
from kokoro_backend.server import serve
from kokoro_backend.tasks import start_task
from tests.kit.speech_server import tone_backend
from tests.kit.waiting import until

RAW = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24000}
STREAM = "/invocations-bidirectional-stream"


class HeldEngine:
    """Makes a first piece at once and the second when it is let go."""

    name = "held"
    has_timings = False

    def __init__(self) -> None:
        self.may_go = threading.Event()

    def warm_up(self) -> None:
        pass

    def run(self, utterance: Utterance) -> Iterator[Segment]:
        yield Segment(np.full(2400, 0.1, np.float32))
        assert self.may_go.wait(20)
        yield Segment(np.full(2400, 0.1, np.float32), is_last=True)


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[str, HeldEngine, asyncio.Task[Exception | None]]]:
    """Run the process's own server in this loop; give its address, its engine, and the task that ends with it."""
    engine = HeldEngine()
    with capture_logs() as logs:
        running = start_task(serve("127.0.0.1", 0, lambda: tone_backend(engine), None), name="server")
        try:
            await until(lambda: any(line["event"] == "listening" for line in logs), 20)
            (port,) = (line["port"] for line in logs if line["event"] == "listening")
            address = f"127.0.0.1:{port}"
            async with httpx.AsyncClient() as client, asyncio.timeout(20):
                while (await client.get(f"http://{address}/ping", timeout=20)).status_code != 200:
                    await asyncio.sleep(0.005)  # it sets no event that is seen from outside
            yield address, engine, running
        finally:
            engine.may_go.set()
            if not running.done():
                os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(running, 40)


async def stopped_listening(address: str) -> None:
    """Return once nobody is let in any more. Raises TimeoutError."""
    host, port = address.split(":")
    async with asyncio.timeout(10):
        while True:
            try:
                _, writer = await asyncio.open_connection(host, int(port))
            except ConnectionError:  # Refused; or reset, for who came while the listener was closed.
                return
            writer.close()
            await asyncio.sleep(0.005)  # the end of a listener sets no event that is seen from outside


async def frames_until(socket: ClientConnection, last: str) -> list[Any]:
    found: list[Any] = []
    async with asyncio.timeout(20):
        while True:
            frame = await socket.recv()
            found.append(frame if isinstance(frame, bytes) else json.loads(frame))
            if isinstance(found[-1], dict) and found[-1]["type"] == last:
                return found


async def test_a_session_is_answered_to_its_last_message_before_the_process_ends() -> None:
    async with serving() as (address, engine, running), connect(f"ws://{address}{STREAM}") as socket:
        for number in "12":
            await socket.send(json.dumps({"text": "Hello.", "request_id": number}))
        while not isinstance(await socket.recv(), bytes):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        await stopped_listening(address)
        engine.may_go.set()
        frames = await frames_until(socket, "synthesis_complete") + await frames_until(socket, "synthesis_complete")
        await socket.wait_closed()
        assert [frame["request_id"] for frame in frames if isinstance(frame, dict)] == ["1", "2", "2"]
        assert sum(len(frame) for frame in frames if isinstance(frame, bytes)) == 3 * 4800
        assert socket.close_code == 1012
        assert await asyncio.wait_for(running, 20) is None


async def test_a_context_gets_its_done_before_the_process_ends() -> None:
    message = {"context_id": "c", "model_id": "kokoro-82m", "transcript": "Hello.", "voice": "af_heart", "output_format": RAW}
    async with serving() as (address, engine, running), connect(f"ws://{address}/tts/websocket") as socket:
        await socket.send(json.dumps(message))
        assert json.loads(await socket.recv())["type"] == "chunk"
        os.kill(os.getpid(), signal.SIGTERM)
        await stopped_listening(address)
        engine.may_go.set()
        events = await frames_until(socket, "done")
        await socket.wait_closed()
        assert [event["type"] for event in events] == ["chunk", "done"]
        assert await asyncio.wait_for(running, 20) is None


async def test_an_http_answer_is_sent_to_its_end() -> None:
    async with serving() as (address, engine, running), httpx.AsyncClient(timeout=20) as client:
        body = {"text": "Hello.", "format": "pcm"}
        async with client.stream("POST", f"http://{address}/invocations", json=body) as answer:
            pieces = answer.aiter_raw()
            first = await anext(pieces)
            os.kill(os.getpid(), signal.SIGTERM)
            await stopped_listening(address)
            engine.may_go.set()
            rest = b"".join([piece async for piece in pieces])
        assert len(first + rest) == 2 * 4800
        assert await asyncio.wait_for(running, 20) is None


@pytest.mark.parametrize("path", [STREAM, "/tts/websocket"])
async def test_a_session_that_is_owed_nothing_does_not_hold_the_process(path: str) -> None:
    async with serving() as (address, _, running), connect(f"ws://{address}{path}") as socket:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(socket.wait_closed(), 20)
        assert socket.close_code == 1012
        assert await asyncio.wait_for(running, 20) is None
