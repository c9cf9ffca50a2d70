"""Who may do what on the bus: each role's own work goes through, each denial is the server's own.

The configuration of the embedded server is made from `contracts.subjects`; the control plane makes its buckets and streams
with its own rights here, so a right that it lacks fails this test.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import nats
import pytest
import pytest_asyncio
from nats.aio.client import Client
from nats.js.api import ConsumerConfig

from contracts.subjects import (
    CONFIG_BUCKET,
    LEASES_BUCKET,
    MANIFEST_KEY,
    REVOCATIONS_BUCKET,
    ROLES,
    SESSION_LEASE_SECONDS,
    SPANS_EXPORT_CONSUMER,
    SPANS_STORE_CONSUMER,
    SPANS_STREAM,
    USAGE_CONSUMER,
    USAGE_STREAM,
    chunk_key,
)
from control_plane.publish import Bus, BusSettings
from tests.kit.services import NatsAccount
from tests.kit.waiting import until

CONFIG, REVOCATIONS, SESSIONS = (f"$KV.{bucket}" for bucket in (CONFIG_BUCKET, REVOCATIONS_BUCKET, LEASES_BUCKET))

MAY_NOT_PUBLISH = {
    "gateway": (
        f"{CONFIG}.{MANIFEST_KEY}",
        f"{CONFIG}.prices",
        f"{REVOCATIONS}.acme.token.t",
        f"$JS.API.STREAM.CREATE.{USAGE_STREAM}",
        f"$JS.API.STREAM.UPDATE.{USAGE_STREAM}",
        f"$JS.API.STREAM.DELETE.{USAGE_STREAM}",
        f"$JS.API.STREAM.PURGE.{USAGE_STREAM}",
        f"$JS.API.STREAM.PURGE.KV_{CONFIG_BUCKET}",
        f"$JS.API.STREAM.PURGE.KV_{REVOCATIONS_BUCKET}",
        f"$JS.API.STREAM.PURGE.KV_{LEASES_BUCKET}",
        f"$JS.API.STREAM.UPDATE.KV_{LEASES_BUCKET}",
        f"$JS.API.STREAM.MSG.GET.KV_{LEASES_BUCKET}",
        f"$JS.API.CONSUMER.CREATE.KV_{LEASES_BUCKET}",
        f"$JS.API.STREAM.MSG.DELETE.{USAGE_STREAM}",
        f"$JS.API.STREAM.MSG.GET.{USAGE_STREAM}",
        f"$JS.API.DIRECT.GET.{USAGE_STREAM}",
        f"$JS.API.CONSUMER.CREATE.{USAGE_STREAM}",
        f"$JS.API.CONSUMER.CREATE.{USAGE_STREAM}.{USAGE_CONSUMER}",
        f"$JS.API.CONSUMER.DURABLE.CREATE.{SPANS_STREAM}.{SPANS_EXPORT_CONSUMER}",
        f"$JS.API.CONSUMER.MSG.NEXT.{USAGE_STREAM}.{USAGE_CONSUMER}",
        f"$JS.API.CONSUMER.DELETE.{USAGE_STREAM}.{USAGE_CONSUMER}",
        f"$JS.ACK.{USAGE_STREAM}.{USAGE_CONSUMER}.1.1.1.1.0",
        "_INBOX_control_plane.x",
        "_INBOX_aggregator.x",
        "anything",
    ),
    "control-plane": (
        "glottis.usage.acme",
        "glottis.spans.acme",
        "glottis.pods.pod",
        "glottis.sessions.pod",
        f"{SESSIONS}.acme.t",
        f"$JS.API.DIRECT.GET.KV_{LEASES_BUCKET}.{SESSIONS}.acme.t",
        f"$JS.API.STREAM.DELETE.{USAGE_STREAM}",
        f"$JS.API.STREAM.PURGE.{USAGE_STREAM}",
        f"$JS.API.STREAM.PURGE.{SPANS_STREAM}",
        f"$JS.API.STREAM.MSG.GET.{USAGE_STREAM}",
        f"$JS.API.CONSUMER.CREATE.{USAGE_STREAM}.{USAGE_CONSUMER}",
        f"$JS.API.CONSUMER.MSG.NEXT.{USAGE_STREAM}.{USAGE_CONSUMER}",
        f"$JS.ACK.{USAGE_STREAM}.{USAGE_CONSUMER}.1.1.1.1.0",
        "_INBOX_gateway.x",
    ),
    "aggregator": (
        "glottis.usage.acme",
        "glottis.spans.acme",
        "glottis.pods.pod",
        "glottis.sessions.pod",
        f"{CONFIG}.{MANIFEST_KEY}",
        f"{REVOCATIONS}.acme.token.t",
        f"{SESSIONS}.acme.t",
        f"$JS.API.STREAM.PURGE.{USAGE_STREAM}",
        f"$JS.API.STREAM.DELETE.{USAGE_STREAM}",
        f"$JS.API.CONSUMER.MSG.NEXT.{SPANS_STREAM}.{SPANS_EXPORT_CONSUMER}",
        f"$JS.ACK.{SPANS_STREAM}.{SPANS_EXPORT_CONSUMER}.1.1.1.1.0",
        f"$JS.API.CONSUMER.CREATE.KV_{REVOCATIONS_BUCKET}",
        "_INBOX_gateway.x",
    ),
    "exporter": (
        "glottis.usage.acme",
        "glottis.spans.acme",
        f"{CONFIG}.{MANIFEST_KEY}",
        f"{REVOCATIONS}.acme.token.t",
        f"{SESSIONS}.acme.t",
        f"$JS.API.STREAM.INFO.{USAGE_STREAM}",
        f"$JS.API.CONSUMER.CREATE.{USAGE_STREAM}.{USAGE_CONSUMER}",
        f"$JS.API.CONSUMER.MSG.NEXT.{USAGE_STREAM}.{USAGE_CONSUMER}",
        f"$JS.API.CONSUMER.MSG.NEXT.{SPANS_STREAM}.{SPANS_STORE_CONSUMER}",
        f"$JS.ACK.{SPANS_STREAM}.{SPANS_STORE_CONSUMER}.1.1.1.1.0",
        "_INBOX_aggregator.x",
    ),
}

MAY_NOT_HEAR = {
    "gateway": (
        "glottis.usage.>",
        "glottis.spans.>",
        "glottis.pods.>",
        "glottis.sessions.>",
        f"{CONFIG}.>",
        "_INBOX.>",
        "_INBOX_control_plane.>",
        ">",
    ),
    "control-plane": ("glottis.usage.>", "glottis.spans.>", "_INBOX.>", "_INBOX_gateway.>", ">"),
    "aggregator": ("glottis.usage.>", "glottis.pods.>", "glottis.sessions.>", "_INBOX_exporter.>", f"{CONFIG}.>", ">"),
    "exporter": ("glottis.spans.>", "_INBOX_aggregator.>", f"{CONFIG}.>", ">"),
}


class Role:
    """A connection as one role; `errors`: what the server said of it."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.client = Client()

    async def note(self, error: Exception) -> None:
        self.errors.append(str(error).lower())


