"""Writes records until it is killed, again and again, and checks each time what the ring holds: for test_spool_kills.

A process of its own, because it forks a thousand times. Prints how many kills it went through, or the first difference.
"""

from __future__ import annotations

import mmap
import os
import random
import signal
import sys
import time
from pathlib import Path

from gateway.telemetry.ring import SMALLEST_CAPACITY, Ring

_PAYLOAD = bytes(range(256)) * 3


def payload_of(number: int) -> bytes:
    """A record of a length and content that depend on its number."""
    return number.to_bytes(8, "big") + _PAYLOAD[: number * 37 % len(_PAYLOAD)]


def write_for_ever(path: Path, counter: mmap.mmap, first: int) -> None:
    ring = Ring.take_up(path)
    assert ring is not None
    number = first
    while True:
        if ring.append(1, payload_of(number)) is None:
            kept = (record.position for record in ring.records(ring.tail) if record.position > ring.head - ring.capacity // 2)
            ring.release(ring.head, next(kept))
            continue
        counter[0:8] = number.to_bytes(8, "big")
        number += 1


def main(folder: Path, rounds: int, seed: int) -> str:
    chance = random.Random(seed)
    path = folder / "victim.spool"
    Ring.create(path, SMALLEST_CAPACITY).close()
    counter = mmap.mmap(-1, 8)
    for kill in range(rounds):
        before = int.from_bytes(counter[0:8], "big")
        child = os.fork()
        if child == 0:
            write_for_ever(path, counter, before + 1)
        while int.from_bytes(counter[0:8], "big") == before:
            pass
        time.sleep(chance.random() * 0.002)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        counted = int.from_bytes(counter[0:8], "big")
        ring = Ring.take_up(path)
        assert ring is not None, "the dead writer's lock is still there"
        numbers = []
        for record in ring.records(ring.tail):
            number = int.from_bytes(record.payload[:8], "big")
            if record.payload != payload_of(number):
                return f"kill {kill}: record {number} is damaged"
            numbers.append(number)
        if numbers != list(range(numbers[0], numbers[-1] + 1)):
            return f"kill {kill}: not each once, in order: {numbers[:3]} … {numbers[-3:]}"
        if numbers[-1] not in (counted, counted + 1):
            return f"kill {kill}: {counted} were committed, the newest read back is {numbers[-1]}"
        counter[0:8] = numbers[-1].to_bytes(8, "big")
        ring.close()
    return f"{rounds} kills survived"


if __name__ == "__main__":
    print(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))  # noqa: T201
