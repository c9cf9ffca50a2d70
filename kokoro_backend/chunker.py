"""Cut a stream of text into sentences as soon as each is certain: `feed`, then `flush` at the end.

The cut depends on the text only, never on how it was fragmented: a decision looks at most LOOKAHEAD characters past a
full stop, and waits until it has them or they can no longer change it. No I/O, no clock (delays are the caller's).
The labelled corpus and the scores against a plain regex and UAX #29 are in tests/unit/kokoro/test_chunker_corpus.py.
"""

import re
from dataclasses import dataclass

LOOKAHEAD = 64
TINY_LETTERS = 8
"""A sentence of fewer letters and digits is joined to its neighbour where both are at hand: "Yes.", "Go on."."""
JOINED_CHARS = 60
"""Joined sentences are at most this long: a first sound must not wait for a long neighbour."""
_TERMINATORS = ".!?…"
_CJK_TERMINATORS = "。！？｡"
_CLOSERS = "\"'”’»)]}」』）】"
_CJK_CLOSERS = "」』）】”’"
_CLAUSE_MARKS = ",;:—"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Never the end of a sentence: a name or an example follows.
_TITLES = _words(
    "dr mr mrs ms mx prof rev fr sen rep gov gen col maj capt lt sgt cpl pvt adm cmdr hon pres amb messrs mme mlle "
    "e.g i.e cf viz vs approx esp incl excl resp ca"
)
# The end of a sentence only if a number does not follow ("No. 5", but "No. I would not").
_BEFORE_NUMBERS = _words(
    "no nos fig figs vol vols pp p sec ch art para par eq eqs ref refs op ed eds tel ext "
    "jan feb mar apr jun jul aug sep sept oct nov dec"
)
# The end of a sentence only if a word follows that often begins one ("at 10 a.m. The", but "the U.S. Senate").
_SOMETIMES = _words(
    "a.m p.m etc inc ltd co corp llc plc jr sr ph.d m.d b.a m.a b.sc m.sc st ave blvd rd mt ft al dept est min max "
    "assn bros univ ed u.s u.k u.n e.u d.c"
)
_STARTERS = _words(
    "the a an this that these those there then they their them he she it its we our you your i if in on at as and but or so "
    "for from by with when while where who what why how however therefore thus moreover meanwhile after before because "
    "although though since until once now yes no not please thank thanks let do does did is are was were will would can could "
    "should may might must have has had all both each every some many most more one two three first second next finally also "
    "even only just my his her to of here"
)
_LIST_MARKER = re.compile(r"\s*(?:\d{1,3}|[a-zA-Z]|[ivxIVX]{1,4})[.)]?\Z")
_LAST_WORD = re.compile(r"[^\W_](?:[^\W_]|['’.\-])*\Z")
_ACRONYM = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_]\Z")
_NEXT_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")
_LINE_ITEM = re.compile(r"(?:[-*•–—#>]|\d{1,3}[.)]|[a-zA-Z][.)])")


@dataclass
class _Cut:
    """A cut after `end` characters, or none there, or (both False) not to be known yet."""

    is_boundary: bool
    is_certain: bool


_NO = _Cut(is_boundary=False, is_certain=True)
_YES = _Cut(is_boundary=True, is_certain=True)
_WAIT = _Cut(is_boundary=False, is_certain=False)


def without_tiny(sentences: list[str]) -> list[str]:
    """Return the sentences with tiny ones joined to a neighbour, in order, nothing lost.

    A model that was trained on whole sentences speaks three sounds alone worse than in company, and every run has a cost of
    its own (jamiepine/voicebox#960). What comes first stays short: it is waited for.
    """
    joined: list[str] = []
    for sentence in sentences:
        is_tiny = bool(joined) and min(_letters(joined[-1]), _letters(sentence)) < TINY_LETTERS
        if is_tiny and len(joined[-1]) + 1 + len(sentence) <= JOINED_CHARS:
            joined[-1] = f"{joined[-1]} {sentence}"
        else:
            joined.append(sentence)
    return joined


def _letters(sentence: str) -> int:
    return sum(char.isalnum() for char in sentence)


