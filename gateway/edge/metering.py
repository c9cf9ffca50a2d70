"""What an answer itself tells about its usage: the duration that batch recognition was billed for.

A bounded look at bytes that are relayed anyway. Characters are counted before the text leaves (see `policy.peek`), audio
of open sockets by the session. Read next: `policy.usage`.
"""

from typing import Final

import msgspec

from policy.providers.profile import Endpoint
from policy.usage import Tally

_MOST_LOOKED_AT_BYTES: Final = 1024 * 1024
"""a transcript with word timestamps of two hours is smaller; beyond it the duration is unknown"""


class _Transcript(msgspec.Struct):
    duration: float | None = None


class AnswerMeter:
    """Collects a recognition's JSON answer and reads the duration off it."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, payload: bytes) -> None:
        """Look at a piece of the answer's body."""
        self._size += len(payload)
        if self._size <= _MOST_LOOKED_AT_BYTES:
            self._pieces.append(payload)
        else:
            self._pieces.clear()

    def end(self, tally: Tally) -> None:
        """Count what the whole answer says."""
        if self._size > _MOST_LOOKED_AT_BYTES:
            return
        try:
            transcript = msgspec.json.decode(b"".join(self._pieces), type=_Transcript)
        except (msgspec.DecodeError, msgspec.ValidationError):
            return
        if transcript.duration is not None and 0 <= transcript.duration < 1_000_000:
            tally.add("audio_in_ms", round(transcript.duration * 1000))


def answer_meter(endpoint: Endpoint) -> AnswerMeter | None:
    """Return what measures this endpoint's answers; None if they tell nothing that is owed."""
    return AnswerMeter() if endpoint.metering == "stt_batch" else None
