"""What a client's message says, read once for all messages that differ only in their text and context.

An agent sends the same object again and again: model, voice and format stay, text and context id change. The first such
message is read whole by `policy.peek`; of the next ones only the two strings are taken out, and what remains is looked up.
That is the same reading: two JSON texts that differ in the content of a plain string differ in nothing else. Whatever is
not plain (an escape, a blank text, a control character) is read whole. Read next: `policy.session`.
"""

import re
from typing import Final

from policy.facts import Facts, Unjudgeable
from policy.peek import facts_of_json
from policy.providers.profile import Endpoint

_MOST_KEPT: Final = 64
_LONGEST_KEPT: Final = 4096
"""bytes of a message without its text; longer ones are rare and are read whole"""
_LONGEST_NAME: Final = 256
_A_TEXT: Final = "a text that nobody sent"
_A_CONTEXT: Final = "a-context-that-nobody-has"


class Heard:
    """One message: `facts` to judge it by (of an equal message, perhaps with other text), and what is its own."""

    __slots__ = ("characters", "context_id", "facts", "speaks", "transcript")

    def __init__(self, facts: Facts, context_id: str | None, transcript: str, characters: int, speaks: bool) -> None:
        self.facts = facts
        self.context_id = context_id
        self.transcript = transcript
        self.characters = characters
        self.speaks = speaks


class Recall:
    """What was read of one session's messages."""

    __slots__ = ("_context", "_endpoint", "_known", "_text")

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        plain = rb'\s*:\s*"([^"\\\x00-\x1f]+)"'
        self._text = re.compile(b'"%b"' % re.escape((endpoint.text_key or "transcript").encode()) + plain)
        self._context = re.compile(b'"context_id"' + plain)
        self._known: dict[bytes, Facts] = {}

    def hear(self, payload: bytes) -> Heard | Unjudgeable:
        """Return what a message says. payload: unmasked, whole."""
        text = self._text.search(payload)
        context = self._context.search(payload)
        if text is None or context is None:
            return self._whole(payload)
        (a, b), (c, d) = text.span(1), context.span(1)
        rest = payload[:a] + payload[b:c] + payload[d:] if a < c else payload[:c] + payload[d:a] + payload[b:]
        facts = self._known.get(rest)
        if facts is None:
            return self._first(payload, rest, text.span(1), context.span(1))
        try:
            transcript, context_id = payload[a:b].decode(), payload[c:d].decode()
        except UnicodeDecodeError:
            return self._whole(payload)
        if "<" in transcript or transcript.isspace() or len(context_id) > _LONGEST_NAME:
            return self._whole(payload)
        return Heard(facts, context_id, transcript, len(transcript), True)

    def _whole(self, payload: bytes) -> Heard | Unjudgeable:
        facts = facts_of_json(payload, self._endpoint)
        if isinstance(facts, Unjudgeable):
            return facts
        return Heard(facts, facts.context_id, facts.transcript, facts.characters, facts.speaks)

    def _first(self, payload: bytes, rest: bytes, text: tuple[int, int], context: tuple[int, int]) -> Heard | Unjudgeable:
        """Read a message whole, and keep it if the two strings that were found are the ones that are judged."""
        heard = self._whole(payload)
        if isinstance(heard, Unjudgeable) or not heard.speaks or heard.facts.cancels or len(rest) > _LONGEST_KEPT:
            return heard
        other = bytearray(payload)
        for (begin, end), value in sorted([(text, _A_TEXT), (context, _A_CONTEXT)], reverse=True):
            other[begin:end] = value.encode()
        proof = facts_of_json(bytes(other), self._endpoint)
        if isinstance(proof, Facts) and (proof.transcript, proof.context_id) == (_A_TEXT, _A_CONTEXT):
            if len(self._known) >= _MOST_KEPT:
                self._known.clear()
            self._known[rest] = heard.facts
        return heard
