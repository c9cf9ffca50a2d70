"""How many usage events the aggregator takes in, how far behind it is, what memory it holds, what CPU an exchange costs.

Embedded parts, and more than a full slot of five minutes, because the rollup of a slot is computed anew with each batch.
`make bench-usage OPTIONS="--rate 2000 --seconds 330"`. An event is what an exchange publishes as a rule (ADR 0066). Prints
a line every ten seconds and a summary; exit status 1 if an event is missing, the lag ever passed `--most-lag` seconds, or
memory grew by more than `--most-growth` MiB in the second half. Figures of a busy machine are figures of a busy machine.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from urllib.request import urlopen

import nats

from contracts.secret import Secret
from control_plane.clickhouse.connection import ClickHouse
from control_plane.clickhouse.schema import migrate
from tests.kit.services import ADMIN, PASSWORD, clickhouse_server, nats_seeds, nats_server, service_folder
from tests.kit.usage import TestBus, Worker, aggregator_worker, all_usage_acknowledged, attribution, price, running, usage_event

EVENTS_A_MESSAGE = 100
REPORT_SECONDS = 10


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def figures(worker: Worker) -> tuple[float, float, float]:
    """Return events stored, lag in seconds, and resident memory in MiB, as the process tells them."""
    with urlopen(f"http://127.0.0.1:{worker.environment['OPS_PORT']}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    stream = '{stream="GLOTTIS_USAGE"}'
    memory = next(line for line in Path(f"/proc/{worker.child.pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return (
        float(values.get(f"glottis_aggregator_events_total{stream}", 0)),
        float(values.get(f"glottis_aggregator_lag_seconds{stream}", 0)),
        int(memory.split()[1]) / 1024,
    )


def cpu_seconds(pid: int) -> float:
    """Return the CPU that a process has used, all its threads together."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def publish(bus: TestBus, rate: int, seconds: float) -> int:
    """Publish events evenly, over 200 users and three models; return how many."""
    begun, sent = time.monotonic(), 0
    while (elapsed := time.monotonic() - begun) < seconds:
        while sent < elapsed * rate:
            at_ms = time.time_ns() // 1_000_000
            await bus.publish_usage_batch(
                usage_event(
                    f"r{sent + number}",
                    at_ms=at_ms,
                    to=attribution(principal=f"u{number % 200}", model=f"m{number % 3}"),
                    units={"characters": 40, "requests": 1, "audio_out_ms": 2500},
                )
                for number in range(EVENTS_A_MESSAGE)
            )
            sent += EVENTS_A_MESSAGE
        await asyncio.sleep(0.02)
    return sent


async def watch(worker: Worker, seen: list[tuple[float, float]]) -> None:
    """Print the figures every ten seconds, for ever; keep lag and memory."""
    while True:
        await asyncio.sleep(REPORT_SECONDS)
        stored, lag, memory = await asyncio.to_thread(figures, worker)
        seen.append((lag, memory))
        say(f"{stored:>9,.0f} events stored   lag {lag:5.2f} s   {memory:6.1f} MiB")


async def run(
    bus_url: str, seeds: dict[str, Secret], worker: Worker, address: ClickHouse, options: argparse.Namespace, pids: dict[str, int]
) -> int:
    """Run the load; return the exit status. pids: of the servers, by their names."""
    seed = seeds[ADMIN].reveal().decode()
    client = await nats.connect(bus_url, nkeys_seed_str=seed, inbox_prefix=b"_INBOX_admin")
    bus = TestBus(client)
    await bus.make()
    await bus.publish_prices(1, price("characters", "0.00001"))
    seen: list[tuple[float, float]] = []
    async with running(worker):
        pids = {"aggregator": worker.child.pid, **pids}
        used = {name: -cpu_seconds(pid) for name, pid in pids.items()}
        watching = asyncio.ensure_future(watch(worker, seen))
        sent = await publish(bus, options.rate, options.seconds)
        watching.cancel()
        begun = time.monotonic()
        await all_usage_acknowledged(bus, 300)
        drained = time.monotonic() - begun
        used = {name: used[name] + cpu_seconds(pid) for name, pid in pids.items()}
    await client.close()
    reader = address.open()
    (counted,) = reader.query(
        "SELECT sum(quantity) FROM usage_events FINAL ARRAY JOIN [units['requests']] AS quantity"
    ).result_rows[0]
    reader.close()
    worst = max((lag for lag, _ in seen), default=0.0)
    growth = seen[-1][1] - seen[len(seen) // 2][1] if seen else 0.0
    say(
        f"{sent:,} events at {options.rate:,}/s: {counted:,} counted, worst lag {worst:.2f} s, drained {drained:.2f} s"
        f" after the last, memory grew by {growth:.1f} MiB in the second half, load average {os.getloadavg()[0]:.1f}"
    )
    costs = ", ".join(f"{name} {seconds / sent * 1e6:.0f} µs" for name, seconds in used.items())
    say(f"CPU a published exchange: {costs}")
    return 0 if counted == sent and worst <= options.most_lag and growth <= options.most_growth else 1


def main() -> int:
    """Start servers and the aggregator, and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=2000, help="events a second")
    parser.add_argument("--seconds", type=float, default=330)
    parser.add_argument("--most-lag", type=float, default=5)
    parser.add_argument("--most-growth", type=float, default=25)
    options = parser.parse_args()
    seeds = nats_seeds()
    with service_folder("bench") as folder, tempfile.TemporaryDirectory() as scratch, ExitStack() as servers:
        bus, bus_child = servers.enter_context(nats_server(folder, {"BENCH": seeds}))
        clickhouse, clickhouse_child = servers.enter_context(clickhouse_server(folder))
        address = ClickHouse(clickhouse.url, "usage", "glottis", PASSWORD)
        migrate(address)
        worker = aggregator_worker(bus.url, seeds["aggregator"], address, clickhouse.password_file, Path(scratch))
        worker = Worker(worker.module, {**worker.environment, "GLOTTIS_AGGREGATOR_ACK_WAIT_SECONDS": "30"}, Path(scratch))
        pids = {"ClickHouse": clickhouse_child.pid, "NATS": bus_child.pid}
        return asyncio.run(run(bus.url, seeds, worker, address, options, pids))


if __name__ == "__main__":
    raise SystemExit(main())
