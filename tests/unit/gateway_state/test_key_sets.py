"""Key sets: one shared fetch, bounded by time, kept while the issuer is away. No network: the fetch is given."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import msgspec
import pytest_asyncio

from contracts.snapshot import Issuer
from gateway.state.key_sets import FetchFailed, KeySets
from gateway.state.snapshot import SnapshotStore
from gateway.tasks import Tasks
from policy.index import index_of
from tests.kit.identities import jwks, signing_key, voice_workspace

ISSUER = Issuer(id="i-idp", workspace="w1", issuer="https://idp.test", audiences=("glottis",), jwks_uri="https://idp.test/keys")


class World:
    """Key sets over a store with one issuer, a scripted issuer and a clock that the test moves."""

    def __init__(self, issuer: Issuer) -> None:
        self.now = 1000.0
        self.asked: list[str] = []
        self.documents: dict[str, bytes | None] = {"https://idp.test/keys": jwks(signing_key())}
        self.tasks = Tasks()
        self.store = SnapshotStore(3600, lambda: self.now)
        self.store.swap(index_of(voice_workspace(issuers=(issuer,))))
        self.key_sets = KeySets(self.store, self.fetch, self.tasks, lambda: self.now, sleep=self.sleep)

    async def sleep(self, seconds: float) -> None:
        """Let the clock go on."""
        self.now += seconds
        await asyncio.sleep(0)

    async def fetch(self, address: str) -> bytes:
        self.asked.append(address)
        document = self.documents.get(address)
        await asyncio.sleep(0)
        if document is None:
            raise FetchFailed("not reached")
        return document

    def knows(self, kid: str) -> bool:
        issuer = self.store.world.index.issuers["i-idp"]
        return any(key.kid == kid for key in self.store.world.keys.candidates(issuer, kid))

    async def settled(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)


@pytest_asyncio.fixture
async def world() -> AsyncIterator[World]:
    world = World(ISSUER)
    yield world
    await world.tasks.stop()


async def test_who_asks_together_shares_one_fetch(world: World) -> None:
    await asyncio.gather(*(world.key_sets.refresh(ISSUER) for _ in range(50)))

    assert world.asked == ["https://idp.test/keys"]
    assert world.knows("k1")


async def test_a_flood_of_unknown_keys_costs_one_fetch_in_ten_seconds(world: World) -> None:
    began = world.now
    for _ in range(5):
        await asyncio.gather(*(world.key_sets.refresh(ISSUER) for _ in range(200)))

    assert len(world.asked) == 5
    assert world.now == began + 40


async def test_the_first_token_of_a_new_key_waits_for_the_next_fetch_and_is_known_then(world: World) -> None:
    await world.key_sets.refresh(ISSUER)
    world.documents["https://idp.test/keys"] = jwks(signing_key(), signing_key(kid="k2"))
    began = world.now = world.now + 1

    await world.key_sets.refresh(ISSUER)

    assert world.knows("k2")
    assert world.now == began + 9


async def test_a_new_key_is_known_after_a_refresh(world: World) -> None:
    await world.key_sets.refresh(ISSUER)
    world.documents["https://idp.test/keys"] = jwks(signing_key(), signing_key(kid="k2"))
    world.now += 11

    await world.key_sets.refresh(ISSUER)

    assert world.knows("k1")
    assert world.knows("k2")


async def test_who_comes_during_a_fetch_and_does_not_find_its_key_in_it_asks_once_more(world: World) -> None:
    first = asyncio.ensure_future(world.key_sets.refresh(ISSUER, "k1"))
    while not world.asked:
        await asyncio.sleep(0)
    world.documents["https://idp.test/keys"] = jwks(signing_key(), signing_key(kid="k2"))

    await asyncio.gather(first, world.key_sets.refresh(ISSUER, "k1"), world.key_sets.refresh(ISSUER, "k2"))

    assert world.knows("k2")
    assert len(world.asked) == 2


async def test_keys_are_kept_while_the_issuer_is_away(world: World) -> None:
    await world.key_sets.refresh(ISSUER)
    world.documents.clear()
    world.now += 400
    world.key_sets.look()
    await world.settled()

    assert world.knows("k1")
    assert world.key_sets.oldest_age() == 400


async def test_sets_are_fetched_in_the_background_before_anyone_asks(world: World) -> None:
    world.key_sets.look()
    await world.settled()

    assert world.knows("k1")


async def test_an_issuer_that_fails_is_asked_less_and_less(world: World) -> None:
    world.documents.clear()
    for _ in range(100):
        world.key_sets.look()
        await world.settled()
        world.now += 1

    assert len(world.asked) == 3


async def test_a_set_that_is_no_set_changes_nothing(world: World) -> None:
    await world.key_sets.refresh(ISSUER)
    world.documents["https://idp.test/keys"] = b"<html>"
    world.now += 11

    await world.key_sets.refresh(ISSUER)

    assert world.knows("k1")


async def test_a_static_set_is_never_fetched() -> None:
    static = msgspec.structs.replace(ISSUER, jwks_uri=None, jwks=jwks(signing_key(kid="k9")))
    world = World(static)

    await world.key_sets.refresh(static)
    world.key_sets.look()

    assert world.asked == []
    assert world.knows("k9")


async def test_an_address_is_discovered_at_the_issuer() -> None:
    discovered = msgspec.structs.replace(ISSUER, jwks_uri=None)
    world = World(discovered)
    document = {"issuer": "https://idp.test", "jwks_uri": "https://idp.test/keys"}
    world.documents["https://idp.test/.well-known/openid-configuration"] = json.dumps(document).encode()

    await world.key_sets.refresh(discovered)

    assert world.asked == ["https://idp.test/.well-known/openid-configuration", "https://idp.test/keys"]
    assert world.knows("k1")
    await world.tasks.stop()


async def test_a_discovery_document_of_another_issuer_is_refused() -> None:
    discovered = msgspec.structs.replace(ISSUER, jwks_uri=None)
    world = World(discovered)
    document = {"issuer": "https://evil.test", "jwks_uri": "https://idp.test/keys"}
    world.documents["https://idp.test/.well-known/openid-configuration"] = json.dumps(document).encode()

    await world.key_sets.refresh(discovered)

    assert not world.knows("k1")
    await world.tasks.stop()


async def test_an_issuer_that_moved_loses_the_keys_of_its_old_address(world: World) -> None:
    await world.key_sets.refresh(ISSUER)
    moved = msgspec.structs.replace(ISSUER, jwks_uri="https://idp.test/new")
    world.store.swap(index_of(voice_workspace(issuers=(moved,))))

    world.key_sets.look()
    await world.settled()

    assert world.asked[-1] == "https://idp.test/new"
    assert not world.knows("k1")


async def test_an_issuer_that_left_the_configuration_loses_its_keys(world: World) -> None:
    await world.key_sets.refresh(ISSUER)

    world.store.swap(index_of(voice_workspace(issuers=())))

    assert not world.store.world.keys.has_keys("i-idp")
