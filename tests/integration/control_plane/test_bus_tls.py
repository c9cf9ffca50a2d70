"""The bus over TLS with an authority of one's own, as a cluster's NATS has it."""

from __future__ import annotations

import asyncio
import ssl

from structlog.testing import capture_logs

from contracts.subjects import CONFIG_BUCKET
from control_plane.publish import Bus, BusSettings
from tests.kit.services import TlsNats
from tests.kit.waiting import until


async def nothing() -> None: ...


async def test_the_control_plane_publishes_over_tls(tls_nats: TlsNats) -> None:
    tls = ssl.create_default_context(cafile=tls_nats.authority)
    bus = await Bus.connected(BusSettings(tls_nats.url, tls_nats.seeds["control-plane"], tls=tls), nothing)
    await bus.put_all(CONFIG_BUCKET, [("chunk.x", b"over tls")])
    assert await bus.get(CONFIG_BUCKET, "chunk.x") == b"over tls"
    await bus.close()


async def test_a_server_of_an_unknown_authority_is_not_talked_to(tls_nats: TlsNats) -> None:
    with capture_logs() as lines:
        connecting = asyncio.ensure_future(Bus.connected(BusSettings(tls_nats.url, tls_nats.seeds["control-plane"]), nothing))
        await until(lambda: any("CERTIFICATE_VERIFY_FAILED" in line.get("error", "") for line in lines), 20)
        assert not connecting.done()
        connecting.cancel()
        await asyncio.gather(connecting, return_exceptions=True)
