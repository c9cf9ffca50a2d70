"""A gateway edge in a test's own event loop: real listeners, real policy, real connections; what it settles is kept.

`edge(double)` serves the small workspace of `identities`, with its Cartesia account at the double. `Client` is a raw
connection: a test writes bytes and reads bytes, each with a deadline.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from fastapi import FastAPI, Request

from contracts.ids import uuid7
from contracts.secret import Secret
from contracts.snapshot import Account, Issuer, Snapshot
from gateway.edge.context import EdgeContext, Limits
from gateway.server import DrainSettings, Listener, Server
from gateway.state.credentials import NoCredential
from gateway.tasks import Tasks
from gateway.upstream.origin import PoolSettings
from gateway.upstream.upstreams import Upstreams
from policy.index import index_of
from policy.usage import Settled, Tally
from policy.world import World
from tests.kit.identities import NOW, idp_token, voice_workspace
from tests.kit.waiting import until

CREDENTIAL = "sk_car_real_0123456789abcdef"
CREDENTIALS = {"a-eu": CREDENTIAL, "a-us": CREDENTIAL + "-us", "a-kk": CREDENTIAL + "-kk"}
JSON_BODY = b'{"model_id":"sonic-3","transcript":"Hello.","voice":"v1","output_format":{"container":"wav"}}'
RAW_BODY = (
    b'{"model_id":"sonic-3","transcript":"Hello.","voice":"v1",'
    b'"output_format":{"container":"raw","encoding":"pcm_mulaw","sample_rate":1000}}'
)
"""a byte of its audio is a millisecond"""


class KeptRecorder:
    """A recorder that keeps what it is told."""

    def __init__(self) -> None:
        self.settled: list[Settled] = []
        self.admitted: list[Tally] = []

    def admit(self, tally: Tally, now_ms: int) -> None:
        """Keep the tally."""
        tally.new_units()
        self.admitted.append(tally)

    def settle(self, settled: Settled) -> None:
        """Keep what was settled."""
        self.settled.append(settled)


class GivenCredentials:
    """Credentials by account id."""

    def __init__(self, by_account: dict[str, str]) -> None:
        self._by_account = by_account

    def of(self, account: Account) -> Secret:
        """Return the account's credential. Raises NoCredential."""
        if account.id not in self._by_account:
            raise NoCredential(f"account {account.name} has no credential")
        return Secret(self._by_account[account.id])


class GivenKeySets:
    """Key sets that a refresh brings into force: issuer id -> JWKS document."""

    def __init__(self, world: Callable[[], World], documents: dict[str, bytes]) -> None:
        self._world = world
        self.documents = documents
        self.refreshed: list[str] = []

    async def refresh(self, issuer: Issuer, kid: str | None = None) -> None:
        """Take the issuer's document, if there is one."""
        self.refreshed.append(issuer.id)
        await asyncio.sleep(0)
        if issuer.id in self.documents:
            self._world().keys.set_keys(issuer.id, self.documents[issuer.id])


@dataclass
class Edge:
    """A running edge. `world` may be replaced by a test."""

    context: EdgeContext
    server: Server
    recorder: KeptRecorder
    tasks: Tasks
    world: World
    key_sets: GivenKeySets | None = None
    now: float = NOW
    closed_because: str | None = None
    app_requests: list[bytes] = field(default_factory=list)

    @property
    def port(self) -> int:
        """Return the port of the plain listener."""
        return self.server.addresses[0][1]

    @property
    def tls_port(self) -> int:
        """Return the port of the TLS listener."""
        return self.server.addresses[1][1]

    async def client(self, tls: ssl.SSLContext | None = None) -> "Client":
        """Connect."""
        return await Client.connect(self.tls_port if tls else self.port, tls)

    async def settled(self, count: int = 1) -> list[Settled]:
        """Wait until so many exchanges have settled, and return them."""
        await until(lambda: len(self.recorder.settled) >= count)
        return self.recorder.settled


def workspace_at(origin: str, ca_pem: bytes | None = None, **changes: Any) -> Snapshot:
    """Return the small workspace with its Cartesia account `a-eu` at this origin."""
    snapshot = voice_workspace(**changes)
    accounts = tuple(
        Account(
            id=account.id,
            workspace=account.workspace,
            name=account.name,
            provider=account.provider,
            origin=origin,
            ca_pem=ca_pem,
        )
        for account in snapshot.accounts
    )
    return voice_workspace(**({"accounts": accounts} | changes))


