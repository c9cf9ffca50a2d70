"""The record that a usage event is written as: encoded here, read as a `UsageEvent` by who reads the stream or a spool.

Pure: a `Tally` in, bytes out. Two are written for every exchange, so no event is built only to be encoded, and who and what
it is counted for is encoded once. Read next: `gateway.telemetry.spool`, which keeps them.
"""

from typing import Any, Final

import msgspec

from contracts import codec
from contracts.events import Attribution, AttributionRow, Outcome, UsageEvent
from policy.usage import Tally

_KNOWN_LIMIT: Final = 4096
_TAG: Final = 3
_SCHEMA: Final = 1
"""of `contracts.events.UsageRecord`, whose order of fields this module writes"""


class UsageRecords:
    """Makes the records of one spool.

    Encoded attributions are kept by identity, and the objects are kept with them, so that an identity is not given to
    another meanwhile.
    """

    def __init__(self) -> None:
        # Any: compiled code would check what it takes out of here, at the cost of looking the classes up.
        self._known: dict[int, tuple[Any, Any]] = {}

    def of_delta(self, tally: Tally, now_ms: int, units: dict[str, int]) -> bytes:
        """Return the record of the event that says these units: the tally's last one."""
        to = self._row(tally.to)
        return codec.encode_row(
            [_TAG, _SCHEMA, tally.key, tally.events - 1, now_ms, tally.pod, to, units, tally.metadata],
        )

    def of_final(
        self, tally: Tally, outcome: Outcome, now_ms: int, units: dict[str, int] | None, totals: dict[str, int]
    ) -> bytes:
        """Return the record of the tally's final event, its last one. units: None, if they are the totals."""
        to, theirs = self._row(tally.to), tally.units_of_provider
        return codec.encode_row(
            [
                _TAG, _SCHEMA, tally.key, tally.events - 1, now_ms, tally.pod, to, units, tally.metadata, outcome, totals, theirs,
            ],
        )  # fmt: skip

    def of_event(self, event: UsageEvent) -> bytes:
        """Return the record of an event that there is already."""
        to, theirs = self._row(event.to), event.provider_units
        return codec.encode_row(
            [
                _TAG, _SCHEMA, event.key, event.seq, event.at_ms, event.pod, to, event.units, event.metadata, event.outcome,
                event.totals, theirs,
            ],
        )  # fmt: skip

    def _row(self, to: Attribution) -> Any:
        known = self._known.get(id(to))
        if known is None:
            if len(self._known) >= _KNOWN_LIMIT:
                self._known.clear()
            row = AttributionRow(**msgspec.structs.asdict(to))
            known = self._known[id(to)] = (to, msgspec.Raw(codec.encode(row)))
        return known[1]
