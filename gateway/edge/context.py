"""What the edge needs from the rest of the gateway, in one object.

`EdgeContext` is made once by the composition root and given to every connection. The edge knows its collaborators by what
they do (the protocols below), so that it is tested with real sockets and hand-made collaborators. Read next:
`gateway.edge.protocol`, which hands it on to every exchange.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from contracts.secret import Secret
from contracts.snapshot import Account, Issuer
from gateway.edge.turn import Turn
from gateway.tasks import Tasks
from gateway.upstream.upstreams import Upstreams
from policy.decide import Caller, Route, World
from policy.facts import RequestHead
from policy.refusal import Refusal
from policy.usage import Settled, SettledContext, Tally


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client may ask of a pod. Seconds and bytes as named; 0 disables a limit that is not a size of a buffer."""

    head_bytes: int = 32 * 1024
    header_count: int = 100
    head_seconds: float = 10.0
    """from the first byte of a head to its end"""
    keep_alive_seconds: float = 75.0
    """an open connection without a request; longer than the 60 s of common load balancers, so that they close first"""
    body_bytes: int = 4 * 1024**3
    body_idle_seconds: float = 60.0
    """between two reads of a request body"""
    judged_body_bytes: int = 1024 * 1024
    """a JSON body that is judged is held whole"""
    held_form_bytes: int = 1024 * 1024
    """of a form whose account is not known yet"""
    judged_message_bytes: int = 1024 * 1024
    """WebSocket: a message that is judged is held whole"""
    message_bytes: int = 16 * 1024 * 1024
    """WebSocket: any message, per direction"""
    connections_per_address: int = 10_000
    response_head_seconds: float = 300.0
    """from the end of the request to the provider's first byte"""
    response_idle_seconds: float = 900.0
    """silence inside an answer; longer than any provider's own"""
    stall_seconds: float = 120.0
    """a peer that reads nothing"""
    revocation_drain_seconds: float = 5.0
    """how long audio of text already sent may still flow after a revocation"""


class KeySets(Protocol):
    """Fetches issuers' key sets."""

    def refresh(self, issuer: Issuer, kid: str | None = None) -> Awaitable[None]:
        """Bring the issuer's keys up to date, for a key that is asked for; shared, at most once per 10 s. Never raises."""


class Credentials(Protocol):
    """Opens accounts' sealed credentials."""

    def of(self, account: Account) -> Secret:
        """Return the account's active credential. Raises if there is none that this pod can open."""


class Recorder(Protocol):
    """Takes note of what happened. Its methods neither block nor raise."""

    def admit(self, tally: Tally, now_ms: int) -> None:
        """Write down what the tally holds, before the bytes that cost it leave."""

    def settle(self, settled: Settled) -> None:
        """End an exchange: usage, spans, metrics, one log line."""

    def settle_context(self, context: SettledContext) -> None:
        """End one context of a session: its usage, its span, its metrics."""


class Lease(Protocol):
    """The right of an exchange to be the one that its single-use token has open."""

    def release(self) -> None:
        """Give the right back; never waits."""


class Leases(Protocol):
    """Gives out leases."""

    def take(self, caller: Caller, holder: str) -> Awaitable[Lease | Refusal]:
        """Return the lease of the caller's single-use token, or why there is none. holder: the exchange's request id."""


class OpenExchange(Protocol):
    """An exchange that lives longer than one call: an HTTP answer in flight or a WebSocket session."""

    request_id: str

    def world_changed(self, now: float) -> None:
        """Judge again what was admitted: a revocation, an expiry or a withdrawn grant binds on open exchanges."""

    def drain(self, now: float) -> None:
        """The pod stops: finish what is under way, take nothing new, end at the next boundary."""

    def end(self, reason: str, sentence: str = "") -> None:
        """End at once with a reason of ours; `sentence` is an admin's, for the client."""

    def abort(self) -> None:
        """Cut both sides; the drain's deadline has passed."""


class TakeOver(Protocol):
    """Begins a WebSocket session on a client's transport."""

    def __call__(self, transport: asyncio.Transport, head: RequestHead, early: bytes, context: "EdgeContext") -> asyncio.Protocol:
        """Return the protocol that the transport is given; `early` is what came after the handshake's head.

        It leaves `context.addresses` when its connection is lost.
        """


class OpenExchanges:
    """Every exchange in flight on this pod, by request id."""

    def __init__(self) -> None:
        self._by_id: dict[str, OpenExchange] = {}

    def add(self, exchange: OpenExchange) -> None:
        """Enter an exchange; it leaves by `discard`, exactly once, when it settles."""
        self._by_id[exchange.request_id] = exchange

    def discard(self, request_id: str) -> None:
        """Remove an exchange, if it is there."""
        self._by_id.pop(request_id, None)

    def get(self, request_id: str) -> OpenExchange | None:
        """Return the exchange with that request id, for an admin's command."""
        return self._by_id.get(request_id)

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[OpenExchange]:
        return iter(tuple(self._by_id.values()))


class Addresses:
    """How many connections each client address has open."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def enter(self, address: str, limit: int) -> bool:
        """Count one more connection, unless the address has as many as the limit allows (0: no limit)."""
        count = self._counts.get(address, 0)
        if limit and count >= limit:
            return False
        self._counts[address] = count + 1
        return True

    def leave(self, address: str) -> None:
        """Count one connection less; once for each `enter`. A session that was handed over calls it when it ends."""
        count = self._counts.get(address, 0)
        if count > 1:
            self._counts[address] = count - 1
        else:
            self._counts.pop(address, None)


async def lease_of(context: "EdgeContext", caller: Caller, holder: str) -> Lease | Refusal:
    """Return the lease of a single-use token's one open session, or why there is none."""
    return Refusal("single_use_unavailable") if context.leases is None else await context.leases.take(caller, holder)


@dataclass(slots=True)
class EdgeContext:
    """The edge's whole surroundings. One a process."""

    world: Callable[[], World]
    """the configuration in force now; swapped atomically"""
    closed_because: Callable[[], str | None]
    """the refusal reason of every new exchange (no configuration yet, or too old a one); None: they are taken"""
    key_sets: KeySets
    credentials: Credentials
    upstreams: Upstreams
    recorder: Recorder
    clock: Callable[[], float]
    """Unix seconds"""
    new_id: Callable[[], str]
    """a fresh request id (UUIDv7 text)"""
    pod: str
    tasks: Tasks
    limits: Limits = field(default_factory=Limits)
    take_over: TakeOver | None = None
    """the WebSocket relay; None: upgrades are refused"""
    mint_access_token: Callable[[Route, bytes, float], bytes | Refusal] | None = None
    """answers `POST /access-token`: (route, request body, now) -> JSON body; None: this pod cannot mint"""
    leases: Leases | None = None
    """counts the open sessions of single-use tokens; None: this pod cannot, and refuses such tokens"""
    open: OpenExchanges = field(default_factory=OpenExchanges)
    addresses: Addresses = field(default_factory=Addresses)
    turn: Turn = field(default_factory=Turn)
    """what the event loop does when it has read what there is to read"""
    is_draining: bool = False
