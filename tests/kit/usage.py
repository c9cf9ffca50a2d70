"""Usage events in, rollups out: builders of events, the bus as the control plane makes it, an aggregator as a process.

The aggregator runs as a child process, so that a test can end it as `kill -9` does. Nothing here knows its inside.
"""

import asyncio
import hashlib
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.js.api import DiscardPolicy, KeyValueConfig, RetentionPolicy, StreamConfig

from contracts import codec
from contracts.events import Attribution, Span, SpanEvent, UsageEvent, batch_head
from contracts.prices import Price, PriceBook
from contracts.secret import Secret
from contracts.subjects import (
    CONFIG_BUCKET,
    PRICES_KEY,
    SPANS_STREAM,
    SPANS_SUBJECTS,
    USAGE_CONSUMER,
    USAGE_STREAM,
    USAGE_SUBJECTS,
    spans_subject,
    usage_subject,
)
from control_plane.clickhouse.connection import ClickHouse
from glottis.processes import Command
from tests.kit.processes import Child, free_port

NOW_MS = time.time_ns() // 1_000_000
"""when this run of the tests began: events much older than now are not counted"""
DAY_MS = 86_400_000


def attribution(**changes: Any) -> Attribution:
    """Ann of team Voice of workspace `acme`, on Kokoro; any field can be another. Any: fields of several types."""
    fields: dict[str, Any] = {
        "workspace": "acme",
        "principal": "ann",
        "principal_kind": "user",
        "principal_name": "Ann",
        "team": "voice",
        "team_name": "Voice",
        "account": "kokoro-local",
        "account_name": "Kokoro here",
        "provider": "kokoro",
        "model": "kokoro-82m",
        "operation": "tts",
        "endpoint": "tts.bytes",
    }
    return Attribution(**{**fields, **changes})


def usage_event(key: str, seq: int = 0, *, at_ms: int = NOW_MS, to: Attribution | None = None, **changes: Any) -> UsageEvent:
    """One delta of 10 characters; any field can be another."""
    fields: dict[str, Any] = {"units": {"characters": 10}, "is_final": True, "outcome": "completed"}
    return UsageEvent(
        id=f"{key}:{seq}", key=key, seq=seq, at_ms=at_ms, pod="pod-1", to=to or attribution(), **{**fields, **changes}
    )


def batch_of(encoded_events: Iterable[bytes]) -> bytes:
    """Return the message that carries these encoded events, as a gateway's spool fills it."""
    events = list(encoded_events)
    return b"".join((batch_head(len(events)), *events))


def price(unit: str, amount: str, **changes: Any) -> Price:
    """A price of Kokoro's in `acme`, in USD, from the beginning of time; any field can be another."""
    fields: dict[str, Any] = {"workspace": "acme", "provider": "kokoro"}
    return Price(unit=unit, price=amount, **{**fields, **changes})


@dataclass(frozen=True)
class TestBus:
    """A bus with the streams and the bucket that the control plane makes; `client` may do everything."""

    __test__ = False

    client: Client

    async def make(self) -> None:
        """Make the streams and the bucket."""
        streams = self.client.jetstream()
        # As the control plane makes them, but for the spans: they would be gone if they came before their first reader.
        for name, subjects, retention in (
            (USAGE_STREAM, USAGE_SUBJECTS, RetentionPolicy.WORK_QUEUE),
            (SPANS_STREAM, SPANS_SUBJECTS, RetentionPolicy.LIMITS),
        ):
            await streams.add_stream(StreamConfig(name=name, subjects=[subjects], retention=retention, discard=DiscardPolicy.NEW))
        await streams.create_key_value(KeyValueConfig(bucket=CONFIG_BUCKET, history=1))

    async def publish_prices(self, revision: int, *prices: Price) -> None:
        """Publish a price book."""
        bucket = await self.client.jetstream().key_value(CONFIG_BUCKET)
        await bucket.put(PRICES_KEY, codec.encode(PriceBook(revision=revision, prices=prices)))

    async def publish_usage(self, *events: UsageEvent) -> None:
        """Publish each event as a message of its own."""
        for event in events:
            await self.publish(usage_subject(event.to.workspace), codec.encode(event))

    async def publish_usage_batch(self, events: Iterable[UsageEvent]) -> None:
        """Publish the events, all of one workspace, as one message."""
        some = list(events)
        await self.publish(usage_subject(some[0].to.workspace), batch_of(codec.encode(event) for event in some))

    async def publish_spans(self, *events: SpanEvent) -> None:
        """Publish each event as a message of its own."""
        for event in events:
            await self.publish(spans_subject(event.workspace), codec.encode(event))

    async def publish(self, subject: str, message: bytes) -> None:
        """Publish any bytes and wait until they are in the stream."""
        await self.client.jetstream().publish(subject, message)


