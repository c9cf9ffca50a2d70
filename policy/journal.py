"""Which usage keys are open, and how a dead gateway's open keys are settled.

Fed with usage events in the order in which they were written; knows nothing of files or of publishing. The spool keeps one
journal for what it holds; a successor reads a dead predecessor's spool into one and closes what is left.
Read next: `gateway.telemetry.spool`.
"""

from collections.abc import Iterator, Mapping

from contracts.events import Attribution, UsageEvent, usage_event


class OpenKey:
    """What is known of a key whose final event was not seen: totals so far, and what its next event needs."""

    __slots__ = ("at_ms", "key", "metadata", "next_seq", "pod", "position", "to", "totals")

    def __init__(self, event: UsageEvent, position: int) -> None:
        self.position = position
        """where the keeper of the journal wrote the oldest event that the totals need"""
        self.key = event.key
        self.to: Attribution = event.to
        self.pod = event.pod
        self.metadata = event.metadata
        self.totals: dict[str, int] = {}
        self.next_seq = 0
        self.at_ms = 0
        self.note(event)

    def note(self, event: UsageEvent) -> None:
        """Take in the next event of the key; one seen before changes nothing."""
        self.add(event.seq, event.at_ms, event.units)

    def add(self, seq: int, at_ms: int, units: Mapping[str, int]) -> None:
        """Do what `note` does for an event of which this is known."""
        if seq < self.next_seq:
            return
        self.next_seq = seq + 1
        self.at_ms = at_ms
        for unit, quantity in units.items():
            self.totals[unit] = self.totals.get(unit, 0) + quantity

    def carried(self) -> UsageEvent:
        """Return one event that stands for all of the key's events so far (for the spool alone, never published)."""
        return self._event(self.next_seq - 1, units=dict(self.totals))

    def lost(self) -> UsageEvent:
        """Return the final event that settles the key as `gateway_lost`: it costs what was sent.

        Its id and its time depend on the key alone, so that two successors that settle the same key say the same.
        """
        return self._event(self.next_seq, units={}, is_final=True)

    def _event(self, seq: int, units: dict[str, int], is_final: bool = False) -> UsageEvent:
        return UsageEvent(
            id=f"{self.key}:{seq}",
            key=self.key,
            seq=seq,
            is_final=is_final,
            at_ms=self.at_ms,
            pod=self.pod,
            to=self.to,
            units=units,
            totals=dict(self.totals) if is_final else {},
            outcome="gateway_lost" if is_final else None,
            metadata=self.metadata,
        )


class FirstEvent:
    """The first event of an open key, and its only one so far. It stays encoded: as a rule nothing is asked of it."""

    __slots__ = ("at_ms", "encoded", "position", "workspace")

    def __init__(self, workspace: str, at_ms: int, position: int, encoded: bytes) -> None:
        self.workspace = workspace
        self.at_ms = at_ms
        self.position = position
        self.encoded = encoded


class Journal:
    """The open keys, in the order of their positions."""

    def __init__(self) -> None:
        self._open: dict[str, OpenKey | FirstEvent] = {}

    def note(self, event: UsageEvent, position: int = 0) -> None:
        """Take in the next event that was read; position: where, growing from event to event."""
        if event.is_final:
            self.close(event.key)
        elif event.key in self._open:
            self._known(event.key).note(event)
        else:
            self._open[event.key] = OpenKey(event, position)

    def open(self, key: str, first: FirstEvent) -> None:
        """Take in the first event of a key."""
        self._open[key] = first

    def add(self, key: str, seq: int, at_ms: int, units: Mapping[str, int]) -> None:
        """Take in another event of an open key."""
        self._known(key).add(seq, at_ms, units)

    def close(self, key: str) -> None:
        """Take in the final event of a key."""
        self._open.pop(key, None)

    def restore(self, carried: UsageEvent, position: int) -> None:
        """Take an event that `OpenKey.carried` made in place of all that is known of its key."""
        self._open.pop(carried.key, None)
        self._open[carried.key] = OpenKey(carried, position)

    def only_event(self, key: str) -> FirstEvent | None:
        """Return the one event that an open key has so far; None if it has others, is not open, or was read, not written."""
        known = self._open.get(key)
        return known if isinstance(known, FirstEvent) else None

    def only_events(self, position: int) -> list[FirstEvent]:
        """Return what `only_event` does for all keys opened at this position or later, in this order."""
        found: list[FirstEvent] = []
        for known in reversed(self._open.values()):
            if known.position < position:
                break
            if isinstance(known, FirstEvent):
                found.append(known)
        found.reverse()
        return found

    def position_of(self, key: str) -> int | None:
        """Return the position of an open key's oldest event that is needed; None if it is not open."""
        known = self._open.get(key)
        return None if known is None else known.position

    def oldest(self) -> OpenKey | None:
        """Return the open key with the lowest position; None if all are closed."""
        key = next(iter(self._open), None)
        return None if key is None else self._known(key)

    def oldest_position(self) -> int | None:
        """Return the position of the oldest open key; None if all are closed."""
        known = next(iter(self._open.values()), None)
        return None if known is None else known.position

    def __contains__(self, key: str) -> bool:
        return key in self._open

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[OpenKey]:
        return iter([self._known(key) for key in self._open])

    def _known(self, key: str) -> OpenKey:
        known = self._open[key]
        if isinstance(known, FirstEvent):
            known = self._open[key] = OpenKey(usage_event(known.encoded), known.position)
        return known
