"""Brings the control plane's configuration to this pod: signed manifests, their chunks, and revocations, over NATS.

A manifest is acted on only if a pinned key signed it and it is not older than what is held; its chunks are taken by their
hash. Decoding and indexing go in slices, so that exchanges in flight never wait for them. Watches are made anew whenever
the connection came back, and every few seconds the feed asks whether it missed anything: only then is the configuration
confirmed to be fresh. What is in force is kept on disk. Read next: `gateway.state.snapshot`, what it fills.
"""

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import nats.errors
import nats.js.errors
import structlog
from nats.js.kv import KV_DEL, KV_PURGE, KeyValue

from contracts import codec, manifest, revocations, subjects
from contracts.manifest import Manifest, ManifestRefused
from contracts.revocations import CommandRefused, EndSession, Revocation
from contracts.snapshot import Chunk, snapshot_of
from gateway.bus import Bus
from gateway.state.difference import difference_steps
from gateway.state.last_known_good import LastKnownGood
from gateway.state.snapshot import SnapshotStore
from gateway.tasks import Tasks, cancelled
from policy.index import LOOKUPS, Index, Steps, next_index_steps

_log = structlog.get_logger("gateway.state.feed")

_SLICE_SECONDS = 0.004
_RETRY_SECONDS = 0.1
_MISSING_SECONDS = 0.5
_CHECK_SECONDS = 5.0
_SAVE_SECONDS = 0.2
_FETCHES_AT_ONCE = 32
_SIGNATURES_A_SLICE = 20
"""checked between two turns of the loop: each costs a tenth of a millisecond"""
_CONSUMER_IDLE_SECONDS = 30
"""how long the server keeps the consumer of a watch that went away"""
_RELEASED_AT_ONCE = 4000
_FAULTS = (nats.errors.Error, nats.js.errors.Error, TimeoutError, OSError)

R = TypeVar("R")


class ChunkMissing(Exception):
    """A chunk that the manifest names is not there, or is not what its name says."""


@dataclass(slots=True)
class Observer:
    """Told of what metrics count."""

    on_applied: Callable[[float], None] = lambda _: None
    """seconds from the manifest to its swap"""
    on_refused: Callable[[str], None] = lambda _: None
    """why a manifest, or `revocation_<why>` a revocation or session command, was refused"""


