"""Calls the Python SDK 2.x: arguments are the base URL and the key. Prints one line a call.

With a model and a voice besides, it speaks with those and does not listen.
This SDK knows no turns, and drops events that lack a field of later versions. Its sockets are plain if the base URL holds
`localhost`, whatever its scheme.
"""

import asyncio
import sys

from cartesia import AsyncCartesia, Cartesia

BASE, KEY, *REST = sys.argv[1:]
MODEL, ID = REST or ("sonic-3", "v1")
WAV = {"container": "wav", "encoding": "pcm_s16le", "sample_rate": 16000}
RAW = WAV | {"container": "raw"}
SPEECH = {"model_id": MODEL, "transcript": "Hello there", "voice": {"mode": "id", "id": ID}}
AUDIO = {"model": "ink-whisper", "encoding": "pcm_s16le", "sample_rate": 16000}
FILE = ("a.wav", b"RIFF" * 10, "audio/wav")


def blocking() -> None:
    sdk = Cartesia(api_key=KEY, base_url=BASE)
    print("bytes", len(b"".join(sdk.tts.bytes(**SPEECH, output_format=WAV))))
    print("sse", *[event.type for event in sdk.tts.sse(**SPEECH, output_format=RAW)])
    socket = sdk.tts.websocket()
    print("socket", *[len(part.audio) for part in socket.send(**SPEECH, output_format=RAW)])
    texts = iter(["Hello ", "there"])
    parts = socket.context("c1").send(**SPEECH | {"transcript": texts}, output_format=RAW)
    print("continued", sum(len(part.audio) for part in parts))
    socket.close()
    if not REST:
        listen(sdk)


def listen(sdk: Cartesia) -> None:
    print("stt", sdk.stt.transcribe(file=FILE, model="ink-whisper", language="en").text)
    heard = sdk.stt.websocket(language="en", **AUDIO).transcribe(iter([bytes(3200)]), **AUDIO)
    print("finalized", *[part["type"] for part in heard])


async def concurrent() -> None:
    async with AsyncCartesia(api_key=KEY, base_url=BASE) as sdk:
        print("bytes", len(b"".join([part async for part in sdk.tts.bytes(**SPEECH, output_format=WAV)])))
        print("sse", *[event.type async for event in sdk.tts.sse(**SPEECH, output_format=RAW)])
        socket = await sdk.tts.websocket()
        whole = await socket.send(**SPEECH, output_format=RAW)
        print("socket", *[len(part.audio) async for part in whole])
        context = socket.context("c1")
        await context.send(**SPEECH, output_format=RAW, continue_=True)
        await context.no_more_inputs()
        print("continued", sum([len(part.audio) async for part in context.receive()]))
        await socket.close()
        if not REST:
            await listen_concurrently(sdk)


async def listen_concurrently(sdk: AsyncCartesia) -> None:
    async def audio():
        yield bytes(3200)

    print("stt", (await sdk.stt.transcribe(file=FILE, model="ink-whisper", language="en")).text)
    heard = (await sdk.stt.websocket(language="en", **AUDIO)).transcribe(audio(), **AUDIO)
    print("finalized", *[part["type"] async for part in heard])


blocking()
asyncio.run(concurrent())
