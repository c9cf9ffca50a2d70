"""Cartesia's SDKs of three generations straight at Kokoro: nothing changed but address, key, model and voice."""

import hashlib
from collections.abc import Iterator

import pytest

from glottis.certificates import Certificates
from tests.component.sdks.conftest import run
from tests.kit.speech_server import SpeechServer, speech_server, tone_backend

KEY = "a-caller-key-of-some-length"
DIGEST = hashlib.sha256(KEY.encode()).digest()
# Kokoro's stand-in speaks 50 ms of each letter, blank and pad; what is resampled to 16 kHz has a tail, a chunk of its own.
PYTHON_SAYS = """\
bytes 6444
sse chunk chunk chunk done
socket chunk chunk chunk chunk chunk chunk chunk chunk done
"""
PYTHON_2_SAYS = """\
bytes 20844
sse chunk chunk chunk chunk chunk chunk chunk chunk done
socket 3200 3200 3200 3200 3200 3200 1552 48
continued 20800
"""
JAVASCRIPT_SAYS = """\
bytes 6444
sse chunk chunk chunk done
voices aa2e19df-bfca-5c16-bbe2-bcf90f96aa7f
refused 400
socket chunk chunk chunk chunk chunk chunk chunk chunk done
"""


@pytest.fixture
def kokoro() -> Iterator[SpeechServer]:
    with speech_server(tone_backend, DIGEST) as server:
        yield server


@pytest.fixture
def kokoro_with_tls(certificates: Certificates) -> Iterator[SpeechServer]:
    with speech_server(tone_backend, DIGEST, certificate=(certificates.server, certificates.server_key)) as server:
        yield server


async def test_the_python_sdk_2_speaks_with_kokoro(kokoro: SpeechServer) -> None:
    base = f"http://localhost:{kokoro.port}"
    said = await run("py-2.0.17", "py-2.0.17/speak.py", base, KEY, "kokoro-82m", "af_heart")

    assert (said.out, said.status) == (PYTHON_2_SAYS * 2, 0), said.error


async def test_the_python_sdk_3_speaks_with_kokoro(kokoro: SpeechServer) -> None:
    said = await run("py-3.5.1", "py-3.5.1/speak.py", kokoro.url, KEY, kokoro.websocket_url, "kokoro-82m", "af_heart")

    assert (said.out, said.status) == (PYTHON_SAYS * 2, 0), said.error


@pytest.mark.parametrize("kind", ["require", "import"])
@pytest.mark.parametrize("sdk", ["js-3.5.1", "js-4.2.0"])
async def test_a_javascript_sdk_speaks_with_kokoro(
    kokoro_with_tls: SpeechServer, certificates: Certificates, sdk: str, kind: str
) -> None:
    # This SDK dials its sockets with TLS whatever the base URL is.
    base = f"https://localhost:{kokoro_with_tls.port}"
    trust = {"NODE_EXTRA_CA_CERTS": str(certificates.authority)}
    said = await run(sdk, "speak.cjs", base, KEY, kind, "kokoro-82m", "af_heart", variables=trust)

    assert (said.out, said.status) == (JAVASCRIPT_SAYS, 0), said.error
