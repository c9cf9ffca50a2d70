"""The embedded NATS: what it keeps, whom it refuses, what a role may not do."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator

import nats
import nats.errors
import pytest

from contracts.secret import Secret
from contracts.subjects import ROLES
from glottis.embedded.nats import Nats
from tests.kit.processes import Child
from tests.kit.services import NatsAccount, nats_seeds, nats_server, service_folder


@pytest.fixture
def seeds() -> dict[str, Secret]:
    return nats_seeds()


@pytest.fixture
def server(seeds: dict[str, Secret]) -> Iterator[tuple[Nats, Child]]:
    with service_folder("nats") as folder, nats_server(folder, {"GLOTTIS": seeds}) as running:
        yield running


async def publish_one(account: NatsAccount, text: bytes) -> None:
    client = await account.connect()
    streams = client.jetstream()
    await streams.add_stream(name="KEPT", subjects=["kept.>"])
    await streams.publish("kept.one", text)
    await client.close()


async def kept(account: NatsAccount) -> bytes:
    client = await account.connect()
    message = await client.jetstream().get_msg("KEPT", 1)
    await client.close()
    return message.data or b""


async def test_a_clean_restart_keeps_acknowledged_messages(server: tuple[Nats, Child], seeds: dict[str, Secret]) -> None:
    nats_process, child = server
    account = NatsAccount("GLOTTIS", nats_process.url, seeds)
    await publish_one(account, b"before")

    child.stop()
    child.start()
    await child.until(lambda: nats_process.is_ready(seeds["gateway"], ROLES["gateway"]))

    assert await kept(account) == b"before"


async def test_a_kill_keeps_acknowledged_messages(server: tuple[Nats, Child], seeds: dict[str, Secret]) -> None:
    nats_process, child = server
    account = NatsAccount("GLOTTIS", nats_process.url, seeds)
    await publish_one(account, b"before")

    child.kill()
    child.start()
    await child.until(lambda: nats_process.is_ready(seeds["gateway"], ROLES["gateway"]))

    assert await kept(account) == b"before"


async def test_a_stream_may_be_allowed_more_than_is_free_on_the_disk(
    server: tuple[Nats, Child], seeds: dict[str, Secret]
) -> None:
    nats_process, _ = server
    free = shutil.disk_usage(nats_process.home).free
    client = await NatsAccount("GLOTTIS", nats_process.url, seeds).connect()

    made = await client.jetstream().add_stream(name="WIDE", subjects=["wide.>"], max_bytes=min(free, 2**39))

    await client.close()
    assert made.state.messages == 0


async def test_an_unknown_key_is_refused(nats_account: NatsAccount) -> None:
    stranger = NatsAccount("?", nats_account.url, nats_seeds())

    with pytest.raises(nats.errors.Error, match="Authorization Violation"):
        await stranger.connect("gateway")


async def test_no_key_is_refused(nats_account: NatsAccount) -> None:
    with pytest.raises(nats.errors.Error):
        await nats.connect(nats_account.url, allow_reconnect=False)


async def test_an_account_does_not_see_the_streams_of_another(nats_pool: list[NatsAccount]) -> None:
    first, second = nats_pool[:2]
    await publish_one(first, b"mine")

    client = await second.connect()
    streams = await client.jetstream().streams_info()
    await client.close()
    owner = await first.connect()
    await owner.jetstream().delete_stream("KEPT")
    await owner.close()

    assert streams == []


@pytest.mark.parametrize("role", sorted(ROLES))
async def test_every_role_gets_an_answer_from_jetstream(nats_account: NatsAccount, role: str) -> None:
    client = await nats_account.connect(role)
    limits = await client.jetstream().account_info()
    await client.close()

    assert limits.streams == 0


@pytest.mark.parametrize("role", ["gateway", "aggregator", "exporter"])
async def test_only_the_control_plane_writes_configuration(nats_account: NatsAccount, role: str) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()

    async def note(fault: Exception) -> None:
        heard.put_nowait(str(fault))

    client = await nats.connect(
        nats_account.url,
        nkeys_seed_str=nats_account.seeds[role].reveal().decode(),
        inbox_prefix=ROLES[role].inbox.encode(),
        allow_reconnect=False,
        error_cb=note,
    )
    await client.publish("$KV.glottis_config.manifest", b"forged")
    fault = await asyncio.wait_for(heard.get(), 5)
    await client.close()

    assert "permissions violation for publish" in fault.lower()
