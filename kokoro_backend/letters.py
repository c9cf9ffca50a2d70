"""Letter-to-sound rules for English words that no lexicon knows, so that an unknown word never vanishes.

`pronounce` gives a reader's guess in Kokoro's phoneme alphabet; words that nobody could read ("xq7z") are spelled.
The rules are a context table in the manner of the NRL rules (Elovitz et al., 1976): the longest matching one wins.
"""

import re

_VOWEL_LETTERS = "aeiouy"
_VOWELS = "AIOQWYiuæaɑɒɛɪʊʌəɜᵊᵻɔ"

# (letters, what must follow them as a regular expression, phonemes); "" follows anything. First match wins.
_RULES: tuple[tuple[str, str, str], ...] = (
    ("eigh", "", "A"), ("augh", "", "ɔ"), ("ough", "t", "ɔ"), ("ough", "", "O"), ("tion", "", "ʃən"),
    ("sion", "", "ʒən"), ("ssion", "", "ʃən"), ("cious", "", "ʃəs"), ("tious", "", "ʃəs"), ("ture", "$", "ʧəɹ"),
    ("sure", "$", "ʒəɹ"), ("tch", "", "ʧ"), ("dge", "", "ʤ"), ("sch", "", "sk"), ("igh", "", "I"),
    ("que", "$", "k"), ("gue", "$", "ɡ"), ("air", "", "ɛɹ"), ("are", "$", "ɛɹ"), ("ear", "", "ɪɹ"),
    ("eer", "", "ɪɹ"), ("ier", "$", "iəɹ"), ("oor", "", "ɔɹ"), ("our", "", "ɔɹ"), ("ore", "$", "ɔɹ"),
    ("ire", "$", "Iəɹ"), ("ure", "$", "jʊɹ"), ("ere", "$", "ɪɹ"), ("ous", "$", "əs"), ("ing", "$", "ɪŋ"),
    ("ble", "$", "bᵊl"), ("ple", "$", "pᵊl"), ("tle", "$", "tᵊl"), ("dle", "$", "dᵊl"), ("gle", "$", "ɡᵊl"),
    ("kle", "$", "kᵊl"), ("ch", "r|l", "k"), ("ch", "", "ʧ"), ("sh", "", "ʃ"), ("th", "", "θ"), ("ph", "", "f"),
    ("wh", "", "w"), ("gh", "$", ""), ("gh", "", "ɡ"), ("ck", "", "k"), ("ng", "$", "ŋ"), ("ng", "[^aeiouy]", "ŋ"),
    ("nk", "", "ŋk"), ("qu", "", "kw"), ("kn", "", "n"), ("wr", "", "ɹ"), ("ps", "(?<=^ps)", "s"),
    ("mb", "$", "m"), ("sc", "[eiy]", "s"), ("cc", "[eiy]", "ks"), ("gg", "", "ɡ"), ("ee", "", "i"),
    ("ea", "", "i"), ("oo", "k", "ʊ"), ("oo", "", "u"), ("oa", "", "O"), ("oe", "$", "O"), ("ow", "$", "O"),
    ("ow", "", "W"), ("ou", "", "W"), ("oi", "", "Y"), ("oy", "", "Y"), ("ai", "", "A"), ("ay", "", "A"),
    ("ei", "", "A"), ("ey", "$", "i"), ("ey", "", "A"), ("ie", "$", "i"), ("ie", "", "i"), ("au", "", "ɔ"),
    ("aw", "", "ɔ"), ("ew", "", "u"), ("eu", "", "ju"), ("ue", "$", "u"), ("ui", "", "u"), ("ia", "", "iə"),
    ("io", "", "iO"), ("iu", "", "iə"), ("ua", "", "uə"), ("ar", "[^aeiouy]|$", "ɑɹ"), ("er", "", "əɹ"),
    ("ir", "[^aeiouy]|$", "ɜɹ"), ("or", "", "ɔɹ"), ("ur", "[^aeiouy]|$", "ɜɹ"), ("al", "k", "ɔ"),
    ("al", "l|t|d", "ɔl"), ("a", "[^aeiouyrwx]e(s|d)?$", "A"), ("e", "[^aeiouyrwx]e(s|d)?$", "i"),
    ("i", "[^aeiouyrwx]e(s|d)?$", "I"), ("o", "[^aeiouyrwx]e(s|d)?$", "O"), ("u", "[^aeiouyrwx]e(s|d)?$", "u"),
    ("a", "[bcdfgklmnpstvz][iou]", "A"), ("o", "[bcdfgklmnpstvz][aio]", "O"), ("u", "[bcdfgklmnpstvz][aeio]", "u"),
    ("a", "$", "ə"), ("a", "", "æ"), ("ed", "$(?<=[td]ed)", "ᵻd"), ("ed", "$", "d"),
    ("es", "$(?<=[sxzh]es)", "ᵻz"), ("es", "$", "z"), ("e", "$", ""), ("e", "", "ɛ"), ("i", "$", "i"),
    ("i", "", "ɪ"), ("o", "$", "O"), ("o", "", "ɑ"), ("u", "$", "u"), ("u", "", "ʌ"), ("y", "$", "i"),
    ("y", "[aeiou]", "j"), ("y", "", "ɪ"), ("ce", "$", "s"), ("ge", "$", "ʤ"), ("c", "[eiy]", "s"), ("c", "", "k"),
    ("g", "[eiy]", "ʤ"), ("g", "", "ɡ"), ("b", "", "b"), ("d", "", "d"), ("f", "", "f"), ("h", "", "h"),
    ("j", "", "ʤ"), ("k", "", "k"), ("l", "", "l"), ("m", "", "m"), ("n", "", "n"), ("p", "", "p"), ("q", "", "k"),
    ("r", "", "ɹ"), ("s", "$(?<=[aeioubdglmnrv]s)", "z"), ("s", "", "s"), ("t", "", "t"), ("v", "", "v"),
    ("w", "", "w"), ("x", "(?<=^x)", "z"), ("x", "", "ks"), ("z", "", "z"),
)  # fmt: skip
_BY_LETTER: dict[str, list[tuple[str, re.Pattern[str], str]]] = {}
for _letters, _after, _phonemes in _RULES:
    _BY_LETTER.setdefault(_letters[0], []).append((_letters, re.compile(_after), _phonemes))
