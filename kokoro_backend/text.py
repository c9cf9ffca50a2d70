"""Write out for the voice what is written for the eye: numbers, money, times, dates, addresses, units.

`spoken_form` returns the text to pronounce together with where each piece of it came from, so that word timestamps can
name the caller's own words. Pure functions, no model; pronunciation itself is `phonemes`.
"""

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from num2words import num2words

_MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
_DIGIT_NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_CURRENCIES = {
    "$": ("dollar", "dollars", "cent", "cents"),
    "£": ("pound", "pounds", "penny", "pence"),
    "€": ("euro", "euros", "cent", "cents"),
    "¥": ("yen", "yen", "", ""),
    "₹": ("rupee", "rupees", "paisa", "paise"),
}
_SCALES = {"k": "thousand", "m": "million", "bn": "billion", "b": "billion", "tn": "trillion", "t": "trillion"}
_UNITS = {
    "km/h": ("kilometer per hour", "kilometers per hour"),
    "mph": ("mile per hour", "miles per hour"),
    "km": ("kilometer", "kilometers"),
    "cm": ("centimeter", "centimeters"),
    "mm": ("millimeter", "millimeters"),
    "kg": ("kilogram", "kilograms"),
    "mg": ("milligram", "milligrams"),
    "ms": ("millisecond", "milliseconds"),
    "GHz": ("gigahertz", "gigahertz"),
    "MHz": ("megahertz", "megahertz"),
    "kHz": ("kilohertz", "kilohertz"),
    "Hz": ("hertz", "hertz"),
    "GB": ("gigabyte", "gigabytes"),
    "MB": ("megabyte", "megabytes"),
    "KB": ("kilobyte", "kilobytes"),
    "kB": ("kilobyte", "kilobytes"),
    "TB": ("terabyte", "terabytes"),
    "kW": ("kilowatt", "kilowatts"),
    "°C": ("degree Celsius", "degrees Celsius"),
    "°F": ("degree Fahrenheit", "degrees Fahrenheit"),
    "°": ("degree", "degrees"),
    "%": ("percent", "percent"),
}
_ABBREVIATIONS = {
    "e.g.": "for example",
    "i.e.": "that is",
    "etc.": "et cetera",
    "approx.": "approximately",
    "vs.": "versus",
}
_SYMBOLS = {
    "&": "and", "@": "at", "+": "plus", "=": "equals", "<": "less than", ">": "greater than", "×": "times", "÷": "divided by",
    "±": "plus or minus", "≤": "at most", "≥": "at least", "≠": "is not", "≈": "about", "→": "to", "§": "section",
    "©": "copyright", "®": "", "™": "", "°": "degrees", "#": "number", "%": "percent", "$": "dollar", "£": "pound", "€": "euro",
    "¥": "yen", "₹": "rupee", "^": "", "~": "about", "|": "", "\\": "backslash", "_": " ", "*": "", "`": "",
}  # fmt: skip
_GREEK = {
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "epsilon", "ζ": "zeta", "η": "eta", "θ": "theta",
    "κ": "kappa", "λ": "lambda", "μ": "mu", "µ": "mu", "ν": "nu", "ξ": "xi", "π": "pi", "ρ": "rho", "σ": "sigma", "τ": "tau",
    "φ": "phi", "χ": "chi", "ψ": "psi", "ω": "omega", "Δ": "delta", "Σ": "sigma", "Ω": "omega", "Φ": "phi", "Ψ": "psi",
}  # fmt: skip

