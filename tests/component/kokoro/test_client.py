"""The client library against a real server: strings, token streams, errors, leaving early, transports without frame types."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
from websockets.asyncio.client import connect

from kokoro_backend.client import SpeechClient, SpeechError, SpeechInterrupted, Transport, WebSocketTransport
from tests.kit.speech_server import SpeechServer

HELLO_BYTES = 8 * 2 * 600 * 2


def address(server: SpeechServer) -> str:
    return f"{server.websocket_url}/invocations-bidirectional-stream"


async def tokens(*words: str) -> AsyncIterator[str]:
    for word in words:
        yield word


async def test_a_string_is_spoken(tone_server: SpeechServer) -> None:
    async with SpeechClient(address(tone_server)) as speech:
        assert len(await speech.say("Hello.")) == HELLO_BYTES


async def test_tokens_give_the_same_audio_as_the_whole_string(tone_server: SpeechServer) -> None:
    async with SpeechClient(address(tone_server)) as speech:
        whole = await speech.say("Hello there. How are you?")
        async with aclosing(speech.speak(tokens("Hel", "lo there", ". How", " are", " you?"))) as pieces:
            assert b"".join([piece async for piece in pieces]) == whole


async def test_a_text_in_one_message_gives_the_same_audio(tone_server: SpeechServer) -> None:
    sent: list[str] = []

    class Noting(WebSocketTransport):
        async def send(self, message: str) -> None:
            sent.append(message)
            await super().send(message)

    async def open_noting() -> Transport:
        return Noting(await connect(address(tone_server)))

    async with SpeechClient("", open_transport=open_noting, new_id=lambda: "1") as speech:
        pieces = [piece async for piece in speech.speak(tokens("Hello there.", " How are you?"), in_one=True)]
    async with SpeechClient(address(tone_server)) as speech:
        assert b"".join(pieces) == await speech.say("Hello there. How are you?")
    assert [json.loads(message).get("text") for message in sent] == ["Hello there. How are you?", None]


async def test_a_session_that_ended_while_nobody_spoke_is_replaced(tone_server: SpeechServer) -> None:
    async with SpeechClient(address(tone_server)) as speech:
        first = speech._transport
        assert isinstance(first, WebSocketTransport)
        first._connection.transport.abort()
        await first._connection.wait_closed()
        assert len(await speech.say("Hello.")) == HELLO_BYTES
        assert speech._transport is not first


async def test_a_session_close_to_its_limit_is_replaced_before_the_next_text(tone_server: SpeechServer) -> None:
    opened: list[WebSocketTransport] = []
    now = [0.0]

    async def open_another() -> Transport:
        opened.append(WebSocketTransport(await connect(address(tone_server))))
        return opened[-1]

    async with SpeechClient("", open_transport=open_another, clock=lambda: now[0]) as speech:
        for minutes, sessions in ((0, 1), (27, 1), (28, 2), (29, 2), (56, 3)):
            now[0] = minutes * 60.0
            assert len(await speech.say("Hello.")) == HELLO_BYTES
            assert len(opened) == sessions
        assert [transport.is_open for transport in opened] == [False, False, True]


async def test_the_first_sentence_is_heard_before_the_last_token_exists(tone_server: SpeechServer) -> None:
    heard = asyncio.Event()

    async def patient() -> AsyncIterator[str]:
        yield "Hello. And"
        await heard.wait()
        yield " more."

    async with asyncio.timeout(10), SpeechClient(address(tone_server)) as speech, aclosing(speech.speak(patient())) as pieces:
        async for _ in pieces:
            heard.set()
    assert heard.is_set()


async def test_an_error_is_raised_with_its_code_and_the_session_goes_on(tone_server: SpeechServer) -> None:
    async with SpeechClient(address(tone_server)) as speech:
        with pytest.raises(SpeechError) as refused:
            await speech.say("Hello. Привет. Goodbye.")
        assert refused.value.code == "script_not_supported"
        assert len(await speech.say("Hello.")) == HELLO_BYTES


async def test_leaving_early_cancels_and_the_session_goes_on(tone_server: SpeechServer) -> None:
    async with SpeechClient(address(tone_server)) as speech:
        async with aclosing(speech.speak("A sentence. " * 300)) as pieces:
            async for _ in pieces:
                break
        assert len(await speech.say("Hello.")) == HELLO_BYTES


async def test_a_lost_connection_is_an_error_and_no_silence(tone_server: SpeechServer) -> None:
    client = SpeechClient(address(tone_server))
    async with client as speech, aclosing(speech.speak("A sentence. " * 50)) as pieces:
        await anext(pieces)
        assert isinstance(client._transport, WebSocketTransport)
        client._transport._connection.transport.abort()
        with pytest.raises(SpeechInterrupted):
            async for _ in pieces:
                pass


class TypelessTransport(WebSocketTransport):
    """Delivers everything as bytes, as SageMaker's response does when DataType is lost."""

    keeps_frame_types = False

    async def receive(self) -> str | bytes | None:
        chunk = await super().receive()
        return chunk.encode() if isinstance(chunk, str) else chunk


async def test_a_transport_without_frame_types_gives_the_same_audio(tone_server: SpeechServer) -> None:
    async def open_typeless() -> Transport:
        return TypelessTransport(await connect(address(tone_server), compression=None))

    async with SpeechClient("", open_transport=open_typeless) as speech:
        assert len(await speech.say("Hello.")) == HELLO_BYTES
