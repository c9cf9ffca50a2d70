"""The composition root: every part of the gateway made once, joined, started and stopped in order.

Nothing is decided here. Parts get what they need as arguments: clock, ids, callbacks for metrics. Two ways to be
configured: fed by the control plane over NATS, or from one file. Read docs/request-life.md for how a request passes
through what is joined here; `gateway.main` runs it.
"""

import asyncio
import contextlib
import random
import ssl
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import cast

import structlog
from uvicorn._types import ASGIApplication

from contracts.events import PodStatus
from contracts.ids import FreshIds
from contracts.revocations import EndSession
from contracts.secret import Secret
from gateway.bus import Bus, stream_of
from gateway.edge.context import EdgeContext
from gateway.edge.operations import Readiness, admin_app, public_app
from gateway.edge.websocket_relay import Relay, take_over
from gateway.server import DrainSettings, Listener, Server, server_tls
from gateway.settings import Feed as FeedSettings
from gateway.settings import Settings
from gateway.state.credentials import Credentials
from gateway.state.feed import Feed, Observer
from gateway.state.fetch import DocumentFetcher
from gateway.state.key_sets import KeySets
from gateway.state.last_known_good import LastKnownGood
from gateway.state.leases import Leases
from gateway.state.sessions import SessionTeller
from gateway.state.snapshot import SnapshotStore
from gateway.state.status import StatusTeller
from gateway.state.workspace_settings import WorkspaceSettings
from gateway.tasks import Tasks
from gateway.telemetry.lines import Fields
from gateway.telemetry.metrics import METRICS
from gateway.telemetry.publisher import Publisher
from gateway.telemetry.recorder import Recorder
from gateway.telemetry.spool import Sink, Spool, Unkept
from gateway.upstream.dial import permitted_addresses, resolve
from gateway.upstream.faults import UpstreamFault
from gateway.upstream.upstreams import Upstreams
from policy import workspace_file
from policy.index import index_of
from policy.mint import access_token
from policy.refusal import TABLE, Refusal
from policy.route import Route
from policy.usage import Settled

_log = structlog.get_logger("gateway.app")

_FLUSH_SECONDS = 5.0
_EXPIRY_SECONDS = 1.0
_JUDGED_AT_ONCE = 100


class CannotStart(Exception):
    """Something outside the gateway keeps it from starting; the text says what and what to do."""