class SentenceChunker:
    """Release complete sentences of a growing text and keep the rest.

    max_chars: a longer sentence is cut at its last clause mark or space before that length.
    first_clause_chars: if given, the first clause of the text may go early, at a comma or similar mark after at least
    that many characters; a listener then waits for a clause instead of a sentence.
    """

    def __init__(self, max_chars: int = 240, first_clause_chars: int | None = None) -> None:
        if max_chars < 20:
            raise ValueError("max_chars must be at least 20")
        self._max_chars = max_chars
        self._clause_chars = first_clause_chars
        self._buffer = ""
        self._scanned = 0
        self._is_first = True

    @property
    def pending(self) -> str:
        """Return the text that is held because its sentence is not certain yet."""
        return self._buffer

    def feed(self, text: str) -> list[str]:
        """Take the next piece of text, of any size; return the sentences that have become certain."""
        self._buffer += text
        return self._release(at_end=False)

    def flush(self) -> list[str]:
        """Return what is held as final sentences; the chunker is then as new, but past the first clause."""
        sentences = self._release(at_end=True)
        rest = " ".join(self._buffer.split())
        self._buffer = ""
        self._scanned = 0
        if rest:
            self._is_first = False
            sentences.append(rest)
        return sentences

    def take_words(self) -> list[str]:
        """Release what is held up to the last white space: a buffer delay has run out and the last word may be cut off."""
        cut = max((index for index, char in enumerate(self._buffer) if char.isspace()), default=-1)
        if cut < 0 or not self._buffer[:cut].strip():
            return []
        sentence = " ".join(self._buffer[:cut].split())
        self._buffer = self._buffer[cut:]
        self._scanned = 0
        self._is_first = False
        return [sentence]

    def _release(self, *, at_end: bool) -> list[str]:
        sentences: list[str] = []
        while (end := self._next_end(at_end=at_end)) is not None:
            sentence = " ".join(self._buffer[:end].split())
            self._buffer = self._buffer[end:]
            self._scanned = 0
            if sentence:
                self._is_first = False
                sentences.append(sentence)
        return sentences

    def _next_end(self, *, at_end: bool) -> int | None:
        start = len(self._buffer) - len(self._buffer.lstrip())
        limit = start + self._max_chars
        position = max(self._scanned, start)
        while position < min(len(self._buffer), limit):
            cut, end = self._judge(start, position, at_end=at_end)
            if not cut.is_certain:
                self._scanned = position
                return None
            if cut.is_boundary:
                return end
            position += 1
        self._scanned = position
        # The last candidates need their lookahead before a sentence without an end is cut by force.
        if len(self._buffer) > limit:
            return _forced_cut(self._buffer, start, limit)
        return None

    def _judge(self, start: int, position: int, *, at_end: bool) -> tuple[_Cut, int]:
        char = self._buffer[position]
        if char == "\n":
            return _judge_line_end(self._buffer, start, position, at_end=at_end), position + 1
        if char in _CJK_TERMINATORS:
            return _judge_run(self._buffer, position, _CJK_TERMINATORS, _CJK_CLOSERS, at_end=at_end)
        if char in _TERMINATORS:
            return _judge_terminator(self._buffer, start, position, at_end=at_end)
        if self._clause_chars is not None and self._is_first and char in _CLAUSE_MARKS:
            after = self._buffer[position + 1 : position + 2]
            if position + 1 - start >= self._clause_chars:
                if not after and not at_end:
                    return _WAIT, 0
                if after.isspace():
                    return _YES, position + 1
        return _NO, 0


def _judge_run(text: str, position: int, marks: str, closers: str, *, at_end: bool) -> tuple[_Cut, int]:
    """Judge a mark that ends a sentence by itself: it does, once it is known where its run and closers end."""
    end = position + 1
    while end < len(text) and text[end] in marks:
        end += 1
    while end < len(text) and text[end] in closers:
        end += 1
    return (_YES if end < len(text) or at_end else _WAIT), end


