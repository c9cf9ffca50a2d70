"""What is put off to the end of a turn of the loop."""

import asyncio
from collections.abc import Iterable
from typing import Any

from structlog.testing import capture_logs

from gateway.edge.turn import Outgoing, Turn


class Written(asyncio.Transport):
    """A transport that keeps each write, several pieces given at once as a list."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[Any] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(data)

    def writelines(self, pieces: Iterable[bytes | bytearray | memoryview]) -> None:
        self.writes.append(list(pieces))


async def test_what_is_put_off_is_done_once_in_its_order_when_the_turn_ends() -> None:
    turn, done = Turn(), list[str]()

    turn.at_its_end(lambda: done.append("first"))
    turn.at_its_end(lambda: done.append("second"))
    at_once = done[:]
    await asyncio.sleep(0)
    after_one = done[:]
    turn.at_its_end(lambda: done.append("third"))
    await asyncio.sleep(0)

    assert (at_once, after_one, done) == ([], ["first", "second"], ["first", "second", "third"])


async def test_one_that_fails_keeps_no_other_from_being_done() -> None:
    turn, done = Turn(), list[str]()

    turn.at_its_end(lambda: [][0])
    turn.at_its_end(lambda: done.append("second"))
    with capture_logs() as lines:
        await asyncio.sleep(0)

    assert done == ["second"]
    assert [line["event"] for line in lines] == ["a write failed at the end of a turn"]


async def test_what_is_put_off_meanwhile_is_done_in_the_next_turn() -> None:
    turn, done = Turn(), list[str]()

    turn.at_its_end(lambda: turn.at_its_end(lambda: done.append("later")))
    await asyncio.sleep(0)
    at_first = done[:]
    await asyncio.sleep(0)

    assert (at_first, done) == ([], ["later"])


async def test_what_is_written_in_one_turn_leaves_in_one_write_in_its_order_when_the_turn_ends() -> None:
    transport = Written()
    outgoing = Outgoing(transport, Turn())

    outgoing.write(b"head ")
    outgoing.write(b"body")
    at_once = transport.writes[:]
    await asyncio.sleep(0)
    outgoing.write(b"more")
    await asyncio.sleep(0)

    assert (at_once, transport.writes) == ([], [b"head body", b"more"])


async def test_what_is_flushed_leaves_at_once_and_not_again() -> None:
    transport = Written()
    outgoing = Outgoing(transport, Turn())

    outgoing.write(b"last")
    outgoing.flush()
    at_once = transport.writes[:]
    await asyncio.sleep(0)

    assert (at_once, transport.writes) == ([b"last"], [b"last"])


async def test_large_pieces_are_given_to_the_transport_as_they_are() -> None:
    transport = Written()
    outgoing = Outgoing(transport, Turn())
    head, body = b"head", bytes(50_000)

    outgoing.write(head)
    outgoing.write(body)
    outgoing.flush()

    ((first, second),) = transport.writes
    assert first is head
    assert second is body


async def test_what_waits_in_all_transports_is_written_at_once_when_it_exceeds_64_kib() -> None:
    turn, one, other = Turn(), Written(), Written()

    Outgoing(one, turn).write(bytes(40_000))
    Outgoing(other, turn).write(bytes(40_000))

    assert (one.writes, other.writes) == ([bytes(40_000)], [bytes(40_000)])


async def test_nothing_is_written_to_a_transport_that_is_gone() -> None:
    transport = Written()
    outgoing = Outgoing(transport, Turn())

    outgoing.write(b"late")
    outgoing.drop()
    await asyncio.sleep(0)

    assert transport.writes == []
