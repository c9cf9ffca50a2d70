"""What a recognition's JSON answer says of the length of what was recognised.

Not compiled: msgspec does not find the union's types in a compiled module (docs/adr/0075). Read next: `gateway.edge.metering`.
"""

from typing import Final

import msgspec

_MOST_SECONDS: Final = 1_000_000


class _Transcript(msgspec.Struct):
    duration: "float | None" = None


def duration_ms(answer: bytes) -> int | None:
    """Return the duration that the provider says, None if it says none that can be."""
    try:
        duration = msgspec.json.decode(answer, type=_Transcript).duration
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None
    return round(duration * 1000) if duration is not None and 0 <= duration < _MOST_SECONDS else None