_UNIT_NAMES = "|".join(sorted(map(re.escape, _UNITS), key=len, reverse=True))
_NAMELESS = re.compile(r"\d{37,}")
_MOST_GLUED = 12
_SHIFTS = re.compile(r"(?<=\d)(?=\D)|(?<=\D)(?=\d)|(?<=[^\W\d_A-Z])(?=[A-Z])|(?<=['’])|(?=['’])")
"""Where misaki takes a word apart: between digits and letters, before a capital, around an apostrophe."""
_NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?"
_RULES = re.compile(
    "|".join(
        (
            r"\[(?P<label>[^\]\[]*)\]\((?P<target>[^()\s]*)\)",
            r"(?P<url>(?:https?://|www\.)[^\s<>\"]*[^\s<>\".,;:!?)\]'’])",
            r"(?P<mail>[A-Za-z0-9._%+\-]+@[A-Za-z0-9\-]+(?:\.[A-Za-z0-9\-]+)+)",
            r"(?<![\w./])(?P<iso>\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01]))(?![\w-])",
            r"(?<![\w./])(?P<date>\d{1,2}/\d{1,2}/\d{4})(?![\w/])",
            r"(?<![\w.:])(?P<hour>[01]?\d|2[0-3]):(?P<minute>[0-5]\d)(?::(?P<second>[0-5]\d))?(?:(?P<halfspace>\s?)(?P<half>[ap]\.?m\b\.?))?(?![\w:])",
            rf"(?P<sign>[$£€¥₹])\s?(?P<amount>{_NUMBER})(?:\s?(?P<scale>thousand|million|billion|trillion|k|K|m|M|bn|BN|b|B|tn|T)\b)?(?![\w])",
            r"(?<![\w.])(?P<phone>(?:\+\d{1,3}[ \-.])?(?:\(\d{3}\)\s?|\d{3}[\-.])\d{3}[\-.]\d{4})(?![\w])",
            r"(?<![\w.])(?P<version>v?\d+(?:\.\d+){2,})(?![\w])",
            r"(?<![\w.,])(?P<low>\d+)\s?–\s?(?P<high>\d+)(?![\w.])",
            rf"(?<![\w.,])(?P<minus>[-−](?=\d))?(?P<quantity>{_NUMBER})\s?(?P<unit>{_UNIT_NAMES})(?![\w])",
            r"(?<![\w.,])(?P<fraction>[1-9]\d?/(?:2|3|4|5|8|10))(?![\w/.])",
            r"(?<![\w.,])(?P<decimalminus>[-−](?=\d))?(?P<whole>\d{1,3}(?:,\d{3})+|\d+)\.(?P<decimals>\d+)(?![\w]|\.\d)",
            r"(?<![\w.,])(?P<digits>0\d+|\d{7,})(?!\w|[.,]\d)",
            r"(?<![\w])(?P<numero>#|No\.\s?)(?=\d)",
            rf"(?<![\w.])(?P<abbreviation>{'|'.join(map(re.escape, _ABBREVIATIONS))})",
        )
    )
)


class UnsupportedScript(ValueError):
    """The text has letters of a script that this voice's language cannot be read in; `script` is its name."""

    def __init__(self, script: str) -> None:
        super().__init__(script)
        self.script = script


@dataclass(frozen=True)
class Piece:
    """A run of spoken text. `start` and `end` are offsets in the caller's text; `phonemes` overrides the lexicon."""

    spoken: str
    start: int
    end: int
    phonemes: str | None = None


