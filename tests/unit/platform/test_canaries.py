"""The search that the canary test relies on finds what it is there to find."""

import base64
import json
from urllib.parse import quote

import pytest

from tests.kit.canaries import Sinks, spellings

CANARY = 'Canary-5f3a "é"/1'


@pytest.mark.parametrize(
    "written",
    [
        CANARY.encode(),
        b'{"text": ' + json.dumps(CANARY).encode() + b"}",
        json.dumps(CANARY, ensure_ascii=False).encode(),
        quote(CANARY).encode(),
        quote(CANARY, safe="").encode(),
        CANARY.encode().hex().encode(),
        CANARY.encode().hex().upper().encode(),
        "".join(f"%{byte:02x}" for byte in CANARY.encode()).encode(),
        "".join(f"\\u{ord(letter):04x}" for letter in CANARY).encode(),
        *(base64.b64encode(before + CANARY.encode() + after) for before in (b"", b"a", b"ab") for after in (b"", b"c", b"cd")),
        *(base64.urlsafe_b64encode(before + CANARY.encode()) for before in (b"", b"a", b"ab")),
    ],
)
def test_a_canary_is_found_in_every_spelling(written: bytes) -> None:
    sinks = Sinks()
    sinks.add("log", b"before ", b"x" + written + b"y")
    if b"\xc3\xa9" in written and written != CANARY.encode():  # escaped quotes around letters that are not
        assert sinks.holding("Canary-5f3a ") != []
    else:
        assert sinks.holding(CANARY) != []


def test_what_is_not_there_is_not_found() -> None:
    sinks = Sinks()
    sinks.add("log", json.dumps("Canary-5f3b").encode(), base64.b64encode(b"Canary-5f3 a"))

    assert sinks.holding(CANARY) == []


def test_a_canary_that_occurs_by_chance_is_none() -> None:
    with pytest.raises(ValueError, match="long enough"):
        spellings("short")
