"""W3C trace context (https://www.w3.org/TR/trace-context/): the caller's trace, or one of our own.

Pure. A malformed `traceparent` starts a new trace, as the recommendation says. Ids of our own come from the request id,
which is a UUIDv7 and so already unique: no randomness is asked for a second time. Read next: `gateway.telemetry.spans`.
"""

import re
from typing import Final

_TRACEPARENT: Final = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?\Z")
_LONGEST_TRACESTATE: Final = 512


class TraceContext:
    """Which trace an exchange belongs to. `parent_id`: the caller's span, empty if the trace begins here."""

    __slots__ = ("parent_id", "state", "trace_id")

    def __init__(self, trace_id: str, parent_id: str, state: str) -> None:
        self.trace_id = trace_id
        self.parent_id = parent_id
        self.state = state


def context_of(traceparent: bytes | None, tracestate: bytes, request_id: str) -> TraceContext:
    """Return the trace context of an exchange; request_id: UUIDv7 text."""
    if traceparent and (match := _TRACEPARENT.match(traceparent)):
        version, trace_id, parent_id, _, more = match.groups()
        is_valid = version != b"ff" and trace_id.strip(b"0") and parent_id.strip(b"0") and not (version == b"00" and more)
        if is_valid:
            state = tracestate.decode("ascii", "ignore") if len(tracestate) <= _LONGEST_TRACESTATE else ""
            return TraceContext(trace_id.decode(), parent_id.decode(), state)
    return TraceContext(request_id.replace("-", ""), "", "")


def is_sampled(trace_id: str, share: float) -> bool:
    """Tell whether a trace is among the `share` (0 to 1) that is kept: the same answer on every pod, for all its exchanges."""
    return share >= 1.0 or int(trace_id[18:], 16) < int(share * (1 << 56))
