"""The one loop that publishes: woken by Postgres, it turns what transactions changed into what gateways read.

One publisher at a time holds an advisory lock; replicas wait for it. A round reads the outbox and the changed rows at one
moment of the database, writes revocations first, then new chunks, then the signed manifest over all of them, and only then
deletes the outbox rows: killed anywhere, the next round does the rest again. The manifest is written compare-and-set, so
that a publisher which lost its lock unawares cannot put an older one over a newer one.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import asyncpg
import msgspec
import nats.errors
import nats.js.errors
import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from contracts import codec, manifest, revocations, signing
from contracts.events import PodStatus
from contracts.exports import ExportTargets
from contracts.prices import PriceBook
from contracts.secret import Secret
from contracts.snapshot import KINDS
from contracts.subjects import CONFIG_BUCKET, EXPORTS_KEY, PRICES_KEY, REVOCATIONS_BUCKET, chunk_key
from control_plane.kit.database import OUTBOX_CHANNEL, Database
from control_plane.kit.problems import Problem
from control_plane.publish import reader
from control_plane.publish.bus import Bus, BusSettings, ManifestMoved
from control_plane.publish.ledger import Ledger
from control_plane.publish.live_sessions import LiveSessions

log = structlog.get_logger(__name__)

_ADVISORY_LOCK = 0x676C6F74_70756273  # "glotpubs"
_IDLE_SECONDS = 1.0
_LOCK_SECONDS = 0.5
_ANSWER_SECONDS = 5.0
"""how long the session that holds the lock may leave a question without an answer"""
_FIRST_BACKOFF_SECONDS, _LAST_BACKOFF_SECONDS = 0.1, 3.0
_FRESH_SECONDS = 600.0
"""a manifest is signed anew at least this often, so that its time proves to gateways that the feed is alive"""
_CHUNK_GRACE_SECONDS = 600.0
"""how long a chunk stays that no manifest names any more: a pod may be reading the manifest before"""
_CHECK_SECONDS = 30.0
_SWEEP_SECONDS = 60.0
_FAULTS = (nats.errors.Error, SQLAlchemyError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError, Problem)


@dataclass(frozen=True)
class PublisherSettings:
    """manifest_key: raw Ed25519 private key; public_url: of the token issuer, stands in the published issuers."""

    manifest_key: Secret
    public_url: str


class Metrics:
    """What the publisher counts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.revision = Gauge("glottis_published_revision", "The newest published revision", registry=registry)
        self.is_leader = Gauge("glottis_publisher_is_leader", "1 where this replica publishes", registry=registry)
        self.rounds = Counter("glottis_publish_rounds_total", "Rounds by result", ["result"], registry=registry)
        self.lag = Histogram(
            "glottis_publish_lag_seconds",
            "From the newest change of a round to its manifest",
            buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 30),
            registry=registry,
        )
        self.chunks = Counter("glottis_published_chunks_total", "Chunks written", registry=registry)