class Gateway:
    """One gateway process. `run` returns its exit status. log: writes the line of an exchange."""

    def __init__(self, settings: Settings, log: Callable[[str, Fields], None]) -> None:
        self._settings = settings
        self._log = log
        self._tasks = Tasks(lambda loop: METRICS.loop_faults.labels(loop).inc())
        self._store = SnapshotStore(settings.max_config_age_seconds, time.time, settings.root_mounts)
        self._new_id = new_id_maker(time.time)
        self._world_changed = asyncio.Event()
        self._was_ever_ready = False
        self._bus: Bus | None = None
        self._spool: Spool | None = None
        self._publisher: Publisher | None = None
        self._status: StatusTeller | None = None
        self._session_teller: SessionTeller | None = None

    async def run(self) -> int:
        """Start, serve until a signal or `/drain`, drain, flush, stop. Raises CannotStart, ListenFailed."""
        settings = self._settings
        METRICS.know_reasons(TABLE)
        if settings.feed is not None:
            sink, credentials = await self._fed(settings.feed)
        else:
            sink, credentials = Unkept(), self._from_file()
        fetcher = DocumentFetcher(_addresses, settings.allowed_private_origins)
        key_sets = KeySets(
            self._store, fetcher, self._tasks, time.monotonic, lambda result: METRICS.key_set_fetches.labels(result).inc()
        )
        self._context = context = self._edge_context(sink, credentials, key_sets)
        if self._bus is not None:
            context.leases = leases = Leases(self._bus, self._tasks, time.monotonic, self._end)
            self._tasks.keep("single-use leases", leases.keep)
        self._store.on_end_session = self._end_session
        self._store.subscribe(self._world_changed.set)
        self._tasks.keep("key sets", key_sets.run)
        self._tasks.keep("judge open exchanges", self._judge_open_exchanges)
        self._tasks.keep("upstream upkeep", context.upstreams.upkeep)
        server = Server(
            context,
            cast(ASGIApplication, public_app(context.new_id, self._no_route)),
            self._listeners(),
            admin_app=cast(ASGIApplication, admin_app(context.new_id, METRICS.registry, self._readiness, lambda: server.stop())),
            admin_listener=Listener(settings.admin_listen.host, settings.admin_listen.port),
            drain=DrainSettings(settings.drain_delay_seconds, settings.drain_seconds),
            on_drain=self._told_to_drain,
        )
        self._observe(key_sets)
        try:
            return await server.run()
        finally:
            await self._stop(fetcher)

    async def _stop(self, fetcher: DocumentFetcher) -> None:
        """Publish what waits, giving a lost bus a moment to come back, then stop and close everything."""
        if self._session_teller is not None and self._bus is not None and self._bus.is_up:
            await self._session_teller.tell()
        # Also while the bus is down: it may be back at once, and a spool on a pod's own disk goes with the pod.
        if self._publisher is not None and not await self._publisher.flush(_FLUSH_SECONDS):
            _log.warning("events wait in the spool for the next start")
        await self._tasks.stop()
        await fetcher.close()
        if self._bus is not None:
            await self._bus.close()
        if self._spool is not None:
            self._spool.close()

    async def _fed(self, feed: FeedSettings) -> tuple[Sink, Credentials]:
        """Join the parts of a pod that the control plane configures; return where events go, and its credentials."""
        settings = self._settings
        assert settings.spool_folder is not None  # Settings.from_env asks for it
        name = f"{settings.pod_token}-{self._new_id()}"
        self._spool = spool = Spool.open(
            settings.spool_folder, settings.spool_bytes, name, lambda kind: METRICS.events_dropped.labels(kind.name.lower()).inc()
        )
        self._bus = bus = Bus(feed.nats_url, feed.nats_seed, settings.pod, _bus_tls(feed.nats_ca))
        bus.start(self._tasks)
        self._publisher = publisher = Publisher(
            spool, stream_of(bus), METRICS.events_published.inc, lambda why: METRICS.publish_failures.labels(why).inc()
        )
        self._tasks.keep("publisher", publisher.run)
        observer = Observer(METRICS.config_apply_seconds.observe, lambda reason: METRICS.config_refused.labels(reason).inc())
        follower = Feed(bus, self._store, LastKnownGood(feed.state_folder), feed.manifest_keys, time.time, observer, self._tasks)
        try:
            await follower.load()
        except OSError as fault:
            raise CannotStart(
                f"cannot use {feed.state_folder} for the last-known-good configuration: {fault.strerror}; "
                "set GLOTTIS_GATEWAY_STATE_DIR to a folder that can be written"
            ) from fault
        follower.start()
        self._status = StatusTeller(bus, self._pod_status)
        self._store.subscribe(self._status.changed)
        self._tasks.keep("status", self._status.run)
        self._session_teller = SessionTeller(bus, settings.pod, self._relays, time.monotonic)
        self._tasks.keep("open sessions", self._session_teller.run)
        return spool, Credentials(feed.fleet_keys)

    def _from_file(self) -> Credentials:
        """Put the file's configuration in force; return its credentials."""
        settings = self._settings
        assert settings.config is not None  # Settings.from_env sets one of both
        configuration = read_configuration(settings)
        self._store.set_revocations(())
        self._store.swap(index_of(configuration.snapshot))
        self._store.confirm(float("inf"))  # a file is as fresh as the day it was read
        _log.info("configuration in force", revision=configuration.snapshot.revision, file=settings.config.name)
        return Credentials.given(configuration.credentials, configuration.transcript_key)

    def _edge_context(self, sink: Sink, credentials: Credentials, key_sets: KeySets) -> EdgeContext:
        settings, store = self._settings, self._store
        workspaces = WorkspaceSettings(store, credentials)

        def mint_access_token(route: Route, body: bytes, now: float) -> bytes | Refusal:
            world = store.world
            workspace = world.index.workspaces.get(route.caller.workspace)
            key = None if workspace is None else credentials.access_token_key(workspace)
            if key is None:
                return Refusal("minting_unavailable")
            return access_token(route, body, key, world.index, world.keys, self._new_id(), now)

        return EdgeContext(
            world=lambda: store.world,
            closed_because=store.closed_because,
            key_sets=key_sets,
            credentials=credentials,
            upstreams=Upstreams(settings.pool, self._tasks, time.monotonic),
            recorder=Recorder(sink, settings.pod, METRICS, workspaces.transcript_key, workspaces.span_sampling, self._log),
            clock=time.time,
            new_id=self._new_id,
            pod=settings.pod,
            tasks=self._tasks,
            limits=settings.limits,
            take_over=take_over,
            mint_access_token=mint_access_token,
        )

    def _listeners(self) -> list[Listener]:
        settings = self._settings
        listeners = [Listener(settings.listen.host, settings.listen.port)]
        if settings.tls is not None:
            try:
                context = server_tls(str(settings.tls.certificate), str(settings.tls.key))
            except OSError as fault:  # ssl.SSLError is one
                raise CannotStart(
                    f"cannot read the certificate {settings.tls.certificate} or its key: {fault.strerror or fault.args[-1]}; "
                    "set GLOTTIS_GATEWAY_TLS_CERT and GLOTTIS_GATEWAY_TLS_KEY to a matching pair of PEM files"
                ) from fault
            listeners.append(Listener(settings.tls.listen.host, settings.tls.listen.port, context))
        return listeners

    def _readiness(self) -> Readiness:
        reason = "draining" if self._context.is_draining else self._store.closed_because() or ""
        self._was_ever_ready = self._was_ever_ready or not reason
        return Readiness(reason, self._store.revision, self._store.age(), self._was_ever_ready)

    async def _judge_open_exchanges(self) -> None:
        """Have open exchanges judge themselves after every change, and once a second: tokens expire without an event.

        In slices: thousands of sessions at once would stall the loop that carries their audio.
        """
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._world_changed.wait(), _EXPIRY_SECONDS)
            self._world_changed.clear()
            for number, exchange in enumerate(self._context.open, start=1):
                exchange.world_changed(time.time())
                if not number % _JUDGED_AT_ONCE:
                    await asyncio.sleep(0)

    def _end(self, request_id: str, reason: str) -> None:
        exchange = self._context.open.get(request_id)
        if exchange is not None:
            exchange.end(reason)

    def _end_session(self, command: EndSession) -> None:
        exchange = self._context.open.get(command.exchange)
        if exchange is not None:
            _log.info("session ended by an admin", request_id=command.exchange, workspace=command.workspace)
            exchange.end("ended_by_admin")

    def _no_route(self, request_id: str, method: str, reason: str) -> None:
        now = time.time()
        self._context.recorder.settle(
            Settled(request_id, now, method, outcome="refused", reason=reason, status=TABLE[reason].status, ended_at=now)
        )

    async def _told_to_drain(self) -> None:
        if self._status is not None:
            await self._status.tell()

    def _pod_status(self) -> PodStatus:
        return PodStatus(
            pod=self._settings.pod,
            version=version("glottis"),
            revision=self._store.revision,
            at_ms=int(time.time() * 1000),
            open_sessions=self._sessions(),
            open_exchanges=len(self._context.open),
            is_draining=self._context.is_draining,
            spool_bytes=0 if self._spool is None else self._spool.used,
        )

    def _sessions(self) -> int:
        return len(self._relays())

    def _relays(self) -> list[Relay]:
        return [exchange for exchange in self._context.open if isinstance(exchange, Relay)]

    def _observe(self, key_sets: KeySets) -> None:
        """Give the gauges what they show."""
        METRICS.open_exchanges.set_function(lambda: len(self._context.open))
        METRICS.sessions.set_function(self._sessions)
        METRICS.config_revision.set_function(lambda: self._store.revision)
        METRICS.config_age_seconds.set_function(self._store.age)
        METRICS.key_set_age_seconds.set_function(key_sets.oldest_age)
        if (bus := self._bus) is not None:
            METRICS.bus_is_up.set_function(lambda: float(bus.is_up))
        if (spool := self._spool) is not None:
            METRICS.spool_used_bytes.set_function(lambda: spool.used)
            METRICS.spool_capacity_bytes.set(spool.capacity)
            METRICS.spool_unpublished_bytes.set_function(lambda: spool.unpublished)
            METRICS.spool_open_keys.set_function(lambda: spool.open_keys)


