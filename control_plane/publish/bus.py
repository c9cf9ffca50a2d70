"""The control plane's side of NATS: its buckets and streams, and the few operations on them that publishing needs.

Knows no database and no record. Names and who may use them stand in `contracts.subjects`; a denial by the server looks
like a time-out to the caller, so the error callback logs it.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import nats
import nats.errors
import nats.js.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig

from contracts.secret import Secret
from contracts.subjects import (
    CHUNK_PREFIX,
    CONFIG_BUCKET,
    CONTROL_PLANE_INBOX,
    LEASES_BUCKET,
    MANIFEST_KEY,
    POD_SUBJECTS,
    REVOCATIONS_BUCKET,
    SESSION_LEASE_SECONDS,
    SESSION_SUBJECTS,
    SPANS_STREAM,
    SPANS_SUBJECTS,
    USAGE_STREAM,
    USAGE_SUBJECTS,
)

log = structlog.get_logger(__name__)

_WRONG_LAST_SEQUENCE = (10071, 10164)
_PUTS_AT_ONCE = 64
_EXPECTED_LAST = "Nats-Expected-Last-Subject-Sequence"


class ManifestMoved(Exception):
    """Somebody else wrote the manifest since we read it: another publisher took over, or an older bucket was restored."""


@dataclass(frozen=True)
class BusSettings:
    """url: of the server; seed: nkey seed of the control plane's user, None where the server asks for none.

    tls: how to check the server's certificate where the url says `tls://`; None: by the system's authorities.

    max_event_bytes: what each event stream may hold; beyond it gateways keep events in their spools (`discard: new`).
    """

    url: str
    seed: Secret | None
    replicas: int = 1
    max_event_bytes: int = 4 * 1024**3
    max_config_bytes: int = 1024**3
    tls: ssl.SSLContext | None = None


class Bus:
    """One connection. Every method raises nats.errors.Error (or TimeoutError) when the server is away."""

    def __init__(self, client: Client, settings: BusSettings) -> None:
        self._client = client
        self._streams: JetStreamContext = client.jetstream(timeout=5)
        self._settings = settings

    @classmethod
    async def connected(cls, settings: BusSettings, on_reconnect: Callable[[], Awaitable[None]]) -> "Bus":
        """Return a connected bus with its buckets and streams made. Raises as the class says."""

        async def tell(error: Exception) -> None:
            log.warning("bus error", error=str(error) or type(error).__name__)

        options: dict[str, object] = {}
        if settings.seed is not None:
            options["nkeys_seed_str"] = settings.seed.reveal().decode().strip()
        if settings.tls is not None:
            options["tls"] = settings.tls
        client = await nats.connect(
            settings.url,
            name="glottis control plane",
            inbox_prefix=CONTROL_PLANE_INBOX.encode(),
            error_cb=tell,
            reconnected_cb=on_reconnect,
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.2,
            ping_interval=2,
            max_outstanding_pings=2,
            connect_timeout=2,
            **options,
        )
        bus = cls(client, settings)
        try:
            await bus.ensure_streams()
        except BaseException:
            await client.close()
            raise
        return bus

    @property
    def is_connected(self) -> bool:
        """Tell whether the server is there."""
        return self._client.is_connected

    async def close(self) -> None:
        """Close the connection, whatever its state."""
        # nats-py writes what is buffered to the lost connection when it is closed between two of them.
        with contextlib.suppress(nats.errors.Error, OSError, RuntimeError, TimeoutError):
            await self._client.close()

    async def ensure_streams(self) -> None:
        """Make the buckets and event streams, or bring existing ones to these settings."""
        for wanted in self._stream_configurations():
            try:
                await self._streams.add_stream(wanted)
            except nats.js.errors.BadRequestError:
                # It is there with other settings.
                await self._streams.update_stream(wanted)

    def _stream_configurations(self) -> tuple[StreamConfig, ...]:
        buckets = tuple(
            StreamConfig(
                name=f"KV_{bucket}",
                subjects=[f"$KV.{bucket}.>"],
                max_msgs_per_subject=1,
                max_bytes=self._settings.max_config_bytes,
                storage=StorageType.FILE,
                num_replicas=self._settings.replicas,
                discard=DiscardPolicy.NEW,
                allow_rollup_hdrs=True,
                allow_direct=True,
                deny_delete=True,
                duplicate_window=min(120, max_age_seconds or 120),
                max_age=max_age_seconds,
            )
            for bucket, max_age_seconds in (
                (CONFIG_BUCKET, 0),
                (REVOCATIONS_BUCKET, 0),
                (LEASES_BUCKET, SESSION_LEASE_SECONDS),
            )
        )
        # Usage has one reader and is gone once it is stored; spans stay until every reader that exists has them.
        events = tuple(
            StreamConfig(
                name=name,
                subjects=[subjects],
                retention=retention,
                max_bytes=self._settings.max_event_bytes,
                storage=StorageType.FILE,
                num_replicas=self._settings.replicas,
                discard=DiscardPolicy.NEW,
                deny_delete=True,
                duplicate_window=600,
            )
            for name, subjects, retention in (
                (USAGE_STREAM, USAGE_SUBJECTS, RetentionPolicy.WORK_QUEUE),
                (SPANS_STREAM, SPANS_SUBJECTS, RetentionPolicy.INTEREST),
            )
        )
        return (*buckets, *events)

    async def put_all(self, bucket: str, entries: list[tuple[str, bytes]]) -> None:
        """Write the entries, many at once; done when the server has acknowledged every one."""
        for start in range(0, len(entries), _PUTS_AT_ONCE):
            await asyncio.gather(
                *(self._streams.publish(f"$KV.{bucket}.{key}", value) for key, value in entries[start : start + _PUTS_AT_ONCE])
            )

    async def put_manifest(self, value: bytes, last_sequence: int) -> int:
        """Write the manifest if nobody else did since `last_sequence` (0: there is none); return its sequence.

        Raises ManifestMoved.
        """
        try:
            ack = await self._streams.publish(
                f"$KV.{CONFIG_BUCKET}.{MANIFEST_KEY}", value, headers={_EXPECTED_LAST: str(last_sequence)}
            )
        except nats.js.errors.APIError as error:
            if error.err_code in _WRONG_LAST_SEQUENCE:
                raise ManifestMoved from error
            raise
        return int(ack.seq)

    async def manifest(self) -> tuple[bytes, int] | None:
        """Return the manifest's bytes and sequence, None if the bucket has none."""
        try:
            message = await self._streams.get_last_msg(f"KV_{CONFIG_BUCKET}", f"$KV.{CONFIG_BUCKET}.{MANIFEST_KEY}", direct=True)
        except nats.js.errors.NotFoundError:
            return None
        return bytes(message.data or b""), int(message.seq or 0)

    async def keys(self, bucket: str, prefix: str = "") -> set[str]:
        """Return the keys of a bucket that begin with a prefix (which ends with a dot, or is empty)."""
        subject = f"$KV.{bucket}.{prefix}"
        info = await self._streams.stream_info(f"KV_{bucket}", subjects_filter=f"{subject}>")
        return {name.removeprefix(f"$KV.{bucket}.") for name in (info.state.subjects or {})}

    async def chunk_names(self) -> set[str]:
        """Return the names of the chunks that the bucket holds."""
        return {key.removeprefix(CHUNK_PREFIX) for key in await self.keys(CONFIG_BUCKET, CHUNK_PREFIX)}

    async def remove(self, bucket: str, key: str) -> None:
        """Remove a key without leaving a marker."""
        await self._streams.purge_stream(f"KV_{bucket}", subject=f"$KV.{bucket}.{key}")

    async def get(self, bucket: str, key: str) -> bytes | None:
        """Return a key's value, None if it is not there."""
        try:
            message = await self._streams.get_last_msg(f"KV_{bucket}", f"$KV.{bucket}.{key}", direct=True)
        except nats.js.errors.NotFoundError:
            return None
        return bytes(message.data or b"")

    async def hear_pods(self, heard: Callable[[bytes], None]) -> None:
        """Call `heard` with every status that a pod publishes."""

        async def take(message: Msg) -> None:
            heard(message.data)

        await self._client.subscribe(POD_SUBJECTS, cb=take)

    async def hear_sessions(self, heard: Callable[[bytes], None]) -> None:
        """Call `heard` with everything that pods tell of their open sessions."""

        async def take(message: Msg) -> None:
            heard(message.data)

        await self._client.subscribe(SESSION_SUBJECTS, cb=take)
