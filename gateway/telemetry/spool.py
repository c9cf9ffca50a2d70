"""Where events wait until the bus has them: they survive the process, and writing one neither blocks nor raises.

`Spool` is what the recorder writes to. It holds one ring file of its own and, until they are empty, the rings that dead
predecessors left in the same folder; keys that these left open are settled as `gateway_lost`. Admission is an ordinary
delta written before the text's bytes leave: the ring keeps every key open until its final event, however long that takes. If
that comes before a publisher took the admission, it says both, and the admission stays unpublished (docs/adr/0066).
Knows nothing of NATS: `gateway.telemetry.publisher` empties it. Read `policy.journal` for what is open.
"""

from collections.abc import Callable, Iterator
from enum import IntEnum
from pathlib import Path
from typing import Final, Protocol

import structlog

from contracts.events import Outcome, usage_event
from gateway.telemetry.batches import Batch
from gateway.telemetry.ring import Record, Ring, RingUnusable, rounded
from gateway.telemetry.usage import UsageRecords
from policy.journal import FirstEvent, Journal
from policy.usage import Tally

_log = structlog.get_logger("gateway.telemetry.spool")

_SUFFIX: Final = ".spool"
_JOINED_WITHIN_MS: Final = 1000
"""what was measured longer before the final event keeps its own time, which decides its price and its hour"""


class Kind(IntEnum):
    """What a record holds: an encoded event, after one byte of workspace length and the workspace."""

    USAGE = 1
    SPANS = 2
    CARRIED = 3
    """an open key's totals so far, written anew so that its old records can go; never published"""
    WHOLE = 4
    """a final usage event that says what its key's earlier record says as well; that one is not published any more"""


class Sink(Protocol):
    """Where the recorder puts events. No method blocks or raises; False: it was not kept."""

    def offer_delta(self, tally: Tally, now_ms: int, /) -> bool:
        """Take what was added to the tally since its event before, if anything was."""

    def offer_final(self, tally: Tally, outcome: Outcome, now_ms: int, totals: dict[str, int], /) -> bool:
        """Take the tally's last event. totals: what is owed, see `Tally.owed`."""

    def offer_spans(self, workspace: str, encoded: bytes, /) -> bool: ...


class Unkept:
    """The sink of a gateway that runs from a file alone: there is no bus, so its metrics and log lines are all there is."""

    def offer_delta(self, tally: Tally, _: int) -> bool:
        """Keep nothing; what is open was told."""
        tally.new_units()
        return True

    def offer_final(self, _: Tally, __: Outcome, ___: int, ____: dict[str, int]) -> bool:
        """Keep nothing."""
        return True

    def offer_spans(self, _: str, __: bytes) -> bool:
        """Keep nothing."""
        return True


class Waiting:
    """One event that is to be published. kind: a Kind; `end`: the position after it, in its ring."""

    __slots__ = ("encoded", "end", "kind", "position", "workspace")

    def __init__(self, record: Record) -> None:
        self.position = record.position
        self.end = record.end
        self.kind: int = Kind.USAGE if record.kind == Kind.WHOLE else record.kind
        self.workspace, self.encoded = _parts(record.payload)


