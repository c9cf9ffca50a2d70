"""The official Cartesia SDK on sockets through the gateway."""

import asyncio

import pytest
from cartesia import AsyncCartesia, Cartesia

from contracts.snapshot import Model
from tests.doubles.cartesia_websocket import Socket, SocketsDouble, sockets_double
from tests.kit.edge import Edge, workspace_at
from tests.kit.identities import idp_token
from tests.kit.sessions import sockets_edge

VOICE = {"mode": "id", "id": "6ccbfb76-1fc6-48f7-b71d-91ac6298247b"}
RAW = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 16000}


def addresses(gateway: Edge) -> dict[str, str]:
    """Return what a caller changes in its SDK."""
    base = f"127.0.0.1:{gateway.port}/cartesia"
    return {"api_key": idp_token(), "base_url": f"http://{base}", "websocket_base_url": f"ws://{base}"}


def spoken(text: str) -> bytes:
    """Return what the double makes of a text."""
    return b"".join(half.encode() * 40 for half in (text[: len(text) // 2], text[len(text) // 2 :]))


async def test_64_interleaved_contexts_on_one_socket_are_each_complete_and_in_order() -> None:
    async with sockets_double() as double, sockets_edge(double) as gateway:
        async with AsyncCartesia(**addresses(gateway)).tts.websocket_connect() as socket:
            texts = {n: [f"Context {n} says part {part}. " for part in range(4)] for n in range(64)}
            contexts = {
                n: socket.context(context_id=f"ctx-{n}", model_id="sonic-3", voice=VOICE, output_format=RAW, language="en")
                for n in texts
            }
            for part in range(4):
                for n, context in contexts.items():
                    await context.push(texts[n][part])
            for context in contexts.values():
                await context.no_more_inputs()

            async def heard(n: int) -> bytes:
                return b"".join([event.audio async for event in contexts[n].receive() if event.type == "chunk"])

            audio = dict(zip(contexts, await asyncio.gather(*map(heard, contexts)), strict=True))
        assert {n: b"".join(map(spoken, parts)) for n, parts in texts.items()} == audio
        await gateway.settled()
    assert len(double.sockets) == 1
    assert [context.outcome for context in gateway.recorder.contexts] == ["completed"] * 64
    assert {context.characters for context in gateway.recorder.contexts} == {23 * 4, 24 * 4}


async def test_a_context_may_be_cancelled_and_the_socket_goes_on() -> None:
    async with sockets_double() as double, sockets_edge(double) as gateway:
        async with AsyncCartesia(**addresses(gateway)).tts.websocket_connect() as socket:
            first = socket.context(context_id="c1", model_id="sonic-3", voice=VOICE, output_format=RAW)
            await first.push("To be cancelled")
            await first.cancel()
            second = socket.context(context_id="c2", model_id="sonic-3", voice=VOICE, output_format=RAW)
            await second.push("Hello there")
            await second.no_more_inputs()
            audio = b"".join([event.audio async for event in second.receive() if event.type == "chunk"])
        assert audio == spoken("Hello there")
        await gateway.settled()
    assert [context.outcome for context in gateway.recorder.contexts] == ["cancelled", "completed"]


async def test_a_refused_model_is_an_error_of_its_context_in_the_sdk() -> None:
    async with sockets_double() as double, sockets_edge(double) as gateway:
        async with AsyncCartesia(**addresses(gateway)).tts.websocket_connect() as socket:
            context = socket.context(context_id="c1", model_id="sonic-9", voice=VOICE, output_format=RAW)
            await context.push("Hello")
            events = [event async for event in context.receive()]
        assert [(event.type, event.error_code, event.status_code) for event in events] == [("error", "model_not_granted", 403)]


async def test_the_blocking_sdk_speaks_as_well() -> None:
    def speak(settings: dict[str, str]) -> bytes:
        with Cartesia(**settings).tts.websocket_connect() as socket:
            context = socket.context(context_id="c1", model_id="sonic-3", voice=VOICE, output_format=RAW)
            context.push("Hello there")
            context.no_more_inputs()
            return b"".join(event.audio for event in context.receive() if event.type == "chunk")

    async with sockets_double() as double, sockets_edge(double) as gateway:
        assert await asyncio.to_thread(speak, addresses(gateway)) == spoken("Hello there")


async def test_the_providers_refusal_of_a_session_is_the_same_error_as_without_us() -> None:
    async with sockets_double() as double, sockets_edge(double) as gateway:
        double.answers[""] = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 4\r\n\r\nslow"
        with pytest.raises(Exception, match="429"):
            async with AsyncCartesia(**addresses(gateway)).tts.websocket_connect():
                pass


async def test_an_idle_close_reaches_the_sdk_as_the_provider_said_it() -> None:
    async def idles(_: SocketsDouble, socket: Socket) -> None:
        await socket.close(1000, "connection idle timeout")

    async with sockets_double() as double, sockets_edge(double) as gateway:
        double.scripts["idles"] = idles
        double.script = "idles"
        async with AsyncCartesia(**addresses(gateway)).tts.websocket_connect() as socket:
            context = socket.context(context_id="c1", model_id="sonic-3", voice=VOICE, output_format=RAW)

            async def speak_on() -> None:
                while True:
                    await context.push("Hello")

            with pytest.raises(Exception, match="connection idle timeout"):
                await asyncio.wait_for(speak_on(), 5)
        [settled] = await gateway.settled()
    assert (settled.outcome, settled.reason) == ("completed", "provider_idle")


async def test_speech_is_recognised_and_finalized() -> None:
    async with sockets_double() as double, sockets_edge(double) as gateway:
        sdk = AsyncCartesia(**addresses(gateway))
        async with sdk.stt.manual_finalize.websocket(
            model="ink-whisper", encoding="pcm_s16le", sample_rate=16000, language="en"
        ) as socket:
            await socket.send_raw(bytes(3200))
            await socket.send_raw("finalize")
            heard = [await socket.recv() for _ in range(3)]
            await socket.send_raw("close")
            heard.append(await socket.recv())
        assert [event.type for event in heard] == ["transcript", "transcript", "flush_done", "done"]
        assert bytes(double.sockets[0].frames[0].payload) == bytes(3200)
        [settled] = await gateway.settled()
    assert settled.tally is not None
    assert settled.tally.totals["audio_in_ms"] == 100


async def test_turns_are_told_until_the_provider_closes() -> None:
    async with sockets_double() as double:
        ink = Model(id="m9", workspace="w1", account="a-eu", name="ink-2", type="speech-to-text")
        async with sockets_edge(double, snapshot=workspace_at(double.origin, plus_models=(ink,))) as gateway:
            sdk = AsyncCartesia(**addresses(gateway))
            async with sdk.stt.auto_finalize.websocket(
                model="ink-2", encoding="pcm_s16le", sample_rate=16000, keyterm=["Foo Bar", "baz"]
            ) as socket:
                await socket.send_raw(bytes(3200))
                heard = [event.type async for event in socket]
            assert heard == ["connected", "turn.start", "turn.update", "turn.end"]
            assert double.sockets[0].target.endswith("keyterm=Foo+Bar&keyterm=baz")
