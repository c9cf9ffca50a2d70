"""What a client's message says, read once for all messages that differ only in their text and context.

An agent sends the same object again and again: model, voice and format stay, text and context id change. The first such
message is read whole by `policy.peek`; of the next ones only the two strings are taken out, and what remains is looked up.
The bodies of a connection's requests are read likewise; they have no context.
That is the same reading: two JSON texts that differ in the content of a plain string differ in nothing else. Whatever is
not plain (an escape, a blank text, a control character) is read whole. Read next: `policy.session`.
"""

import re
from functools import cache
from typing import Final

from policy.facts import Facts, Unjudgeable
from policy.peek import facts_of_json
from policy.providers.profile import Endpoint

_MOST_KEPT: Final = 64
_MOST_MISSES: Final = 16
"""messages in a row that were like none before them: from then on all are read whole, which costs less than remembering"""
_LONGEST_KEPT: Final = 4096
"""bytes of a message without its text; longer ones are rare and are read whole"""
_LONGEST_NAME: Final = 256
_COLON: Final = 0x3A
_QUOTE: Final = 0x22
_SPACE: Final = 0x20
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


class _Known:
    """A message that was read: `facts`, and what of its bytes stands before, between and behind its two strings.

    `is_text_first` tells their order. Without a context there is one string: nothing stands between, `has_context` is false.
    """

    __slots__ = ("after", "before", "between", "facts", "has_context", "is_text_first")

    def __init__(self, facts: Facts, payload: bytes, text: tuple[int, int], context: tuple[int, int] | None) -> None:
        self.facts = facts
        self.has_context = context is not None
        self.is_text_first = context is None or text < context
        first, second = (text, context or text) if self.is_text_first else (context or text, text)
        self.before = payload[: first[0]]
        self.between = b"" if context is None else payload[first[1] : second[0]]
        self.after = payload[second[1] :]

    def hear(self, payload: bytes) -> Heard | None:
        """Return what a message says that differs from this one in the two strings alone; None if it may not be one.

        What stands around the strings is the same byte for byte, and they are plain: so they are the same two values.
        """
        if not payload.startswith(self.before):
            return None
        begin = len(self.before)
        end = payload.find(b'"', begin)
        if end <= begin:
            return None
        text = _plain(payload[begin:end])
        if not text:
            return None
        context_id = self.facts.context_id
        if self.has_context:
            begin = end + len(self.between)
            if payload[end:begin] != self.between:
                return None
            end = payload.find(b'"', begin)
            if end <= begin:
                return None
            other = _plain(payload[begin:end])
            if not other:
                return None
            if self.is_text_first:
                context_id = other
            else:
                context_id, text = text, other
            if len(context_id) > _LONGEST_NAME:
                return None
        if len(payload) - end != len(self.after) or not payload.endswith(self.after):
            return None
        if "<" in text or text.isspace():
            return None
        return Heard(self.facts, context_id, text, len(text), True)


