"""The client library's whole conversation through a gateway: what is spoken, cancelled and closed there is so here as well."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
import pytest_asyncio
from websockets.asyncio.client import connect

from gateway.edge.websocket_relay import take_over
from kokoro_backend.client import SpeechClient
from tests.kit.edge import Edge, alice, edge
from tests.kit.sessions import SessionRecorder
from tests.kit.speech_server import SpeechServer

HELLO_BYTES = 8 * 2 * 600 * 2
PATH = "/kokoro/invocations-bidirectional-stream"


@pytest_asyncio.fixture
async def gateway(tone_server: SpeechServer) -> AsyncIterator[Edge]:
    async with edge(tone_server.url, recorder=SessionRecorder()) as running:
        running.context.take_over = take_over
        yield running


def address(gateway: Edge) -> str:
    return f"ws://127.0.0.1:{gateway.port}{PATH}"


async def test_leaving_early_cancels_and_the_session_goes_on(gateway: Edge) -> None:
    async with asyncio.timeout(20), SpeechClient(address(gateway), key=alice()) as speech:
        async with aclosing(speech.speak("A sentence. " * 300)) as pieces:
            async for _ in pieces:
                break
        assert len(await speech.say("Hello.")) == HELLO_BYTES
    (settled,) = await gateway.settled()
    assert (settled.outcome, settled.reason) == ("completed", "")


async def test_close_ends_the_session_after_what_was_sent_before(gateway: Edge) -> None:
    headers = {"Authorization": f"Bearer {alice()}"}
    async with asyncio.timeout(20), connect(address(gateway), additional_headers=headers) as socket:
        await socket.send(json.dumps({"text": "Hello.", "request_id": "r"}))
        await socket.send('{"type":"close"}')
        frames = [frame async for frame in socket]
    assert sum(len(frame) for frame in frames if isinstance(frame, bytes)) == HELLO_BYTES
    assert [json.loads(frame)["type"] for frame in frames if isinstance(frame, str)] == ["synthesis_start", "synthesis_complete"]
    assert socket.close_code == 1000


@pytest.mark.parametrize("request_id", [None, "second"])
async def test_a_cancel_reaches_the_message_that_it_names(gateway: Edge, request_id: str | None) -> None:
    headers = {"Authorization": f"Bearer {alice()}"}
    named = {} if request_id is None else {"request_id": request_id}
    async with asyncio.timeout(20), connect(address(gateway), additional_headers=headers) as socket:
        await socket.send(json.dumps({"text": "A long message. " * 400, "request_id": "first"}))
        await socket.send(json.dumps({"text": "Hello.", "request_id": "second"}))
        await socket.send(json.dumps({"type": "cancel"} | named))
        await socket.send(json.dumps({"type": "cancel", "request_id": "first"}))
        await socket.send('{"type":"close"}')
        frames = [json.loads(frame) async for frame in socket if isinstance(frame, str)]
    ends = [(frame["request_id"], frame["cancelled"]) for frame in frames if frame["type"] == "synthesis_complete"]
    assert ends == [("first", True), ("second", True)]
