"""Keeps an account's credential out of error answers, should a provider echo it.

A mask has the length of what it hides, so that framing stays as it came; a credential cut in two by a read is found as
well. Read next: `policy.rewrite.masked`.
"""

import structlog

from contracts.secret import Secret
from policy.rewrite import masked

_log = structlog.get_logger("gateway.edge")


class Masker:
    """Masks one credential in one answer; lets all but the last few bytes of each piece pass at once."""

    __slots__ = ("_has_alerted", "_secret", "_tail")

    def __init__(self, secret: Secret) -> None:
        self._secret = secret
        self._tail = b""
        self._has_alerted = False

    def whole(self, data: bytes) -> bytes:
        """Return the data masked; nothing is kept."""
        hidden = masked(data, self._secret)
        if hidden != data and not self._has_alerted:
            self._has_alerted = True
            _log.error("the provider's answer held the account's credential; it was masked")
        return hidden

    def feed(self, data: bytes, is_end: bool) -> bytes:
        """Return what can be passed on; the rest comes with the next call, all of it with the last one."""
        hidden = self.whole(self._tail + data)
        keep = 0 if is_end else self._overlap(hidden)
        self._tail = hidden[len(hidden) - keep :]
        return hidden[: len(hidden) - keep]

    def _overlap(self, data: bytes) -> int:
        """Return how many of the last bytes may be the beginning of the credential."""
        credential = self._secret.reveal()
        for length in range(min(len(credential) - 1, len(data)), 0, -1):
            if credential.startswith(data[-length:]):
                return length
        return 0
