"""What is written for the eye is read out in words."""

from __future__ import annotations

import pytest

from kokoro_backend.text import UnsupportedScript, spoken_form


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("It costs $3.50.", "It costs three dollars and fifty cents."),
        ("£1.01 or €5 or ¥500", "one pound and one penny or five euros or five hundred yen"),
        ("$2.5 million, $3M", "two point five million dollars, three million dollars"),
        ("2.10", "two point one zero"),
        ("up 2.5% to 20°C", "up two point five percent to twenty degrees Celsius"),
        ("10:30 a.m. today", "ten thirty A M today"),
        ("at 9:05", "at nine oh five"),
        ("at 5:00", "at five o'clock"),
        ("on 3/4/2025", "on March fourth, twenty twenty-five"),
        ("on 2025-03-04", "on March fourth, twenty twenty-five"),
        ("v1.2.3", "version one point two point three"),
        ("call 555-123-4567", "call five five five, one two three, four five six seven"),
        ("id 0042.", "id zero zero four two."),
        ("1/2 cup, 3/4 mile", "one half cup, three quarters mile"),
        ("items 10–20", "items ten to twenty"),
        ("No. 5 and #7", "number 5 and number 7"),
        ("e.g. this, i.e. that", "for example this, that is that"),
        ("https://example.com/a-b.", "example dot com slash a dash b."),
        ("mail a.b@c.io", "mail a dot b at c dot I O"),
        ("R&D, a=b, 2 < 3", "R and D, a equals b, 2 less than 3"),
        ("naïve café", "naive cafe"),
        ("[the docs](https://x.y) help", "the docs help"),
        ("[hello](/wˈɜɹld/) you", "hello you"),
    ],
)
def test_written_forms_are_read_out(written: str, spoken: str) -> None:
    assert " ".join(spoken_form(written).text.split()) == spoken


def test_britons_put_the_day_first() -> None:
    assert spoken_form("3/4/2025", british=True).text == "the third of April, twenty twenty-five"


def test_emoji_are_silent_and_foreign_scripts_an_error() -> None:
    assert spoken_form("Well 😀 done").text.split() == ["Well", "done"]
    with pytest.raises(UnsupportedScript) as refused:
        spoken_form("Привет")
    assert refused.value.script == "Cyrillic"


def test_phoneme_markup_is_taken_only_if_asked_for() -> None:
    (piece,) = spoken_form("[hello](/wˈɜɹld/)", allow_phoneme_markup=True).pieces
    assert (piece.spoken, piece.phonemes) == ("hello", "wˈɜɹld")
    assert all(piece.phonemes is None for piece in spoken_form("[hello](/wˈɜɹld/)").pieces)


def test_the_operators_lexicon_overrides_a_word_in_any_case() -> None:
    pieces = spoken_form("Say GIF twice.", lexicon={"gif": "ʤˈɪf"}).pieces
    assert [piece.phonemes for piece in pieces if piece.spoken == "GIF"] == ["ʤˈɪf"]


def test_every_piece_knows_where_it_came_from() -> None:
    text = "Pay $3.50 at 10:30, please."
    assert [text[piece.start : piece.end] for piece in spoken_form(text).pieces if piece.spoken[0].isalpha()] == [
        "Pay", "$3.50", "at", "10:30", "please",
    ]  # fmt: skip