def _plain(value: bytes) -> str:
    """Return the content of a JSON string that no quote stands in, if it means itself and nothing in it is odd; else nothing."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return ""
    return text if "\\" not in text and text.isprintable() else ""


class _Sought:
    """A key whose value is a plain string: not empty, no escape in it, no control character."""

    __slots__ = ("_key", "_key_bytes", "_pattern")

    def __init__(self, key: str) -> None:
        self._key = b'"%b"' % key.encode()
        self._key_bytes = len(self._key)
        self._pattern = re.compile(re.escape(self._key) + rb'\s*:\s*"([^"\\\x00-\x1f]+)"')

    def find(self, payload: bytes) -> tuple[int, int, str]:
        """Return where the first such value begins and ends, and what it is; end 0: there is none that can be read."""
        at = payload.find(self._key)
        if at < 0:
            return 0, 0, ""
        # As serialisers write it: a few searches in place of a pattern, which looks at each character.
        at += self._key_bytes
        begin = _value_at(payload, at)
        if begin:
            end = payload.find(b'"', begin)
            if end > begin and payload.find(b"\\", begin, end) < 0:
                try:
                    value = payload[begin:end].decode()
                except UnicodeDecodeError:
                    return 0, 0, ""
                if value.isprintable():
                    return begin, end, value
        found = self._pattern.search(payload)
        if found is None:
            return 0, 0, ""
        try:
            return found.start(1), found.end(1), found[1].decode()
        except UnicodeDecodeError:
            return 0, 0, ""


def _value_at(payload: bytes, at: int) -> int:
    """Return where the string begins whose key ended at an offset, if it is written as serialisers do; else 0."""
    if at + 2 < len(payload) and payload[at] == _COLON:
        if payload[at + 1] == _QUOTE:
            return at + 2
        if payload[at + 1] == _SPACE and payload[at + 2] == _QUOTE:
            return at + 3
    return 0


_sought = cache(_Sought)
_CONTEXT: Final = _Sought("context_id")


class Recall:
    """What was read of one session's messages, or of the bodies of one connection's requests."""

    __slots__ = ("_endpoint", "_known", "_known_without_context", "_latest", "_misses", "_most_kept", "_text")

    def __init__(self, endpoint: Endpoint, most_kept: int = _MOST_KEPT) -> None:
        """most_kept: messages that differ in more than text and context."""
        self._endpoint = endpoint
        self._text: _Sought = _sought(endpoint.text_key or "transcript")
        self._most_kept = most_kept
        self._misses = 0
        self._known: dict[bytes, _Known] = {}
        self._known_without_context: dict[bytes, _Known] = {}
        """apart, for an empty context is what one that was taken out looks like"""
        self._latest: _Known | None = None
        """what the last message was like: the next one mostly is as well"""

    def facts(self, body: bytes) -> Facts | Unjudgeable:
        """Return what `policy.peek.facts_of_json` returns."""
        heard = self.hear(body)
        if isinstance(heard, Unjudgeable):
            return heard
        facts = heard.facts
        if facts.transcript == heard.transcript and facts.context_id == heard.context_id:
            return facts
        return facts.saying(heard.transcript, heard.characters, heard.context_id)

    def hear(self, payload: bytes) -> Heard | Unjudgeable:
        """Return what a message says. payload: unmasked, whole."""
        latest = self._latest
        if latest is not None:
            heard = latest.hear(payload)
            if heard is not None:
                self._misses = 0
                return heard
        a, b, transcript = self._text.find(payload)
        if not b or self._misses > _MOST_MISSES:
            return self._whole(payload)
        c, d, named = _CONTEXT.find(payload)
        context_id: str | None = named
        if not d:
            rest = payload[:a] + payload[b:]
            known = self._known_without_context.get(rest)
            if known is None:
                return self._first(payload, rest, (a, b), None)
            context_id = known.facts.context_id
        else:
            rest = payload[:a] + payload[b:c] + payload[d:] if a < c else payload[:c] + payload[d:a] + payload[b:]
            known = self._known.get(rest)
            if known is None:
                return self._first(payload, rest, (a, b), (c, d))
            if len(named) > _LONGEST_NAME:
                return self._whole(payload)
        if "<" in transcript or transcript.isspace():
            return self._whole(payload)
        self._misses = 0
        self._latest = known
        return Heard(known.facts, context_id, transcript, len(transcript), True)

    def _whole(self, payload: bytes) -> Heard | Unjudgeable:
        facts = facts_of_json(payload, self._endpoint)
        if isinstance(facts, Unjudgeable):
            return facts
        return Heard(facts, facts.context_id, facts.transcript, facts.characters, facts.speaks)

    def _first(self, payload: bytes, rest: bytes, text: tuple[int, int], context: tuple[int, int] | None) -> Heard | Unjudgeable:
        """Read a message whole, and keep it if the strings that were found are the ones that are judged."""
        self._misses += 1
        heard = self._whole(payload)
        if isinstance(heard, Unjudgeable) or not heard.speaks or heard.facts.cancels or len(rest) > _LONGEST_KEPT:
            return heard
        other = bytearray(payload)
        replaced = [(text, _A_TEXT)]
        context_id, known = heard.context_id, self._known_without_context
        if context is not None:
            replaced.append((context, _A_CONTEXT))
            context_id, known = _A_CONTEXT, self._known
        for (begin, end), value in sorted(replaced, reverse=True):
            other[begin:end] = value.encode()
        proof = facts_of_json(bytes(other), self._endpoint)
        if isinstance(proof, Facts) and proof.transcript == _A_TEXT and proof.context_id == context_id:
            if len(known) >= self._most_kept:
                known.clear()
            # the proof's facts, which differ in the text alone: a text may be a thousand times as long as all else
            known[rest] = self._latest = _Known(proof, payload, text, context)
        return heard
