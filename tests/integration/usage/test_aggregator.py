"""The aggregator against a real bus and a real engine: what goes in as events comes out as rollups, once."""

import asyncio
import json
from collections.abc import Callable
from decimal import Decimal
from urllib.error import HTTPError
from urllib.request import urlopen

import msgspec

from contracts import codec
from contracts.subjects import USAGE_STREAM, usage_subject
from gateway.telemetry.usage import UsageRecords
from tests.integration.usage.conftest import Tables
from tests.kit.usage import NOW_MS, TestBus, Worker, all_usage_acknowledged, attribution, price, running, until, usage_event

MakeAggregator = Callable[[], Worker]


async def test_events_become_priced_rollups(bus: TestBus, tables: Tables, aggregator: MakeAggregator) -> None:
    await bus.publish_prices(7, price("characters", "0.00002"), price("audio_out_ms", "0.001"))
    await bus.publish_usage(
        usage_event("r1", 0, is_final=False, outcome=None, units={"characters": 12}),
        usage_event("r1", 1, units={"characters": 30, "audio_out_ms": 2500}),
    )
    async with running(aggregator()):
        await all_usage_acknowledged(bus)
    rows = tables.rows(
        "SELECT unit, currency, quantity, cost, events, exchanges, principal_name, team_name, account_name"
        " FROM usage_rollups FINAL WHERE principal = 'ann' ORDER BY unit"
    )
    assert rows == [
        ("", "", 0, Decimal("0"), 2, 1, "Ann", "Voice", "Kokoro here"),
        ("audio_out_ms", "USD", 2500, Decimal("0.0025"), 0, 0, "Ann", "Voice", "Kokoro here"),
        ("characters", "USD", 42, Decimal("0.00084"), 0, 0, "Ann", "Voice", "Kokoro here"),
    ]
    assert tables.rows("SELECT DISTINCT price_revision FROM usage_events") == [(7,)]


async def test_usage_without_a_price_is_kept_as_unpriced(bus: TestBus, tables: Tables, aggregator: MakeAggregator) -> None:
    await bus.publish_prices(1, price("characters", "0.00002"))
    speech_to_text = attribution(operation="stt", endpoint="stt.websocket", model="ink-2")
    await bus.publish_usage(
        usage_event("r1", units={"characters": 5, "audio_out_ms": 900}),
        usage_event("r2", units={"audio_in_ms": 800}, to=speech_to_text),
    )
    async with running(aggregator()):
        await all_usage_acknowledged(bus)
    rows = tables.rows("SELECT unit, currency, quantity, cost FROM usage_rollups FINAL WHERE unit != '' ORDER BY unit")
    assert rows == [
        ("audio_in_ms", "", 800, Decimal(0)),
        ("audio_out_ms", "USD", 900, Decimal(0)),
        ("characters", "USD", 5, Decimal("0.0001")),
    ]


async def test_an_event_that_comes_many_times_counts_once(bus: TestBus, tables: Tables, aggregator: MakeAggregator) -> None:
    await bus.publish_prices(1, price("characters", "1"))
    async with running(aggregator()):
        for _ in range(3):
            await bus.publish_usage(usage_event("r1"), usage_event("r2"))
            await all_usage_acknowledged(bus)
        await bus.publish_usage_batch([usage_event("r1"), usage_event("r2"), usage_event("r3")])
        await all_usage_acknowledged(bus)
    assert tables.quantity() == 30


async def test_two_aggregators_on_one_stream_count_once(bus: TestBus, tables: Tables, aggregator: MakeAggregator) -> None:
    await bus.publish_prices(1, price("characters", "1"))
    async with running(aggregator()), running(aggregator()):
        for number in range(60):
            events = [usage_event(f"r{number}-{part}") for part in range(20)]
            await bus.publish_usage_batch(events)
            if number % 3 == 0:
                await bus.publish_usage_batch(events)
        await all_usage_acknowledged(bus)
    assert tables.quantity() == 60 * 20 * 10


