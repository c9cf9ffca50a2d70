"""Offers usage events until it is killed, again and again, and checks each time what a successor finds: for test_spool_kills.

A process of its own, because it forks a thousand times. Each round a child opens the spool as a gateway does, admits and
settles key after key, and is killed at a random point; then the parent opens it as the successor. Prints how many kills it
went through, or the first difference.
"""

from __future__ import annotations

import logging
import mmap
import os
import random
import signal
import sys
import time
from pathlib import Path

import structlog

from contracts.events import Attribution, UsageEvent, usage_event
from gateway.telemetry.spool import Kind, Spool
from policy.usage import Tally

_CAPACITY = 512 * 1024
_MOST_KEYS = 400
"""a round offers no more than fits"""
_TO = Attribution(
    workspace="acme", principal="ada", principal_kind="user", account="a1", provider="cartesia", operation="tts", endpoint="tts"
)


def characters_of(number: int) -> int:
    """What key `number` costs."""
    return 1 + number * 37 % 1000


def offer_for_ever(folder: Path, counter: mmap.mmap) -> None:
    """Admit and settle; the counter holds how many admissions and how many settlements have been offered."""
    spool = Spool.open(folder, _CAPACITY, "child")
    for number in range(_MOST_KEYS):
        tally = Tally(f"key{number}", _TO, "pod-1")
        tally.add("characters", characters_of(number))
        spool.offer_delta(tally, 1000 + number)
        counter[0:8] = (number + 1).to_bytes(8, "big")
        if number % 3:  # some are taken before they are settled, as a publisher does: then they count as they are
            spool.rings[-1].take(1)
        spool.offer_final(tally, "completed", 1000 + number, tally.owed("completed", None))
        counter[8:16] = (number + 1).to_bytes(8, "big")
    time.sleep(60)


def difference(found: list[UsageEvent], admitted: int, settled: int) -> str:
    """Say what is wrong with what the successor found; empty: nothing is."""
    if len({event.id for event in found}) != len(found):
        return "an event twice"
    finals = {event.key: event for event in found if event.is_final}
    if len(finals) != sum(event.is_final for event in found):
        return "a key settled twice"
    keys = {event.key for event in found}
    if keys != finals.keys():
        return "a key without its end"
    if not {f"key{number}" for number in range(admitted)} <= keys or len(keys) > admitted + 1:
        return f"{admitted} were admitted, {len(keys)} are found"
    lost = [key for key, event in finals.items() if event.outcome == "gateway_lost"]
    if len(lost) > 1 or any(finals[f"key{number}"].outcome != "completed" for number in range(settled)):
        return f"{settled} were settled, lost are {lost}"
    for key, final in finals.items():
        counted = sum(event.units.get("characters", 0) for event in found if event.key == key)
        if not counted == final.totals["characters"] == characters_of(int(key[3:])):
            return f"{key} counts {counted}"
    return ""


def main(folder: Path, rounds: int, seed: int) -> str:
    chance = random.Random(seed)
    counter = mmap.mmap(-1, 16)
    for kill in range(rounds):
        counter[0:16] = bytes(16)
        child = os.fork()
        if child == 0:
            offer_for_ever(folder, counter)
        while counter[0:8] == bytes(8):
            pass
        time.sleep(chance.random() * 0.003)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        admitted, settled = int.from_bytes(counter[0:8], "big"), int.from_bytes(counter[8:16], "big")
        spool = Spool.open(folder, _CAPACITY, "successor")
        waiting = [event for ring in spool.rings for event in ring.waiting() if event.kind == Kind.USAGE]
        wrong = difference([usage_event(event.encoded) for event in waiting], admitted, settled)
        if wrong:
            return f"kill {kill}: {wrong}"
        for ring in spool.rings:
            ring.published_to(ring.ring.head)
            ring.ring.close()  # the file stays: the next child goes on in it, wherever its head stands
    return f"{rounds} kills survived"


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    print(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))  # noqa: T201
