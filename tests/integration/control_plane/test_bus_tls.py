"""The bus over TLS with an authority of one's own, as a cluster's NATS has it."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from contracts.secret import Secret
from contracts.subjects import CONFIG_BUCKET, ROLES
from control_plane.publish import Bus, BusSettings
from glottis.certificates import Certificates, ensure_certificates
from glottis.keys import nats_public_key
from glottis.processes import Command
from tests.kit.processes import Child, free_port
from tests.kit.services import environment, nats_seeds
from tests.kit.waiting import until


@pytest.fixture
def tls_bus(tmp_path: Path) -> Iterator[tuple[str, Certificates, Secret]]:
    """A NATS server that speaks TLS only: its address, its certificates, the control plane's seed."""
    certificates = ensure_certificates(tmp_path, datetime.now(UTC))
    seed, port = nats_seeds()["control-plane"], free_port()
    rights = ROLES["control-plane"]
    permissions = {"publish": {"allow": rights.publish}, "subscribe": {"allow": rights.subscribe}}
    configuration = tmp_path / "nats.conf"
    configuration.write_text(
        json.dumps(
            {
                "listen": f"127.0.0.1:{port}",
                "jetstream": {"store_dir": str(tmp_path / "js")},
                "tls": {"cert_file": str(certificates.server), "key_file": str(certificates.server_key), "timeout": 5},
                "accounts": {
                    "A": {"jetstream": "enabled", "users": [{"nkey": nats_public_key(seed), "permissions": permissions}]}
                },
            }
        )
    )
    program = str(Path(sys.executable).parent / "nats-server")
    command = Command(arguments=(program, "-c", str(configuration)), environment=environment(), folder=tmp_path)
    with Child(command, tmp_path / "nats.log") as child:

        async def is_ready() -> bool:
            return "Server is ready" in child.output

        child.wait_until(is_ready)
        yield f"tls://127.0.0.1:{port}", certificates, seed


async def nothing() -> None: ...


async def test_the_control_plane_publishes_over_tls(tls_bus: tuple[str, Certificates, Secret]) -> None:
    url, certificates, seed = tls_bus
    bus = await Bus.connected(BusSettings(url, seed, tls_ca_file=str(certificates.authority)), nothing)
    await bus.put_all(CONFIG_BUCKET, [("chunk.x", b"over tls")])
    assert await bus.get(CONFIG_BUCKET, "chunk.x") == b"over tls"
    await bus.close()


async def test_a_server_of_an_unknown_authority_is_not_talked_to(tls_bus: tuple[str, Certificates, Secret]) -> None:
    url, _, seed = tls_bus
    with capture_logs() as lines:
        connecting = asyncio.ensure_future(Bus.connected(BusSettings(url, seed), nothing))
        await until(lambda: any("CERTIFICATE_VERIFY_FAILED" in line.get("error", "") for line in lines))
        assert not connecting.done()
        connecting.cancel()
        await asyncio.gather(connecting, return_exceptions=True)
