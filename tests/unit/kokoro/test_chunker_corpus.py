"""The chunker against a labelled corpus, scored beside the AWS article's regex and UAX #29's sentence boundaries."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from pathlib import Path

from kokoro_backend.chunker import SentenceChunker

CORPUS = Path(__file__).with_name("chunker_corpus.txt")


def cases() -> list[tuple[str, set[int]]]:
    """Return (text, ends): ends are counts of characters that are not white space before each inner sentence end."""
    found = []
    for line in CORPUS.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            parts = line.replace("\\n", "\n").split("|")
            found.append(("".join(parts), ends_of(parts)))
    return found


def ends_of(sentences: list[str]) -> set[int]:
    ends: set[int] = set()
    count = 0
    for sentence in sentences[:-1]:
        count += len("".join(sentence.split()))
        ends.add(count)
    return ends


def chunked(text: str) -> list[str]:
    chunker = SentenceChunker()
    return chunker.feed(text) + chunker.flush()


def article_regex(text: str) -> list[str]:
    return [part for part in re.split(r"(?<=[.!?])\s+", text) if part]


def uax29(text: str) -> list[str]:
    """Unicode Standard Annex #29, sentence boundary rules SB3 to SB11."""
    classes = [_sentence_class(char) for char in text]
    parts: list[str] = []
    start = index = 0
    while index < len(text):
        kind = classes[index]
        if kind == "Sep":
            parts.append(text[start : index + 1])
            start = index = index + 1
            continue
        if kind not in ("ATerm", "STerm"):
            index += 1
            continue
        following = classes[index + 1] if index + 1 < len(text) else ""
        if kind == "ATerm" and (
            following == "Numeric" or (following == "Upper" and index and classes[index - 1] in ("Upper", "Lower"))
        ):
            index += 1  # SB6, SB7
            continue
        after = index + 1
        while after < len(text) and classes[after] == "Close":
            after += 1
        while after < len(text) and classes[after] == "Sp":
            after += 1
        if after < len(text) and classes[after] == "Sep":
            after += 1
        elif after < len(text):
            if classes[after] in ("SContinue", "STerm", "ATerm"):
                index += 1  # SB8a
                continue
            if kind == "ATerm":
                ahead = after
                while ahead < len(text) and classes[ahead] not in ("OLetter", "Upper", "Lower", "Sep", "STerm", "ATerm"):
                    ahead += 1
                if ahead < len(text) and classes[ahead] == "Lower":
                    index += 1  # SB8
                    continue
        parts.append(text[start:after])
        start = index = after
    return [part for part in [*parts, text[start:]] if part]


def _sentence_class(char: str) -> str:
    category = unicodedata.category(char)
    if char in "\n\r\u2029\u0085":
        return "Sep"
    if char == ".":
        return "ATerm"
    if char in "!?。！？…"[:5]:
        return "STerm"
    if char in ",-:–—、，：":
        return "SContinue"
    if char.isspace():
        return "Sp"
    if category == "Lu":
        return "Upper"
    if category == "Ll":
        return "Lower"
    if category in ("Lo", "Lm", "Lt"):
        return "OLetter"
    if category == "Nd":
        return "Numeric"
    return "Close" if category in ("Ps", "Pe", "Pi", "Pf") or char in "\"'" else ""


def score(split: Callable[[str], list[str]]) -> float:
    """Return the F1 of inner sentence ends over the corpus."""
    right = found = expected = 0
    for text, ends in cases():
        ours = ends_of(split(text))
        right += len(ours & ends)
        found += len(ours)
        expected += len(ends)
    return 2 * right / (found + expected)


def test_the_chunker_finds_nearly_all_ends_and_beats_the_others() -> None:
    ours = score(chunked)
    assert ours >= 0.95
    assert score(article_regex) < ours - 0.15
    assert score(uax29) < ours - 0.10
