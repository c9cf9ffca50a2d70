"""What an exchange's bookkeeping costs, and a large snapshot: `python -m tests.bench.gateway_state.bookkeeping`.

Processor time of the loop's thread, because the machine may have other users; a real spool, a real NATS, the real feed.
The first figures are what a gateway's core pays for each exchange: admitting, settling, publishing. Prints a table, or
with `--json` one object.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import logging
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from contracts.events import Attribution
from contracts.secret import Secret
from contracts.snapshot import Account, Grant, Issuer, Model, Principal, Snapshot, Team
from gateway.bus import Bus, stream_of
from gateway.state.feed import Feed, Observer
from gateway.state.last_known_good import LastKnownGood
from gateway.state.snapshot import SnapshotStore
from gateway.tasks import Tasks
from gateway.telemetry import logs
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.publisher import Publisher
from gateway.telemetry.recorder import Recorder
from gateway.telemetry.spool import Spool
from policy.providers.registry import PROFILES
from policy.route import Caller, Route
from policy.usage import Settled, Tally
from tests.kit.configuration import ControlPlane, at_revision
from tests.kit.identities import voice_workspace
from tests.kit.services import NatsAccount, nats_seeds, nats_server, service_folder
from tests.kit.waiting import until

EXCHANGES = 20_000
BATCH = 500
"""exchanges between two looks at the clock: their records are warm, as on a pod"""
SPEECH = next(endpoint for endpoint in PROFILES["cartesia"].endpoints if endpoint.id == "tts.bytes")
CALLER = Caller(
    workspace="w1",
    principal="u-alice",
    kind="user",
    name="Alice",
    teams=("voice",),
    issuer=Issuer(id="i", workspace="w1", issuer="https://idp.test", audiences=("glottis",)),
    token_id="t1",
    parent_token_id=None,
    issued_at=0.0,
    expires_at=0.0,
)
TO = Attribution(
    workspace="w1",
    principal="u-alice",
    principal_kind="user",
    principal_name="Alice",
    team="voice",
    account="a-eu",
    account_name="cartesia-eu",
    provider="cartesia",
    model="sonic-3",
    operation="tts",
    endpoint="tts.bytes",
)
ACCOUNT = Account(id="a-eu", workspace="w1", name="cartesia-eu", provider="cartesia", origin="https://api.cartesia.test")
ROUTE = Route(CALLER, SPEECH, ACCOUNT, "sonic-3", TO, b"/tts/bytes", b"")
SPOKEN: dict[str, Any] = dict(
    started_at=100.0,
    method="POST",
    caller=CALLER,
    endpoint=SPEECH,
    route=ROUTE,
    status=200,
    upstream_status=200,
    credential_asked_at=100.001,
    credential_opened_at=100.001,
    sent_at=100.001,
    request_ended_at=100.001,
    first_byte_at=100.1,
    first_audio_at=100.1,
    ended_at=100.5,
    bytes_from_client=140,
    bytes_to_client=96_000,
    characters=42,
    transcript="The quick brown fox jumps over a lazy dog.",
    peer="192.0.2.7",
)


KEY = Secret(b"k" * 32)


def exchanges_cost(spool: Spool) -> dict[str, float]:
    """Return the microseconds of admitting and of settling one exchange: median, and best where others use the machine."""
    writer = logs.LineWriter(io.BytesIO())
    recorder = Recorder(
        spool,
        "pod-1",
        Metrics(),
        lambda _: KEY,
        lambda _: 1.0,
        logs.line_logger(writer, "json", logging.INFO),
    )
    admitting, settling = [], []
    for begin in range(0, EXCHANGES, BATCH):
        batch = []
        for number in range(begin, begin + BATCH):
            settled = Settled(f"0192f3a0-1234-7abc-8def-{number:012x}", **SPOKEN)
            settled.tally = Tally(settled.request_id, TO, "pod-1")
            settled.tally.add("characters", 42)
            batch.append((settled, settled.tally))
        began = time.thread_time()
        for _, tally in batch:
            recorder.admit(tally, 100_000)
        admitted = time.thread_time()
        for settled, _ in batch:
            recorder.settle(settled)
        settling.append(time.thread_time() - admitted)
        admitting.append(admitted - began)
    writer.close()
    return {
        "admit_us": statistics.median(admitting) / BATCH * 1e6,
        "settle_us": statistics.median(settling) / BATCH * 1e6,
        "admit_best_us": min(admitting) / BATCH * 1e6,
        "settle_best_us": min(settling) / BATCH * 1e6,
    }


async def publishing_cost(spool: Spool, account: NatsAccount) -> dict[str, float]:
    """Return what publishing the spool costs for each exchange in it, and the events a second."""
    tasks = Tasks()
    bus = Bus(account.url, account.seeds["gateway"], "bench")
    bus.start(tasks)
    await bus.up()
    publisher = Publisher(spool, stream_of(bus))
    began, began_work = time.perf_counter(), time.thread_time()
    tasks.keep("publisher", publisher.run)
    is_done = await publisher.flush(120)
    work, wall = time.thread_time() - began_work, time.perf_counter() - began
    await tasks.stop()
    await bus.close()
    assert is_done, "not everything was published in two minutes"
    return {"publish_us": work / EXCHANGES * 1e6, "events_a_second": 3 * EXCHANGES / wall}


def large_snapshot() -> Snapshot:
    """Return 10,000 users, 1,000 teams, 1,000 accounts and 100,000 grants."""
    return at_revision(
        voice_workspace(),
        1,
        principals=tuple(
            Principal(id=f"u{number}", workspace="w1", kind="user", name=f"User {number}", teams=(f"t{number % 1000}",))
            for number in range(10_000)
        ),
        teams=tuple(Team(id=f"t{number}", workspace="w1", name=f"Team {number}") for number in range(1000)),
        accounts=tuple(
            Account(id=f"a{number}", workspace="w1", name=f"account-{number}", provider="cartesia", origin="https://a.test")
            for number in range(1000)
        ),
        models=tuple(
            Model(id=f"m{number}", workspace="w1", account=f"a{number}", name="sonic-3", type="text-to-speech")
            for number in range(1000)
        ),
        grants=tuple(
            Grant(id=f"g{number}", workspace="w1", account=f"a{number % 1000}", subject=f"user:u{number % 10_000}")
            for number in range(100_000)
        ),
    )


async def snapshot_cost(account: NatsAccount, folder: Path) -> dict[str, float]:
    """Return what a large snapshot and one change of it cost a pod: processor time, longest turn of the loop, memory."""
    tasks = Tasks()
    control_plane = ControlPlane(await account.connect())
    snapshot = large_snapshot()
    await control_plane.publish(snapshot)
    store = SnapshotStore(3600, time.time)
    bus = Bus(account.url, account.seeds["gateway"], "bench")
    feed = Feed(bus, store, LastKnownGood(folder), (control_plane.manifest_public_key,), time.time, Observer(), tasks)
    await feed.load()
    turns: list[float] = []

    async def watch_turns() -> None:
        while True:
            began = time.thread_time()
            await asyncio.sleep(0)
            turns.append(time.thread_time() - began)

    before = _resident_bytes()
    tasks.start("turns", watch_turns())
    results: dict[str, float] = {}
    bus.start(tasks)
    feed.start()
    await until(lambda: store.revision == 1, 120)
    results["snapshot_longest_turn_ms"] = max(turns) * 1e3
    results["snapshot_memory_mb"] = (_resident_bytes() - before) / 1e6
    changed = at_revision(snapshot, 2, grants=snapshot.grants[1:])
    await control_plane.publish_chunks(changed)
    turns.clear()
    began = time.perf_counter()
    await control_plane.publish_revisions(changed, [2])
    await until(lambda: store.revision == 2, 120)
    results["change_seen_ms"] = (time.perf_counter() - began) * 1e3
    results["change_longest_turn_ms"] = max(turns) * 1e3
    await tasks.stop()
    await bus.close()
    await control_plane.client.close()
    return results


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def measured(account: NatsAccount, folder: Path) -> dict[str, float]:
    """Return every figure."""
    client = await account.connect()
    await ControlPlane(client).prepare()
    spool = Spool.open(folder / "spool", 256 * 1024 * 1024, "bench")
    results = exchanges_cost(spool)
    results["spool_bytes_an_exchange"] = spool.used / EXCHANGES
    results |= await publishing_cost(spool, account)
    spool.close()
    results |= await snapshot_cost(account, folder / "state")
    await client.close()
    return results


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What an exchange's bookkeeping costs, and a large snapshot.")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    as_json = parser.parse_args().json
    logging.disable(logging.CRITICAL)
    seeds = nats_seeds()
    with (
        tempfile.TemporaryDirectory(prefix="glottis-bench-") as folder,
        service_folder("nats") as nats_folder,
        nats_server(nats_folder, {"GLOTTIS": seeds}) as (server, _),
    ):
        results = asyncio.run(measured(NatsAccount("GLOTTIS", server.url, seeds), Path(folder)))
    if as_json:
        print(json.dumps({name: round(value, 2) for name, value in results.items()}))  # noqa: T201
        return
    for name, value in results.items():
        print(f"{name:28} {value:12,.1f}")  # noqa: T201


if __name__ == "__main__":
    main()
