"""Strings that must not turn up, and the spellings in which they might.

A canary is found in clear, in base64 at each of its three alignments (both alphabets), hexadecimal, percent-encoded and
JSON-escaped. `spellings` gives the needles; `Sinks` is what was gathered to search in.
"""

import base64
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, quote_plus


def spellings(text: str) -> dict[str, bytes]:
    """Return the ways to write a text, by name; equal ones once. Raises ValueError for a text too short to be found."""
    if len(text) < 12:
        raise ValueError("a canary must be long enough not to occur by chance")
    data = text.encode()
    found: dict[str, bytes] = {
        "in clear": data,
        "hexadecimal": data.hex().encode(),
        "in upper hexadecimal": data.hex().upper().encode(),
        "JSON-escaped": json.dumps(text)[1:-1].encode(),
        "JSON-escaped whole": "".join(f"\\u{ord(letter):04x}" for letter in text).encode(),
        "percent-encoded": quote(text, safe="").encode(),
        "percent-encoded but for slashes": quote(text).encode(),
        "form-encoded": quote_plus(text).encode(),
        "percent-encoded whole": "".join(f"%{byte:02X}" for byte in data).encode(),
        "percent-encoded whole in lower case": "".join(f"%{byte:02x}" for byte in data).encode(),
    }
    for offset, first in enumerate((0, 2, 3)):
        # The letters that depend on these bytes alone, whatever stands before and after them.
        whole = data[: len(data) - (len(data) + offset) % 3]
        for name, encode in (("base64", base64.b64encode), ("base64url", base64.urlsafe_b64encode)):
            found[f"{name} at offset {offset}"] = encode(b"\0" * offset + whole)[first:]
    once: dict[bytes, str] = {}
    for name, needle in found.items():
        once.setdefault(needle, name)
    return {name: needle for needle, name in once.items()}


_EMPTY = bytes(256)


@dataclass
class Sinks:
    """Everything that was gathered, by where it was found."""

    places: dict[str, list[bytes]] = field(default_factory=dict)

    def add(self, place: str, *data: bytes | str) -> None:
        """Gather some; long runs of zeros, as in files that are mostly empty, are left out."""
        pieces = (piece.encode() if isinstance(piece, str) else piece for piece in data)
        self.places.setdefault(place, []).extend(piece.replace(_EMPTY, b"") for piece in pieces)

    def add_files(self, place: str, folder: Path) -> None:
        """Gather every file below a folder, as it is on disk."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.add(place, path.read_bytes())

    def holding(self, canary: str, places: Iterable[str] | None = None) -> list[str]:
        """Return `<place>: <spelling>` for each place that holds the canary; places: None for all."""
        needles = spellings(canary)
        return [
            f"{place}: {name}"
            for place in (self.places if places is None else places)
            for name, needle in needles.items()
            if any(needle in piece for piece in self.places[place])
        ]
