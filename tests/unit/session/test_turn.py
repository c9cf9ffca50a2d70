"""What is put off to the end of a turn of the loop."""

import asyncio

from structlog.testing import capture_logs

from gateway.edge.turn import Turn


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
    assert [line["event"] for line in lines] == ["a session failed at the end of a turn"]


async def test_what_is_put_off_meanwhile_is_done_in_the_next_turn() -> None:
    turn, done = Turn(), list[str]()

    turn.at_its_end(lambda: turn.at_its_end(lambda: done.append("later")))
    await asyncio.sleep(0)
    at_first = done[:]
    await asyncio.sleep(0)

    assert (at_first, done) == ([], ["later"])
