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
    random_b = random_bits & 0x3FFF_FFFF_FFFF_FFFF
    # One formatting, field by field as the text has them: twice as fast as slicing one long number, and made per request.
    return "%08x-%04x-7%03x-%04x-%012x" % (  # noqa: UP031
        now_ms >> 16 & 0xFFFF_FFFF,
        now_ms & 0xFFFF,
        random_bits >> 62 & 0xFFF,
        0x8000 | random_b >> 48,
        random_b & 0xFFFF_FFFF_FFFF,
    )


def is_handle(text: str) -> bool:
    """Tell whether a name may stand in a path, a NATS subject and a host label: a-z, 0-9 and inner hyphens, 1 to 63."""
    return _HANDLE.match(text) is not None
