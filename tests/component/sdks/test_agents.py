"""The plugins of LiveKit Agents and Pipecat for Cartesia, with nothing changed but address, key, model and voice.

Through the gateway they speak and listen; straight at Kokoro they speak, as they do at Cartesia.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.component.sdks.conftest import Stage, run
from tests.kit.edge import CREDENTIAL, alice
from tests.kit.speech_server import SpeechServer, speech_server, tone_backend

LIVEKIT_SAYS = """\
bytes 3088
socket 520
socket 440
ink-whisper start_of_speech final_transcript hello
ink-2 start_of_speech final_transcript hello
"""
PIPECAT_SAYS = """\
bytes 3088
socket 480
finalized hello
turns hello
"""
# Kokoro's stand-in speaks 2,400 bytes for each letter, blank, mark and pad: 14 of them in "Hello there.". The last one is silent,
# and LiveKit's program leaves silence at the end out.
LIVEKIT_HEARS = """\
bytes 31200
socket 31200
socket 24000
"""
PIPECAT_HEARS = """\
bytes 33600
socket 33600
"""


async def test_livekit_speaks_and_listens_through_the_gateway(stage: Stage) -> None:
    base = f"https://localhost:{stage.gateway.tls_port}/cartesia"
    said = await stage.run("livekit", "livekit/speak.py", base, alice(), "sonic-3", "v1", "listen")

    assert (said.out, said.status) == (LIVEKIT_SAYS, 0), said.error
    assert len([socket for socket in stage.sockets.sockets if socket.target.startswith("/tts/")]) == 1
    assert {received.one("X-API-Key") or received.one("Authorization") for received in stage.http.requests} == {
        f"Bearer {CREDENTIAL}"
    }


async def test_pipecat_speaks_and_listens_through_the_gateway(stage: Stage) -> None:
    stage.gateway.world = replace(stage.gateway.world, root_mounts={b"localhost": "cartesia"})
    address = f"127.0.0.1:{stage.gateway.port}/cartesia"
    said = await stage.run("pipecat", "pipecat/speak.py", address, alice(), "sonic-3", "v1", "listen")

    assert (said.out, said.status) == (PIPECAT_SAYS, 0), said.error


@pytest.fixture
def kokoro() -> Iterator[SpeechServer]:
    with speech_server(tone_backend) as server:
        yield server


async def test_livekit_speaks_with_kokoro(kokoro: SpeechServer) -> None:
    said = await run("livekit", "livekit/speak.py", kokoro.url, "any", "kokoro-82m", "af_heart")

    assert (said.out, said.status) == (LIVEKIT_HEARS, 0), said.error


async def test_pipecat_speaks_with_kokoro(kokoro: SpeechServer) -> None:
    said = await run("pipecat", "pipecat/speak.py", f"127.0.0.1:{kokoro.port}", "any", "kokoro-82m", "af_heart")

    assert (said.out, said.status) == (PIPECAT_HEARS, 0), said.error
