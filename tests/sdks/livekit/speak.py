"""LiveKit's plugin for Cartesia: arguments are the base URL, the key, the model and the voice, and `listen` to recognise too.

Prints one line a call: what was asked, and how many bytes of audio or which events came.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from livekit import rtc
from livekit.plugins import cartesia

BASE, KEY, MODEL, VOICE, *LISTEN = sys.argv[1:]


async def length(parts: AsyncIterator[Any]) -> int:
    """Return how much audio came, without the silence that the framework may put after it."""
    return len(b"".join([bytes(part.frame.data) async for part in parts]).rstrip(b"\0"))


async def speak(session: aiohttp.ClientSession) -> None:
    tts = cartesia.TTS(api_key=KEY, base_url=BASE, model=MODEL, voice=VOICE, http_session=session, word_timestamps=False)
    async with tts.synthesize("Hello there.") as whole:
        print("bytes", await length(whole))
    for text in ("Hello there.", "And again."):
        async with tts.stream() as stream:
            stream.push_text(text)
            stream.end_input()
            print("socket", await length(stream))
    await tts.aclose()


async def listen(session: aiohttp.ClientSession, model: str) -> None:
    stt = cartesia.STT(api_key=KEY, base_url=BASE, model=model, language="en", http_session=session)
    heard = []
    async with stt.stream() as stream:
        stream.push_frame(rtc.AudioFrame(bytes(2 * 5120), 16000, 1, 5120))
        if model == "ink-whisper":
            stream.flush()  # the other one finds the ends of turns by itself
        async for event in stream:
            heard.append(event.type.value)
            if event.type.value == "final_transcript":
                print(model, heard[0], heard[-1], event.alternatives[0].text)
                break
    await stt.aclose()


async def main() -> None:
    async with aiohttp.ClientSession() as session:
        await speak(session)
        if LISTEN:
            await listen(session, "ink-whisper")
            await listen(session, "ink-2")


asyncio.run(main())
