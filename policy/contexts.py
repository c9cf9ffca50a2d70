"""The contexts of one judged socket: which are live, what each was sent, and how each ended.

A provider multiplexes syntheses over one socket by `context_id`; each is admitted, counted and settled on its own. A message
without an id is a context of its own, matched to answers in order. Knows no bytes, no clock, no provider. Read next:
`policy.session`, which feeds it with judged messages and with what the provider says.
"""

import re
from collections import deque
from collections.abc import Iterator
from typing import Final

import msgspec

from contracts.events import Outcome
from policy.audio import base64_bytes
from policy.facts import Facts
from policy.refusal import Refusal
from policy.route import Route
from policy.usage import Settled, SettledContext, Tally

_MOST_REMEMBERED: Final = 256
"""ended and refused contexts whose late messages are still understood"""

_MOST_ANONYMOUS: Final = 64


class Said(msgspec.Struct):
    """What the gateway reads of a provider's message; everything else is skipped, audio included. Types are not trusted.

    The words are Cartesia's, and those of Kokoro's container (`synthesis_complete`, `audio_stream_end`, the durations, `code`).
    """

    type: "object" = None
    context_id: "object" = None
    done: "object" = None
    status_code: "object" = None
    error_code: "object" = None
    code: "object" = None
    data: "object" = None
    """audio as base64; `said_by` puts the size of what it decodes to in its place, in bytes"""
    cancelled: "object" = None
    total_duration_s: "object" = None
    duration_s: "object" = None


# Functions, and not properties: a Struct stays a Python class when it is compiled, and so would they.


def audio_bytes_of(said: Said) -> int:
    """Return how much audio a message carries."""
    size = said.data
    return size if type(size) is int else 0


def is_end(said: Said) -> bool:
    """Tell whether nothing more of a message's context, or of its answer, comes."""
    return said.done is True or said.type == "synthesis_complete"


def audio_ms_of(said: Said) -> int | None:
    """Return what the provider says itself of the length of its audio; None if it does not."""
    seconds = said.total_duration_s
    if seconds is None:
        seconds = said.duration_s
        if seconds is None:
            return None
    if not isinstance(seconds, int | float) or not 0 <= seconds < _MOST_SECONDS:
        return None
    return round(seconds * 1000)


def reason_of(said: Said) -> str:
    """Return an error as a reason: its code, else its status; never its words."""
    for code in (said.error_code, said.code):
        if isinstance(code, str) and code:
            return code[:64]
    return f"status_{said.status_code}"[:64]


_LONG: Final = 512
"""bytes; a message over it is worth a look for its audio first"""
_USUAL_AUDIO: Final = b'"data":"'
_AUDIO: Final = re.compile(rb'"data"\s*:\s*"')
_MOST_SECONDS: Final = 1_000_000

_READER: Final = msgspec.json.Decoder(Said)


def said_by(payload: bytes) -> Said | None:
    """Read a provider's text message; None if it is no JSON object."""
    return said_in(payload, 0, len(payload))


def said_in(data: bytes, begin: int, end: int) -> Said | None:
    """Read a provider's text message where it stands in a read; as `said_by`."""
    audio_bytes = 0
    if end - begin > _LONG:
        payload, audio_bytes = _without_audio(data, begin, end)
    else:
        payload = data[begin:end]
    try:
        said = _READER.decode(payload)
    except msgspec.DecodeError:  # also ValidationError: an array, a bare word (speech-to-text has those)
        return None
    audio = said.data
    if audio is not None:
        said.data = None if type(audio) is not str else base64_bytes(audio) if audio else audio_bytes
    return said


def _without_audio(data: bytes, begin: int, end: int) -> tuple[bytes, int]:
    """Return the message with its `data` emptied, if that is one plain string, and what that decodes to, in bytes.

    Base64 is most of a message, and says nothing. `"data"` and a colon can only be a key (inside a string the quotes would
    be escaped), and what follows it up to the next quote, which no backslash precedes, is its value. So the two texts differ
    in nothing else.
    """
    # The usual spelling first: a pattern looks at each character.
    audio_at = data.find(_USUAL_AUDIO, begin, begin + _LONG) + len(_USUAL_AUDIO)
    if audio_at < len(_USUAL_AUDIO):
        found = _AUDIO.search(data, begin, begin + _LONG)
        if found is None:
            return data[begin:end], 0
        audio_at = found.end()
    quote = data.find(b'"', audio_at, end)
    if quote < 0 or data.find(b"\\", audio_at, quote) >= 0:
        return data[begin:end], 0
    size = quote - audio_at
    padding = (data[quote - 1] == 0x3D) + (data[quote - 2] == 0x3D) if size >= 4 else 0
    return data[begin:audio_at] + data[quote:end], size * 3 // 4 - padding


