"""Identifiers that travel between processes.

Knows no clock and no source of randomness: both are arguments. Read next: `contracts.events`, which uses them as keys.
"""

import re
from collections.abc import Callable

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


class FreshIds:
    """Makes one UUIDv7 after the other. clock: Unix seconds; random_bits: returns so many random bits as it is asked for."""

    def __init__(self, clock: Callable[[], float], random_bits: Callable[[int], int]) -> None:
        self._clock = clock
        self._random_bits = random_bits
        self._ms = -1
        self._begin = ""

    def new(self) -> str:
        """Return a fresh id, as `uuid7` does."""
        now_ms = int(self._clock() * 1000)
        if now_ms != self._ms:  # under load many are made in one millisecond
            self._ms = now_ms
            self._begin = "%08x-%04x-7" % (now_ms >> 16 & 0xFFFF_FFFF, now_ms & 0xFFFF)  # noqa: UP031
        few = self._random_bits(26)  # two numbers of one machine word each are cheaper than one of 74 bits
        return "%s%03x-%04x-%012x" % (self._begin, few >> 14, 0x8000 | few & 0x3FFF, self._random_bits(48))  # noqa: UP031


def is_handle(text: str) -> bool:
    """Tell whether a name may stand in a path, a NATS subject and a host label: a-z, 0-9 and inner hyphens, 1 to 63."""
    return _HANDLE.match(text) is not None
