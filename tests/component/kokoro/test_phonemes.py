"""Pronunciation with the real lexicons: nothing vanishes, nothing is downloaded, words know where they came from."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kokoro_backend.phonemes import LexiconError, MisakiPhonemizer, UnsupportedLanguage, load_lexicon
from kokoro_backend.weights import packaged_vocab


@pytest.fixture(scope="module")
def phonemizer() -> Iterator[MisakiPhonemizer]:
    """The phonemizer, loaded in a process whose sockets all fail."""

    def refuse(*_: object) -> None:
        raise AssertionError("pronunciation reached for the network")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", refuse)
        patch.setattr(socket, "getaddrinfo", refuse)
        yield MisakiPhonemizer(packaged_vocab(), {"gif": "ʤˈɪf"})


def symbols(phonemizer: MisakiPhonemizer, text: str, *, british: bool = False, phoneme_markup: bool = False) -> str:
    words = phonemizer.words(text, language="en", british=british, phoneme_markup=phoneme_markup)
    return "".join(word.symbols for word in words).strip()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello there.", "həlˈO ðˈɛɹ."),
        ("I read the book he will read.", "ˌI ɹˈɛd ðə bˈʊk hi wˈɪl ɹˈid."),
        ("It costs $3.50.", "ˌɪt kˈɔsts θɹˈi dˈɑləɹz ænd fˈɪfti sˈɛnts."),
        ("82", "ˈATi tˈu"),
        ("[hello](/wˈɜɹld/)", "həlˈO"),
        ("GIF", "ʤˈɪf"),
        ("GDP", "ʤˌidˌipˈi"),
    ],
)
def test_text_is_pronounced(phonemizer: MisakiPhonemizer, text: str, expected: str) -> None:
    # The lexicon's stress of small words depends on its tagger: compared without marks of stress.
    bare = str.maketrans("", "", "ˈˌ")
    assert symbols(phonemizer, text).translate(bare) == expected.translate(bare)


def test_markup_is_spoken_as_given_if_asked_for(phonemizer: MisakiPhonemizer) -> None:
    assert symbols(phonemizer, "[hello](/wˈɜɹld/) you", phoneme_markup=True).startswith("wˈɜɹld ")


def test_britons_sound_british(phonemizer: MisakiPhonemizer) -> None:
    assert symbols(phonemizer, "colour", british=True) == "kˈʌlə"


@pytest.mark.parametrize("word", ["xyzzyq", "flibbertigibbet", "k8s", "gRPC", "dashboardview", "O'Brien's", "zxcvb", "İzmir"])
def test_unknown_words_do_not_vanish(phonemizer: MisakiPhonemizer, word: str) -> None:
    first, unknown, last = phonemizer.words(f"Say {word} now", language="en", british=False)
    assert (first.text, unknown.text, last.text) == ("Say", word, "now")
    assert sum(char.isalpha() for char in unknown.symbols) >= 2


@settings(deadline=None, max_examples=60)
@given(st.text(alphabet="abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789'", min_size=1, max_size=12))
def test_no_word_of_letters_and_digits_is_silent(phonemizer: MisakiPhonemizer, word: str) -> None:
    if any(char.isalnum() for char in word):
        assert any(char.isalpha() for char in symbols(phonemizer, word)), word


@settings(deadline=None, max_examples=40)
@given(st.text(max_size=60))
def test_any_text_gives_symbols_that_the_model_knows_or_a_refusal(phonemizer: MisakiPhonemizer, text: str) -> None:
    vocab = packaged_vocab()
    try:
        words = phonemizer.words(text, language="en", british=False)
    except ValueError:
        return
    assert all(symbol in vocab for word in words for symbol in word.symbols)


def test_words_keep_the_callers_spelling(phonemizer: MisakiPhonemizer) -> None:
    words = phonemizer.words("Pay $3.50 at 10:30 a.m. — or on 3/4/2025, please!", language="en", british=False)
    assert [word.text for word in words] == ["Pay", "$3.50", "at", "10:30 a.m. —", "or", "on", "3/4/2025,", "please!"]


def test_another_language_is_refused(phonemizer: MisakiPhonemizer) -> None:
    with pytest.raises(UnsupportedLanguage):
        phonemizer.words("Bonjour", language="fr", british=False)


def test_a_lexicon_is_read_and_its_mistakes_are_named(tmp_path: Path) -> None:
    path = tmp_path / "lexicon.json"
    path.write_text(json.dumps({"GIF": "ʤˈɪf"}))
    assert load_lexicon(path, packaged_vocab()) == {"gif": "ʤˈɪf"}
    for content, message in (("{", "is not JSON"), ('{"a b": "x"}', "must be one word"), ('{"a": "7"}', "does not know: 7")):
        path.write_text(content)
        with pytest.raises(LexiconError, match=message):
            load_lexicon(path, packaged_vocab())


@pytest.mark.parametrize("pattern", ["1/", "'", "(/", "[", "A1", "aB", "1st", "1's", "1-", "²", "[a](", "aA1'-_/"])
def test_no_text_of_a_sentences_length_holds_the_worker_for_long(phonemizer: MisakiPhonemizer, pattern: str) -> None:
    # misaki alone takes half a minute for 240 characters of "1/1/1/": one caller could have silenced all others.
    began = time.process_time()
    phonemizer.words((pattern * 240)[:240], language="en", british=False)
    assert time.process_time() - began < 5


def test_numbers_beyond_all_names_are_read_as_digits(phonemizer: MisakiPhonemizer) -> None:
    assert len(phonemizer.words("9" * 400 + "th", language="en", british=False)) >= 1
