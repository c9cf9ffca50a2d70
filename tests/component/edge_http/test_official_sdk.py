"""The official Cartesia SDK for Python against the gateway, with nothing changed but `base_url` and `api_key`."""

import asyncio
import datetime
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import cartesia
import httpx
import pytest
import pytest_asyncio

from glottis.certificates import Certificates, ensure_certificates
from tests.doubles.cartesia import WAV, CartesiaDouble
from tests.kit.edge import CREDENTIAL, Edge, alice, edge

OUTPUT = {"container": "wav", "encoding": "pcm_s16le", "sample_rate": 16000}
VOICE = {"mode": "id", "id": "6ccbfb76-1fc6-48f7-b71d-91ac6298247b"}


@pytest_asyncio.fixture
async def sdk(gateway: Edge) -> AsyncIterator[cartesia.AsyncCartesia]:
    async with cartesia.AsyncCartesia(api_key=alice(), base_url=f"http://127.0.0.1:{gateway.port}/cartesia") as sdk:
        yield sdk


async def test_speech_in_one_piece(sdk: cartesia.AsyncCartesia, double: CartesiaDouble) -> None:
    answer = await sdk.tts.generate(model_id="sonic-3", transcript="Hé 😀", voice=VOICE, output_format=OUTPUT)

    assert await answer.read() == WAV
    assert double.requests[0].one("Authorization") == f"Bearer {CREDENTIAL}"
    assert double.requests[0].one("X-Stainless-Lang") == "python"


async def test_speech_as_events(sdk: cartesia.AsyncCartesia) -> None:
    raw = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 16000}
    stream = await sdk.tts.sse(model_id="sonic-3", transcript="Hello.", voice=VOICE, output_format=raw)

    assert [event.type async for event in stream] == ["chunk", "timestamps", "done"]


async def test_a_file_is_transcribed(sdk: cartesia.AsyncCartesia, double: CartesiaDouble) -> None:
    answer = await sdk.stt.transcribe(file=("a.wav", WAV, "audio/wav"), model="ink-whisper", language="en")

    assert answer.text == "hello"
    assert WAV in double.requests[0].body


async def test_voices_are_listed(sdk: cartesia.AsyncCartesia, double: CartesiaDouble) -> None:
    page = await sdk.voices.list(limit=1)

    assert page.data[0].id == "v1"
    assert double.requests[0].target == "/voices?limit=1"


async def test_a_refusal_is_not_tried_again(sdk: cartesia.AsyncCartesia, gateway: Edge, double: CartesiaDouble) -> None:
    with pytest.raises(cartesia.PermissionDeniedError) as refused:
        await sdk.tts.generate(model_id="sonic-9", transcript="Hello.", voice=VOICE, output_format=OUTPUT)

    assert refused.value.body["error_code"] == "model_not_granted"  # type: ignore[index]
    assert len(gateway.recorder.settled) == 1
    assert double.connections == []


async def test_text_whose_provider_died_is_not_sent_again_by_the_sdk(sdk: cartesia.AsyncCartesia, double: CartesiaDouble) -> None:
    double.default = double.scripts["close"]

    with pytest.raises(cartesia.InternalServerError) as failed:
        await sdk.tts.generate(model_id="sonic-3", transcript="Hello.", voice=VOICE, output_format=OUTPUT)

    assert failed.value.body["error_code"] == "upstream_gone"  # type: ignore[index]
    assert len(double.requests) == 1


async def test_the_providers_429_is_tried_again_by_the_sdk_as_without_a_gateway(
    sdk: cartesia.AsyncCartesia, double: CartesiaDouble
) -> None:
    double.default = _too_many

    with pytest.raises(cartesia.RateLimitError):
        await sdk.with_options(max_retries=1).tts.generate(
            model_id="sonic-3", transcript="Hello.", voice=VOICE, output_format=OUTPUT
        )

    assert [received.one("x-stainless-retry-count") for received in double.requests] == ["0", "1"]


async def _too_many(double: CartesiaDouble, connection: object, received: object) -> bool:
    await connection.answer("429 Too Many Requests", "retry-after-ms: 1", body=b"{}")  # type: ignore[attr-defined]
    return True


async def test_the_synchronous_client(gateway: Edge) -> None:
    def speak() -> bytes:
        with cartesia.Cartesia(api_key=alice(), base_url=f"http://127.0.0.1:{gateway.port}/cartesia") as sdk:
            return sdk.tts.generate(model_id="sonic-3", transcript="Hello.", voice=VOICE, output_format=OUTPUT).read()

    assert await asyncio.to_thread(speak) == WAV


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    folder: Path = tmp_path_factory.mktemp("tls")
    return ensure_certificates(folder, datetime.datetime.now(datetime.UTC))


async def test_https_to_the_gateway_and_https_to_the_provider(certificates: Certificates) -> None:
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.load_cert_chain(certificates.server, certificates.server_key)
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(certificates.server, certificates.server_key)
    async with (
        CartesiaDouble(theirs) as double,
        edge(double.origin, tls=ours, ca_pem=certificates.authority.read_bytes()) as gateway,
    ):
        trust = ssl.create_default_context(cafile=str(certificates.authority))
        http = httpx.AsyncClient(verify=trust)
        async with cartesia.AsyncCartesia(
            api_key=alice(), base_url=f"https://localhost:{gateway.tls_port}/cartesia", http_client=http
        ) as sdk:
            for _ in range(3):
                answer = await sdk.tts.generate(model_id="sonic-3", transcript="Hello.", voice=VOICE, output_format=OUTPUT)
                assert await answer.read() == WAV

        assert len(double.connections) == 1
