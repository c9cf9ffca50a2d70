"""All published records in memory, and their chunks: one change re-encodes one chunk, however many records there are. Pure.

The chunks are those of `contracts.snapshot.chunks_of` over the same records (a property test compares).
"""

from collections.abc import Iterable, Iterator
from typing import Any

from contracts.manifest import chunk_name
from contracts.snapshot import KINDS, bucket_count, bucket_of, chunk_of


class Ledger:
    """Records by kind and id. Records of one kind with equal ids replace one another."""

    def __init__(self) -> None:
        self._kinds = {kind: _Kind(kind) for kind in KINDS}

    def replace(self, kind: str, ids: Iterable[str], records: Iterable[Any]) -> None:
        """Make `records` what there is under `ids`: those without a record are gone. Any: the kind's record."""
        of_kind = self._kinds[kind]
        fresh = {record.id: record for record in records}
        for identity in ids:
            if identity not in fresh:
                of_kind.remove(identity)
        for identity, record in fresh.items():
            of_kind.put(identity, record)

    def chunks(self) -> Iterator[tuple[str, bytes]]:
        """Yield name and encoded bytes of the chunks of everything."""
        for kind in KINDS:
            yield from self._kinds[kind].chunks()

    def count(self, kind: str) -> int:
        """Return how many records of a kind there are."""
        return self._kinds[kind].count


class _Kind:
    """The records of one kind in their buckets, each with its encoded chunk until it changes."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._buckets: list[dict[str, Any]] = [{}]  # Any: the record that the kind says
        self._encoded: list[tuple[str, bytes] | None] = [None]
        self.count = 0

    def put(self, identity: str, record: Any) -> None:
        bucket = bucket_of(identity, len(self._buckets))
        if self._buckets[bucket].get(identity) == record:
            return
        self.count += identity not in self._buckets[bucket]
        self._buckets[bucket][identity] = record
        self._encoded[bucket] = None

    def remove(self, identity: str) -> None:
        bucket = bucket_of(identity, len(self._buckets))
        if self._buckets[bucket].pop(identity, None) is not None:
            self.count -= 1
            self._encoded[bucket] = None

    def chunks(self) -> Iterator[tuple[str, bytes]]:
        wanted = bucket_count(self.count)
        if wanted != len(self._buckets):
            self._cut_anew(wanted)
        for bucket, records in enumerate(self._buckets):
            if records:
                encoded = self._encoded[bucket]
                if encoded is None:
                    chunk = chunk_of(self._kind, records.values())
                    encoded = self._encoded[bucket] = (chunk_name(chunk), chunk)
                yield encoded

    def _cut_anew(self, wanted: int) -> None:
        old = self._buckets
        self._buckets = [{} for _ in range(wanted)]
        self._encoded = [None] * wanted
        for records in old:
            for identity, record in records.items():
                self._buckets[bucket_of(identity, wanted)][identity] = record