@contextlib.asynccontextmanager
async def edge(
    origin: str,
    *,
    snapshot: Snapshot | None = None,
    limits: Limits | None = None,
    pool: PoolSettings | None = None,
    tls: ssl.SSLContext | None = None,
    ca_pem: bytes | None = None,
    drain: DrainSettings | None = None,
    recorder: Any = None,  # Any: a KeptRecorder, or a real one
    credentials: dict[str, str] | None = None,
) -> AsyncIterator[Edge]:
    """Serve until the block ends; nothing may be left running then."""
    tasks = Tasks()
    snapshot = snapshot or workspace_at(origin, ca_pem)
    world = World(index_of(snapshot))
    key_sets = GivenKeySets(lambda: running.world, {})
    for issuer in snapshot.issuers:
        if issuer.jwks is not None:
            world.keys.set_keys(issuer.id, issuer.jwks)
    recorder = recorder or KeptRecorder()
    numbers = iter(range(1, 10**9))
    settings = pool or PoolSettings(allowed_private_origins=frozenset({origin}), warm_connections=0)
    loop = asyncio.get_running_loop()
    context = EdgeContext(
        world=lambda: running.world,
        closed_because=lambda: running.closed_because,
        key_sets=key_sets,
        credentials=GivenCredentials(CREDENTIALS if credentials is None else credentials),
        upstreams=Upstreams(settings, tasks, loop.time),
        recorder=recorder,
        clock=lambda: running.now,
        new_id=lambda: uuid7(next(numbers), 0),
        pod="pod-1",
        tasks=tasks,
        limits=limits or Limits(),
    )
    listeners = [Listener("127.0.0.1", 0)]
    if tls is not None:
        listeners.append(Listener("127.0.0.1", 0, tls))
    app_requests: list[bytes] = []
    server = Server(context, _app(app_requests), listeners, drain=drain)
    running = Edge(context, server, recorder, tasks, world, key_sets, app_requests=app_requests)
    await server.start()
    try:
        yield running
    finally:
        for exchange in context.open:
            exchange.abort()
        server.close()
        await asyncio.sleep(0)
        await tasks.stop()


def _app(requests: list[bytes]) -> FastAPI:
    app = FastAPI(openapi_url=None)

    @app.post("/own")
    async def own(request: Request) -> dict[str, int]:
        body = await request.body()
        requests.append(body)
        return {"length": len(body)}

    @app.get("/livez")
    async def live() -> dict[str, bool]:
        return {"live": True}

    return app


@dataclass
class Answer:
    """One answer as a client parsed it."""

    status: int = 0
    reason: bytes = b""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""
    interim: list[int] = field(default_factory=list)

    def all(self, name: bytes) -> list[bytes]:
        """Return every value of a header."""
        return [value for spelled, value in self.headers if spelled.lower() == name.lower()]

    def one(self, name: bytes) -> bytes | None:
        """Return the header's first value."""
        return next(iter(self.all(name)), None)


class Client:
    """A raw client connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.buffer = b""

    @classmethod
    async def connect(cls, port: int, tls: ssl.SSLContext | None = None) -> "Client":
        """Connect to a port of this machine."""
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=tls, server_hostname="localhost" if tls else None, limit=2**24
        )
        return cls(reader, writer)

    async def send(self, data: bytes) -> None:
        """Write and wait until the system took it."""
        self.writer.write(data)
        await self.writer.drain()

    async def until(self, mark: bytes, seconds: float = 5.0) -> bytes:
        """Return the bytes up to and with the mark. Raises TimeoutError, or AssertionError if the connection ends before."""
        async with asyncio.timeout(seconds):
            while mark not in self.buffer:
                data = await self.reader.read(65536)
                assert data, f"the connection ended after {self.buffer!r}"
                self.buffer += data
        end = self.buffer.index(mark) + len(mark)
        found, self.buffer = self.buffer[:end], self.buffer[end:]
        return found

    async def rest(self, seconds: float = 5.0) -> bytes:
        """Return everything up to the end of the connection."""
        found, self.buffer = self.buffer, b""
        async with asyncio.timeout(seconds):
            while True:
                try:
                    data = await self.reader.read(65536)
                except ConnectionError:
                    return found
                if not data:
                    return found
                found += data

    async def answer(self, method: str = "GET", seconds: float = 5.0) -> Answer:
        """Return the next whole answer; what follows stays in the buffer."""
        answer = Answer()
        async with asyncio.timeout(seconds):
            while True:
                head = await self.until(b"\r\n\r\n", seconds)
                first, *lines = head[:-4].split(b"\r\n")
                _, status, *reason = first.split(b" ", 2)
                answer.status = int(status)
                if answer.status >= 200:
                    break
                answer.interim.append(answer.status)
            answer.reason = reason[0] if reason else b""
            answer.headers = [(name, value.strip()) for name, _, value in (line.partition(b":") for line in lines)]
            if method == "HEAD" or answer.status in (204, 304):
                return answer
            if answer.one(b"transfer-encoding") == b"chunked":
                while True:
                    size = int((await self.until(b"\r\n", seconds))[:-2], 16)
                    answer.body += (await self._exactly(size + 2))[:-2]
                    if not size:
                        return answer
            length = answer.one(b"content-length")
            answer.body = await self._exactly(int(length)) if length is not None else await self.rest(seconds)
        return answer

    async def _exactly(self, count: int) -> bytes:
        while len(self.buffer) < count:
            data = await self.reader.read(65536)
            assert data, f"the connection ended after {self.buffer!r}"
            self.buffer += data
        found, self.buffer = self.buffer[:count], self.buffer[count:]
        return found

    def close(self) -> None:
        """Hang up."""
        self.writer.transport.abort()


@cache
def alice() -> str:
    """Return one token of alice's, the same throughout a run (a signature differs each time)."""
    return idp_token()


def request(
    method: str, target: str, *headers: str, body: bytes = b"", token: str | None = "alice", host: str = "gw.test"
) -> bytes:
    """Return a request's bytes; with a body it has a Content-Length. token: `alice`, another token, or None for none."""
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", *headers]
    if token is not None:
        lines.append(f"Authorization: Bearer {alice() if token == 'alice' else token}")
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def speak(*headers: str, body: bytes = JSON_BODY, target: str = "/cartesia/tts/bytes") -> bytes:
    """Return a text-to-speech request."""
    return request("POST", target, "Content-Type: application/json", *headers, body=body)
