"""The loop of every fuzzer: mutate seeds of the right shape, call the target, keep what fails.

A target takes any bytes and fails by raising, or by not coming back. An input that fails is written to the corpus and
printed, once for each exception; the test suite replays the corpus for ever after. The seed is printed: the same seed repeats
a run. `tests.fuzz.guided` tries the same targets guided by coverage; `tests.fuzz.__main__` runs both.
"""

import base64
import hashlib
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

SECONDS_AN_INPUT = 10.0
"""of processor time"""

TOKENS = (
    b"\r\n",
    b"\n",
    b"\0",
    b":",
    b"%",
    b"%2e",
    b"..",
    b"//",
    b"@",
    b"=",
    b"&",
    b";",
    b'"',
    b"\\u0061",
    b"\xff",
    b"--b",
    b" ",
)


def mutated(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    """Return the input with a few small changes."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randint(0, len(changed))
        kind = rng.randrange(6)
        if kind == 0:
            changed[at:at] = rng.choice(TOKENS)
        elif kind == 1:
            del changed[at : at + rng.randint(1, 8)]
        elif kind == 2 and changed:
            changed[min(at, len(changed) - 1)] ^= 1 << rng.randrange(8)
        elif kind == 3:
            piece = changed[at : at + rng.randint(1, 60)]
            to = rng.randint(0, len(changed))
            changed[to:to] = piece
        elif kind == 4:
            other = rng.choice(others)
            cut = rng.randint(0, len(other))
            changed[at:] = other[cut:]
        else:
            changed[at : at + 1] = bytes([rng.randrange(256)])
    return bytes(changed)


class TookTooLong(Exception):
    """An input keeps its target busy for longer than anything should."""


def _took_too_long(*_: object) -> None:
    raise TookTooLong


def failure_of(target: Callable[[bytes], None], data: bytes, seconds: float = SECONDS_AN_INPUT) -> str:
    """Return what the target raises for an input; empty if it takes it. seconds: of processor time, over it is a failure."""
    before = signal.signal(signal.SIGVTALRM, _took_too_long)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        target(data)
    except Exception as error:  # any exception is the finding
        return f"{type(error).__name__} {error}"
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    return ""


def keep(data: bytes, kept: Path) -> None:
    """Write an input that failed to the corpus, and print it: where a build fails, its folder may be gone."""
    kept.mkdir(parents=True, exist_ok=True)
    file = kept / hashlib.sha256(data).hexdigest()[:16]
    file.write_bytes(data)
    sys.stdout.write(f"{file.parent.parent.name}/{kept.name}/{file.name}, base64: {base64.b64encode(data).decode()}\n")


def run(
    name: str, target: Callable[[bytes], None], seeds: list[bytes], kept: Path, *, seconds: float, runs: int | None, seed: int
) -> int:
    """Fuzz one target for so long, or with so many inputs; return how many failed.

    kept: the folder that takes each failure, once by its exception.
    """
    rng = random.Random(f"{seed}{name}")
    pool = list(seeds)
    until = time.monotonic() + seconds
    tried = 0
    failures: set[str] = set()
    while time.monotonic() < until and (runs is None or tried < runs):
        data = mutated(rng.choice(pool), pool, rng)
        tried += 1
        kind = failure_of(target, data)
        if kind:
            if kind not in failures:
                failures.add(kind)
                sys.stdout.write(f"{name}: {kind[:200]}\n")
                keep(data, kept)
        elif len(data) < 4096 and rng.random() < 0.01 and len(pool) < 5000:
            pool.append(data)
    sys.stdout.write(f"{name}: {tried} inputs by mutation, {len(failures)} failures, seed {seed}\n")
    return len(failures)
