"""What is different between the chunks that a pod holds and those of a new revision, record by record.

A chunk that changed holds some 256 records, of which usually one is different. The others keep the objects that are held
already, and with them what is cached for an issuer. Knows no bus and no index. Read next: `policy.index`, which takes it.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from contracts.snapshot import KINDS, Chunk

_Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Difference:
    """gone, come: the records that only one side has, in chunks; a record that changed is in both. chunks: those of the
    new revision, made of the records that are held wherever they are equal."""

    gone: tuple[Chunk, ...]
    come: tuple[Chunk, ...]
    chunks: dict[str, Chunk]


@dataclass(slots=True)
class _Kind:
    gone: dict[_Key, Any] = field(default_factory=dict)  # Any: a record of the kind
    twice: list[Any] = field(default_factory=list)
    """gone as well: records whose id another one has, which only a faulty publisher makes"""
    come: list[Any] = field(default_factory=list)


def difference_steps(held: Mapping[str, Chunk], wanted: Mapping[str, Chunk]) -> Generator[None, None, Difference]:
    """Compare chunks by name, then the records of those that are not on both sides; yields after each chunk."""
    if not held:
        return Difference((), tuple(wanted.values()), dict(wanted))
    kinds = {kind: _Kind() for kind in KINDS}
    for name in held.keys() - wanted.keys():
        for kind, found in kinds.items():
            for record in getattr(held[name], kind):
                key = _key_of(record)
                if key in found.gone:
                    found.twice.append(record)
                else:
                    found.gone[key] = record
        yield
    chunks: dict[str, Chunk] = {}
    for name, chunk in wanted.items():
        if name in held:
            chunks[name] = held[name]
            continue
        kept: dict[str, Any] = {}  # Any: records of the kind
        for kind, found in kinds.items():
            records = getattr(chunk, kind)
            if records:
                kept[kind] = tuple(_matched(record, found) for record in records)
        chunks[name] = msgspec.structs.replace(chunk, **kept)
        yield
    gone: dict[str, Any] = {kind: (*found.gone.values(), *found.twice) for kind, found in kinds.items()}
    come: dict[str, Any] = {kind: tuple(found.come) for kind, found in kinds.items()}
    return Difference((Chunk(**gone),), (Chunk(**come),), chunks)


def _matched(record: Any, found: _Kind) -> Any:
    """Return the record that is held, if it is equal to this one; else this one, noted as new."""
    key = _key_of(record)
    before = found.gone.get(key)
    if before == record:
        del found.gone[key]
        return before
    found.come.append(record)
    return record


def _key_of(record: Any) -> _Key:
    return getattr(record, "workspace", ""), record.id
