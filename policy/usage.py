"""What is counted: the usage of one exchange or context, as deltas, and what is known of an exchange when it ends.

A `Tally` adds quantities up and says what each usage event of its key adds; the gateway writes the first to the spool before
a text's bytes leave, so that what was sent is never forgotten. `Settled` is the record that the edge fills while an exchange
runs and hands over at its end. Both know no clock and no storage. Read next: `policy.journal` (open keys),
`gateway.telemetry.recorder`.
"""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from contracts.events import Attribution, Outcome
from policy.decide import Caller, Route
from policy.providers.profile import Endpoint

FREE_OUTCOMES: frozenset[Outcome] = frozenset({"refused", "upstream_fault", "provider_error"})
"""cost nothing unless the edge knows that text had left: see `Tally.owed` (Cartesia pricing, "errors consume no credits")"""

FaultPhase: TypeAlias = Literal[
    "", "credential", "resolve", "guard", "connect", "tls", "send", "response_head", "response_body", "internal"
]
"""how far an exchange came when something failed; empty: nothing did"""

ClosedBy: TypeAlias = Literal["", "client", "provider", "gateway"]


class Tally:
    """The usage of one key: an exchange, or one context on a multiplexed socket.

    Counts one request at its birth. Quantities are added as they are sent; `new_units` and `last_units` say what the next
    event adds, each with the next sequence number, so that all add up to what is owed. `gateway.telemetry.usage` writes them.
    """

    __slots__ = ("_published", "_seq", "_totals", "_units_of_provider", "key", "metadata", "pod", "to")

    def __init__(self, key: str, to: Attribution, pod: str, metadata: Mapping[str, str] | None = None) -> None:
        self.key = key
        self.to = to
        self.pod = pod
        self.metadata = dict(metadata) if metadata else {}
        self._seq = 0
        self._totals: dict[str, int] = {"requests": 1}
        self._published: dict[str, int] = {}
        self._units_of_provider: dict[str, int] = {}

    @property
    def totals(self) -> Mapping[str, int]:
        """Return what was counted so far, unit to quantity."""
        return self._totals

    @property
    def is_admitted(self) -> bool:
        """Tell whether a first delta was made, that is, whether the spool holds this key open."""
        return self._seq > 0

    @property
    def events(self) -> int:
        """Return how many events were made so far."""
        return self._seq

    def add(self, unit: str, quantity: int) -> None:
        """Count a quantity, in the unit's own measure (see contracts.events.UNITS)."""
        self._totals[unit] = self._totals.get(unit, 0) + quantity

    def set(self, unit: str, quantity: int) -> None:
        """Set what a quantity has come to so far."""
        self._totals[unit] = quantity

    def provider_said(self, unit: str, quantity: int) -> None:
        """Keep a figure of the provider's own, to stand beside ours in the final event."""
        self._units_of_provider[unit] = quantity

    def new_units(self) -> dict[str, int]:
        """Return what was added since the event before, for the next one; its number is `events - 1`. Empty: there is none."""
        units = self._since(self._totals)
        if units:
            self._tell(units)
        return units

    def owed(self, outcome: Outcome, is_owed: bool | None) -> dict[str, int]:
        """Return what is owed in the end: unit to quantity. The tally's own, not to be changed.

        is_owed: None decides by the outcome; True keeps the count of an exchange that failed after its text had left, and
        without the provider's own word for it; False takes back what the provider answered with an error, however that
        ended. What is not owed is taken back by a negative delta, so that the events add up to nothing.
        """
        if is_owed is None:
            is_owed = outcome not in FREE_OUTCOMES
        return self._totals if is_owed else {}

    def last_units(self, owed: dict[str, int]) -> dict[str, int]:
        """Return what the last event adds to those before, so that all add up to what is owed; its number is `events - 1`."""
        self._seq += 1
        return self._since(owed)

    def end(self) -> None:
        """Count the last event where it needs no units: what is owed says them all."""
        self._seq += 1

    @property
    def units_of_provider(self) -> Mapping[str, int]:
        """Return the provider's own figures."""
        return self._units_of_provider

    # A dict, not a Mapping: compiled, it is gone through without making anything.
    def _since(self, totals: dict[str, int]) -> dict[str, int]:
        published = self._published
        if not published:
            return {unit: quantity for unit, quantity in totals.items() if quantity}
        if published == totals:
            return {}
        changed = {unit: quantity - published.get(unit, 0) for unit, quantity in totals.items()}
        changed |= {unit: -quantity for unit, quantity in published.items() if unit not in totals}
        return {unit: quantity for unit, quantity in changed.items() if quantity}

    def _tell(self, units: dict[str, int]) -> None:
        self._seq += 1
        published = self._published
        if not published:
            self._published = dict(units)
            return
        for unit, quantity in units.items():
            published[unit] = published.get(unit, 0) + quantity