class Publisher:
    """Publishes until it is cancelled. clock: Unix seconds. `revision`: the newest that this replica knows of."""

    def __init__(
        self,
        database: Database,
        bus_settings: BusSettings,
        settings: PublisherSettings,
        clock: Callable[[], float],
        metrics: Metrics,
    ) -> None:
        self._database = database
        self._bus_settings = bus_settings
        self._settings = settings
        self._public_key = signing.public_key_of(settings.manifest_key)
        self._clock = clock
        self._metrics = metrics
        self._wake = asyncio.Event()
        self._must_check = True
        self._bus: Bus | None = None
        self.revision = 0
        self.is_leader = False
        self.pods: dict[str, PodStatus] = {}
        self.sessions = LiveSessions(clock)
        self._forget()

    @property
    def is_connected(self) -> bool:
        """Tell whether the message bus is there."""
        return self._bus is not None and self._bus.is_connected

    def _forget(self) -> None:
        """Know nothing: the next round reads every row and compares with the bucket."""
        self._ledger: Ledger | None = None
        self._names: set[str] = set()
        self._unneeded: dict[str, float] = {}
        self._manifest_sequence = 0
        self._written: tuple[str, ...] = ()
        self._signed_at = 0.0
        self._swept_at = 0.0
        self._checked_at = 0.0
        self._must_check = True

    async def run(self) -> None:
        """Connect, wait for the lock, publish; begin anew after every fault, with growing pauses."""
        backoff = _FIRST_BACKOFF_SECONDS
        try:
            while True:
                try:
                    if self._bus is None:
                        self._bus = await Bus.connected(self._bus_settings, self._reconnected)
                        await self._bus.hear_pods(self._heard)
                        await self._bus.hear_sessions(self.sessions.hear)
                    await self._lead(self._bus)
                    backoff = _FIRST_BACKOFF_SECONDS
                except ManifestMoved:
                    self._metrics.rounds.labels("overtaken").inc()
                    log.warning("manifest was written by another publisher; reading everything anew")
                    self._forget()
                except _FAULTS as fault:
                    self._metrics.rounds.labels("fault").inc()
                    code = fault.err_code if isinstance(fault, nats.js.errors.APIError) else None
                    log.warning("publishing interrupted", fault=type(fault).__name__, code=code, retry_in_seconds=backoff)
                    await asyncio.sleep(backoff)
                    backoff = min(backoff * 2, _LAST_BACKOFF_SECONDS)
        finally:
            if self._bus is not None:
                await self._bus.close()

    async def _reconnected(self) -> None:
        # The server may have lost what was not yet on its disk.
        self._must_check = True
        self._wake.set()

    def _heard(self, data: bytes) -> None:
        with contextlib.suppress(codec.Undecodable):
            status = codec.decode(data, PodStatus)
            # The pod's clock says when; ours decides whether it is recent.
            self.pods[status.pod] = msgspec.structs.replace(status, at_ms=round(self._clock() * 1000))

    async def _lead(self, bus: Bus) -> None:
        """Hold the lock and publish, until a fault."""
        session = await self._database.session()
        try:
            ended = asyncio.Event()

            def end(_: object) -> None:
                ended.set()
                self._wake.set()

            session.add_termination_listener(end)
            while not await session.fetchval("SELECT pg_try_advisory_lock($1)", _ADVISORY_LOCK, timeout=_ANSWER_SECONDS):
                await self._follow()
                await asyncio.sleep(_LOCK_SECONDS)
            self._forget()
            self.is_leader = True
            self._metrics.is_leader.set(1)
            log.info("publisher leads")
            async with asyncio.timeout(_ANSWER_SECONDS):
                await session.add_listener(OUTBOX_CHANNEL, lambda *_: self._wake.set())
            while not ended.is_set():
                # Cleared before reading, so that a change which comes during the round brings another one.
                self._wake.clear()
                await self._round(bus)
                if not await self._is_woken():
                    # A network that went silent takes the lock's session and its wake-ups along without a word.
                    await session.fetchval("SELECT 1", timeout=_ANSWER_SECONDS)
            raise OSError("the database ended the publisher's session")
        finally:
            self.is_leader = False
            self._metrics.is_leader.set(0)
            # Closing releases the lock; a dead connection has released it already.
            with contextlib.suppress(*_FAULTS):
                await session.close(timeout=2)

    async def _is_woken(self) -> bool:
        """Wait to be woken, for a while; tell whether somebody did."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), _IDLE_SECONDS)
        return self._wake.is_set()

    async def _follow(self) -> None:
        """Keep the revision up to date on a replica that does not publish."""
        async with self._database.system() as connection:
            self.revision = await reader.current_revision(connection)

    async def _round(self, bus: Bus) -> None:
        started = time.monotonic()
        if self._must_check or started - self._checked_at > _CHECK_SECONDS:
            await self._compare_with_bucket(bus)
            self._checked_at = started
            self._must_check = False
        async with self._database.publisher() as connection:
            batch = await reader.batch(connection)
            prices, targets = None, None
            if batch.is_rebuild:
                self._forget()
                self._must_check = False
            ledger = self._ledger
            if ledger is None:
                ledger = Ledger()
                changed: dict[str, list[str] | None] = dict.fromkeys(KINDS, None)
                prices = await reader.all_prices(connection)
                targets = await reader.all_export_targets(connection)
                await self._announce(bus, await reader.live_revocations(connection, self._clock()))
            else:
                changed = {kind: sorted(ids) for kind, ids in batch.changed.items() if kind in KINDS}
                if "prices" in batch.changed:
                    prices = await reader.all_prices(connection)
                if "exports" in batch.changed:
                    targets = await reader.all_export_targets(connection)
            # Revocations do not wait for the rows to be read.
            if batch.revocations:
                await self._announce(bus, batch.revocations)
            await self._read_into(ledger, connection, changed)
            chunks = dict(ledger.chunks())
            names = tuple(chunks)
            is_stale = self._clock() - self._signed_at > _FRESH_SECONDS
            revision = None
            if names != self._written or is_stale:
                # Above what the bucket has even if the database was restored from before.
                revision = await reader.next_revision(connection, self.revision + 1)
        if batch.is_rebuild:
            found = await bus.manifest()
            self._manifest_sequence = 0 if found is None else found[1]
        self._ledger = ledger
        if revision is not None:
            missing = [name for name in names if name not in self._names]
            await bus.put_all(CONFIG_BUCKET, [(chunk_key(name), chunks[name]) for name in missing])
            self._names.update(missing)
            self._metrics.chunks.inc(len(missing))
            await self._sign(bus, revision, names)
        if prices is not None:
            book = PriceBook(revision=self.revision, prices=prices)
            await bus.put_all(CONFIG_BUCKET, [(PRICES_KEY, codec.encode(book))])
        if targets is not None:
            exports = ExportTargets(revision=self.revision, targets=targets)
            await bus.put_all(CONFIG_BUCKET, [(EXPORTS_KEY, codec.encode(exports))])
        if batch.ids:
            async with self._database.publisher() as connection:
                await reader.finish(connection, batch.ids)
            lag = self._clock() - batch.newest.timestamp()
            self._metrics.rounds.labels("published").inc()
            self._metrics.lag.observe(max(0.0, lag))
            log.info("published", revision=self.revision, changes=len(batch.ids), lag_ms=round(lag * 1000))
        if started - self._swept_at > _SWEEP_SECONDS:
            await self._sweep(bus, set(names))
            self._swept_at = started

    async def _announce(self, bus: Bus, entries: Sequence[tuple[str, bytes]]) -> None:
        """Sign revocations and session commands, and write them. entries: key, encoded command."""

        def signed() -> list[tuple[str, bytes]]:
            key = self._settings.manifest_key
            return [(name, revocations.signed(revocations.unsigned(name, body), key)) for name, body in entries]

        # In a thread: after a long outage there are thousands, and the API is served by the same loop.
        await bus.put_all(REVOCATIONS_BUCKET, await asyncio.to_thread(signed))

    async def _read_into(self, ledger: Ledger, connection: AsyncConnection, changed: dict[str, list[str] | None]) -> None:
        for kind, ids in changed.items():
            if kind == "workspaces":
                found, issuers = await reader.workspace_records(connection, ids, self._settings.public_url)
                ledger.replace("workspaces", ids or (), found)
                ledger.replace("issuers", (), issuers)
            else:
                ledger.replace(kind, ids or (), await reader.records_of(connection, kind, ids))

    async def _compare_with_bucket(self, bus: Bus) -> None:
        """Learn what the bucket holds; where it is not what we wrote, everything is written again."""
        await bus.ensure_streams()
        found = await bus.manifest()
        sequence = 0 if found is None else found[1]
        if self._ledger is not None and sequence == self._manifest_sequence and found is not None:
            return
        self._forget()
        self._manifest_sequence = sequence
        self._names = await bus.chunk_names()
        if found is not None:
            self.revision = max(self.revision, _revision_of(found[0]))

    async def _sign(self, bus: Bus, revision: int, names: tuple[str, ...]) -> None:
        now = self._clock()
        data = manifest.signed_over(revision, round(now * 1000), names, self._settings.manifest_key)
        self._manifest_sequence = await bus.put_manifest(data, self._manifest_sequence)
        self.revision = revision
        self._metrics.revision.set(revision)
        self._written = names
        self._signed_at = now

    async def _sweep(self, bus: Bus, needed: set[str]) -> None:
        """Remove chunks that no manifest has named for a while, and revocations that can hit nothing, or are not ours."""
        now = time.monotonic()
        for name in self._names - needed:
            self._unneeded.setdefault(name, now)
        for name in needed & self._unneeded.keys():
            del self._unneeded[name]
        for name, since in list(self._unneeded.items()):
            if now - since > _CHUNK_GRACE_SECONDS:
                await bus.remove(CONFIG_BUCKET, chunk_key(name))
                del self._unneeded[name]
                self._names.discard(name)
        now_ms = self._clock() * 1000
        for key in await bus.keys(REVOCATIONS_BUCKET):
            value = await bus.get(REVOCATIONS_BUCKET, key)
            if value is None:
                continue
            try:
                expires = revocations.opened(key, value, (self._public_key,)).expires_ms
            except revocations.CommandRefused as refusal:
                # An older release's, or a stranger's: gateways refuse it, and what is still good was written anew.
                log.warning("revocation removed that is not ours", key=key, reason=refusal.reason)
                expires = 0
            if expires is not None and expires < now_ms:
                await bus.remove(REVOCATIONS_BUCKET, key)


def _revision_of(data: bytes) -> int:
    """Return the revision that a manifest in the bucket claims, signed by us or not: ours must be above it."""
    try:
        return codec.decode(codec.decode(data, signing.SignedBody).body, manifest.Manifest).revision
    except codec.Undecodable:
        return 0
