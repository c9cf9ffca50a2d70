"""The double and the edge that most tests of this folder use."""

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.doubles.cartesia import CartesiaDouble
from tests.kit.edge import Client, Edge, edge


@pytest_asyncio.fixture
async def double() -> AsyncIterator[CartesiaDouble]:
    async with CartesiaDouble() as double:
        yield double


@pytest_asyncio.fixture
async def gateway(double: CartesiaDouble) -> AsyncIterator[Edge]:
    async with edge(double.origin) as running:
        yield running


@pytest_asyncio.fixture
async def client(gateway: Edge) -> AsyncIterator[Client]:
    client = await gateway.client()
    yield client
    client.close()
