"""One memory-mapped ring file of records that survive the death of the process that wrote them.

The file is preallocated and locked by its writer. A record is in the ring from the moment its commit mark is written; a
writer killed half-way leaves a record that readers do not see. Positions count bytes from the ring's birth and never
repeat: a record stores its own, so what an earlier lap left behind is not mistaken for a record. Knows nothing of events:
read `gateway.telemetry.spool` next.

File: a 4096-byte header (magic, capacity, two copies of the marks), then `capacity` bytes of records, each a 32-byte head
(position, length, CRC-32 of the payload seeded with position, length and kind; kind; commit mark) and the payload, padded
to 32 bytes.
"""

import errno
import fcntl
import mmap
import os
from collections.abc import Container, Iterator
from pathlib import Path
from struct import Struct
from typing import Final
from zlib import crc32

_MAGIC: Final = b"GLSPOOL2"
_OLDER_MAGIC: Final = b"GLSPOOL1"
"""of releases whose records said less: one of them leaves a file alone that does not begin so, and this one goes on with it"""
_HEADER_BYTES: Final = 4096
_HEAD: Final = Struct("<QIIB3xI8x")
_HEAD_BYTES: Final = _HEAD.size  # 32: heads are aligned to their own size, so that none wraps around the end
_COMMITTED: Final = 0x0D0E_C0DE
_CAPACITY: Final = Struct("<Q")
_MARKS: Final = Struct("<QQQ")
_MARKS_OFFSETS: Final = (64, 128)
_MARKS_CRC: Final = Struct("<I")
_WRITTEN: Final = mmap.MAP_SHARED | mmap.MAP_POPULATE
"""a ring that is written has all its pages from the start: in its first lap each would interrupt an exchange for 2 µs"""

SMALLEST_CAPACITY: Final = 64 * 1024


def _checksum(payload: bytes, position: int, length: int, kind: int) -> int:
    return crc32(payload, (position ^ position >> 32 ^ length << 8 ^ kind) & 0xFFFF_FFFF)


def rounded(capacity: int) -> int:
    """Return the capacity that a ring asked to hold so many bytes has: whole pages, at least SMALLEST_CAPACITY."""
    return max(capacity, SMALLEST_CAPACITY) // mmap.PAGESIZE * mmap.PAGESIZE


class RingUnusable(Exception):
    """A ring file that cannot be made or taken up; the text says why and what to do."""


class Record:
    """One committed record. `end`: the position after it."""

    __slots__ = ("end", "kind", "payload", "position")

    def __init__(self, position: int, end: int, kind: int, payload: bytes) -> None:
        self.position = position
        self.end = end
        self.kind = kind
        self.payload = payload