def new_id_maker(clock: Callable[[], float]) -> Callable[[], str]:
    """Return what makes request ids. clock: Unix seconds."""
    return FreshIds(clock, random.Random().getrandbits).new  # seeded by the system; ids are unique, not secret


def read_configuration(settings: Settings) -> workspace_file.Configuration:
    """Return the configuration that the settings' file stands for, its references resolved. Raises CannotStart."""
    path = settings.config
    assert path is not None
    try:
        file = workspace_file.parse(path.read_text(encoding="utf-8"), tuple(settings.allowed_private_origins))
        material = {need.key: _material(need.reference, path.parent, settings) for need in workspace_file.needs(file)}
        return workspace_file.configuration(file, material, int(time.time() * 1000))
    except (OSError, UnicodeDecodeError) as fault:
        raise CannotStart(f"cannot read {path}: {getattr(fault, 'strerror', None) or 'it is not UTF-8 text'}") from fault
    except workspace_file.InvalidWorkspaceFile as error:
        raise CannotStart(f"{path} cannot be used:\n{error}") from error


def _material(reference: workspace_file.Reference, folder: Path, settings: Settings) -> Secret:
    if reference.kind == "value":
        return Secret(reference.target)
    if reference.kind == "env":
        if not settings.environ.get(reference.target):
            raise CannotStart(f"the file refers to env:{reference.target}, which is not set: set the variable")
        return Secret(settings.environ[reference.target])
    try:
        return Secret((folder / reference.target).read_bytes().strip())
    except OSError as fault:
        raise CannotStart(f"the file refers to file:{reference.target}, which cannot be read: {fault.strerror}") from fault


def _bus_tls(authorities: Path | None) -> ssl.SSLContext | None:
    if authorities is None:
        return None
    try:
        return ssl.create_default_context(cafile=authorities)
    except OSError as fault:  # ssl.SSLError is one
        raise CannotStart(
            f"cannot read the authorities in {authorities}: {fault.strerror or fault.args[-1]}; "
            "set GLOTTIS_NATS_CA_FILE to a PEM file of certificates"
        ) from fault


async def _addresses(host: str, port: int, may_be_private: bool) -> Sequence[str]:
    try:
        return await permitted_addresses(host, port, may_be_private=may_be_private, resolver=resolve)
    except UpstreamFault as fault:
        raise OSError(fault.reason) from fault
