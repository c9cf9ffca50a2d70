"""What applying a large workspace file costs: 10,000 users, 1,000 teams, 1,000 accounts, 100,000 collaborators.

Run: python -m tests.bench.control_plane.apply [--share 1.0]. Prints seconds, and the process's peak of memory so far: to
read and check the file, to apply it, to apply it again unchanged, to apply it with one withdrawn grant, and to export it.
One process holds client and control plane, so the memory is that of both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sys
import time
from typing import Any

import httpx
import structlog
import yaml

from policy.workspace_file import parse, to_document
from tests.bench.control_plane.propagation import ACCOUNTS, GRANTS, TEAMS, USERS, installation


def text_of(share: float) -> str:
    """Return the file's text."""
    users, teams, accounts, grants = (max(1, int(count * share)) for count in (USERS, TEAMS, ACCOUNTS, GRANTS))
    each = max(1, grants // accounts)
    document = {
        "version": 1,
        "workspace": {"id": "acme", "name": "Acme"},
        "teams": [{"name": f"team-{n}"} for n in range(teams)],
        "users": [{"name": f"user-{n}", "teams": [f"team-{n % teams}"]} for n in range(users)],
        "accounts": [
            {
                "name": f"account-{n}",
                "provider": "cartesia",
                "origin": "https://api.cartesia.ai",
                "models": [{"name": "sonic-3", "type": "text-to-speech"}],
                "collaborators": [{"subject": f"user:user-{(n * each + k) % users}"} for k in range(min(each, users))],
            }
            for n in range(accounts)
        ],
    }
    return yaml.dump(document, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), sort_keys=False)


def peak_mb() -> int:
    """Return the most memory that this process has held so far."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


async def main(share: float) -> dict[str, Any]:
    """Return every figure."""
    text = text_of(share)
    started = time.perf_counter()
    document = json.loads(json.dumps(to_document(parse(text, None))))
    figures: dict[str, Any] = {
        "file_mb": round(len(text) / 1e6, 1),
        "read_and_check": {"s": round(time.perf_counter() - started, 1), "peak_mb": peak_mb()},
    }
    async with installation() as running, running.client() as client:
        client.timeout = httpx.Timeout(600)

        async def apply(name: str) -> None:
            started = time.perf_counter()
            answer = await client.post("/apply", json={"document": document})
            assert answer.status_code == 200, answer.text[:2000]
            seconds = round(time.perf_counter() - started, 1)
            figures[name] = {"s": seconds, "changes": len(answer.json()["changes"]), "peak_mb": peak_mb()}

        await apply("first")
        await apply("unchanged")
        document["accounts"][0]["collaborators"].pop()
        await apply("one_withdrawn")
        started = time.perf_counter()
        assert (await client.get("/export")).status_code == 200
        figures["export"] = {"s": round(time.perf_counter() - started, 1), "peak_mb": peak_mb()}
    return figures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=1.0)
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    json.dump(asyncio.run(main(parser.parse_args().share)), sys.stdout, indent=2)
    sys.stdout.write("\n")
