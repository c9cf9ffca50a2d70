"""Sentences are cut where they end, as soon as that is certain, however the text was fragmented."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kokoro_backend.chunker import SentenceChunker, without_tiny

PIECES = [
    "Dr. ", "Smith", " ", "paid $3.50", ". ", ".", "The ", "U.S. ", "10 a.m. ", "e.g. ", "Really?! ", '"Stop!" ', "he said",
    "...", "…", "\n", "\n\n", "1. ", "- item", "。", "你好", "！", "」", ", ", "; ", "https://a.b/c. ", "I. ", "J. K. ", "No. ",
    "5", "é", "x" * 30,
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)


def sentences(text: str, cuts: list[int] | None = None) -> list[str]:
    chunker = SentenceChunker()
    found: list[str] = []
    start = 0
    for cut in [*sorted(cuts or []), len(text)]:
        found += chunker.feed(text[start:cut])
        start = max(start, cut)
    return found + chunker.flush()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Dr. Smith paid $3.50. He left.", ["Dr. Smith paid $3.50.", "He left."]),
        ("He left at 10 a.m. The train was late.", ["He left at 10 a.m.", "The train was late."]),
        ("The U.S. Senate met.", ["The U.S. Senate met."]),
        ("It grew 2.5% e.g. by trade.", ["It grew 2.5% e.g. by trade."]),
        ("J. K. Rowling wrote it.", ["J. K. Rowling wrote it."]),
        ("No. I did not. See No. 5.", ["No.", "I did not.", "See No. 5."]),
        ("Really?! Yes.", ["Really?!", "Yes."]),
        ("“Stop!” he said. “Go.” She went.", ["“Stop!” he said.", "“Go.”", "She went."]),
        ("Wait... what? Hmm... Then go.", ["Wait... what?", "Hmm...", "Then go."]),
        ("See https://example.com/a.b. Now.", ["See https://example.com/a.b.", "Now."]),
        ("Steps:\n1. First thing\n2. Second thing", ["Steps:", "1. First thing", "2. Second thing"]),
        ("A line that\nwraps on.\n\nA new one", ["A line that wraps on.", "A new one"]),
        ("你好。世界！好。", ["你好。", "世界！", "好。"]),
        ("「はい。」次です。", ["「はい。」", "次です。"]),
        ("He works at Apple Inc. and likes it.", ["He works at Apple Inc. and likes it."]),
    ],
)
def test_sentences_are_cut_where_they_end(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


@given(TEXTS, st.lists(st.integers(0, 400), max_size=30))
def test_any_fragmenting_gives_the_same_sentences(text: str, cuts: list[int]) -> None:
    assert sentences(text, [min(cut, len(text)) for cut in cuts]) == sentences(text)


@given(TEXTS)
def test_nothing_is_lost_and_nothing_added(text: str) -> None:
    assert "".join("".join(sentences(text)).split()) == "".join(text.split())


@given(TEXTS, TEXTS)
def test_what_was_released_does_not_change_with_what_follows(text: str, more: str) -> None:
    chunker = SentenceChunker()
    early = chunker.feed(text)
    assert sentences(text + more)[: len(early)] == early


@given(TEXTS)
def test_no_sentence_is_longer_than_the_cap(text: str) -> None:
    assert all(len(sentence) <= 240 for sentence in sentences(text))


def test_a_sentence_is_released_with_the_first_letter_of_the_next() -> None:
    chunker = SentenceChunker()
    assert chunker.feed("Hello there.") == []
    assert chunker.feed(" ") == []
    assert chunker.feed("I") == ["Hello there."]


def test_a_question_is_released_with_the_space_after_it() -> None:
    assert SentenceChunker().feed("Are you there? ") == ["Are you there?"]


def test_a_sentence_without_punctuation_is_cut_at_a_space_before_the_cap() -> None:
    cut = sentences("word " * 100)
    assert [len(part) for part in cut] == [239, 239, 19]


def test_a_long_sentence_is_cut_at_its_last_comma_before_the_cap() -> None:
    text = "word " * 30 + "end, " + "word " * 30
    assert sentences(text)[0].endswith("end,")


def test_the_first_clause_may_go_early_and_only_the_first() -> None:
    chunker = SentenceChunker(first_clause_chars=20)
    assert chunker.feed("Well, this is a longer clause, and") == ["Well, this is a longer clause,"]
    assert chunker.feed(" this is another long clause, too. N") == ["and this is another long clause, too."]


def test_numbers_with_commas_are_no_clauses() -> None:
    assert SentenceChunker(first_clause_chars=5).feed("Exactly 1,234,567 people ") == []


@pytest.mark.parametrize(
    ("given_sentences", "joined"),
    [
        (["Yes.", "No.", "Perhaps so, in the end."], ["Yes. No. Perhaps so, in the end."]),
        (["That is all I know.", "Bye."], ["That is all I know. Bye."]),
        (["Good morning, madam.", "Good evening, sir."], ["Good morning, madam.", "Good evening, sir."]),
        (["Yes.", "x" * 60], ["Yes.", "x" * 60]),
        (["…", "好。", "世界"], ["… 好。 世界"]),
        ([], []),
    ],
)
def test_tiny_sentences_are_joined_to_a_short_neighbour(given_sentences: list[str], joined: list[str]) -> None:
    assert without_tiny(given_sentences) == joined


@given(st.lists(st.text(min_size=1, max_size=80)))
def test_joining_loses_nothing_and_keeps_the_order(given_sentences: list[str]) -> None:
    assert " ".join(without_tiny(given_sentences)) == " ".join(given_sentences)


def test_a_buffer_delay_releases_whole_words_only() -> None:
    chunker = SentenceChunker()
    chunker.feed("Hello wor")
    assert chunker.take_words() == ["Hello"]
    assert chunker.feed("ld. ") + chunker.flush() == ["world."]