@dataclass
class Worker:
    """A worker process of the control plane's. `module`: the package with `main.run` and `settings.Settings`."""

    module: str
    environment: Mapping[str, str]
    folder: Path
    child: Child = field(init=False)

    def __post_init__(self) -> None:
        program = (
            "import os, sys\n"
            f"from {self.module}.main import run\n"
            f"from {self.module}.settings import Settings\n"
            "sys.exit(run(Settings.from_env(os.environ)))\n"
        )
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.environ.get("PYTHONPATH", str(Path(__file__).parents[2])),
            **self.environment,
        }
        command = Command((sys.executable, "-c", program), environment, self.folder)
        self.child = Child(command, self.folder / f"{self.module}-{id(self)}.log")

    @property
    def output(self) -> str:
        """What the process logged."""
        return self.child.output


def aggregator_worker(nats_url: str, seed: Secret, clickhouse: ClickHouse, password_file: Path, folder: Path) -> Worker:
    """An aggregator, not started. `environment["OPS_PORT"]` is where its ops listener will answer."""
    seed_file = folder / "aggregator.nk"
    seed_file.write_bytes(seed.reveal())
    port = free_port()
    environment = {
        "GLOTTIS_NATS_URL": nats_url,
        "GLOTTIS_NATS_SEED_FILE": str(seed_file),
        "GLOTTIS_CLICKHOUSE_URL": f"{clickhouse.url}/{clickhouse.database}",
        "GLOTTIS_CLICKHOUSE_USER": clickhouse.user,
        "GLOTTIS_CLICKHOUSE_PASSWORD_FILE": str(password_file),
        "GLOTTIS_AGGREGATOR_LISTEN": f"127.0.0.1:{port}",
        "GLOTTIS_AGGREGATOR_ACK_WAIT_SECONDS": "2",
        "OPS_PORT": str(port),
    }
    return Worker("control_plane.aggregator", environment, folder)


@asynccontextmanager
async def running(worker: Worker) -> AsyncIterator[Worker]:
    """Start a worker; end it at the end of the block, if the block has not."""
    worker.child.start()
    try:
        yield worker
    finally:
        await asyncio.to_thread(worker.child.stop)


async def until(is_so: Callable[[], Awaitable[bool]], what: str, deadline_seconds: float = 60.0) -> None:
    """Return once the fact holds; fail, saying what was waited for, at the deadline."""
    deadline = time.monotonic() + deadline_seconds
    while not await is_so():
        assert time.monotonic() < deadline, f"waited {deadline_seconds:g} s in vain for {what}"
        await asyncio.sleep(0.05)


async def all_usage_acknowledged(bus: TestBus, deadline_seconds: float = 60.0) -> None:
    """Wait until every message of the usage stream has been acknowledged."""

    async def is_so() -> bool:
        streams = bus.client.jetstream()
        try:
            info = await streams.consumer_info(USAGE_STREAM, USAGE_CONSUMER)
            stream = await streams.stream_info(USAGE_STREAM)
        except (nats.errors.Error, TimeoutError):  # the consumer is not there yet, or the server is away
            return False
        return info.ack_floor is not None and info.ack_floor.stream_seq == stream.state.last_seq

    await until(is_so, "all usage messages to be acknowledged", deadline_seconds)


def span_event(exchange: str, *, workspace: str = "acme", at_ms: int = NOW_MS, name: str = "", **attributes: Any) -> SpanEvent:
    """An exchange with its three spans, named `<name or exchange> inbound`, `… credential` and `… outbound`."""
    trace_id = hashlib.sha256(exchange.encode()).hexdigest()[:32]
    start = at_ms * 1_000_000
    names = [f"{name or exchange} {part}" for part in ("inbound", "credential", "outbound")]
    ids = [hashlib.sha256(part.encode()).hexdigest()[:16] for part in (f"{exchange}{number}" for number in range(3))]
    kinds: tuple[Any, ...] = ("server", "internal", "client")
    spans = tuple(
        Span(
            span_id=ids[number],
            parent_id=ids[0] if number else "",
            name=names[number],
            kind=kinds[number],
            start_ns=start + number,
            end_ns=start + 5_000_000 - number,
            attributes=attributes,
        )
        for number in range(3)
    )
    return SpanEvent(id=exchange, workspace=workspace, pod="pod-1", trace_id=trace_id, spans=spans)
