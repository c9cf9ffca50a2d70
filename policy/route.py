"""Who calls, and where it goes: the two values that the steps of a decision hand on.

`Caller` is the authenticated principal with the token that it showed; `Route` is what a request resolved to. Both are
values: nothing in them changes while a session is open, and what may change is looked up again in the index. Read next:
`policy.authenticate` makes callers, `policy.resolve` routes.
"""

from dataclasses import dataclass, field

from contracts.events import Attribution
from contracts.snapshot import Account, Issuer, Principal, PrincipalKind
from policy.facts import Header
from policy.providers.profile import Endpoint


@dataclass(frozen=True, slots=True)
class Caller:
    """The authenticated principal and the token that it showed."""

    workspace: str
    principal: str
    kind: PrincipalKind
    name: str
    teams: tuple[str, ...]
    """the principal's own and those that its groups map to, in this order"""
    issuer: Issuer
    token_id: str
    """the token's `jti`; else the first 16 bytes of the SHA-256 of what was signed, hexadecimal (not of the whole token: an
    ECDSA signature can be rewritten into another valid one)"""
    parent_token_id: str | None
    issued_at: float
    """Unix seconds; 0 if the token does not say, so that every revocation by time hits it"""
    expires_at: float
    """Unix seconds"""
    subject: str = ""
    """the issuer's name for the principal"""
    groups: tuple[str, ...] = ()
    """the groups that the token named"""
    cost_team: str | None = None
    accounts: tuple[str, ...] | None = None
    models: tuple[str, ...] | None = None
    operations: tuple[str, ...] | None = None
    origins: tuple[str, ...] | None = None
    is_single_use: bool = False
    metadata: tuple[tuple[str, str], ...] = ()
    """annotations of the token itself: nobody who presents it can change them"""
    record: Principal | None = field(default=None, repr=False, compare=False)
    """the record that kind, name and teams were taken from; None: the subject is admitted without one"""

    @property
    def single_use_token(self) -> str:
        """Return the token that the one open session is counted for: an access token shares its parent's."""
        if self.issuer.kind == "access_token" and self.parent_token_id is not None:
            return self.parent_token_id
        return self.token_id


@dataclass(frozen=True, slots=True)
class NeedKeys:
    """The token's key is not known: refresh this issuer's key set once (shared), then decide again.

    Where the second answer is NeedKeys as well, the refusal is `key_unknown`; where no set could be fetched yet,
    `keys_unavailable`.
    """

    issuer: Issuer
    kid: str | None


@dataclass(frozen=True, slots=True)
class Route:
    """The result of resolving: an endpoint at a provider account, for a caller, perhaps with a model."""

    caller: Caller
    endpoint: Endpoint
    account: Account
    model: str
    """empty: the endpoint has none, or it stands in messages that did not come yet"""
    attribution: Attribution
    target: bytes
    """request target to send upstream: path without mount, query without our own parameters"""
    header_block: bytes
    """headers to send upstream, rendered, in order and case as received, without the last line's end, and without Host,
    credential and hop-by-hop ones"""
    framing_at: int = -1
    """offset into the block, each of its lines ended, where the caller's framing header stood; negative: it had none"""
    pin: str | None = None
    """name of the account that the path pins"""
    subprotocol: bytes | None = None
    """what the WebSocket handshake is answered with, if the caller offered ours"""
    metadata: tuple[tuple[str, str], ...] = ()

    @property
    def headers(self) -> tuple[Header, ...]:
        """The headers to send upstream, one by one."""
        lines = self.header_block.split(b"\r\n") if self.header_block else []
        return tuple((name, value) for name, _, value in (line.partition(b": ") for line in lines))