class Context(SettledContext):
    """One live context: what its later messages are judged against, and what it settles as."""

    is_cancelled: bool = False
    last_audio_at: float = 0.0
    audio_bytes: int = 0
    refusal: Refusal | None = None
    """set when its model or voice was withdrawn while it lived: nothing more of it passes"""
    ends_by: float = 0.0
    """when a withdrawn or cancelled context must have ended, Unix seconds; 0.0: no such time"""

    def __init__(
        self, session: Settled, tally: Tally, now: float, asked_as: str | None, route: Route, voice: str, audio_rate: int
    ) -> None:
        """audio_rate: bytes a second of the audio that was asked for; 0: it cannot be known."""
        super().__init__(session, tally, now, route.model, voice)
        self.asked_as = asked_as
        self.route = route
        self.audio_rate = audio_rate

    def audio_arrived(self, size: int, now: float) -> None:
        """Note an arrival of audio. size: in bytes."""
        self.audio_bytes += size
        if not self.first_audio_at:
            self.first_audio_at = now
        elif now - self.last_audio_at > self.largest_audio_gap:
            self.largest_audio_gap = now - self.last_audio_at
        self.last_audio_at = now

    def count_audio(self) -> None:
        """Bring the tally up to the audio that came; what cannot be measured is told as that."""
        if self.audio_bytes:
            if self.audio_rate:
                self.tally.set("audio_out_ms", self.audio_bytes * 1000 // self.audio_rate)
            else:
                self.tally.set("unmeasured", 1)


class Contexts:
    """The live contexts of a session, and what is remembered of the ones before."""

    def __init__(self, session: Settled, pod: str, most: int) -> None:
        """most: how many may live at once."""
        self._session = session
        self._pod = pod
        self._most = most
        self._by_id: dict[str, Context | int] = {}
        """a live one, or the place in `_ended` of the name of one that has ended: one look a message finds either"""
        self._named = 0  # live ones that have an id
        self._anonymous: deque[Context] = deque()
        self._ended: list[str] = []  # used in a round once it has as many as are remembered
        self._next_ended = 0
        self._refused: dict[str, Refusal] = {}

    def __len__(self) -> int:
        return self._named + len(self._anonymous)

    def __iter__(self) -> Iterator[Context]:
        named = [known for known in self._by_id.values() if isinstance(known, Context)] if self._named else []
        return iter((*named, *self._anonymous))

    @property
    def is_full(self) -> bool:
        """Tell whether another context would be one too many."""
        return self._named + len(self._anonymous) >= self._most

    def live(self, context_id: str | None) -> Context | None:
        """Return the live context of that id; None for a new one, and for a message without an id."""
        if context_id is None:
            return None
        known = self._by_id.get(context_id)
        return known if isinstance(known, Context) else None

    def was_admitted(self, context_id: str | None) -> bool:
        """Tell whether a context of that id lived and has ended (its late close or cancel is harmless)."""
        return context_id is not None and isinstance(self._by_id.get(context_id), int)

    def refusal_of(self, context_id: str | None) -> Refusal | None:
        """Return why the context of that id was refused, if it was."""
        return None if context_id is None else self._refused.get(context_id)

    def refused(self, context_id: str | None, refusal: Refusal) -> None:
        """Remember a refusal, so that the rest of that context is refused likewise."""
        if context_id is not None:
            refused = self._refused
            refused.pop(context_id, None)
            refused[context_id] = refusal
            if len(refused) > _MOST_REMEMBERED:
                del refused[next(iter(refused))]

    def refusal_settled(self, refusal: Refusal, facts: Facts, route: Route, now: float) -> SettledContext:
        """Return what a refused message settles as: a context of its own that cost nothing, with the reason as answered."""
        session = self._session
        session.contexts_refused += 1
        tally = Tally(self._next_key(), route.attribution, self._pod)
        settled = SettledContext(session, tally, now, facts.model or route.model, facts.voice or "")
        settled.outcome = "refused"
        settled.reason = refusal.reason
        settled.ended_at = now
        return settled

    def _next_key(self) -> str:
        """Return the key of the next context; refused ones are numbered with the others."""
        session = self._session
        return f"{session.request_id}.{session.contexts + session.contexts_refused}"

    def open(self, context_id: str | None, voice: str, route: Route, audio_rate: int, now: float) -> Context:
        """Make the context of a message that was admitted. audio_rate: see Context."""
        session = self._session
        session.contexts += 1
        metadata = dict(route.metadata) if route.metadata else None
        tally = Tally(self._next_key(), route.attribution, self._pod, metadata)
        context = Context(session, tally, now, context_id, route, voice, audio_rate)
        if context_id is None:
            self._anonymous.append(context)
        else:
            self._by_id[context_id] = context
            self._named += 1
            if self._refused:
                self._refused.pop(context_id, None)
        return context

    def surplus(self) -> Context | None:
        """Return the oldest context without an id when too many wait for an answer that names none."""
        return self._anonymous[0] if len(self._anonymous) > _MOST_ANONYMOUS else None

    def answered(self, context_id: object) -> Context | None:
        """Return the live context that a provider's message is about.

        An id that nobody asked for is the provider's own name for the oldest context that came without one.
        """
        if isinstance(context_id, str):
            known = self._by_id.get(context_id)
            if isinstance(known, Context):
                return known
            if known is not None or not self._anonymous:
                return None
            named = self._by_id[context_id] = self._anonymous.popleft()
            named.asked_as = context_id
            self._named += 1
            return named
        if self._anonymous:
            return self._anonymous[0]
        return next(iter(self)) if self._named == 1 else None

    def end(self, context: Context, outcome: Outcome, now: float, reason: str = "") -> Context:
        """Take a context out and return it as what it settles as."""
        name = context.asked_as
        if name is None:
            self._anonymous.remove(context)
        else:
            self._named -= 1
            self._by_id[name] = self._remembered(name)
        context.count_audio()
        context.outcome = outcome
        context.reason = reason
        context.ended_at = now
        return context

    def _remembered(self, name: str) -> int:
        """Keep the name of a context that has ended, and forget the one that ended longest ago if there are many."""
        place, ended = self._next_ended, self._ended
        self._next_ended = (place + 1) % _MOST_REMEMBERED
        if len(ended) < _MOST_REMEMBERED:
            ended.append(name)
        else:
            oldest = ended[place]
            if self._by_id.get(oldest) == place:  # else it lives, or ended, again
                del self._by_id[oldest]
            ended[place] = name
        return place