class SpooledRing:
    """A ring with what must be known of it in memory: its open keys, and the next batch.

    What is written is gathered for the publisher at once, so that nothing is read back from the ring. It is read where more
    waits than is gathered (the stream is away), and where somebody else wrote it.
    """

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.journal = Journal()
        self._records = UsageRecords()
        self._taken = ring.published
        """records before this position may have been published: they count as they are"""
        self._said: set[int] = set()
        """positions of the records that a WHOLE one stands for"""
        self._in_hand: Batch | None = None
        """what was taken and is not known to be published"""
        self._gathered = Batch()
        """what was written since `_taken`, but for the only events of open keys: a final one may come to say them"""
        self._is_gathering = ring.published >= ring.head
        self._most_gathered = ring.capacity // 8
        for record in ring.records(ring.tail):
            self._note(record)

    @property
    def is_empty(self) -> bool:
        """Tell whether nothing waits to be published and no key is open."""
        return self.ring.published >= self.ring.head and not len(self.journal)

    @property
    def is_behind(self) -> bool:
        """Tell whether so much waits that no more is to be waited for."""
        return not self._is_gathering and self.ring.published < self.ring.head

    def waiting(self) -> Iterator[Waiting]:
        """Yield what is to be published, oldest first."""
        said = self._said
        for record in self.ring.records(self.ring.published):
            if record.kind != Kind.CARRIED and record.position not in said:
                yield Waiting(record)

    def take(self, most: int) -> Batch | None:
        """Return what is to be published next; from now on it may have been published. None: nothing waits.

        most: how many events are read where they have to be read. It is the same batch until it was published.
        """
        if self._in_hand is None:
            batch = self._gathered_batch() if self._is_gathering else self._read_batch(most)
            self._taken = max(self._taken, batch.end)
            if batch.events:
                self._in_hand = batch
        return self._in_hand

    def _gathered_batch(self) -> Batch:
        batch = self._gathered
        for first in self.journal.only_events(self._taken):
            batch.add(True, first.workspace, first.position, first.encoded)
        batch.end = self.ring.head
        self._gathered = Batch()
        self._said.clear()
        return batch

    def _read_batch(self, most: int) -> Batch:
        batch = Batch()
        records = self.ring.stretch(self.ring.published, most, Kind.CARRIED, self._said)
        for record in records:
            workspace, encoded = _parts(record.payload)
            batch.add(record.kind != Kind.SPANS, workspace, record.position, encoded)
        if len(records) < most:  # nothing waits behind them, so what is written from now on can be gathered
            batch.end = self.ring.head
            self._gathered = Batch()
            self._is_gathering = True
        else:
            batch.end = records[-1].end
        return batch

    def _gather(self, is_usage: bool, workspace: str, position: int, encoded: bytes) -> None:
        gathered = self._gathered
        gathered.add(is_usage, workspace, position, encoded)
        if gathered.size > self._most_gathered:
            self._gather_no_more()

    def _gather_no_more(self) -> None:
        self._is_gathering = False
        self._gathered = Batch()

    def offer_delta(self, tally: Tally, now_ms: int) -> bool:
        """Write what was added to a tally; False if there is no room."""
        units = tally.new_units()
        if not units:
            return True
        key, workspace = tally.key, tally.to.workspace
        encoded = self._records.of_delta(tally, now_ms, units)
        position = self.ring.append(Kind.USAGE, _prefix(workspace) + encoded)
        if position is None:
            return False
        journal = self.journal
        if key not in journal:
            journal.open(key, FirstEvent(workspace, now_ms, position, encoded))
            return True
        if self._is_gathering:
            self._gather_first(key)
            self._gather(True, workspace, position, encoded)
        journal.add(key, tally.events - 1, now_ms, units)
        return True

    def offer_final(self, tally: Tally, outcome: Outcome, now_ms: int, totals: dict[str, int]) -> bool:
        """Write a tally's last event; False if there is no room. totals: what is owed.

        It says the first one as well if that may be, see docs/adr/0066.
        """
        first = self._untaken(tally.key, now_ms) if tally.events == 1 else None
        units: dict[str, int] | None = None
        if first is None:
            units = tally.last_units(totals)
        else:
            tally.end()
        encoded = self._records.of_final(tally, outcome, now_ms, units, totals)
        return self._offer_last(tally.key, tally.to.workspace, encoded, first)

    def _untaken(self, key: str, now_ms: int) -> FirstEvent | None:
        first = self.journal.only_event(key)
        if first is None or first.position < self._taken or now_ms - first.at_ms > _JOINED_WITHIN_MS:
            return None
        return first

    def _offer_last(self, key: str, workspace: str, encoded: bytes, first: FirstEvent | None) -> bool:
        """Write a key's final event. first: the event that it says as well, which is not to be published."""
        position = self.ring.append(Kind.USAGE if first is None else Kind.WHOLE, _prefix(workspace) + encoded)
        if position is None:
            return False
        if first is not None:
            self._said.add(first.position)
        if self._is_gathering:
            if first is None:
                self._gather_first(key)
            self._gather(True, workspace, position, encoded)
        self.journal.close(key)
        return True

    def _gather_first(self, key: str) -> None:
        """Gather a key's only event, if it waited for one that says it as well: another one comes."""
        first = self.journal.only_event(key)
        if first is not None and first.position >= self._taken:
            self._gather(True, first.workspace, first.position, first.encoded)

    def offer_spans(self, workspace: str, encoded: bytes, reserve: int) -> bool:
        """Write an encoded record or span event; False if less than `reserve` bytes would stay free."""
        position = self.ring.append(Kind.SPANS, _prefix(workspace) + encoded, reserve)
        if position is None:
            return False
        if self._is_gathering:
            self._gather(False, workspace, position, encoded)
        return True

    def published_to(self, position: int) -> None:
        """Record that everything before this position was published, and give back the room that nothing needs."""
        ring = self.ring
        if self._in_hand is not None and self._in_hand.end <= position:
            self._in_hand = None
        if position > self._taken:  # nobody took it here
            self._taken = position
            self._gather_no_more()
        # Past half, a key that stays open (a call of an hour) must not hold up all that came after it.
        while ring.used > ring.capacity // 2 and self._needed_from() < position and (oldest := self.journal.oldest()):
            carried = oldest.carried()
            moved = ring.append(Kind.CARRIED, _prefix(carried.to.workspace) + self._records.of_event(carried))
            if moved is None:
                break
            self.journal.restore(carried, moved)
            ring.tail = min(position, self._needed_from())
        while (record := ring.read(position)) is not None and record.kind == Kind.CARRIED:
            position = record.end
        ring.release(position, min(position, self._needed_from()))
        if not self._is_gathering:
            self._said = {said for said in self._said if said >= position}

    def settle_lost(self) -> int:
        """Settle as many open keys of the dead writer as there is room for; return how many stay open."""
        for key in self.journal:
            lost = key.lost()
            if not self._offer_last(lost.key, lost.to.workspace, self._records.of_event(lost), None):
                break
        return len(self.journal)

    def _needed_from(self) -> int:
        oldest = self.journal.oldest_position()
        return self.ring.head if oldest is None else oldest

    def _note(self, record: Record) -> None:
        if record.kind == Kind.SPANS:
            return
        event = usage_event(_parts(record.payload)[1])
        if record.kind == Kind.CARRIED:
            self.journal.restore(event, record.position)
        else:
            if record.kind == Kind.WHOLE and (first := self.journal.position_of(event.key)) is not None:
                self._said.add(first)
            self.journal.note(event, record.position)


