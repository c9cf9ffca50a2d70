"""The loop of every fuzzer: mutate seeds of the right shape, call the target, keep what fails.

A target takes any bytes and fails by raising. An input that fails is written to the corpus, once for each exception; the
test suite replays the corpus for ever after. The seed is printed: the same seed repeats a run.
"""

import argparse
import hashlib
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

Targets = dict[str, Callable[[bytes], None]]

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


def run(targets: Targets, seeds_of: Callable[[str], list[bytes]], corpus: Path, target: str, seconds: float, seed: int) -> int:
    """Fuzz one target for so long; return how many inputs failed. Each failure is kept once, by its exception."""
    rng = random.Random(f"{seed}{target}")
    pool = seeds_of(target)
    until = time.monotonic() + seconds
    tried = 0
    failures: set[str] = set()
    while time.monotonic() < until:
        data = mutated(rng.choice(pool), pool, rng)
        tried += 1
        try:
            targets[target](data)
        except Exception as error:  # any exception is the finding
            kind = f"{type(error).__name__} {error}"
            if kind not in failures:
                failures.add(kind)
                folder = corpus / target
                folder.mkdir(parents=True, exist_ok=True)
                (folder / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
                sys.stdout.write(f"{target}: {kind[:200]}\n")
        else:
            if len(data) < 4096 and rng.random() < 0.01 and len(pool) < 5000:
                pool.append(data)
    sys.stdout.write(f"{target}: {tried} inputs, {len(failures)} failures, seed {seed}\n")
    return len(failures)


def main(targets: Targets, seeds_of: Callable[[str], list[bytes]], corpus: Path, what: str) -> int:
    """Run the targets that the command line names, or all of them; return the exit status."""
    parser = argparse.ArgumentParser(description=f"Fuzz {what}.")
    parser.add_argument("targets", nargs="*", default=list(targets), help=f"of {', '.join(targets)}")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    asked = parser.parse_args()
    return 1 if sum(run(targets, seeds_of, corpus, target, asked.seconds, asked.seed) for target in asked.targets) else 0
