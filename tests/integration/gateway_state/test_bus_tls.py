"""The pod's connection to a NATS that speaks TLS, with an authority of one's own."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from contracts.secret import Secret
from contracts.subjects import ROLES
from gateway.bus import Bus
from gateway.tasks import Tasks
from glottis.certificates import Certificates, ensure_certificates
from glottis.embedded.nats import locate_program
from glottis.keys import nats_public_key
from glottis.processes import Command
from tests.kit.processes import Child, free_port
from tests.kit.services import environment, nats_seeds
from tests.kit.waiting import until


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Certificates, Secret]]:
    """A NATS server that speaks TLS only: its address, its certificates, the gateway's seed."""
    certificates = ensure_certificates(tmp_path, datetime.now(UTC))
    seed, port, rights = nats_seeds()["gateway"], free_port(), ROLES["gateway"]
    permissions = {"publish": {"allow": rights.publish}, "subscribe": {"allow": rights.subscribe}}
    configuration = {
        "listen": f"127.0.0.1:{port}",
        "tls": {"cert_file": str(certificates.server), "key_file": str(certificates.server_key), "timeout": 5},
        "authorization": {"users": [{"nkey": nats_public_key(seed), "permissions": permissions}]},
    }
    (tmp_path / "nats.conf").write_text(json.dumps(configuration))
    command = Command((str(locate_program()), "-c", str(tmp_path / "nats.conf")), environment(), tmp_path)
    with Child(command, tmp_path / "nats.log") as child:

        async def is_ready() -> bool:
            return "Server is ready" in child.output

        child.wait_until(is_ready)
        yield f"tls://127.0.0.1:{port}", certificates, seed


async def test_a_pod_connects_over_tls(server: tuple[str, Certificates, Secret]) -> None:
    url, certificates, seed = server
    tasks = Tasks()
    bus = Bus(url, seed, "pod-1", ssl.create_default_context(cafile=certificates.authority))
    bus.start(tasks)

    await until(lambda: bus.is_up, 10)

    await tasks.stop()
    await bus.close()


async def test_a_server_of_an_unknown_authority_is_not_talked_to(server: tuple[str, Certificates, Secret]) -> None:
    url, _, seed = server
    tasks = Tasks()
    bus = Bus(url, seed, "pod-1")
    with capture_logs() as lines:
        bus.start(tasks)
        await until(lambda: any("CERTIFICATE_VERIFY_FAILED" in str(line.get("why")) for line in lines), 10)

    assert not bus.is_up
    await tasks.stop()
    await bus.close()
