"""What a gateway's /metrics shows after something happened: each value that operators are told to watch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import cartesia
import pytest
import pytest_asyncio

from tests.doubles.cartesia import CartesiaDouble, dead_origin
from tests.doubles.cartesia_websocket import sockets_double
from tests.kit.gateway import Fed, fed, sdk, speak, token
from tests.kit.processes import Child
from tests.kit.services import NatsAccount, nats_seeds, nats_server, service_folder
from tests.kit.usage import until

NAME = "glottis_gateway_"
SPEECH = {"provider": "cartesia", "operation": "tts"}


@pytest_asyncio.fixture
async def provider() -> AsyncIterator[CartesiaDouble]:
    async with CartesiaDouble() as double:
        yield double


@pytest_asyncio.fixture
async def pod(nats_account: NatsAccount, provider: CartesiaDouble, tmp_path: Path) -> AsyncIterator[Fed]:
    async with fed(nats_account, tmp_path, provider.origin) as running:
        yield running


@pytest.fixture
def killable() -> Iterator[tuple[NatsAccount, Child]]:
    seeds = nats_seeds()
    with service_folder("nats") as folder, nats_server(folder, {"GLOTTIS": seeds}) as (server, child):
        yield NatsAccount("GLOTTIS", server.url, seeds), child


async def shows(pod: Fed, value: float, name: str, **labels: str) -> None:
    """Wait until a metric has this value."""

    async def is_so() -> bool:
        return await pod.gateway.metric(NAME + name, **labels) == value

    await until(is_so, f"{name} {labels} to be {value}", 20)


async def test_a_call_that_went_well_shows_in_its_durations_and_its_usage(pod: Fed) -> None:
    await speak(pod.gateway, "Eleven cha")
    await shows(pod, 1, "exchanges_total", **SPEECH, outcome="completed")
    for name in ("added_latency_seconds", "time_to_first_audio_seconds", "time_to_first_byte_seconds", "exchange_seconds"):
        assert await pod.gateway.metric(f"{NAME}{name}_count", **SPEECH) == 1, name
    assert await pod.gateway.metric(NAME + "usage_total", provider="cartesia", unit="characters") == 10
    assert await pod.gateway.metric(NAME + "usage_total", provider="cartesia", unit="audio_out_ms") == 63
    assert 0 <= await pod.gateway.metric(NAME + "config_age_seconds") < 60
    assert 0 <= await pod.gateway.metric(NAME + "key_set_age_seconds") < 60
    assert await pod.gateway.metric(NAME + "spool_capacity_bytes") == 16 * 1024 * 1024
    await shows(pod, 0, "spool_unpublished_bytes")
    await shows(pod, 0, "spool_open_keys")
    assert await pod.gateway.metric(NAME + "bus_up") == 1


async def test_a_refusal_shows_by_its_reason(pod: Fed) -> None:
    async with sdk(pod.gateway) as client:
        with pytest.raises(cartesia.APIStatusError):
            await client.tts.generate(
                model_id="sonic-9",
                transcript="Hello.",
                voice={"mode": "id", "id": "v1"},
                output_format={"container": "wav", "encoding": "pcm_s16le", "sample_rate": 24000},
            )
    await shows(pod, 1, "refusals_total", reason="model_not_granted")


async def test_a_provider_that_cannot_be_reached_shows_by_the_phase(nats_account: NatsAccount, tmp_path: Path) -> None:
    async with dead_origin() as origin, fed(nats_account, tmp_path, origin) as pod:
        with pytest.raises(cartesia.APIStatusError):
            await speak(pod.gateway)
        await shows(pod, 1, "upstream_faults_total", phase="connect")


async def test_an_open_socket_shows_with_its_contexts(nats_account: NatsAccount, tmp_path: Path) -> None:
    async with sockets_double() as double, fed(nats_account, tmp_path, double.origin) as pod:
        base = pod.gateway.url.replace("http", "ws") + "/cartesia"
        client = cartesia.AsyncCartesia(
            base_url=pod.gateway.url + "/cartesia", websocket_base_url=base, api_key=token(), max_retries=0
        )
        async with client, client.tts.websocket_connect() as socket:
            await shows(pod, 1, "sessions")
            await shows(pod, 1, "open_exchanges")
            await socket.send(
                {
                    "model_id": "sonic-turbo",
                    "transcript": "First one.",
                    "voice": {"mode": "id", "id": "v1"},
                    "output_format": {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24000},
                    "context_id": "c1",
                }
            )
            while (await socket.recv()).type != "done":
                pass
            await shows(pod, 1, "contexts_total", provider="cartesia", outcome="completed")
            await shows(pod, 1, "time_to_first_audio_seconds_count", **SPEECH)
        await shows(pod, 0, "sessions")


async def test_what_waits_for_nats_and_what_the_spool_could_not_hold_shows(
    killable: tuple[NatsAccount, Child], provider: CartesiaDouble, tmp_path: Path
) -> None:
    account, nats_child = killable
    async with fed(account, tmp_path, provider.origin, GLOTTIS_GATEWAY_SPOOL_BYTES=str(64 * 1024)) as pod:
        await speak(pod.gateway)
        await shows(pod, 0, "spool_unpublished_bytes")
        await asyncio.to_thread(nats_child.kill)
        await shows(pod, 0, "bus_up")

        async def has_dropped() -> bool:
            await speak(pod.gateway)
            return await pod.gateway.metric(NAME + "events_dropped_total", kind="usage") > 0

        await until(has_dropped, "the spool to be full", 60)
        assert await pod.gateway.metric(NAME + "events_dropped_total", kind="spans") > 0
        used = await pod.gateway.metric(NAME + "spool_used_bytes")
        assert 48 * 1024 < used <= await pod.gateway.metric(NAME + "spool_capacity_bytes") == 64 * 1024
        assert 0 < await pod.gateway.metric(NAME + "spool_unpublished_bytes") <= used