class Feed:
    """The feed of one pod. clock: Unix seconds; manifest_keys: the pinned public keys, raw."""

    def __init__(
        self,
        bus: Bus,
        store: SnapshotStore,
        disk: LastKnownGood,
        manifest_keys: Iterable[bytes],
        clock: Callable[[], float],
        observer: Observer,
        tasks: Tasks,
    ) -> None:
        self._bus = bus
        self._tasks = tasks
        self._store = store
        self._disk = disk
        self._keys = tuple(manifest_keys)
        self._clock = clock
        self._observer = observer
        self.applying = asyncio.Lock()
        """held while a manifest is put in force"""
        self._manifest: Manifest | None = None
        self._signed = b""
        self._chunks: dict[str, Chunk] = {}
        self._index = Index(0)
        """the index over them"""
        self._unsaved: dict[str, bytes] = {}
        self._to_save = asyncio.Event()
        self._saved_revision = 0
        self._manifest_entry = 0
        """key-value revision of the newest manifest entry that was looked at"""
        self._revocation_entry = 0
        self._revocations_missed = asyncio.Event()
        self._is_newest = False
        """the newest manifest entry that was looked at is in force"""

    async def load(self) -> None:
        """Put the configuration that is kept on disk in force, if there is one. Raises OSError if there is no folder."""
        await asyncio.to_thread(self._disk.prepare)
        revocations = await asyncio.to_thread(self._disk.read_revocations)
        if revocations is not None:
            self._store.set_revocations(revocations)
        signed = await asyncio.to_thread(self._disk.read_manifest)
        if signed is None:
            return

        async def from_disk(name: str) -> bytes | None:
            return await asyncio.to_thread(self._disk.read_chunk, name)

        if await self._apply(signed, from_disk):
            self._saved_revision = self._store.revision
            self._unsaved.clear()
            self._store.confirm(self._disk.confirmed_at())
            _log.info("last-known-good in force", revision=self._store.revision, age_seconds=round(self._store.age()))

    def start(self) -> None:
        """Start following the bus, in the background."""
        never, tasks = asyncio.Event(), self._tasks
        tasks.keep("feed configuration", lambda: self._follow("configuration", self._watch_configuration, never))
        tasks.keep("feed revocations", lambda: self._follow("revocations", self._watch_revocations, self._revocations_missed))
        tasks.keep("feed check", self._check_for_ever)
        tasks.keep("feed save", self._save_for_ever)
        self._store.subscribe(self._to_save.set)

    async def _follow(self, what: str, watch: Callable[[], Coroutine[Any, Any, None]], missed: asyncio.Event) -> None:
        """Watch, and watch anew whenever the connection came back, something was missed, or the watch failed."""
        is_missing = False
        while True:
            connections = await self._bus.up()
            missed.clear()
            watching = self._tasks.start(f"watch {what}", watch())
            reasons = {
                self._tasks.start(f"reconnect {what}", self._bus.another(connections)),
                self._tasks.start(f"missed {what}", missed.wait()),
            }
            try:
                await asyncio.wait({watching, *reasons}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await cancelled(watching, *reasons)
            fault = None if watching.cancelled() else watching.exception()
            if isinstance(fault, nats.js.errors.NotFoundError):
                if not is_missing:
                    _log.warning("nothing published yet", what=what)
                is_missing = True
                await asyncio.sleep(_MISSING_SECONDS)
            elif isinstance(fault, _FAULTS):
                _log.warning("watch failed", what=what, error=type(fault).__name__)
                await asyncio.sleep(_RETRY_SECONDS)
            elif isinstance(fault, Exception):
                raise fault

    async def _watch_configuration(self) -> None:
        bucket = await self._bus.jetstream.key_value(subjects.CONFIG_BUCKET)
        newest = _Newest()
        async with _watching(bucket, subjects.MANIFEST_KEY) as watcher:
            following = self._tasks.start("newest configuration", newest.follow(watcher))
            try:
                while True:
                    await self._take_manifest(bucket, await newest.get())
            finally:
                following.cancel()

    async def _watch_revocations(self) -> None:
        bucket = await self._bus.jetstream.key_value(subjects.REVOCATIONS_BUCKET)
        seen = (await bucket.status()).stream_info.state.last_seq
        async with _watching(bucket, ">") as watcher:
            before: list[KeyValue.Entry] = []
            async for entry in watcher:
                if entry is None:
                    break
                before.append(entry)
            known = []
            for number, entry in enumerate(before, start=1):
                if (revocation := self._revocation(entry)) is not None:
                    known.append(revocation)
                if not number % _SIGNATURES_A_SLICE:
                    await asyncio.sleep(0)
            self._store.set_revocations(known)
            self._revocation_entry = max(seen, *(entry.revision or 0 for entry in before), 0)
            async for entry in watcher:
                if entry is not None:
                    self._take_revocation(entry)

    async def _take_manifest(self, bucket: KeyValue, entry: KeyValue.Entry) -> None:
        self._manifest_entry = entry.revision or 0
        if entry.value is None or entry.operation in (KV_DEL, KV_PURGE):
            return

        async def from_bus(name: str) -> bytes | None:
            try:
                return (await bucket.get(subjects.chunk_key(name))).value
            except nats.js.errors.KeyNotFoundError:
                return None

        asked_at = self._clock()
        self._is_newest = False
        self._is_newest = await self._apply(entry.value, from_bus)
        if self._is_newest:
            self._store.confirm(asked_at)

    def _revocation(self, entry: KeyValue.Entry) -> Revocation | None:
        """Return the revocation of an entry; None for a deleted one and for a command, which is carried out."""
        if entry.value is None or entry.operation in (KV_DEL, KV_PURGE):
            return None
        try:
            command = revocations.opened(entry.key, entry.value, self._keys)
        except CommandRefused as refusal:
            _log.error("revocation refused", key=entry.key, reason=refusal.reason, why=str(refusal))
            self._observer.on_refused(f"revocation_{refusal.reason}")
            return None
        if isinstance(command, EndSession):
            if command.expires_ms > self._clock() * 1000:
                self._store.on_end_session(command)
            return None
        return command

    def _take_revocation(self, entry: KeyValue.Entry) -> None:
        self._revocation_entry = max(self._revocation_entry, entry.revision or 0)
        revocation = self._revocation(entry)
        if revocation is not None:
            self._store.revoke(revocation)
        elif entry.operation in (KV_DEL, KV_PURGE):
            workspace, kind, target = entry.key.split(".", 2)
            self._store.unrevoke(workspace, kind, target)

    async def _apply(self, signed: bytes, fetch: Callable[[str], Awaitable[bytes | None]]) -> bool:
        """Put a manifest's configuration in force; False, with a log line, if it must not be or cannot be."""
        async with self.applying:
            try:
                found = manifest.opened(signed, self._keys, self._store.revision)
            except ManifestRefused as refusal:
                _log.error("manifest refused", reason=refusal.reason, why=str(refusal))
                self._observer.on_refused(refusal.reason)
                return False
            if self._manifest is not None and found.revision == self._manifest.revision:
                return True
            started = time.perf_counter()
            # A full collection over 100,000 records stalls the loop; what is made here is not garbage.
            gc.disable()
            try:
                chunks = await self._gathered(found, fetch)
                index, chunks = await self._indexed(found, chunks)
            except (ChunkMissing, codec.Undecodable) as fault:
                _log.error("snapshot not usable", revision=found.revision, why=str(fault))
                self._observer.on_refused("chunks")
                return False
            finally:
                gc.freeze()  # before the collector is on again: its first round would walk over all that was made
                gc.enable()
            self._manifest, self._signed, self._chunks, self._index = found, signed, chunks, index
            releasing = _released(self._store.swap(index), index)
            seconds = time.perf_counter() - started
            self._observer.on_applied(seconds)
            _log.info("configuration in force", revision=found.revision, apply_ms=round(seconds * 1000, 1))
        await releasing
        return True

    async def _gathered(self, found: Manifest, fetch: Callable[[str], Awaitable[bytes | None]]) -> dict[str, Chunk]:
        """Return the manifest's chunks by name, those that are held already and the others fetched."""
        missing = [name for name in found.chunks if name not in self._chunks]
        chunks = {name: self._chunks[name] for name in found.chunks if name in self._chunks}
        for at in range(0, len(missing), _FETCHES_AT_ONCE):
            names = missing[at : at + _FETCHES_AT_ONCE]
            for name, data in zip(names, await asyncio.gather(*map(fetch, names)), strict=True):
                if data is None or manifest.chunk_name(data) != name:
                    raise ChunkMissing(f"chunk {name[:16]} is missing or damaged")
                chunks[name] = codec.decode(data, Chunk)
                self._unsaved[name] = data
                await asyncio.sleep(0)
        return chunks

    async def _indexed(self, found: Manifest, chunks: dict[str, Chunk]) -> tuple[Index, dict[str, Chunk]]:
        """Return the index over the chunks, made from the one in force and what is different, and the chunks to hold."""
        difference = await _in_slices(difference_steps(self._chunks, chunks))
        when = found.revision, found.created_at_ms
        steps = next_index_steps(
            self._index,
            snapshot_of(*when, difference.gone),
            snapshot_of(*when, difference.come),
            lambda: snapshot_of(*when, difference.chunks.values()),
        )
        return await _in_slices(steps), difference.chunks

    async def _check_for_ever(self) -> None:
        """Ask every few seconds whether anything was missed; what was not is confirmed to be fresh."""
        while True:
            await self._bus.up()
            with contextlib.suppress(*_FAULTS):
                await self._check()
            await asyncio.sleep(_CHECK_SECONDS)

    async def _check(self) -> None:
        asked_at = self._clock()
        configuration = await self._bus.jetstream.key_value(subjects.CONFIG_BUCKET)
        entry = await configuration.get(subjects.MANIFEST_KEY)
        if (entry.revision or 0) > self._manifest_entry or not self._is_newest:
            await self._take_manifest(configuration, entry)
        revocations = await self._bus.jetstream.key_value(subjects.REVOCATIONS_BUCKET)
        if (await revocations.status()).stream_info.state.last_seq > self._revocation_entry:
            self._revocations_missed.set()
        elif self._is_newest:
            self._store.confirm(asked_at)
            self._to_save.set()

    async def _save_for_ever(self) -> None:
        while True:
            await self._to_save.wait()
            await asyncio.sleep(_SAVE_SECONDS)
            self._to_save.clear()
            try:
                await self._save()
            except OSError as fault:
                _log.error("last-known-good not written", why=fault.strerror)

    async def _save(self) -> None:
        # Revocations first: a configuration without them is not one to start from.
        await asyncio.to_thread(self._disk.write_revocations, self._store.revocations)
        if self._manifest is not None and self._manifest.revision != self._saved_revision:
            revision, unsaved = self._manifest.revision, dict(self._unsaved)
            await asyncio.to_thread(self._disk.write, self._signed, self._manifest.chunks, unsaved)
            self._saved_revision = revision
            for name in unsaved:
                self._unsaved.pop(name, None)
        await asyncio.to_thread(self._disk.confirm, self._clock() - self._store.age())


class _Newest:
    """The newest entry of a watch: while one manifest is applied, those that come meanwhile are passed over but the last."""

    def __init__(self) -> None:
        self._entry: KeyValue.Entry | None = None
        self._has_come = asyncio.Event()

    async def follow(self, watcher: KeyValue.KeyWatcher) -> None:
        async for entry in watcher:
            if entry is not None:
                self._entry = entry
                self._has_come.set()

    async def get(self) -> KeyValue.Entry:
        while (entry := self._entry) is None:
            self._has_come.clear()
            await self._has_come.wait()
        self._entry = None
        return entry


@contextlib.asynccontextmanager
async def _watching(bucket: KeyValue, keys: str) -> AsyncIterator[KeyValue.KeyWatcher]:
    watcher = await bucket.watch(keys, inactive_threshold=_CONSUMER_IDLE_SECONDS)
    try:
        yield watcher
    finally:
        with contextlib.suppress(*_FAULTS):
            await watcher.stop()  # type: ignore[no-untyped-call]  # nats-py's own


async def _in_slices(steps: Steps[R]) -> R:
    """Return what the steps lead to; others have the loop in between."""
    slice_began = time.perf_counter()
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: R = stop.value
            return result
        if time.perf_counter() - slice_began > _SLICE_SECONDS:
            await asyncio.sleep(0)
            slice_began = time.perf_counter()


async def _released(index: Index, successor: Index) -> None:
    """Let go of what an index does not share with its successor, slice by slice: dropping 100,000 entries at once stalls
    the loop. Others may still hold it."""
    parts: list[list[object]] = []
    for name in LOOKUPS:
        held: dict[object, object] = getattr(index, name)
        if held is not getattr(successor, name):
            parts += [list(held), list(held.values())]
    del held, index
    for part in parts:
        while part:
            del part[-_RELEASED_AT_ONCE:]
            await asyncio.sleep(0)
