"""How we say no: one table from reason to status, close code, sentence and what to do.

The same refusal has the same reason in the answer, the log line, the metric and the span. The shape of the answer is the
one that the provider's SDK parses for the caller's `Cartesia-Version`; policy refusals carry `x-should-retry: false`,
because a bare 429 makes the SDKs send three requests each time.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Refusal:
    """Our decision not to forward. `detail` completes the public sentence; it names what the caller itself sent."""

    reason: str
    """a key of the table below"""
    detail: str = ""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """extra answer headers, for example `Retry-After`"""
