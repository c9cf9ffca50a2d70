"""The pod's connection to a NATS that speaks TLS, with an authority of one's own."""

from __future__ import annotations

import ssl

from structlog.testing import capture_logs

from gateway.bus import Bus
from gateway.tasks import Tasks
from tests.kit.services import TlsNats
from tests.kit.waiting import until


async def test_a_pod_connects_over_tls(tls_nats: TlsNats) -> None:
    tasks = Tasks()
    bus = Bus(tls_nats.url, tls_nats.seeds["gateway"], "pod-1", ssl.create_default_context(cafile=tls_nats.authority))
    bus.start(tasks)

    await until(lambda: bus.is_up, 10)

    await tasks.stop()
    await bus.close()


async def test_a_server_of_an_unknown_authority_is_not_talked_to(tls_nats: TlsNats) -> None:
    tasks = Tasks()
    bus = Bus(tls_nats.url, tls_nats.seeds["gateway"], "pod-1")
    with capture_logs() as lines:
        bus.start(tasks)
        await until(lambda: any("CERTIFICATE_VERIFY_FAILED" in str(line.get("why")) for line in lines), 10)

    assert not bus.is_up
    await tasks.stop()
    await bus.close()