class Spool:
    """The process's spool. Implements Sink."""

    def __init__(
        self,
        own: SpooledRing,
        inherited: list[SpooledRing],
        on_drop: Callable[[Kind], None] = lambda _: None,
    ) -> None:
        self._own = own
        self._inherited = inherited
        self._on_drop = on_drop
        self._spans_reserve = own.ring.capacity // 4
        self._is_full = False
        self.on_offer: Callable[[], None] | None = None
        """called once, when something was written; the publisher waits by it"""

    @classmethod
    def open(cls, folder: Path, capacity: int, name: str, on_drop: Callable[[Kind], None] = lambda _: None) -> "Spool":
        """Return the process's spool in this folder, with what dead predecessors left there.

        A predecessor's ring of the same size is taken up and written on, so that restarts in a row need no more room;
        name: a unique name for a new file. Raises RingUnusable.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            files = sorted(folder.glob("*" + _SUFFIX))
        except OSError as fault:
            raise RingUnusable(f"Cannot use {folder} for the spool: {fault.strerror}. Name another folder.") from fault
        inherited = [SpooledRing(ring) for ring in map(_taken_up, files) if ring is not None]
        left_open = sum(len(ring.journal) for ring in inherited)
        still_open = sum(ring.settle_lost() for ring in inherited)
        if left_open:
            _log.warning("lost exchanges settled", settled=left_open - still_open, still_open=still_open)
        capacity = rounded(capacity)
        own = next((ring for ring in inherited if ring.ring.capacity == capacity and not len(ring.journal)), None)
        if own is None:
            own = SpooledRing(Ring.create(folder / (name + _SUFFIX), capacity))
        else:
            inherited.remove(own)
        return cls(own, inherited, on_drop)

    @property
    def rings(self) -> tuple[SpooledRing, ...]:
        """Return the rings to publish from: inherited ones first, the own one last."""
        return (*self._inherited, self._own)

    @property
    def used(self) -> int:
        """Return how many bytes are taken in all rings."""
        return sum(ring.ring.used for ring in self.rings)

    @property
    def capacity(self) -> int:
        """Return how many bytes the own ring holds."""
        return self._own.ring.capacity

    @property
    def unpublished(self) -> int:
        """Return how many bytes wait to be published."""
        return sum(ring.ring.head - ring.ring.published for ring in self.rings)

    @property
    def open_keys(self) -> int:
        """Return how many keys wait for their final event."""
        return sum(len(ring.journal) for ring in self.rings)

    def offer_delta(self, tally: Tally, now_ms: int) -> bool:
        """Write what was added to the tally; False, counted and logged, if the spool is full."""
        return self._is_kept(self._own.offer_delta(tally, now_ms))

    def offer_final(self, tally: Tally, outcome: Outcome, now_ms: int, totals: dict[str, int]) -> bool:
        """Write the tally's last event; False, counted and logged, if the spool is full."""
        return self._is_kept(self._own.offer_final(tally, outcome, now_ms, totals))

    def offer_spans(self, workspace: str, encoded: bytes) -> bool:
        """Write an encoded record or span event; False if it would take the last quarter, which is kept for what costs money."""
        if self._own.offer_spans(workspace, encoded, self._spans_reserve):
            if self.on_offer is not None:
                self._wake()
            return True
        return self._dropped(Kind.SPANS)

    def tidy(self) -> None:
        """Settle what inherited rings still hold open, and remove those that are empty."""
        if self._is_full and self._own.ring.used < self.capacity // 2:
            self._is_full = False
        for ring in list(self._inherited):
            ring.settle_lost()
            if ring.is_empty:
                ring.ring.close(remove=True)
                self._inherited.remove(ring)

    def close(self) -> None:
        """Close every ring; an empty own one is removed, the others wait for a successor."""
        for ring in self.rings:
            ring.ring.close(remove=ring.is_empty)

    def _is_kept(self, has_room: bool) -> bool:
        if not has_room:
            return self._dropped(Kind.USAGE)
        if self.on_offer is not None:
            self._wake()
        return True

    def _wake(self) -> None:
        on_offer, self.on_offer = self.on_offer, None
        if on_offer is not None:
            on_offer()

    def _dropped(self, kind: Kind) -> bool:
        self._on_drop(kind)
        if not self._is_full:
            self._is_full = True
            _log.error("spool full, events are lost", kind=kind.name.lower(), used=self.used, capacity=self.capacity)
        return False


def spool_files(folder: Path) -> list[Path]:
    """Return the spool files of a folder, for inspection."""
    return sorted(folder.glob("*" + _SUFFIX))


def _taken_up(path: Path) -> Ring | None:
    try:
        return Ring.take_up(path)
    except RingUnusable as fault:
        _log.error("spool file left alone", file=path.name, why=str(fault))
        return None


_PREFIXES: Final[dict[str, bytes]] = {}
_MOST_PREFIXES: Final = 4096


def _prefix(workspace: str) -> bytes:
    prefix = _PREFIXES.get(workspace)
    if prefix is None:
        if len(_PREFIXES) >= _MOST_PREFIXES:
            _PREFIXES.clear()
        name = workspace.encode()[:255]
        prefix = _PREFIXES[workspace] = b"%c%b" % (len(name), name)
    return prefix


def _parts(payload: bytes) -> tuple[str, bytes]:
    end = 1 + payload[0]
    return payload[1:end].decode(), payload[end:]