class Ring:
    """An open, locked ring file. One thread uses it."""

    def __init__(self, path: Path, descriptor: int, memory: mmap.mmap, capacity: int) -> None:
        self.path = path
        self.capacity = capacity
        self._descriptor = descriptor
        self._memory = memory
        self._generation = 0
        self.tail = 0
        """position of the oldest record that is kept"""
        self.published = 0
        """records before this position need not be published any more"""
        self.head = 0
        """position after the newest record"""
        self._read_marks()
        self.head = self._find_head()

    @classmethod
    def create(cls, path: Path, capacity: int) -> "Ring":
        """Return a new ring of `capacity` bytes, see `rounded`. Raises RingUnusable, for example on a full disk."""
        capacity = rounded(capacity)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as fault:
            raise RingUnusable(f"Cannot make {path}: {fault.strerror}. Name a folder that can be written.") from fault
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Not ftruncate: writing to a sparse file on a full disk kills the process with SIGBUS.
            os.posix_fallocate(descriptor, 0, _HEADER_BYTES + capacity)
            memory = mmap.mmap(descriptor, _HEADER_BYTES + capacity, flags=_WRITTEN)
        except OSError as fault:
            path.unlink()
            os.close(descriptor)
            what = "the disk is full" if fault.errno in (errno.ENOSPC, errno.EDQUOT) else fault.strerror
            raise RingUnusable(
                f"Cannot reserve {capacity} bytes for the spool in {path.parent}: {what}. "
                "Free space there, name another folder, or ask for a smaller spool."
            ) from fault
        memory[8:16] = _CAPACITY.pack(capacity)
        memory[0:8] = _MAGIC  # last: without it the file is not taken for a ring
        return cls(path, descriptor, memory, capacity)

    @classmethod
    def take_up(cls, path: Path) -> "Ring | None":
        """Return the ring of a dead writer; None if the writer lives, or the file is gone. Raises RingUnusable."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as fault:
            raise RingUnusable(f"Cannot open {path}: {fault.strerror}. Give the gateway's user access to it.") from fault
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_nlink == 0:  # its last owner removed it between our open and our lock
                os.close(descriptor)
                return None
        except BlockingIOError:
            os.close(descriptor)
            return None
        return cls._mapped(path, descriptor, _WRITTEN, mmap.PROT_READ | mmap.PROT_WRITE)

    @classmethod
    def look_at(cls, path: Path) -> "Ring":
        """Return the ring for reading, whoever holds the lock: for inspection. Raises RingUnusable."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as fault:
            raise RingUnusable(f"Cannot open {path}: {fault.strerror}.") from fault
        return cls._mapped(path, descriptor, mmap.MAP_SHARED, mmap.PROT_READ)

    @classmethod
    def _mapped(cls, path: Path, descriptor: int, flags: int, protection: int) -> "Ring":
        size = os.fstat(descriptor).st_size
        try:
            memory = mmap.mmap(descriptor, size, flags=flags, prot=protection)
        except (OSError, ValueError) as fault:
            os.close(descriptor)
            raise RingUnusable(f"{path} is not a spool file. Move it out of the spool's folder.") from fault
        capacity = size - _HEADER_BYTES
        if (
            memory[0:8] not in (_MAGIC, _OLDER_MAGIC)
            or _CAPACITY.unpack_from(memory, 8)[0] != capacity
            or capacity < SMALLEST_CAPACITY
        ):
            memory.close()
            os.close(descriptor)
            raise RingUnusable(f"{path} is not a spool file of this release. Move it out of the spool's folder.")
        if flags == _WRITTEN:
            memory[0:8] = _MAGIC  # before anything is written that an older release would misread
        return cls(path, descriptor, memory, capacity)

    def is_locked_by_another(self) -> bool:
        """Tell whether a living writer holds the file; for rings that were only looked at."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        return False

    @property
    def used(self) -> int:
        """Return how many bytes are taken."""
        return self.head - self.tail

    def append(self, kind: int, payload: bytes, reserve: int = 0) -> int | None:
        """Write one record and return its position; None, and nothing written, if less than `reserve` bytes would stay free."""
        length = len(payload)
        position = self.head
        size = (_HEAD_BYTES + length + 31) & ~31
        if position + size - self.tail > self.capacity - reserve:
            return None
        memory = self._memory
        offset = position % self.capacity + _HEADER_BYTES
        start = offset + _HEAD_BYTES
        room = self.capacity + _HEADER_BYTES - start
        if length <= room:
            memory[start : start + length] = payload
        else:
            memory[start : start + room] = payload[:room]
            memory[_HEADER_BYTES : _HEADER_BYTES + length - room] = payload[room:]
        # The head last, its mark last in it: a mark of an earlier lap under a half-written head fails the checksum.
        _HEAD.pack_into(memory, offset, position, length, _checksum(payload, position, length, kind), kind, _COMMITTED)
        self.head = position + size
        return position

    def read(self, position: int) -> Record | None:
        """Return the record at this position; None if there is no committed one."""
        memory = self._memory
        offset = position % self.capacity + _HEADER_BYTES
        found, length, checksum, kind, mark = _HEAD.unpack_from(memory, offset)
        if found != position or mark != _COMMITTED or length > self.capacity - _HEAD_BYTES:
            return None
        payload = self._payload(offset + _HEAD_BYTES, length)
        if _checksum(payload, position, length, kind) != checksum:
            return None
        return Record(position, position + ((_HEAD_BYTES + length + 31) & ~31), kind, payload)

    def stretch(self, position: int, most: int, but_kind: int, but_at: Container[int]) -> list[Record]:
        """Return up to so many records from this position on, but those of one kind and those at some positions.

        They are not proven again: they were written by this process, or read once since it took the ring up.
        """
        memory, capacity, head = self._memory, self.capacity, self.head
        limit = capacity + _HEADER_BYTES
        found: list[Record] = []
        while position < head and len(found) < most:
            offset = position % capacity + _HEADER_BYTES
            _, length, _, kind, _ = _HEAD.unpack_from(memory, offset)
            end = position + ((_HEAD_BYTES + length + 31) & ~31)
            if kind != but_kind and position not in but_at:
                start = offset + _HEAD_BYTES
                payload = memory[start : start + length] if start + length <= limit else self._payload(start, length)
                found.append(Record(position, end, kind, payload))
            position = end
        return found

    def records(self, position: int) -> Iterator[Record]:
        """Yield the records from this position to the newest."""
        while position < self.head and (record := self.read(position)) is not None:
            yield record
            position = record.end

    def release(self, published: int, tail: int) -> None:
        """Record that everything before `published` was published, and that nothing before `tail` is needed any more.

        Two copies are written in turn, so that a writer killed half-way leaves the older one whole.
        """
        self.published, self.tail = published, tail
        self._generation += 1
        body = _MARKS.pack(self._generation, tail, published)
        offset = _MARKS_OFFSETS[self._generation % 2]
        self._memory[offset : offset + _MARKS.size + _MARKS_CRC.size] = body + _MARKS_CRC.pack(crc32(body))

    def close(self, *, remove: bool = False) -> None:
        """Unlock and close; remove: delete the file first, while nobody else can take it up."""
        if remove:
            self.path.unlink(missing_ok=True)
        self._memory.close()
        os.close(self._descriptor)

    def _payload(self, start: int, length: int) -> bytes:
        memory = self._memory
        room = self.capacity + _HEADER_BYTES - start
        if length <= room:
            return memory[start : start + length]
        return memory[start : start + room] + memory[_HEADER_BYTES : _HEADER_BYTES + length - room]

    def _read_marks(self) -> None:
        for offset in _MARKS_OFFSETS:
            body = self._memory[offset : offset + _MARKS.size]
            (checksum,) = _MARKS_CRC.unpack_from(self._memory, offset + _MARKS.size)
            generation, tail, published = _MARKS.unpack(body)
            if crc32(body) == checksum and generation > self._generation:
                self._generation, self.tail, self.published = generation, tail, published

    def _find_head(self) -> int:
        position = self.tail
        while position - self.tail < self.capacity and (record := self.read(position)) is not None:
            position = record.end
        return position
