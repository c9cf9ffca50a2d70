"""Time cut into slots: the grain at which rollups are recomputed (ADR 0031)."""

from datetime import UTC, datetime

SLOT_SECONDS = 300


def slot_of(at_ms: int) -> datetime:
    """Return the start of the slot that a Unix time in milliseconds lies in."""
    seconds = at_ms // 1000
    return datetime.fromtimestamp(seconds - seconds % SLOT_SECONDS, UTC)
