"""The usage events of a tally, as whoever reads the stream gets them: written as a gateway writes them, and read."""

from contracts.events import Outcome, UsageEvent, usage_event
from gateway.telemetry.usage import UsageRecords
from policy.usage import Tally


def delta_of(tally: Tally, now_ms: int) -> UsageEvent:
    """Return the event with what was added to the tally since the one before."""
    units = tally.new_units()
    assert units, "nothing was added since the event before"
    return usage_event(UsageRecords().of_delta(tally, now_ms, units))


def final_of(tally: Tally, outcome: Outcome, now_ms: int, *, is_owed: bool | None = None) -> UsageEvent:
    """Return the tally's last event. is_owed: see `Tally.owed`."""
    owed = tally.owed(outcome, is_owed)
    return usage_event(UsageRecords().of_final(tally, outcome, now_ms, tally.last_units(owed), owed))
