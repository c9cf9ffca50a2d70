"""Identifiers that travel between processes.

Knows no clock and no source of randomness: both are arguments. Read next: `contracts.events`, which uses them as keys.
"""

import re

_HANDLE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z")


def uuid7(now_ms: int, random_bits: int) -> str:
    """Return a UUIDv7 (RFC 9562 §5.7) as its 36-character text.

    now_ms: Unix time in milliseconds (48 bits are kept); random_bits: at least 74 random bits, the rest is cut.
    Ids made in this way sort by time, which keeps ClickHouse parts and Postgres indexes compact.
    """
    random_a = (random_bits >> 62) & 0xFFF
    random_b = random_bits & 0x3FFF_FFFF_FFFF_FFFF
    value = (now_ms & 0xFFFF_FFFF_FFFF) << 80 | 0x7 << 76 | random_a << 64 | 0b10 << 62 | random_b
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def is_handle(text: str) -> bool:
    """Tell whether a name may stand in a path, a NATS subject and a host label: a-z, 0-9 and inner hyphens, 1 to 63."""
    return _HANDLE.match(text) is not None
