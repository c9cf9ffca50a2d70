"""What one exchange costs the gateway's core without sockets: `python -m tests.bench.gateway_state.hot_path`.

The whole way: edge, policy, relay, recorder, spool, publisher; transports that throw away, a stream that stores at once. It
is repeatable where `make bench` is not: user-mode instructions where the kernel counts them (`perf stat` from outside is
better still), else the least processor time of many short rounds. `--only http|tts|ws` for a profile (py-spy).
"""

from __future__ import annotations

import argparse
import asyncio
import io
import logging
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from uvicorn._types import ASGIApplication
from uvicorn.server import ServerState

from contracts.secret import Secret
from contracts.snapshot import Account, Grant, Issuer, Model, Principal, Snapshot, Team, Workspace
from gateway.app import new_id_maker
from gateway.edge.context import EdgeContext
from gateway.edge.protocol import EdgeProtocol
from gateway.edge.websocket_handshake import Answer, HandshakeReader
from gateway.edge.websocket_relay import Relay
from gateway.http1 import parse_response
from gateway.server import _config
from gateway.state.credentials import Credentials
from gateway.state.key_sets import KeySets
from gateway.tasks import Tasks
from gateway.telemetry import logs
from gateway.telemetry.batches import Message
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.publisher import Publisher
from gateway.telemetry.recorder import Recorder
from gateway.telemetry.spool import Spool
from gateway.upstream.connection import UpstreamConnection
from gateway.upstream.origin import PoolSettings
from gateway.upstream.upstreams import Upstreams
from policy.decide import Admit, decide
from policy.facts import RequestHead
from policy.index import index_of
from policy.world import World
from tests.doubles.cartesia_websocket import BINARY, TEXT, client_frame, server_frame
from tests.kit.identities import idp_token, jwks, signing_key

ROUNDS, UNITS = 60, 400
CONNECTIONS, SESSIONS, CONTEXTS = 16, 20, 20
ORIGIN = "http://127.0.0.1:9003"
SENTENCE = "The road goes on and on, and nobody knows where it may lead; but we shall follow it all the same."
BODY = (
    b'{"model_id":"sonic-3","transcript":"%b","voice":{"mode":"id","id":"6ccbfb76-1fc6-48f7-b71d-91ac6298247b"},'
    b'"output_format":{"container":"wav","encoding":"pcm_f32le","sample_rate":44100}}' % SENTENCE.encode()
)
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: audio/wav\r\nContent-Length: 3500\r\nX-Request-Id: bench\r\n\r\n" + bytes(3500)
SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nX-Request-Id: bench\r\n"


class Nowhere(asyncio.Transport):
    """A transport whose peer takes everything and says nothing."""

    def __init__(self) -> None:
        # Nothing goes through the socket; it is asked for its options, and whether something came.
        with socket.create_server(("127.0.0.1", 0)) as listening:
            self._sock = socket.create_connection(listening.getsockname())
            self._peer = listening.accept()[0]
        super().__init__({"peername": ("127.0.0.1", 50000), "sockname": ("127.0.0.1", 8080), "socket": self._sock})
        self.written = 0

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self.written += len(data)

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        raise AssertionError("something went wrong on the way")

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def can_write_eof(self) -> bool:
        return False


def snapshot() -> Snapshot:
    """Return the workspace of the benchmark."""
    return Snapshot(
        revision=1,
        created_at_ms=1,
        workspaces=(Workspace(id="w1", name="Bench"),),
        issuers=(Issuer(id="i1", workspace="w1", issuer="https://idp.test", audiences=("glottis",), jwks=jwks(signing_key())),),
        teams=(Team(id="t1", workspace="w1", name="Voice"),),
        principals=(
            Principal(id="u1", workspace="w1", kind="user", name="Alice", teams=("t1",), issuer_id="i1", subject="alice"),
        ),
        accounts=(Account(id="a1", workspace="w1", name="main", provider="cartesia", origin=ORIGIN),),
        models=(
            Model(id="m1", workspace="w1", account="a1", name="sonic-3", type="text-to-speech"),
            Model(id="m2", workspace="w1", account="a1", name="ink-whisper", type="speech-to-text"),
        ),
        grants=(Grant(id="g1", workspace="w1", account="a1", subject="team:t1"),),
    )


async def no_app(*_: object) -> None:
    """Stand where the FastAPI app stands."""