async def test_a_late_event_adds_to_its_own_slot(bus: TestBus, tables: Tables, aggregator: MakeAggregator) -> None:
    hour_ago = NOW_MS - 3_600_000
    await bus.publish_prices(1, price("characters", "1"))
    async with running(aggregator()):
        await bus.publish_usage(usage_event("r1", at_ms=hour_ago), usage_event("r2"))
        await all_usage_acknowledged(bus)
        await bus.publish_usage(usage_event("r3", at_ms=hour_ago))
        await all_usage_acknowledged(bus)
    rows = tables.rows(
        f"SELECT quantity FROM usage_rollups FINAL WHERE unit = 'characters' AND slot <= toDateTime({hour_ago // 1000}, 'UTC')"
    )
    assert rows == [(20,)]


async def test_the_price_of_an_event_is_that_of_its_time(bus: TestBus, tables: Tables, aggregator: MakeAggregator) -> None:
    change = NOW_MS - 60_000
    await bus.publish_prices(3, price("characters", "1"), price("characters", "2", effective_ms=change))
    await bus.publish_usage(usage_event("before", at_ms=change - 1), usage_event("after", at_ms=change))
    async with running(aggregator()):
        await all_usage_acknowledged(bus)
    rows = tables.rows("SELECT key, costs['characters'] FROM usage_events FINAL ORDER BY key")
    assert rows == [("after", Decimal(20)), ("before", Decimal(10))]


async def test_a_new_price_book_is_used_at_once(bus: TestBus, tables: Tables, aggregator: MakeAggregator) -> None:
    await bus.publish_prices(1, price("characters", "1"))
    async with running(aggregator()) as worker:
        await bus.publish_usage(usage_event("r1"))
        await all_usage_acknowledged(bus)
        await bus.publish_prices(2, price("characters", "3"))

        async def is_taken() -> bool:
            return '"revision": 2' in worker.output or "revision=2" in worker.output

        await until(is_taken, "the second price book")
        await bus.publish_usage(usage_event("r2"))
        await all_usage_acknowledged(bus)
    rows = tables.rows("SELECT key, costs['characters'], price_revision FROM usage_events FINAL ORDER BY key")
    assert rows == [("r1", Decimal(10), 1), ("r2", Decimal(30), 2)]


async def test_a_message_that_is_no_event_is_set_aside_and_blocks_nothing(
    bus: TestBus, tables: Tables, aggregator: MakeAggregator
) -> None:
    await bus.publish_prices(1)
    await bus.publish(usage_subject("acme"), b"\xc1 not MessagePack, secret-canary")
    await bus.publish_usage(usage_event("r1"))
    async with running(aggregator()) as worker:
        await all_usage_acknowledged(bus)
    assert tables.quantity() == 10
    assert tables.rows("SELECT sequence, reason FROM set_aside") == [(1, "undecodable")]
    assert "secret-canary" not in worker.output


async def test_a_bad_event_costs_the_others_of_its_message_nothing(
    bus: TestBus, tables: Tables, aggregator: MakeAggregator
) -> None:
    await bus.publish_prices(1)
    events = [usage_event("r1"), usage_event("far", at_ms=NOW_MS * 1000), usage_event("huge", units={"characters": 2**62})]
    await bus.publish_usage_batch([*events, usage_event("r2")])
    async with running(aggregator()):
        await all_usage_acknowledged(bus)
    assert tables.quantity() == 20
    assert tables.rows("SELECT part, reason FROM set_aside ORDER BY part") == [(1, "out_of_range"), (2, "out_of_range")]