@asynccontextmanager
async def acting_as(account: NatsAccount, name: str) -> AsyncIterator[Role]:
    """Connect as a role."""
    role = Role()
    await role.client.connect(
        account.url,
        nkeys_seed_str=account.seeds[name].reveal().decode(),
        inbox_prefix=ROLES[name].inbox.encode(),
        allow_reconnect=False,
        error_cb=role.note,
    )
    try:
        yield role
    finally:
        await role.client.close()


@pytest_asyncio.fixture
async def bus(nats_account: NatsAccount) -> AsyncIterator[NatsAccount]:
    """An account whose buckets and streams the control plane has made with its own rights."""

    async def nothing() -> None: ...

    bus = await Bus.connected(BusSettings(nats_account.url, nats_account.seeds["control-plane"]), nothing)
    await bus.put_all(CONFIG_BUCKET, [(chunk_key("a" * 64), b"chunk")])
    await bus.put_manifest(b"manifest", 0)
    await bus.put_all(REVOCATIONS_BUCKET, [("acme.token.t", b"revocation")])
    await bus.close()
    yield nats_account


@pytest.mark.parametrize("role", list(MAY_NOT_PUBLISH))
async def test_what_a_role_may_not_publish_is_refused_by_the_server(bus: NatsAccount, role: str) -> None:
    async with acting_as(bus, role) as acting:
        for subject in MAY_NOT_PUBLISH[role]:
            acting.errors.clear()
            await acting.client.publish(subject, b"{}")
            await acting.client.flush()
            expected = f'permissions violation for publish to "{subject}"'.lower()
            await until(lambda: any(expected in error for error in acting.errors))  # noqa: B023  (awaited at once)