def _judge_line_end(text: str, start: int, position: int, *, at_end: bool) -> _Cut:
    """A blank line ends a sentence; so does a line break before a list item, a capital, or after an ended line."""
    if not text[start:position].strip():
        return _NO
    rest = text[position + 1 : position + 1 + LOOKAHEAD]
    stripped = rest.lstrip(" \t\r")
    if not stripped:
        return _NO if at_end else (_WAIT if len(rest) < LOOKAHEAD else _YES)
    if stripped[0] == "\n" or text[position - 1] in _TERMINATORS + _CJK_TERMINATORS + _CLOSERS + ":":
        return _YES
    if _LINE_ITEM.match(stripped):
        return _YES
    if len(stripped) < 4 and (stripped[0].isdigit() or len(stripped) < 2) and len(rest) < LOOKAHEAD and not at_end:
        # "1" may become "1." or "1960"; one letter may become "a)".
        return _WAIT
    return _YES if stripped[0].isupper() or not stripped[0].isascii() else _NO


def _judge_terminator(text: str, start: int, position: int, *, at_end: bool) -> tuple[_Cut, int]:
    """Judge ".", "!", "?" or an ellipsis: what stands before it, and what follows its run and its closers."""
    if position and text[position - 1] in _TERMINATORS and position > start:
        return _NO, 0  # Judged with the first mark of its run.
    end = position + 1
    while end < len(text) and text[end] in _TERMINATORS:
        end += 1
    run = text[position:end]
    closers_from = end
    while end < len(text) and text[end] in _CLOSERS:
        end += 1
    closers = text[closers_from:end]
    if end == len(text):
        # At the end of the text the rest goes out whole in any case.
        return (_NO if at_end else _WAIT), end
    if not text[end].isspace():
        # "3.5", "example.com", "p.m", and a next sentence glued on, which is not worth a wrong cut in a URL.
        return (_YES if _is_cjk(text[end]) else _NO), end
    rest = text[end : end + LOOKAHEAD]
    following = rest.lstrip()
    gap = rest[: len(rest) - len(following)]
    if "\n\n" in gap or ("\n" in gap and run != "."):
        return _YES, end
    if run != "." and not run.startswith("..") and "…" not in run:
        if not any(closer in "\"'”’»" for closer in closers):
            return _YES, end
        if not following:
            return _undecided(rest, at_end=at_end), end
        return (_NO if following[0].islower() else _YES), end
    word_match = _LAST_WORD.search(text[start:position]) if run == "." else None
    word = word_match.group() if word_match else ""
    if run == "." and _LIST_MARKER.match(text[start:position]):
        return _NO, end
    if not following:
        return _undecided(rest, at_end=at_end), end
    if following[0].islower():
        return _NO, end
    return _judge_abbreviation(word, closers, rest, following, at_end=at_end), end


def _judge_abbreviation(word: str, closers: str, rest: str, following: str, *, at_end: bool) -> _Cut:
    lowered = word.lower()
    if closers.strip("'’"):
        return _YES
    if lowered in _TITLES:
        return _NO
    if lowered in _BEFORE_NUMBERS:
        return _NO if following[0].isdigit() else _YES
    is_acronym = bool(word) and bool(_ACRONYM.match(word)) and word != "I"
    if lowered not in _SOMETIMES and not is_acronym:
        return _YES
    if not following[0].isalpha():
        return _NO if following[0].isdigit() else _YES
    match = _NEXT_WORD.match(following)
    next_word = match.group() if match else following[0]
    if len(next_word) == len(following) and len(rest) < LOOKAHEAD and not at_end:
        return _WAIT
    return _YES if next_word.lower() in _STARTERS else _NO


def _undecided(rest: str, *, at_end: bool) -> _Cut:
    if at_end:
        return _NO
    return _YES if len(rest) >= LOOKAHEAD else _WAIT


def _forced_cut(text: str, start: int, limit: int) -> int:
    """Return where to cut a sentence that is too long: after a clause mark, else at a space, else in mid-word."""
    floor = start + (limit - start) // 3
    for position in range(limit - 1, floor, -1):
        if text[position] in _CLAUSE_MARKS + "，、；：" and (text[position + 1].isspace() or not text[position].isascii()):
            return position + 1
    for position in range(limit, floor, -1):
        if text[position].isspace():
            return position
    return limit


def _is_cjk(char: str) -> bool:
    return "\u3040" <= char <= "\u30ff" or "\u4e00" <= char <= "\u9fff" or "\uac00" <= char <= "\ud7af"
