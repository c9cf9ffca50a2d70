"""Whom to forget: what an event of an erased subject becomes before it is stored. Pure.

An erased subject's usage stays, because it was paid for, but says no longer whose it was.
"""

from collections.abc import Iterable, Mapping

import msgspec

from contracts.events import SpanEvent, UsageEvent

ERASED = "erased"
"""stands where the principal's id stood"""


class Erasures:
    """workspace and subject to the Unix time in milliseconds up to which its events are erased."""

    def __init__(self, until_ms: Mapping[tuple[str, str], int]) -> None:
        self._until_ms = dict(until_ms)

    def applied(self, events: Iterable[UsageEvent]) -> list[UsageEvent]:
        """Return the events, those of erased subjects without a name to them."""
        return [self._applied(event) for event in events]

    def kept(self, events: Iterable[SpanEvent]) -> list[SpanEvent]:
        """Return the span events of subjects that are not erased."""
        return [event for event in events if not self._is_erased_span(event)]

    def _applied(self, event: UsageEvent) -> UsageEvent:
        if not self._is_erased(event.to.workspace, event.to.principal, event.at_ms):
            return event
        to = msgspec.structs.replace(event.to, principal=ERASED, principal_name="", token="")
        return msgspec.structs.replace(event, to=to, metadata={})

    def _is_erased(self, workspace: str, subject: str, at_ms: int) -> bool:
        until_ms = self._until_ms.get((workspace, subject))
        return until_ms is not None and at_ms <= until_ms

    def _is_erased_span(self, event: SpanEvent) -> bool:
        if not self._until_ms:
            return False
        return any(
            self._is_erased(event.workspace, str(span.attributes.get("glottis.principal.id", "")), span.start_ns // 1_000_000)
            for span in event.spans
        )