@dataclass
class SpokenText:
    """What to pronounce, piece by piece; `text` joins them, `source_span` leads back to the caller's text."""

    pieces: list[Piece] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Return the whole text to pronounce."""
        return "".join(piece.spoken for piece in self.pieces)


def spoken_form(
    text: str,
    *,
    british: bool = False,
    allow_phoneme_markup: bool = False,
    lexicon: Mapping[str, str] | None = None,
) -> SpokenText:
    """Return `text` as it is to be read out.

    allow_phoneme_markup: `[word](/phonemes/)` is taken as markup only if the caller asked for it; from untrusted text
        the label is spoken and the rest dropped.
    lexicon: the operator's own pronunciations, lower-case word -> phonemes in Kokoro's alphabet.
    Raises UnsupportedScript for letters that cannot be read.
    """
    result = SpokenText()
    position = 0
    for match in _RULES.finditer(text):
        _plain(result, text, position, match.start(), lexicon)
        _matched(result, match, british=british, allow_phoneme_markup=allow_phoneme_markup, lexicon=lexicon)
        position = match.end()
    _plain(result, text, position, len(text), lexicon)
    result.pieces = _with_breaks(result.pieces)
    return result


def _with_breaks(pieces: list[Piece]) -> list[Piece]:
    """Put spaces into runs of more than _MOST_GLUED parts without one.

    misaki's time grows with the cube of such a run: 240 characters of "1/1/1/…" or "A1A1…" took half a minute, and
    everybody waited.
    """
    broken: list[Piece] = []
    run = 0
    for whole in pieces:
        piece = whole
        parts = _SHIFTS.split(piece.spoken)
        if len(parts) > _MOST_GLUED:
            groups = ["".join(parts[start : start + _MOST_GLUED]) for start in range(0, len(parts), _MOST_GLUED)]
            piece = Piece(" ".join(groups), piece.start, piece.end, piece.phonemes)
        run = 0 if any(char.isspace() for char in piece.spoken) else run + len(parts)
        if run > _MOST_GLUED:
            broken.append(Piece(" ", piece.start, piece.start))
            run = len(parts)
        broken.append(piece)
    return broken


def _matched(
    result: SpokenText,
    match: re.Match[str],
    *,
    british: bool,
    allow_phoneme_markup: bool,
    lexicon: Mapping[str, str] | None,
) -> None:
    if match.group("label") is not None:
        start, end = match.span("label")
        target = match.group("target")
        if allow_phoneme_markup and len(target) > 2 and target[0] == "/" and target[-1] == "/":
            result.pieces.append(Piece(match.group("label"), match.start(), match.end(), target.strip("/")))
        else:
            _plain(result, match.string, start, end, lexicon)
        return
    spoken = _spoken_rule(match, british=british)
    # A letter before ("x2.5") is no reason to run words together.
    before = result.pieces[-1].spoken[-1:] if result.pieces else ""
    if before.isalnum() and spoken:
        spoken = " " + spoken
    result.pieces.append(Piece(spoken, match.start(), match.end()))


def _spoken_rule(match: re.Match[str], *, british: bool) -> str:
    for name, speak in _SPEAKERS.items():
        if match.group(name) is not None:
            return speak(match, british)
    raise AssertionError(f"no rule for {match.lastgroup}")


def _plain(result: SpokenText, text: str, start: int, end: int, lexicon: Mapping[str, str] | None) -> None:
    """Add text that no rule matched: words of the user's lexicon, symbols and folded letters apart."""
    position = start
    for match in re.compile(r"[^\W_]+(?:['’][^\W_]+)*|[^\w\s]|_").finditer(text, start, end):
        if match.start() > position:
            result.pieces.append(Piece(text[position : match.start()], position, match.start()))
        token = match.group()
        position = match.end()
        phonemes = lexicon.get(token.lower()) if lexicon else None
        spoken = token if phonemes else _readable(token)
        glued = token in _SYMBOLS and spoken and spoken != " "
        if glued and result.pieces and result.pieces[-1].spoken[-1:].isalnum():
            spoken = " " + spoken
        if glued and text[position : position + 1].isalnum():
            spoken += " "
        result.pieces.append(Piece(spoken, match.start(), match.end(), phonemes))
    if position < end:
        result.pieces.append(Piece(text[position:end], position, end))


def _readable(token: str) -> str:
    if token in _SYMBOLS:
        return _SYMBOLS[token]
    if token.isascii():
        # misaki, too, fails on numbers without a name.
        return _NAMELESS.sub(lambda number: f" {_digits(number.group())} ", token)
    return "".join(_readable_char(char) for char in token)


