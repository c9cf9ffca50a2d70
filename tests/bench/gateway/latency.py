"""What a gateway adds to a request's time at a steady rate, beside what Envoy and nginx add: one core, one run.

`python -m tests.bench.gateway.latency --rate 250`: an open loop sends so many text-to-speech requests a second over sixteen
connections, in turn straight to the upstream, through nginx, Envoy and the gateway (everything on), several rounds. What is
added is a target's time less that of going straight in the same round. Conditions as in `tests.bench.gateway.side_by_side`.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from tests.bench.gateway.peers import UPSTREAM_PORT, peers
from tests.bench.gateway.side_by_side import KIT, OTHER_CORE, PORT, candidate, uses_native

CONNECTIONS = 16
BODY = json.dumps(
    {
        "model_id": "sonic-3",
        "transcript": "The road goes on and on, and nobody knows where it may lead; but we shall follow it all the same.",
        "voice": {"mode": "id", "id": "6ccbfb76-1fc6-48f7-b71d-91ac6298247b"},
        "output_format": {"container": "wav", "encoding": "pcm_f32le", "sample_rate": 44100},
    }
).encode()


class Sender(asyncio.Protocol):
    """One kept connection: sends a request, notes how long its whole answer took."""

    def __init__(self, request: bytes, took: list[float]) -> None:
        self._request = request
        self._took = took
        self._got = b""
        self.is_free = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def send(self) -> None:
        """Send one request."""
        self.is_free = False
        self._began = time.perf_counter()
        self._transport.write(self._request)  # type: ignore[attr-defined]  # uvloop's own class

    def data_received(self, data: bytes) -> None:
        self._got += data
        head, end, body = self._got.partition(b"\r\n\r\n")
        if not end:
            return
        if not head.startswith(b"HTTP/1.1 200"):
            sys.exit(head.decode())
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        is_whole = len(body) >= int(length) if length else body.endswith(b"0\r\n\r\n")
        if is_whole:
            self._took.append((time.perf_counter() - self._began) * 1e3)
            self._got, self.is_free = b"", True


async def paced(port: int, path: str, token: str, rate: int, seconds: int) -> list[float]:
    """Return the milliseconds of every request of an open loop."""
    request = (
        f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nCartesia-Version: 2026-08-14\r\n"
        f"Authorization: Bearer {token}\r\nContent-Length: {len(BODY)}\r\n\r\n"
    ).encode() + BODY
    took: list[float] = []
    loop = asyncio.get_running_loop()
    senders = [(await loop.create_connection(lambda: Sender(request, took), "127.0.0.1", port))[1] for _ in range(CONNECTIONS)]
    late, due = 0, time.perf_counter()
    for _ in range(rate * seconds):
        due += 1 / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        free = next((sender for sender in senders if sender.is_free), None)
        if free is None:
            late += 1
        else:
            free.send()
    async with asyncio.timeout(30):
        while not all(sender.is_free for sender in senders):
            await asyncio.sleep(0.01)
    if late:
        sys.stdout.write(f"port {port}: {late} requests were not sent, for no connection was free\n")
    return took[rate:]  # the first second opens connections and fills caches


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What a gateway adds to a request's time at a steady rate.")
    parser.add_argument("--rate", type=int, default=250)
    parser.add_argument("--secs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pure", action="store_true", help="the sources as they are, though compiled modules are there")
    options = parser.parse_args()
    if not (KIT / "side_by_side.py").exists():
        sys.exit(f"There is no benchmark kit at {KIT}: set BENCH_KIT to the folder that holds side_by_side.py.")
    is_native = uses_native(is_pure=options.pure)
    rows: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with candidate(folder, is_native=is_native) as keys, peers(folder, keys) as ports:
            token = (keys / "token").read_text()
            targets = {name: (port, "/cartesia/tts/bytes") for name, port in (ports | {"Glottis": PORT}).items()}
            targets = {"upstream": (UPSTREAM_PORT, "/tts/bytes")} | targets
            os.sched_setaffinity(0, {OTHER_CORE})
            for _ in range(options.rounds):
                for target, (port, path) in targets.items():
                    took = uvloop.run(paced(port, path, token, options.rate, options.secs))
                    rows.setdefault(target, []).append((statistics.median(took), statistics.quantiles(took, n=100)[98]))
    added = {
        target: [
            statistics.median(mine[at] - straight[at] for mine, straight in zip(found, rows["upstream"], strict=True))
            for at in (0, 1)
        ]
        for target, found in rows.items()
    }
    titles = "| p50 ms | p99 ms | added p50 | added p99 | added ÷ Envoy's |\n|---|--:|--:|--:|--:|--:|"
    sys.stdout.write(f"| at {options.rate} requests/s {titles}\n")
    for target, found in rows.items():
        p50, p99 = (statistics.median(column) for column in zip(*found, strict=True))
        ratio = f"{added[target][0] / added['envoy'][0]:.2f}" if "envoy" in added and target != "upstream" else ""
        sys.stdout.write(f"| {target} | {p50:.3f} | {p99:.3f} | {added[target][0]:.3f} | {added[target][1]:.3f} | {ratio} |\n")


if __name__ == "__main__":
    main()
