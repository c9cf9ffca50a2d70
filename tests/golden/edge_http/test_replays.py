"""Every recorded HTTP request of five SDKs, through the gateway: what the provider receives, byte for byte."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from contracts.snapshot import Grant, Model
from policy.providers.profile import OPERATIONS
from tests.doubles.cartesia import CartesiaDouble
from tests.kit.edge import CREDENTIAL, Edge, alice, edge, workspace_at

FOLDER = Path(__file__).parent
MODELS = {
    "sonic-2": "text-to-speech",
    "sonic-latest": "text-to-speech",
    "ink-2": "speech-to-text",
}


def _cases() -> Iterator[object]:
    for file in sorted(FOLDER.glob("*.txt")):
        for case in file.read_bytes().split(b"=== ")[1:]:
            name, _, rest = case.partition(b"\n")
            received, _, rest = rest.partition(b"\n--- body ")
            body, _, sent = rest.partition(b"\n--- sent\n")
            yield pytest.param(received, bytes.fromhex(body.decode()), sent.rstrip(b"\n"), id=f"{file.stem}-{name.decode()}")


@pytest_asyncio.fixture(loop_scope="function")
async def double() -> AsyncIterator[CartesiaDouble]:
    async with CartesiaDouble() as double:
        yield double


@pytest_asyncio.fixture(loop_scope="function")
async def gateway(double: CartesiaDouble) -> AsyncIterator[Edge]:
    snapshot = workspace_at(
        double.origin,
        plus_grants=(Grant(id="g9", workspace="w1", account="a-eu", subject="user:u-alice", operations=OPERATIONS),),
        plus_models=tuple(
            Model(id=f"m-{name}", workspace="w1", account="a-eu", name=name, type=kind)  # type: ignore[arg-type]
            for name, kind in MODELS.items()
        ),
    )
    async with edge(double.origin, snapshot=snapshot) as running:
        yield running


@pytest.mark.parametrize(("received", "body", "sent"), list(_cases()))
async def test_a_recorded_request_arrives_as_it_was_but_for_the_change_table(
    gateway: Edge, double: CartesiaDouble, received: bytes, body: bytes, sent: bytes
) -> None:
    client = await gateway.client()
    head = received.replace(b"CALLER_TOKEN", alice().encode()).replace(b"\n", b"\r\n") + b"\r\n\r\n"
    await client.send(head + body)

    answer = await client.answer(head.split(b" ", 1)[0].decode())

    if sent == b"answered here":
        assert double.connections == []
    elif sent.startswith(b"refused "):
        assert (answer.status, double.connections) == (int(sent.split()[1]), [])
    else:
        assert answer.status < 300, answer.body
        expected = (
            sent.replace(b"\n", b"\r\n")
            .replace(b"PROVIDER_HOST", double.origin.removeprefix("http://").encode())
            .replace(b"PROVIDER_CREDENTIAL", CREDENTIAL.encode())
        )
        assert bytes(double.connections[0].received) == expected + b"\r\n\r\n" + body
    client.close()