class Bench:
    """The gateway's parts as `gateway.app` joins them, on transports that go nowhere."""

    def __init__(self, folder: Path) -> None:
        configuration = snapshot()
        self.world = world = World(index_of(configuration))
        world.keys.set_keys("i1", configuration.issuers[0].jwks or b"")
        self.token = idp_token(exp=time.time() + 3600, iat=time.time() - 60)
        self.spool = Spool.open(folder, 64 * 1024 * 1024, "bench")
        self.writer = logs.LineWriter(io.BytesIO())
        self.account = configuration.accounts[0]
        tasks = Tasks()
        key = Secret(b"k" * 32)
        self.upstreams = Upstreams(PoolSettings(allowed_private_origins=frozenset({ORIGIN})), tasks, time.monotonic)
        self.context = EdgeContext(
            world=lambda: world,
            closed_because=lambda: None,
            key_sets=cast(KeySets, None),  # never asked: the keys are there
            credentials=Credentials.given({("a1", "active"): Secret(b"sk_real")}, None),
            upstreams=self.upstreams,
            recorder=Recorder(
                self.spool,
                "pod-1",
                Metrics(),
                lambda _: key,
                lambda _: 1.0,
                logs.line_logger(self.writer, "json", logging.INFO),
            ),
            clock=time.time,
            new_id=new_id_maker(time.time),
            pod="pod-1",
            tasks=tasks,
        )
        self.publisher = Publisher(self.spool, self._stored)
        self.messages = self.bytes_published = 0

    async def _stored(self, message: Message) -> None:
        self.messages += 1
        self.bytes_published += len(message.payload)

    async def publish(self) -> None:
        """Publish what waits, as the publisher's loop does ten times a second."""
        for ring in self.spool.rings:
            while await self.publisher._publish_batch(ring):
                pass

    def http(self) -> Callable[[], None]:
        """Return what makes one exchange: POST of a TTS request, 3.5 kB answer."""
        config = _config(cast(ASGIApplication, no_app))
        config.load()
        request = (
            "POST /cartesia/tts/bytes HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {self.token}\r\nCartesia-Version: 2025-04-16\r\nContent-Length: {len(BODY)}\r\n\r\n"
        ).encode() + BODY
        loop = asyncio.get_running_loop()
        edges = []
        for _ in range(CONNECTIONS):
            edge = EdgeProtocol(self.context, config, ServerState(), {}, loop)
            edge.connection_made(Nowhere())
            edges.append(edge)
        origin = self.upstreams.origin_of(self.account)
        upstream = UpstreamConnection(lambda _: None, time.monotonic())
        upstream.connection_made(Nowhere())
        origin.give_back(upstream)
        turn = 0
        ends = self.context.turn._write

        def one() -> None:
            nonlocal turn
            turn = (turn + 1) % CONNECTIONS
            upstream.born_at = 1e18
            edges[turn].data_received(request)
            ends()
            upstream.data_received(ANSWER)
            ends()

        return one

    async def session(self, path: bytes, query: bytes = b"") -> tuple[Relay, Callable[[bytes], None]]:
        """Return an open session and what takes the provider's bytes."""
        headers = [(b"Host", b"127.0.0.1:8080"), (b"Authorization", b"Bearer " + self.token.encode())]
        head = RequestHead("GET", path, query, headers, is_websocket=True, host=b"127.0.0.1", peer="127.0.0.1")
        decision = decide(head, None, self.world, time.time())
        assert isinstance(decision, Admit), decision
        relay = Relay(Nowhere(), head, b"", self.context)
        route = decision.route
        relay._settled.caller, relay._settled.endpoint, relay._settled.route = route.caller, route.endpoint, route
        answer = Answer(parse_response(SWITCHED, 100), b"")
        relay._accept(decision, Secret(b"sk_real"), Nowhere(), HandshakeReader(b"key", []), answer)
        assert relay._upstream is not None
        return relay, relay._upstream.data_received

    async def tts(self) -> Callable[[], None]:
        """Return what makes one judged context: a JSON message up, a 5 kB chunk and a done message down."""
        sessions = [await self.session(b"/cartesia/tts/websocket") for _ in range(SESSIONS)]
        asked, answers = [], []
        for number in range(CONTEXTS):
            name = b"c%02d" % number
            message = BODY[:-1] + b',"context_id":"%b","continue":false}' % name
            asked.append(client_frame(TEXT, message))
            chunk = b'{"type":"chunk","context_id":"%b","status_code":206,"done":false,"data":"%b"}' % (name, b"A" * 5000)
            done = b'{"type":"done","context_id":"%b","status_code":200,"done":true}' % name
            answers.append(server_frame(TEXT, chunk) + server_frame(TEXT, done))
        turn = 0

        def one() -> None:
            nonlocal turn
            turn += 1
            relay, take = sessions[turn % SESSIONS]
            number = turn // SESSIONS % CONTEXTS
            relay.data_received(asked[number])
            take(answers[number])

        return one

    async def ws(self) -> Callable[[], None]:
        """Return what makes one round trip: a 640-byte binary frame up, one down."""
        query = b"model=ink-whisper&encoding=pcm_s16le&sample_rate=16000"
        relay, take = await self.session(b"/cartesia/stt/websocket", query)
        up, down = client_frame(BINARY, bytes(640)), server_frame(BINARY, bytes(640))

        def one() -> None:
            relay.data_received(up)
            take(down)

        return one

    async def cost(self, one: Callable[[], None], rounds: int) -> dict[str, float]:
        """Return the least and the median microseconds of the core that one unit took, and of that its publishing."""
        whole, publishing = [], []
        for _ in range(rounds):
            began = time.thread_time()
            for _ in range(UNITS):
                one()
            between = time.thread_time()
            await self.publish()
            ended = time.thread_time()
            whole.append((ended - began) / UNITS * 1e6)
            publishing.append((ended - between) / UNITS * 1e6)
            self.writer._stream.seek(0)
        whole.sort()
        publishing.sort()
        return {"least": whole[0], "median": whole[len(whole) // 2], "publishing": publishing[0]}


async def measure(only: str | None, rounds: int, folder: Path) -> None:
    """Measure and print."""
    bench = Bench(folder)
    for name in ("http", "tts", "ws"):
        if only is not None and name != only:
            continue
        made: Any = getattr(bench, name)()
        one = await made if asyncio.iscoroutine(made) else made
        one()
        cost = await bench.cost(one, rounds)
        print(f"{name:5} " + "  ".join(f"{what} {value:6.1f} µs" for what, value in cost.items()))  # noqa: T201
    bench.writer.close()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("http", "tts", "ws"))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="glottis-bench-", dir="/dev/shm") as folder:
        asyncio.run(measure(options.only, options.rounds, Path(folder)))


if __name__ == "__main__":
    main()
