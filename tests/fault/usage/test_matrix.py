"""Whatever breaks between a caller and the rollups: afterwards every settled exchange is counted once, and nothing more.

`make test` tries the same few faults each time, in one run of the chain; `make fault` tries each alone, and long random
sequences of them, two at a time. What struck, and in which order, is in the message of a failed run.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.fault.scope import IS_WHOLE_MATRIX, SEED
from tests.fault.usage.chain import FAULTS, WORKSPACE, Chain, running_chain, text_of
from tests.integration.usage.conftest import Tables
from tests.kit.configuration import ADMIN_PERMISSIONS
from tests.kit.usage import TestBus, all_usage_acknowledged, until

SEQUENCES = 8
LENGTH = 8
A_FEW = [["kill-gateway"], ["kill-nats", "slow-clickhouse"], ["kill-aggregator", "otlp-hangs"]]


def plans() -> list[Any]:
    """Which faults follow one another, each a group that strikes at once. Any: pytest's own parameters."""
    if not IS_WHOLE_MATRIX:
        return [pytest.param(A_FEW, id="a-few")]
    chance = random.Random(SEED)
    names = sorted(FAULTS)
    alone = [pytest.param([[name]], id=name) for name in names]
    sequences = [
        pytest.param([chance.sample(names, chance.choice((1, 2))) for _ in range(LENGTH)], id=f"sequence-{number}")
        for number in range(SEQUENCES)
    ]
    return alone + sequences


async def recovered(chain: Chain) -> None:
    """End the traffic and the gateway, and wait until everything that was published is stored."""
    await chain.silence()
    await chain.nats_child.until(lambda: chain.nats.is_ready(chain.account.seeds["admin"], ADMIN_PERMISSIONS))
    await chain.pod.ready()
    status = await asyncio.to_thread(chain.pod.gateway.child.stop)
    assert status == 0, chain.pod.gateway.child.output[-3000:]
    chain.pod.control_plane.client = await chain.account.connect()
    await all_usage_acknowledged(TestBus(chain.pod.control_plane.client), 120)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("plan", plans())
async def test_every_settled_exchange_is_counted_once_whatever_breaks(plan: list[list[str]], tmp_path: Path) -> None:
    story = f"after {plan} (seed {SEED})"
    async with running_chain(tmp_path) as chain:
        await chain.goes_on()
        for group in plan:
            await asyncio.gather(*(FAULTS[name](chain) for name in dict.fromkeys(group)))
            await chain.goes_on()
        before = len(chain.receiver.names())

        async def is_exported() -> bool:
            return len(chain.receiver.names()) > before

        await until(is_exported, f"spans to be exported again {story}", 60)
        await recovered(chain)
        tables = Tables(chain.address)
        events = tables.rows(
            "SELECT id, any(key), any(is_final), any(outcome), any(units['characters']), any(totals['characters']),"
            f" any(metadata['call']) FROM usage_events WHERE workspace = '{WORKSPACE}' GROUP BY id"
        )
        rolled = tables.quantity("characters", WORKSPACE)
        exchanges = tables.quantity("requests", WORKSPACE)
    assert chain.traffic.failed == {}, f"calls failed on a gateway that lived {story}"
    assert chain.pod.gateway.events("spool full, events are lost") == [], f"the spool was too small {story}"
    finals = [event for event in events if event[2]]
    characters: Counter[str] = Counter()
    for event in events:
        characters[event[1]] += event[4]
    assert {event[1] for event in events} == {event[1] for event in finals}, f"a key was never settled {story}"
    assert len(finals) == len({event[1] for event in finals}), f"a key was settled twice {story}"
    by_call = {int(event[6]): event for event in finals}
    assert len(by_call) == len(finals), f"a call has two keys {story}"
    sent = {
        int(json.loads(request.body)["transcript"].partition(".")[0][5:]) for request in chain.provider.requests if request.body
    }
    assert sent <= by_call.keys(), f"sent to the provider and not counted {story}"
    assert chain.traffic.done <= by_call.keys(), f"answered and not counted {story}"
    for number in sent:
        assert characters[by_call[number][1]] == by_call[number][5] == len(text_of(number)), f"call {number} {story}"
    # What was written down and then died with its gateway may not have left: it is owed all the same, once.
    assert {event[3] for number, event in by_call.items() if number not in sent} <= {"gateway_lost"}, story
    assert rolled == sum(characters.values()), f"the rollups differ from the events {story}"
    assert exchanges == len(finals), story
