"""The official Cartesia SDK on a socket through the gateway."""

import asyncio

from cartesia import AsyncCartesia

from tests.doubles.cartesia_websocket import sockets_double
from tests.kit.edge import Edge
from tests.kit.identities import idp_token
from tests.kit.sessions import sockets_edge

VOICE = {"mode": "id", "id": "6ccbfb76-1fc6-48f7-b71d-91ac6298247b"}
RAW = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 16000}


def sdk(gateway: Edge) -> AsyncCartesia:
    base = f"http://127.0.0.1:{gateway.port}/cartesia"
    return AsyncCartesia(api_key=idp_token(), base_url=base, websocket_base_url=base.replace("http", "ws"))


async def test_64_interleaved_contexts_on_one_socket_are_each_complete_and_in_order() -> None:
    async with sockets_double() as double, sockets_edge(double) as gateway, sdk(gateway).tts.websocket_connect() as socket:
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
        for n, parts in texts.items():
            halves = [half for text in parts for half in (text[: len(text) // 2], text[len(text) // 2 :])]
            assert audio[n] == b"".join(half.encode() * 40 for half in halves)
    assert len(double.sockets) == 1