class Settled:
    """One exchange, from its admission to its end: an HTTP request, or a WebSocket session with its handshake.

    The edge makes it with the head and fills it on the way; whatever stays empty did not happen. Times are Unix seconds,
    0.0 means never; `request_id` is the exchange's id everywhere. Never holds a token or credential; `transcript` is for
    the keyed hash alone. Defaults stay on the class: setting all of them would cost more than most exchanges set.
    """

    request_id: str
    started_at: float
    """the head was complete"""
    method: str
    is_websocket: bool = False
    caller: Caller | None = None
    endpoint: Endpoint | None = None
    route: Route | None = None
    tally: Tally | None = None
    """the exchange's own usage; sessions whose contexts are counted one by one leave it None"""
    traceparent: bytes | None = None
    tracestate: bytes = b""
    peer: str = ""
    trace: "object" = None
    """which trace it belongs to, once the recorder has read the two headers; a session asks for each context"""

    outcome: Outcome = "completed"
    reason: str = ""
    """a refusal's or an ending's reason, as answered"""
    fault_phase: FaultPhase = ""
    anything_sent: bool = False
    """some byte of this exchange reached the provider's connection"""
    is_owed: bool | None = None
    """see Tally.owed"""
    status: int = 0
    """answered to the client; 101 for a session"""
    upstream_status: int = 0
    upstream_request_id: str = ""

    credential_asked_at: float = 0.0
    credential_opened_at: float = 0.0
    dial_started_at: float = 0.0
    """0.0 with `sent_at` set: a pooled connection was used"""
    dialled_at: float = 0.0
    sent_at: float = 0.0
    """the head left for the provider"""
    request_ended_at: float = 0.0
    """the last request byte left for the provider; ttfb and ttfa count from here"""
    first_byte_at: float = 0.0
    first_audio_at: float = 0.0
    ended_at: float = 0.0
    largest_audio_gap: float = 0.0
    """seconds between two arrivals of audio"""

    bytes_from_client: int = 0
    bytes_to_client: int = 0
    messages_from_client: int = 0
    messages_to_client: int = 0
    contexts: int = 0
    contexts_refused: int = 0

    voice: str = ""
    characters: int = 0
    transcript: str = ""

    closed_by: ClosedBy = ""
    close_code: int = 0

    def __init__(self, request_id: str, started_at: float, method: str, **known: Any) -> None:  # Any: of each field's type
        self.request_id = request_id
        self.started_at = started_at
        self.method = method
        for name, value in known.items():
            setattr(self, name, value)


class SettledContext:
    """One context of a multiplexed socket, at its end. Times are Unix seconds, 0.0 means never.

    `transcript` is for the keyed hash alone.
    """

    outcome: Outcome = "completed"
    reason: str = ""
    is_owed: bool | None = None
    text_ended_at: float = 0.0
    """its last message that speaks left for the provider; ttfa counts from the first one, `started_at`"""
    first_audio_at: float = 0.0
    ended_at: float = 0.0
    largest_audio_gap: float = 0.0
    characters: int = 0
    transcript: str = ""

    def __init__(self, session: Settled, tally: Tally, started_at: float, model: str = "", voice: str = "") -> None:
        """started_at: when its first message was admitted."""
        self.session = session
        self.tally = tally
        self.started_at = started_at
        self.model = model
        self.voice = voice