for _rules in _BY_LETTER.values():
    _rules.sort(key=lambda rule: -len(rule[0]))  # Stable: within one length the table's order decides.

_BRITISH = str.maketrans({"O": "Q", "æ": "a", "ɑ": "ɒ"})


def is_readable(word: str) -> bool:
    """Say whether a reader would try to pronounce `word` rather than spell it."""
    lowered = word.lower()
    if not lowered.isascii() or not lowered.isalpha() or len(lowered) < 3 or (word.isupper() and len(word) < 5):
        return False
    if not any(letter in _VOWEL_LETTERS for letter in lowered):
        return False
    return not re.search(r"[^aeiouy]{5}|(.)\1\1|[jqvx][bcdfghjklmnpqrtvwxz]|^[bcdfgkmptv][bcdfgjkmnpqtvxz]", lowered)


def pronounce(word: str, *, british: bool = False) -> str:
    """Return phonemes for a word that `is_readable` accepts, stressed on its first full vowel."""
    lowered = word.lower()
    phonemes = ""
    position = 0
    while position < len(lowered):
        for letters, after, sounds in _BY_LETTER.get(lowered[position], ()):
            end = position + len(letters)
            if lowered.startswith(letters, position) and after.match(lowered, end):
                phonemes += sounds
                position = end
                break
        else:
            position += 1
    phonemes = re.sub(r"([bdfklmnpstvzɡɹ])\1", r"\1", phonemes)
    if british:
        phonemes = re.sub("ɜɹ(?=[^AIOQWYiuæaɑɒɛɪʊʌə]|$)", "ɜː", phonemes.translate(_BRITISH))
        phonemes = re.sub("əɹ$", "ə", phonemes)
    full = next((index for index, sound in enumerate(phonemes) if sound in _VOWELS and sound not in "əᵊᵻ"), None)
    return phonemes if full is None else f"{phonemes[:full]}ˈ{phonemes[full:]}"