async def test_an_event_of_a_newer_release_is_counted_once_it_is_known(
    bus: TestBus, tables: Tables, aggregator: MakeAggregator
) -> None:
    await bus.publish_prices(1)
    newer = msgspec.msgpack.decode(codec.encode(usage_event("r1"))) | {"schema": 99}
    await bus.publish(usage_subject("acme"), msgspec.msgpack.encode(newer))
    async with running(aggregator()):
        await all_usage_acknowledged(bus)
    assert tables.rows("SELECT reason FROM set_aside") == [("unsupported_schema",)]

    # The release that knows the schema: to it, the same bytes are an event of schema 1, or one without names.
    known, flat = codec.encode(usage_event("r1")), UsageRecords().of_event(usage_event("r2"))
    client = tables.address.open()
    client.command("TRUNCATE TABLE set_aside")
    client.insert(
        "set_aside",
        [
            [USAGE_STREAM, 1, 0, usage_subject("acme"), "unsupported_schema", NOW_MS // 1000, known],
            [USAGE_STREAM, 2, 0, usage_subject("acme"), "undecodable", NOW_MS // 1000, flat],
            [USAGE_STREAM, 3, 0, usage_subject("acme"), "undecodable", NOW_MS // 1000, b"\xc1"],
        ],
        column_names=["stream", "sequence", "part", "subject", "reason", "at", "payload"],
    )
    client.close()
    async with running(aggregator()):

        async def is_counted() -> bool:
            return tables.quantity() == 20

        await until(is_counted, "the events that were set aside")
    assert tables.rows("SELECT sequence FROM set_aside") == [(3,)]


async def test_counts_stay_exact_when_the_aggregator_is_killed_again_and_again(
    bus: TestBus, tables: Tables, aggregator: MakeAggregator
) -> None:
    await bus.publish_prices(1, price("characters", "1"))
    for number in range(40):
        await bus.publish_usage_batch(usage_event(f"r{number}-{part}") for part in range(250))
    rows_seen = 0
    for _ in range(4):
        worker = aggregator()
        worker.child.start()

        async def has_inserted(rows_seen: int = rows_seen) -> bool:
            return tables.rows("SELECT count() FROM usage_events")[0][0] > rows_seen

        await until(has_inserted, "an insert, which no acknowledgement has followed yet or just did")
        worker.child.kill()
        rows_seen = tables.rows("SELECT count() FROM usage_events")[0][0]
        await bus.publish_usage_batch(usage_event(f"more{rows_seen}-{part}") for part in range(250))
    async with running(aggregator()):
        await all_usage_acknowledged(bus)
    assert rows_seen > 40 * 250, "no batch came twice: this test has shown nothing"
    assert tables.quantity() == 44 * 250 * 10


async def test_it_says_why_it_is_not_ready_and_that_it_lives(bus: TestBus, tables: Tables, aggregator: MakeAggregator) -> None:
    worker = aggregator()
    port = worker.environment["OPS_PORT"]

    def answer(path: str) -> tuple[int, str]:
        try:
            with urlopen(f"http://127.0.0.1:{port}{path}", timeout=2) as response:
                return response.status, response.read().decode()
        except HTTPError as error:
            return error.code, error.read().decode()

    async def is_ready() -> bool:
        try:
            return (await asyncio.to_thread(answer, "/readyz"))[0] == 200
        except OSError:
            return False

    async with running(worker):
        await until(is_ready, "readiness")
        assert (await asyncio.to_thread(answer, "/livez"))[0] == 200
        await bus.publish_usage(usage_event("r1", units={"characters": 4}))
        await all_usage_acknowledged(bus)
        metrics = (await asyncio.to_thread(answer, "/metrics"))[1]
        assert 'glottis_aggregator_unpriced_units_total{unit="characters"} 4.0' in metrics
        await bus.client.jetstream().delete_stream(USAGE_STREAM)

        async def is_not_ready() -> bool:
            return (await asyncio.to_thread(answer, "/readyz"))[0] == 503

        await until(is_not_ready, "the aggregator to notice that its stream is gone")
        reasons = json.loads((await asyncio.to_thread(answer, "/readyz"))[1])["reasons"]
        assert reasons == ["the event streams are not there yet"]


async def test_a_termination_signal_drains_and_exits_zero(bus: TestBus, tables: Tables, aggregator: MakeAggregator) -> None:
    await bus.publish_prices(1)
    worker = aggregator()
    worker.child.start()
    await bus.publish_usage(usage_event("r1", to=attribution(model="")))
    await all_usage_acknowledged(bus)
    assert await asyncio.to_thread(worker.child.stop) == 0
    assert tables.quantity() == 10