def _readable_char(char: str) -> str:
    if char.isascii() or char in "‘’“”—–…":
        return char
    if char in _GREEK:
        return f" {_GREEK[char]} "
    category = unicodedata.category(char)
    if category[0] == "L":
        name = unicodedata.name(char, "")
        folded = unicodedata.normalize("NFKD", _FOLDS.get(char, char))
        ascii_letters = "".join(part for part in folded if part.isascii())
        if name.startswith("LATIN") or (ascii_letters and ascii_letters.isalpha()):
            return ascii_letters or " "
        raise UnsupportedScript(name.split()[0].title() if name else "unknown")
    if category in ("Nd", "No", "Nl"):
        return " " + unicodedata.normalize("NFKC", char).replace("⁄", "/") + " "
    if category[0] == "P":
        return _PUNCTUATION.get(char, " ")
    # Emoji, arrows, marks: nothing that a voice could say.
    return " " if category[0] in "SZC" else ""


_FOLDS = {
    "ß": "ss",
    "æ": "ae",
    "Æ": "Ae",
    "œ": "oe",
    "Œ": "Oe",
    "ø": "o",
    "Ø": "O",
    "ł": "l",
    "Ł": "L",
    "đ": "d",
    "þ": "th",
    "ð": "th",
}
_PUNCTUATION = {
    "«": "“",
    "»": "”",
    "。": ".",
    "！": "!",
    "？": "?",
    "，": ",",
    "、": ",",
    "；": ";",
    "：": ":",
    "‐": "-",
    "‑": "-",
    "―": "—",
}


def _number(digits: str) -> str:
    # Beyond the names that people know, digits; far beyond, num2words raises an error that holds the number.
    if len(digits) > 36:
        return _digits(digits)
    return str(num2words(int(digits.replace(",", "")))).replace(",", "")


def _ordinal(value: int) -> str:
    return str(num2words(value, to="ordinal"))


def _decimal(number: str) -> str:
    whole, _, decimals = number.partition(".")
    return _number(whole) + (f" point {_digits(decimals)}" if decimals else "")


def _digits(digits: str) -> str:
    return " ".join(_DIGIT_NAMES[int(digit)] for digit in digits if digit.isdecimal())


def _year(value: int) -> str:
    if 2000 <= value <= 2009 or not 1100 <= value <= 2099:
        return _number(str(value))
    return str(num2words(value, to="year"))


def _day(day: int, month: int, year: int, *, british: bool) -> str:
    name = _MONTHS[month - 1]
    spoken = f"the {_ordinal(day)} of {name}" if british else f"{name} {_ordinal(day)}"
    return f"{spoken}, {_year(year)}"


def _speak_iso(match: re.Match[str], british: bool) -> str:
    year, month, day = map(int, match.group("iso").split("-"))
    return _day(day, month, year, british=british)


def _speak_date(match: re.Match[str], british: bool) -> str:
    first, second, year = map(int, match.group("date").split("/"))
    month, day = (second, first) if british else (first, second)
    if month > 12 >= day:
        month, day = day, month
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return f"{_number(str(first))} slash {_number(str(second))} slash {_number(str(year))}"
    return _day(day, month, year, british=british)


def _speak_time(match: re.Match[str], _: bool) -> str:
    hour, minute, second, half = match.group("hour"), match.group("minute"), match.group("second"), match.group("half")
    words = "zero" if int(hour) == 0 else _number(hour)
    if minute == "00" and second is None:
        words += "" if half else (" o'clock" if 1 <= int(hour) <= 12 else " hundred")
    else:
        words += " " + (f"oh {_number(minute)}" if minute[0] == "0" and minute != "00" else _number(minute))
    if second is not None:
        words += f" and {_number(second)} seconds"
    if half:
        # A full stop of "p.m." may be the sentence's own: kept, since the voice falls there either way.
        words += f" {half[0].upper()} M" + ("." if half.endswith(".") and not match.string[match.end() :].strip() else "")
    return words


