"""A gateway with a plain and a TLS listener before one double of the whole surface, for clients in processes of their own."""

import asyncio
import datetime
import os
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
import uvloop

from contracts.snapshot import Model
from glottis.certificates import Certificates, ensure_certificates
from tests.doubles.cartesia import CartesiaDouble
from tests.doubles.cartesia_websocket import SocketsDouble
from tests.kit.edge import Edge, workspace_at
from tests.kit.sdks import LOCKS, folder_of, program_of
from tests.kit.sessions import sockets_edge


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Return the factory of the loop that the gateway runs on."""
    return {"uvloop": uvloop.new_event_loop}


@dataclass
class Spoken:
    """What a client printed, and how it ended."""

    out: str
    error: str
    status: int | None


async def run(sdk: str, script: str, *arguments: str, variables: Mapping[str, str] | None = None) -> Spoken:
    """Run a script of `tests/sdks` with an SDK, in its folder."""
    process = await asyncio.create_subprocess_exec(
        program_of(sdk),
        str(LOCKS / script),
        *arguments,
        cwd=folder_of(sdk),
        env=os.environ | (variables or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        out, error = await asyncio.wait_for(process.communicate(), 100)
    except TimeoutError:
        process.kill()
        out, error = await process.communicate()
    return Spoken(out.decode(), error.decode(), process.returncode)


@dataclass
class Stage:
    """A gateway and its provider, and how a client's program is run against them."""

    gateway: Edge
    http: CartesiaDouble
    sockets: SocketsDouble
    authority: Path

    async def run(self, sdk: str, script: str, *arguments: str) -> Spoken:
        """Run a script of `tests/sdks` with an SDK; the certificate authority of the gateway is trusted."""
        trust = {"SSL_CERT_FILE": str(self.authority), "NODE_EXTRA_CA_CERTS": str(self.authority)}
        return await run(sdk, script, *arguments, variables=trust)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return ensure_certificates(tmp_path_factory.mktemp("tls"), datetime.datetime.now(datetime.UTC))


@pytest_asyncio.fixture
async def stage(certificates: Certificates) -> AsyncIterator[Stage]:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificates.server, certificates.server_key)
    ink = Model(id="m9", workspace="w1", account="a-eu", name="ink-2", type="speech-to-text")
    async with CartesiaDouble() as http:
        sockets = SocketsDouble()
        http.on_upgrade = sockets.take_over
        async with sockets_edge(http, snapshot=workspace_at(http.origin, plus_models=(ink,)), tls=tls) as gateway:
            yield Stage(gateway, http, sockets, certificates.authority)
