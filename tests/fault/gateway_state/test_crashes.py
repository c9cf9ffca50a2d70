"""Gateway and NATS are killed again and again under traffic; afterwards every character sent to the provider is counted once."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from contracts.events import UsageEvent
from glottis.embedded.nats import Nats
from tests.doubles.cartesia import CartesiaDouble
from tests.fault.scope import SEED
from tests.kit.configuration import ADMIN_PERMISSIONS, usage_on_stream
from tests.kit.gateway import Fed, fed, speak, token
from tests.kit.processes import Child, free_port
from tests.kit.services import NatsAccount, nats_seeds, nats_server, service_folder
from tests.kit.waiting import until

KILLS = 6
CALLERS = 4


@pytest.fixture
def killable() -> Iterator[tuple[NatsAccount, Nats, Child]]:
    seeds = nats_seeds()
    with service_folder("nats") as folder, nats_server(folder, {"GLOTTIS": seeds}) as (server, child):
        yield NatsAccount("GLOTTIS", server.url, seeds), server, child


@pytest_asyncio.fixture
async def provider() -> AsyncIterator[CartesiaDouble]:
    async with CartesiaDouble() as double:
        yield double


class Traffic:
    """Callers that speak without end. `done`: the numbers of calls whose audio came whole."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._number = 0
        self.done: set[int] = set()
        self.is_over = False

    async def run(self) -> None:
        key = token()
        async with httpx.AsyncClient(base_url=self._url, trust_env=False, timeout=5) as client:
            while not self.is_over:
                self._number += 1
                number = self._number
                try:
                    answer = await client.post(
                        "/cartesia/tts/bytes",
                        json={
                            "model_id": "sonic-turbo",
                            "transcript": text_of(number),
                            "voice": {"mode": "id", "id": "v1"},
                            "output_format": {"container": "wav"},
                        },
                        headers={"X-API-Key": key, "X-Glottis-Metadata": json.dumps({"call": str(number)})},
                    )
                except httpx.HTTPError:
                    await asyncio.sleep(0.02)
                    continue
                if answer.status_code == 200:
                    self.done.add(number)


def text_of(number: int) -> str:
    return f"Call {number}."


async def settled(pod: Fed) -> list[UsageEvent]:
    """Return the stream's events, each once, when no key is open any more."""
    async with asyncio.timeout(30):
        while True:
            events = list({event.id: event for event in await usage_on_stream(pod.control_plane.client)}.values())
            if {event.key for event in events} == {event.key for event in events if event.is_final}:
                return events
            await asyncio.sleep(0.1)


async def test_every_character_sent_is_counted_once_whatever_is_killed(
    killable: tuple[NatsAccount, Nats, Child], provider: CartesiaDouble, tmp_path: Path
) -> None:
    account, server, nats_child = killable
    chance = random.Random(SEED)
    port = free_port()
    async with fed(account, tmp_path, provider.origin, GLOTTIS_GATEWAY_LISTEN=f"127.0.0.1:{port}") as pod:
        traffic = Traffic(f"http://127.0.0.1:{port}")
        callers = [asyncio.ensure_future(traffic.run()) for _ in range(CALLERS)]
        for _ in range(KILLS):
            await asyncio.sleep(chance.uniform(0.05, 0.5))
            victim = chance.choice((pod.gateway.child, nats_child))
            victim.kill()
            await asyncio.sleep(chance.uniform(0.0, 0.3))
            victim.start()
            before = len(traffic.done)
            async with asyncio.timeout(30):
                while len(traffic.done) == before:
                    await asyncio.sleep(0.02)
        traffic.is_over = True
        await asyncio.gather(*callers)
        await nats_child.until(lambda: server.is_ready(account.seeds["admin"], ADMIN_PERMISSIONS))
        await pod.ready()
        pod.control_plane.client = await account.connect()
        assert pod.gateway.child.stop() == 0, pod.gateway.child.output[-3000:]

        events = await settled(pod)

        finals = [event for event in events if event.is_final]
        by_call = {int(event.metadata["call"]): event for event in finals}
        sent = {int(json.loads(request.body)["transcript"][5:-1]) for request in provider.requests if request.body}
        assert len(by_call) == len(finals), f"a call with two final events (seed {SEED})"
        assert sent <= by_call.keys(), f"sent and not counted (seed {SEED})"
        assert traffic.done <= by_call.keys(), f"answered and not counted (seed {SEED})"
        for number in sent:
            event = by_call[number]
            units = sum(one.units.get("characters", 0) for one in events if one.key == event.key)
            assert units == event.totals["characters"] == len(text_of(number)), f"call {number} (seed {SEED})"
        assert {event.outcome for event in finals} <= {"completed", "client_gone", "gateway_lost"}


async def test_a_gateway_that_ends_while_nats_restarts_publishes_what_waits(
    killable: tuple[NatsAccount, Nats, Child], provider: CartesiaDouble, tmp_path: Path
) -> None:
    account, server, nats_child = killable
    async with fed(account, tmp_path, provider.origin) as pod:
        await asyncio.to_thread(nats_child.kill)
        await until(lambda: len(pod.gateway.events("bus lost")) == 1, 10)
        await speak(pod.gateway, "Nobody counts yet.")

        ending = asyncio.ensure_future(asyncio.to_thread(pod.gateway.child.stop))
        await until(lambda: len(pod.gateway.events("drain ended")) == 1, 10)
        nats_child.start()

        assert await ending == 0, pod.gateway.child.output[-3000:]
        await nats_child.until(lambda: server.is_ready(account.seeds["admin"], ADMIN_PERMISSIONS))
        pod.control_plane.client = await account.connect()
        [final] = await pod.finals(1)
        assert (final.outcome, final.totals["characters"]) == ("completed", 18)
        assert list(pod.spool.iterdir()) == []
