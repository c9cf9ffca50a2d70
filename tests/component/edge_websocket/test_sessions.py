"""Sessions over real sockets: what passes, in which bytes."""

from tests.doubles.cartesia_websocket import sockets_double
from tests.kit.sessions import dial, sockets_edge


async def test_a_text_is_spoken_and_its_context_settled() -> None:
    async with sockets_double() as double, sockets_edge(double) as gateway:
        client = await dial(gateway)
        await client.speak("c1", "Hello there")
        assert [(await client.heard())["type"] for _ in range(3)] == ["chunk", "chunk", "done"]
        closed = await client.hang_up()
        assert closed is not None
        [settled] = await gateway.settled()
        [context] = gateway.recorder.contexts
        assert (settled.outcome, settled.closed_by, settled.close_code) == ("completed", "client", 1000)
        assert (context.outcome, context.characters, context.model) == ("completed", 11, "sonic-3")
