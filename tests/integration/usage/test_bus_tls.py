"""The workers' bus over TLS with an authority of one's own, as a cluster's NATS has it."""

from __future__ import annotations

import asyncio
import ssl

import pytest
from structlog.testing import capture_logs

from contracts.subjects import AGGREGATOR_INBOX, EXPORTER_INBOX, SPANS_EXPORT_CONSUMER, SPANS_STREAM, USAGE_CONSUMER, USAGE_STREAM
from control_plane import publish
from control_plane.worker.bus import Bus, BusSettings
from control_plane.worker.environment import nats_tls
from tests.kit.services import TlsNats
from tests.kit.waiting import until

WORKERS = [
    ("aggregator", AGGREGATOR_INBOX, USAGE_STREAM, USAGE_CONSUMER),
    ("exporter", EXPORTER_INBOX, SPANS_STREAM, SPANS_EXPORT_CONSUMER),
]


async def nothing() -> None: ...


@pytest.mark.parametrize(("role", "inbox", "stream", "consumer"), WORKERS, ids=["aggregator", "exporter"])
async def test_a_worker_consumes_over_tls(tls_nats: TlsNats, role: str, inbox: str, stream: str, consumer: str) -> None:
    tls = nats_tls({"GLOTTIS_NATS_CA_FILE": str(tls_nats.authority)})
    assert isinstance(tls, ssl.SSLContext)
    streams = await publish.Bus.connected(publish.BusSettings(tls_nats.url, tls_nats.seeds["control-plane"], tls=tls), nothing)
    bus = Bus(BusSettings(tls_nats.url, tls_nats.seeds[role], inbox, tls), role)

    await asyncio.wait_for(bus.connect(), 20)
    subscription = await asyncio.wait_for(bus.consume(stream, consumer, ack_wait_seconds=30, max_ack_pending=10), 20)

    assert (await subscription.consumer_info()).num_pending == 0
    await bus.close()
    await streams.close()


async def test_a_server_of_an_unknown_authority_is_not_talked_to(tls_nats: TlsNats) -> None:
    bus = Bus(BusSettings(tls_nats.url, tls_nats.seeds["aggregator"], AGGREGATOR_INBOX), "aggregator")
    with capture_logs() as lines:
        connecting = asyncio.ensure_future(bus.connect())
        await until(lambda: any("CERTIFICATE_VERIFY_FAILED" in line.get("error", "") for line in lines), 20)

    assert not connecting.done()
    connecting.cancel()
    await asyncio.gather(connecting, return_exceptions=True)
    await bus.close()
