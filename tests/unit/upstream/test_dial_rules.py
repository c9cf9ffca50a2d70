"""Which addresses are dialled, and in which order."""

from collections.abc import Sequence

import pytest

from gateway.upstream.dial import in_turns, permitted_addresses
from gateway.upstream.faults import UpstreamFault


def resolving_to(*addresses: str) -> "Resolver":
    return Resolver(addresses)


class Resolver:
    def __init__(self, addresses: Sequence[str]) -> None:
        self.addresses = addresses
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        return self.addresses


def test_families_take_turns_beginning_with_the_resolvers_first() -> None:
    assert in_turns(["2606::1", "2606::2", "2606::3", "1.1.1.1", "8.8.8.8"]) == [
        "2606::1",
        "1.1.1.1",
        "2606::2",
        "8.8.8.8",
        "2606::3",
    ]
    assert in_turns(["1.1.1.1", "2606::1"]) == ["1.1.1.1", "2606::1"]


async def test_private_addresses_among_public_ones_are_not_dialled() -> None:
    resolver = resolving_to("10.0.0.1", "169.254.169.254", "1.1.1.1", "::ffff:127.0.0.1")

    assert await permitted_addresses("api.test", 443, may_be_private=False, resolver=resolver) == ["1.1.1.1"]


async def test_a_name_that_resolves_to_private_addresses_alone_is_refused_by_the_guard() -> None:
    with pytest.raises(UpstreamFault) as refused:
        await permitted_addresses("api.test", 443, may_be_private=False, resolver=resolving_to("127.0.0.1", "fd00::1"))

    assert (refused.value.reason, refused.value.phase, refused.value.anything_sent) == (
        "upstream_refused_address",
        "guard",
        False,
    )


async def test_an_origin_that_the_operator_lists_may_be_private() -> None:
    addresses = await permitted_addresses("api.test", 80, may_be_private=True, resolver=resolving_to("127.0.0.1"))

    assert addresses == ["127.0.0.1"]


async def test_a_private_address_written_out_is_refused_without_asking_a_resolver() -> None:
    resolver = resolving_to("1.1.1.1")

    with pytest.raises(UpstreamFault):
        await permitted_addresses("127.0.0.1", 443, may_be_private=False, resolver=resolver)

    assert resolver.asked == []


async def test_a_name_that_does_not_resolve_is_a_fault_of_the_resolve_phase() -> None:
    async def fails(host: str, port: int) -> Sequence[str]:
        raise OSError("no such host")

    with pytest.raises(UpstreamFault) as refused:
        await permitted_addresses("api.test", 443, may_be_private=False, resolver=fails)

    assert (refused.value.reason, refused.value.phase) == ("upstream_unreachable", "resolve")
