"""The one entry of the policy core: a request in, one of four answers out.

`decide` is total: any bytes give `Admit`, `NeedFacts`, `NeedKeys` or `Refusal`; it never raises and never waits. The edge
calls it with the head alone, brings what it asks for (the judged facts, or an issuer's keys) and calls it again.
`judge_message` asks the same questions for one message on an open socket. Read next: the steps in their order:
`providers.registry` (match), `authenticate`, `peek` (facts), `resolve` and `authorize`, `rewrite`.
"""

from dataclasses import dataclass
from typing import TypeAlias

from contracts.events import Attribution
from contracts.snapshot import Account, Issuer, PrincipalKind
from policy.facts import Facts, FactsPlace, Header
from policy.providers.profile import Endpoint
from policy.refusal import Refusal


@dataclass(frozen=True, slots=True)
class Caller:
    """The authenticated principal and the token that it showed."""

    workspace: str
    principal: str
    kind: PrincipalKind
    name: str
    teams: tuple[str, ...]
    issuer: Issuer
    token_id: str
    """the token's `jti`; else the first 16 bytes of its SHA-256, hexadecimal"""
    parent_token_id: str | None
    issued_at: float
    expires_at: float
    """Unix seconds"""
    cost_team: str | None = None
    accounts: tuple[str, ...] | None = None
    models: tuple[str, ...] | None = None
    operations: tuple[str, ...] | None = None
    origins: tuple[str, ...] | None = None
    is_single_use: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """The result of resolving: an endpoint at a provider account, for a caller, perhaps with a model."""

    caller: Caller
    endpoint: Endpoint
    account: Account
    model: str
    """empty: the endpoint has none"""
    attribution: Attribution
    target: bytes
    """request target to send upstream: path without mount, query without our own parameters"""
    headers: tuple[Header, ...]
    """headers to send upstream, in order and case as received, without Host, credential and hop-by-hop ones"""
    subprotocol: bytes | None = None
    """what the WebSocket handshake is answered with, if the caller authenticated by subprotocol"""
    metadata: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Admit:
    """Forward it, on this route. A session that is judged by message carries the facts that stood in its head, if any."""

    route: Route
    facts: Facts


@dataclass(frozen=True, slots=True)
class NeedFacts:
    """Read the judged facts first: from the whole JSON body, or from a form field, then decide again."""

    place: FactsPlace
    endpoint: Endpoint


@dataclass(frozen=True, slots=True)
class NeedKeys:
    """The token's key is not known: refresh this issuer's key set once (shared), then decide again."""

    issuer: Issuer
    kid: str | None


Decision: TypeAlias = Admit | NeedFacts | NeedKeys | Refusal