@pytest.mark.parametrize("role", list(MAY_NOT_HEAR))
async def test_what_a_role_may_not_hear_is_refused_by_the_server(bus: NatsAccount, role: str) -> None:
    async with acting_as(bus, role) as acting:
        for subject in MAY_NOT_HEAR[role]:
            acting.errors.clear()
            await acting.client.subscribe(subject)
            await acting.client.flush()
            expected = f'permissions violation for subscription to "{subject}"'.lower()
            await until(lambda: any(expected in error for error in acting.errors))  # noqa: B023  (awaited at once)


async def test_a_gateway_reads_and_watches_configuration_and_publishes_events(bus: NatsAccount) -> None:
    async with acting_as(bus, "gateway") as acting:
        streams = acting.client.jetstream()
        config = await streams.key_value(CONFIG_BUCKET)
        assert (await config.get(MANIFEST_KEY)).value == b"manifest"
        assert (await config.get(chunk_key("a" * 64))).value == b"chunk"
        watcher = await (await streams.key_value(REVOCATIONS_BUCKET)).watch(">")
        assert (await watcher.updates()).value == b"revocation"
        assert (await streams.publish("glottis.usage.acme", b"event", headers={"Nats-Msg-Id": "1"})).stream == USAGE_STREAM
        assert acting.errors == []


async def test_a_gateway_holds_one_lease_of_a_single_use_token_and_gives_it_back(bus: NatsAccount) -> None:
    async with acting_as(bus, "gateway") as one, acting_as(bus, "gateway") as other:
        held, wanted = [await role.client.jetstream().key_value(LEASES_BUCKET) for role in (one, other)]
        revision = await held.create("acme.t", b"r1")
        with pytest.raises(nats.js.errors.KeyWrongLastSequenceError):
            await wanted.create("acme.t", b"r2")
        revision = await held.update("acme.t", b"r1", last=revision)
        await held.delete("acme.t", last=revision)
        assert await wanted.create("acme.t", b"r2") > revision
        status = await held.status()
        assert (status.ttl, status.history) == (SESSION_LEASE_SECONDS, 1)
        assert one.errors + other.errors == []


async def test_usage_goes_from_a_gateway_to_the_aggregator_and_is_gone_when_acknowledged(bus: NatsAccount) -> None:
    async with acting_as(bus, "gateway") as gateway, acting_as(bus, "aggregator") as aggregator:
        await gateway.client.jetstream().publish("glottis.usage.acme", b"event")
        streams = aggregator.client.jetstream()
        await streams.add_consumer(USAGE_STREAM, ConsumerConfig(durable_name=USAGE_CONSUMER, ack_policy="explicit"))
        reader = await streams.pull_subscribe_bind(USAGE_CONSUMER, USAGE_STREAM)
        (message,) = await reader.fetch(1, timeout=5)
        assert message.data == b"event"
        await message.ack_sync()
        assert (await streams.stream_info(USAGE_STREAM)).state.messages == 0
        assert aggregator.errors == []


async def test_a_full_event_stream_refuses_news_instead_of_forgetting(nats_account: NatsAccount) -> None:
    async def nothing() -> None: ...

    settings = BusSettings(nats_account.url, nats_account.seeds["control-plane"], max_event_bytes=20_000)
    await (await Bus.connected(settings, nothing)).close()
    async with acting_as(nats_account, "gateway") as gateway:
        streams = gateway.client.jetstream()
        await streams.publish("glottis.usage.acme", b"x" * 15_000)
        with pytest.raises(nats.js.errors.APIError, match="maximum bytes exceeded"):
            await streams.publish("glottis.usage.acme", b"x" * 15_000)


async def test_settings_of_streams_that_exist_are_brought_up_to_date(nats_account: NatsAccount) -> None:
    async def nothing() -> None: ...

    for size in (1_000_000, 2_000_000):
        settings = BusSettings(nats_account.url, nats_account.seeds["control-plane"], max_event_bytes=size)
        await (await Bus.connected(settings, nothing)).close()
    admin = await nats_account.connect()
    info = await admin.jetstream().stream_info(USAGE_STREAM)
    await admin.close()
    assert info.config.max_bytes == 2_000_000


async def test_a_stranger_is_not_let_in(nats_account: NatsAccount) -> None:
    with pytest.raises(nats.errors.Error):
        await nats.connect(nats_account.url, allow_reconnect=False, error_cb=Role().note)
