"""The loop of every fuzzer: mutate seeds of the right shape, call the target, keep what fails.

A target takes any bytes and fails by raising. An input that fails is written to the corpus, once for each exception; the
test suite replays the corpus for ever after. The seed is printed: the same seed repeats a run. `tests.fuzz.guided` tries the
same targets guided by coverage; `tests.fuzz.__main__` runs both.
"""

import hashlib
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

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
        try:
            target(data)
        except Exception as error:  # any exception is the finding
            kind = f"{type(error).__name__} {error}"
            if kind not in failures:
                failures.add(kind)
                kept.mkdir(parents=True, exist_ok=True)
                (kept / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
                sys.stdout.write(f"{name}: {kind[:200]}\n")
        else:
            if len(data) < 4096 and rng.random() < 0.01 and len(pool) < 5000:
                pool.append(data)
    sys.stdout.write(f"{name}: {tried} inputs by mutation, {len(failures)} failures, seed {seed}\n")
    return len(failures)
