"""Calls the Python SDK 3.x: arguments are the base URL, the key and, if given, the sockets' base URL. Prints one line a call.

With a model and a voice besides, it speaks with those and does not listen.
"""

import asyncio
import sys

from cartesia import AsyncCartesia, Cartesia

BASE, KEY, *REST = sys.argv[1:]
SETTINGS = {"base_url": BASE, "api_key": KEY} | ({"websocket_base_url": REST[0]} if REST else {})
MODEL, ID = REST[1:] or ("sonic-3", "v1")
LISTENS = len(REST) < 2
WAV = {"container": "wav", "encoding": "pcm_s16le", "sample_rate": 16000}
RAW = WAV | {"container": "raw"}
VOICE = {"mode": "id", "id": ID}
SPEECH = {"model_id": MODEL, "transcript": "Hi", "voice": VOICE}
AUDIO = {"encoding": "pcm_s16le", "sample_rate": 16000}
FILE = ("a.wav", b"RIFF" * 10, "audio/wav")


def blocking() -> None:
    sdk = Cartesia(**SETTINGS)
    print("bytes", len(sdk.tts.generate(**SPEECH, output_format=WAV).read()))
    print("sse", *[event.type for event in sdk.tts.generate_sse(**SPEECH, output_format=RAW)])
    with sdk.tts.websocket_connect() as socket:
        context = socket.context(model_id=MODEL, voice=VOICE, output_format=RAW)
        context.push("Hello there")
        context.no_more_inputs()
        print("socket", *[event.type for event in context.receive()])
    if LISTENS:
        listen(sdk)


def listen(sdk: Cartesia) -> None:
    print("stt", sdk.stt.transcribe(file=FILE, model="ink-whisper", language="en").text)
    with sdk.stt.manual_finalize.websocket(model="ink-whisper", language="en", **AUDIO) as socket:
        socket.send_raw(bytes(3200))
        socket.send_raw("finalize")
        heard = [socket.recv().type for _ in range(3)]
        socket.send_raw("close")
        print("finalized", *heard, socket.recv().type)
    with sdk.stt.auto_finalize.websocket(model="ink-2", **AUDIO) as socket:
        socket.send_raw(bytes(3200))
        print("turns", *[event.type for event in socket])


async def concurrent() -> None:
    async with AsyncCartesia(**SETTINGS) as sdk:
        print("bytes", len(await (await sdk.tts.generate(**SPEECH, output_format=WAV)).read()))
        print("sse", *[event.type async for event in await sdk.tts.generate_sse(**SPEECH, output_format=RAW)])
        async with sdk.tts.websocket_connect() as socket:
            context = socket.context(model_id=MODEL, voice=VOICE, output_format=RAW)
            await context.push("Hello there")
            await context.no_more_inputs()
            print("socket", *[event.type async for event in context.receive()])
        if LISTENS:
            await listen_concurrently(sdk)


async def listen_concurrently(sdk: AsyncCartesia) -> None:
    print("stt", (await sdk.stt.transcribe(file=FILE, model="ink-whisper", language="en")).text)
    async with sdk.stt.manual_finalize.websocket(model="ink-whisper", language="en", **AUDIO) as socket:
        await socket.send_raw(bytes(3200))
        await socket.send_raw("finalize")
        heard = [(await socket.recv()).type for _ in range(3)]
        await socket.send_raw("close")
        print("finalized", *heard, (await socket.recv()).type)
    async with sdk.stt.auto_finalize.websocket(model="ink-2", **AUDIO) as socket:
        await socket.send_raw(bytes(3200))
        print("turns", *[event.type async for event in socket])


blocking()
asyncio.run(concurrent())