def _speak_money(match: re.Match[str], british: bool) -> str:
    del british  # Both say it alike.
    one, many, cent, cents = _CURRENCIES[match.group("sign")]
    amount = match.group("amount")
    scale = match.group("scale")
    if scale:
        return f"{_decimal(amount)} {_SCALES.get(scale.lower(), scale)} {many}"
    whole, _, fraction = amount.partition(".")
    if not fraction or not cent or len(fraction) != 2:
        return f"{_decimal(amount)} {one if amount == '1' else many}"
    units = int(whole.replace(",", ""))
    parts = [f"{_number(whole)} {one if units == 1 else many}"] if units or fraction == "00" else []
    if int(fraction):
        parts.append(f"{_number(fraction)} {cent if int(fraction) == 1 else cents}")
    return " and ".join(parts)


def _speak_url(match: re.Match[str], _: bool) -> str:
    address = re.sub(r"^https?://", "", match.group("url")).rstrip("/")
    return _spoken_address(address)


def _spoken_address(address: str) -> str:
    names = {
        ".": " dot ",
        "/": " slash ",
        "-": " dash ",
        "_": " underscore ",
        "@": " at ",
        ":": " colon ",
        "?": " question mark ",
        "=": " equals ",
        "&": " and ",
        "#": " hash ",
        "%": " percent ",
        "+": " plus ",
        "~": " tilde ",
    }
    spaced = re.sub(r"(?<=\d)(?=[A-Za-z])|(?<=[A-Za-z])(?=\d)", " ", address)
    spaced = re.sub(r"\bwww\b", "W W W", spaced)
    spaced = re.sub(
        r"\b(io|uk|us|eu|org|ai)\b(?=$|[/:])",
        lambda tld: " ".join(tld.group().upper()) if tld.group() != "org" else "org",
        spaced,
    )
    return " ".join("".join(names.get(char, char) for char in spaced).split())


def _speak_phone(match: re.Match[str], _: bool) -> str:
    groups = re.findall(r"\d+", match.group("phone"))
    prefix = "plus " if match.group("phone").startswith("+") else ""
    return prefix + ", ".join(_digits(group) for group in groups)


def _speak_version(match: re.Match[str], _: bool) -> str:
    version = match.group("version")
    prefix = "version " if version.startswith("v") else ""
    return prefix + " point ".join(_number(part) for part in version.lstrip("v").split("."))


def _speak_quantity(match: re.Match[str], _: bool) -> str:
    number = match.group("quantity")
    one, many = _UNITS[match.group("unit")]
    minus = "minus " if match.group("minus") else ""
    return f"{minus}{_decimal(number)} {one if number == '1' else many}"


def _speak_fraction(match: re.Match[str], _: bool) -> str:
    top, bottom = map(int, match.group("fraction").split("/"))
    name = {2: "half", 4: "quarter"}.get(bottom) or _ordinal(bottom)
    plural = {"half": "halves"}.get(name, name + "s")
    return f"{_number(str(top))} {name if top == 1 else plural}"


def _speak_decimal(match: re.Match[str], _: bool) -> str:
    minus = "minus " if match.group("decimalminus") else ""
    return f"{minus}{_number(match.group('whole'))} point {_digits(match.group('decimals'))}"


_SPEAKERS: dict[str, Callable[[re.Match[str], bool], str]] = {
    "url": _speak_url,
    "mail": lambda match, _: _spoken_address(match.group("mail")),
    "iso": _speak_iso,
    "date": _speak_date,
    "hour": _speak_time,
    "amount": _speak_money,
    "phone": _speak_phone,
    "version": _speak_version,
    "low": lambda match, _: f"{_number(match.group('low'))} to {_number(match.group('high'))}",
    "unit": _speak_quantity,
    "fraction": _speak_fraction,
    "decimals": _speak_decimal,
    "digits": lambda match, _: _digits(match.group("digits")),
    "numero": lambda *_: "number ",
    "abbreviation": lambda match, _: _ABBREVIATIONS[match.group("abbreviation")],
}
