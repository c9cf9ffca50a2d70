"""What a request is, before anything was decided about it.

A `RequestHead` is what came on the wire: raw path, raw query, header pairs in their order and case; nothing is decoded.
`Facts` are what a judged request says about itself (model, voice, text length), wherever its endpoint keeps them: query,
path, JSON body, form field or WebSocket message. Read next: `policy.decide`.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from policy.scan import Scan

Header: TypeAlias = tuple[bytes, bytes]
"""(name, value) as received: case kept, value without surrounding blanks (RFC 9110 §5.5)"""

FactsPlace: TypeAlias = Literal["json_body", "form_field", "message"]
"""where judged facts stand, when they do not stand in the head"""


@dataclass(slots=True)
class RequestHead:
    """The head of one HTTP request, or of the handshake of a WebSocket."""

    method: str
    path: bytes
    """raw, as received, without the query; begins with `/`"""
    query: bytes = field(repr=False)
    """raw, without the `?`; empty if there was none. Like the headers it may hold the caller's token: not printed"""
    headers: list[Header] = field(repr=False)
    is_websocket: bool = False
    has_body: bool = False
    host: bytes = b""
    """the `Host` value in lower case, without port"""
    peer: str = ""
    """the client's IP address"""
    scan: "Scan | None" = field(default=None, repr=False, compare=False)
    """what `policy.scan` found, kept for the second time that the same head is decided"""


@dataclass(slots=True)
class Facts:
    """What a judged request or message says about itself. None means: not said.

    A value, never changed once made. Not frozen: one is made for each request and message, and freezing costs six times the
    rest.
    """

    model: str | None = None
    voice: str | None = None
    """voice id; an embedding counts as a voice that no allow-list contains, see `is_voice_embedded`"""
    is_voice_embedded: bool = False
    characters: int = 0
    """code points of the decoded transcript; a `<break …/>` counts one (reference: Cartesia pricing)"""
    speaks: bool = False
    """the transcript is not blank"""
    transcript: str = field(default="", repr=False)
    """for the keyed hash alone; never logged, never published. May hold lone surrogates: encode with `surrogatepass`"""
    saves_audio: bool = False
    """`save: true` was asked for: the provider would keep the audio"""
    context_id: str | None = None
    """WebSocket messages: the provider's context; None is a context of its own"""
    continues: bool = False
    cancels: bool = False
    flushes: bool = False
    encoding: str | None = None
    sample_rate: int | None = None
    """of the audio sent, where the query names it: what turns bytes into milliseconds"""
    output: Any = None
    """what the audio asked for is to be (`output_format`), as it stands in JSON (Any: not checked); see policy.audio"""
    is_control: bool = False
    """a message about the others of its socket, by its `type` (the endpoint's `control_types`)"""

    def saying(self, transcript: str, characters: int, context_id: str | None) -> "Facts":
        """Return the facts of a message that differs in its text, which is not blank, and its context alone."""
        return Facts(
            self.model,
            self.voice,
            self.is_voice_embedded,
            characters,
            True,
            transcript,
            self.saves_audio,
            context_id,
            self.continues,
            self.cancels,
            self.flushes,
            self.encoding,
            self.sample_rate,
            self.output,
        )


@dataclass(frozen=True, slots=True)
class Unjudgeable:
    """A judged body or message that cannot be read with certainty; `reason` is a refusal reason."""

    reason: str
    key: str = ""
    """the judged key that it is about, as the provider spells it; empty where it is about none"""
    context_id: str | None = None
    """of a message that names its context with certainty all the same"""
