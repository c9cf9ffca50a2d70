"""A playbook for sessions without sockets: events in, what reached each side out.

`Played` decides a real handshake in the test workspace, opens a `Session`, and runs its commands as a relay would, into
two byte streams and a list. A test says what happened and asserts on what was written, recorded and settled.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from contracts.revocations import Revocation
from contracts.secret import Secret
from contracts.snapshot import Snapshot
from policy import frames
from policy.decide import Admit, decide, judge_message
from policy.facts import Facts, RequestHead
from policy.index import index_of
from policy.refusal import Refusal
from policy.route import Route
from policy.session import (
    ADMIT,
    FORWARD,
    SETTLE,
    Alert,
    Command,
    EndClient,
    EndUpstream,
    Finish,
    Record,
    Redial,
    Session,
    SessionLimits,
    SettleContext,
    ToClient,
    ToUpstream,
)
from policy.usage import Settled, SettledContext
from policy.world import World
from tests.kit.identities import NOW, idp_token, voice_workspace

MASK = b"\x12\x34\x56\x78"
CREDENTIAL = "sk_car_real_0123456789abcdef"


def client_frame(opcode: int, payload: bytes, *, is_final: bool = True) -> bytes:
    """Return a masked frame."""
    whole = bytearray(frames.frame(opcode, payload, MASK))
    if not is_final:
        whole[0] &= 0x7F
    return bytes(whole)


def text(**message: object) -> bytes:
    """Return a client's JSON message, framed."""
    return client_frame(frames.TEXT, json.dumps(message).encode())


def speech(context: str | None = "c1", transcript: str = "Hello.", model: str | None = "sonic-3", **more: object) -> bytes:
    """Return a client's text of a context, framed."""
    named: dict[str, object] = {} if context is None else {"context_id": context}
    if model is not None:
        named["model_id"] = model
    return text(transcript=transcript, voice={"mode": "id", "id": "v1"}, **named, **more)


def says(**message: object) -> bytes:
    """Return a provider's JSON message, framed."""
    return frames.frame(frames.TEXT, json.dumps(message).encode())


def chunk(context: str = "c1") -> bytes:
    """Return a provider's audio, framed."""
    return says(type="chunk", data="AAAA", done=False, status_code=206, context_id=context)


def done(context: str = "c1") -> bytes:
    """Return the end of a context, framed."""
    return says(type="done", done=True, status_code=200, context_id=context)


@dataclass
class Played:
    """A session and what came of it."""

    target: bytes = b"/cartesia/tts/websocket"
    query: bytes = b""
    snapshot: Snapshot = field(default_factory=voice_workspace)
    limits: SessionLimits = field(default_factory=SessionLimits)
    token: str = field(default_factory=idp_token)
    version: str = "2026-08-14"
    now: float = NOW
    to_client: bytearray = field(default_factory=bytearray)
    to_upstream: bytearray = field(default_factory=bytearray)
    log: list[str] = field(default_factory=list)
    """what was done, in order, by name"""
    contexts: list[SettledContext] = field(default_factory=list)
    redials: list[Route] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.world = World(index_of(self.snapshot))
        for issuer in self.snapshot.issuers:
            if issuer.jwks is not None:
                self.world.keys.set_keys(issuer.id, issuer.jwks)
        head = RequestHead(
            "GET",
            self.target,
            self.query,
            [(b"Authorization", b"Bearer " + self.token.encode()), (b"Cartesia-Version", self.version.encode())],
            is_websocket=True,
        )
        admit = decide(head, None, self.world, self.now)
        assert isinstance(admit, Admit), admit
        self.settled = Settled("req-1", self.now, "GET", is_websocket=True)
        self.session = Session(
            admit.route,
            admit.facts,
            self.settled,
            Secret(CREDENTIAL),
            self.limits,
            self._judge,
            cartesia_version=self.version,
            pod="pod-1",
            random_bytes=lambda count: MASK[:count],
            now=self.now,
        )
        self.run(self.session.opened())

    def _judge(self, route: Route, facts: Facts, now: float) -> Route | Refusal:
        return judge_message(route, facts, self.world, now)

    # events

    def client(self, data: bytes) -> "Played":
        """The client sent bytes."""
        commands = self.session.from_client(data, self.now)
        if commands is ADMIT:
            return self.run([Record(self.session.admitted), ToUpstream(data)])
        return self.run([ToUpstream(data)] if commands is FORWARD else commands)

    def provider(self, data: bytes) -> "Played":
        """The provider sent bytes."""
        commands = self.session.from_upstream(data, self.now)
        if commands is SETTLE:
            return self.run([ToClient(data), SettleContext(self.session.take_ended())])
        return self.run([ToClient(data)] if commands is FORWARD else commands)

    def after(self, seconds: float) -> "Played":
        """Time passed; the clock ticked."""
        self.now += seconds
        return self.run(self.session.tick(self.now))

    def changed(self, **changes: Any) -> "Played":
        """Another snapshot is in force."""
        self.world = World(index_of(voice_workspace(**changes)), self.world.revocations, self.world.keys)
        return self.run(self.session.world_changed(self.now))

    def revoked(self, kind: Any, target: str) -> "Played":
        """A revocation arrived."""
        self.world.revocations.add(Revocation(workspace="w1", kind=kind, target=target, at_ms=int(self.now * 1000)))
        return self.run(self.session.world_changed(self.now))

    # what came of it

    def run(self, commands: list[Command]) -> "Played":
        """Do what the session says."""
        for command in commands:
            if isinstance(command, ToClient):
                assert "EndClient" not in self.log, "written after the end"
                self.to_client += command.data
            elif isinstance(command, ToUpstream):
                assert "EndUpstream" not in self.log, "written after the end"
                self.to_upstream += command.data
                self.log.append("ToUpstream")
            elif isinstance(command, Record):
                command.tally.new_units()
                self.log.append("Record")
            elif isinstance(command, SettleContext):
                self.contexts.append(command.context)
                self.log.append("SettleContext")
            elif isinstance(command, Redial):
                self.redials.append(command.route)
                self.log.append("Redial")
            elif isinstance(command, Alert):
                self.log.append(command.what)
            else:
                assert isinstance(command, EndClient | EndUpstream | Finish)
                name = type(command).__name__
                assert name not in self.log, "done twice"
                self.log.append(name)
                if name == "Finish":
                    self.run(self.session.finished(self.now))
        return self

    def taken(self) -> tuple[bytes, bytes]:
        """Return what went to the client and to the provider since the last time."""
        found = bytes(self.to_client), bytes(self.to_upstream)
        self.to_client.clear()
        self.to_upstream.clear()
        return found

    def errors(self) -> list[dict[str, Any]]:
        """Return the in-band errors that the client got, decoded."""
        tap = frames.Tap(1 << 24, 1 << 24)
        messages = [json.loads(payload or b"{}") for opcode, payload in tap.feed(bytes(self.to_client)) if opcode == frames.TEXT]
        return [message for message in messages if message.get("type") == "error"]

    def close_to_client(self) -> tuple[int, str] | None:
        """Return (code, reason) of the close frame that the client got, None if there was none."""
        walker = frames.Walker("server", 1 << 24)
        walker.walk(bytes(self.to_client))
        return None if walker.close is None else (walker.close.code, walker.close.reason.decode())

    def close_to_upstream(self) -> tuple[int, str] | None:
        """Return (code, reason) of the close frame that the provider got, None if there was none."""
        walker = frames.Walker("client", 1 << 24)
        walker.walk(bytes(self.to_upstream))
        return None if walker.close is None else (walker.close.code, walker.close.reason.decode())
