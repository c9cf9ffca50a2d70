"""What can go wrong on the way to a provider, in which phase, and whether anything was sent.

A fault is a value that the edge turns into 502, 503 or 504 and that the log shows with its phase. Only a fault before the
first byte was written may be followed by another try (a provider bills a POST that it got). Read next:
`gateway.upstream.dial`, which raises most of them.
"""

from typing import Literal, TypeAlias

Phase: TypeAlias = Literal["credential", "guard", "resolve", "connect", "tls", "send", "response_head", "response_body"]
"""the words of policy.usage.FaultPhase"""


class UpstreamFault(Exception):
    """A provider could not be reached, or did not answer as HTTP says.

    reason: a key of the refusal table; phase: how far it came; anything_sent: a byte of the request was written, so that
    it must not be repeated. `detail` is for the log of the operator alone, never for a caller.
    """

    def __init__(self, reason: str, phase: Phase, *, anything_sent: bool = False, detail: str = "") -> None:
        super().__init__(f"{reason} in {phase}: {detail}")
        self.reason = reason
        self.phase: Phase = phase
        self.anything_sent = anything_sent
        self.detail = detail
