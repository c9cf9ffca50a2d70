"""What it costs to open and end a WebSocket session, beside Envoy and nginx: CPU a handshake, one core, one run.

`python -m tests.bench.gateway.handshakes`: sixteen clients at a time connect, shake hands on the text-to-speech socket, read
the 101, close and begin again, in turn through nginx, Envoy and the gateway (everything on), several rounds. Each session
is dialled through to the upstream, and settled. Conditions as in `tests.bench.gateway.side_by_side`.
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from policy.frames import close_frame
from tests.bench.gateway.peers import peers
from tests.bench.gateway.side_by_side import KIT, OTHER_CORE, PORT, candidate, uses_native

CLIENTS = 16
CLOSE = close_frame(1000, "", b"\x12\x34\x56\x78")


class Client(asyncio.Protocol):
    """Opens one session, notes how long its 101 took, and closes it; `ended` is then set."""

    def __init__(self, asked: bytes, took: list[float], ended: "asyncio.Future[None]") -> None:
        self._asked = asked
        self._took = took
        self._ended = ended
        self._got = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._began = time.perf_counter()
        self._transport.write(self._asked)  # type: ignore[attr-defined]  # uvloop's own class

    def data_received(self, data: bytes) -> None:
        self._got += data
        if self._got.endswith(b"\r\n\r\n"):
            if not self._got.startswith(b"HTTP/1.1 101"):
                sys.exit(self._got.decode())
            self._took.append((time.perf_counter() - self._began) * 1e3)
            self._transport.write(CLOSE)  # type: ignore[attr-defined]  # as above
            self._transport.close()  # not waiting for the other side: Envoy would take a second

    def connection_lost(self, _: Exception | None) -> None:
        self._ended.set_result(None)


async def opened(port: int, token: str, seconds: float) -> list[float]:
    """Open sessions one after the other, several at a time; return the milliseconds that each 101 took."""
    asked = (
        "GET /cartesia/tts/websocket HTTP/1.1\r\nHost: bench\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
        f"Cartesia-Version: 2026-08-14\r\nAuthorization: Bearer {token}\r\n\r\n"
    ).encode()
    took: list[float] = []
    loop = asyncio.get_running_loop()
    until = time.perf_counter() + seconds

    async def client() -> None:
        while time.perf_counter() < until:
            ended = loop.create_future()
            await loop.create_connection(lambda ended=ended: Client(asked, took, ended), "127.0.0.1", port)
            await ended

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return took


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What it costs to open and end a session, beside Envoy and nginx.")
    parser.add_argument("--secs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pure", action="store_true", help="the sources as they are, though compiled modules are there")
    options = parser.parse_args()
    if not (KIT / "side_by_side.py").exists():
        sys.exit(f"There is no benchmark kit at {KIT}: set BENCH_KIT to the folder that holds side_by_side.py.")
    sys.path.insert(0, str(KIT))
    import side_by_side as kit  # the kit is not a part of this project

    rows: dict[str, list[tuple[float, float, float, float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with candidate(folder, is_native=uses_native(is_pure=options.pure)) as keys, peers(folder, keys) as ports:
            token = (keys / "token").read_text()
            os.sched_setaffinity(0, {OTHER_CORE})

            def run(port: int) -> tuple[float, float, float]:
                took = uvloop.run(opened(port, token, options.secs))
                return len(took) / options.secs, statistics.median(took), statistics.quantiles(took, n=100)[98]

            for _ in range(options.rounds):
                for target, port in (ports | {"Glottis": PORT}).items():
                    found = kit.measured(lambda port=port: run(port), port, options.secs, [])
                    rows.setdefault(target, []).append(found)
    sys.stdout.write("| target | handshakes/s | p50 ms | p99 ms | CPU µs | rate ÷ Envoy | Envoy's CPU ÷ its own |\n")
    sys.stdout.write("|---|--:|--:|--:|--:|--:|--:|\n")
    for target, found in rows.items():
        rate, p50, p99, cpu = (statistics.median(column) for column in zip(*found, strict=True))
        ratios = " | "
        if "envoy" in rows:
            pairs = list(zip(found, rows["envoy"], strict=True))
            ratios = f"{statistics.median(mine[0] / envoy[0] for mine, envoy in pairs):.2f} | "
            ratios += f"{statistics.median(envoy[3] / mine[3] for mine, envoy in pairs):.2f}"
        sys.stdout.write(f"| {target} | {rate:.0f} | {p50:.2f} | {p99:.2f} | {cpu:.0f} | {ratios} |\n")


if __name__ == "__main__":
    main()
