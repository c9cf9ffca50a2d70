"""One open session at a time for a single-use token: a key of the bucket of leases, held while the session is open.

A lease is made by a compare-and-set create, written again every few seconds, and removed at the end; the bucket's age limit
frees what a dead pod held. Whatever cannot be told is refused: without the bus no session opens, and one whose lease could
not be kept ends before another pod could take it. Tokens that are not single-use never come here (ADR 0090).
Read next: `contracts.subjects`, which names the bucket and says who may write there.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

import nats.errors
import nats.js.errors
import structlog
from nats.js.kv import KeyValue

from contracts.subjects import LEASES_BUCKET, SESSION_LEASE_SECONDS, session_lease_key
from gateway.bus import Bus
from gateway.tasks import Tasks
from policy.refusal import Refusal
from policy.route import Caller

_log = structlog.get_logger("gateway.state.leases")

_TAKE_SECONDS: Final = 2.0
_KEEP_SECONDS: Final = 5.0
_MARGIN_SECONDS: Final = 5.0
"""before the server may have freed the key, a session whose lease was not kept has ended; clocks run at different rates"""
_PAUSES_SECONDS: Final = (0.05, 0.15, 0.3)
"""before a key that is in use is asked for again: whoever opens right after it closed meets its own key being removed"""
_FAULTS: Final = (nats.errors.Error, nats.js.errors.Error, TimeoutError, OSError)

IN_USE: Final = Refusal("token_in_use")
UNAVAILABLE: Final = Refusal("single_use_unavailable")


class Lease:
    """The right to the one open session of a token, until it is released."""

    __slots__ = ("_leases", "holder", "kept_at", "key", "revision", "writing")

    def __init__(self, leases: "Leases", key: str, holder: str, revision: int, kept_at: float) -> None:
        self._leases = leases
        self.key = key
        self.holder = holder
        """the exchange's request id"""
        self.revision = revision
        """of the key's newest entry, which is ours"""
        self.kept_at = kept_at
        """seconds of the monotonic clock before the entry was written"""
        self.writing = asyncio.Lock()
        """one writer at a time: each needs the revision that the one before it made"""

    def release(self) -> None:
        """Give the right back; never waits."""
        self._leases.release(self)


class Leases:
    """The leases that this pod holds.

    monotonic: seconds. on_lost: told (request id, refusal reason) of an exchange whose lease is gone, which must end.
    """

    def __init__(self, bus: Bus, tasks: Tasks, monotonic: Callable[[], float], on_lost: Callable[[str, str], None]) -> None:
        self._bus = bus
        self._tasks = tasks
        self._monotonic = monotonic
        self._on_lost = on_lost
        self._held: dict[str, Lease] = {}

    def __len__(self) -> int:
        return len(self._held)

    async def take(self, caller: Caller, holder: str) -> Lease | Refusal:
        """Return the lease of the caller's token for an exchange, or why there is none. holder: its request id."""
        if not self._bus.is_up:
            return UNAVAILABLE
        key = session_lease_key(caller.workspace, caller.single_use_token)
        taking = self._tasks.start("take a lease", self._taken(key, holder))
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            # The client went away meanwhile; what the server has done or does about it is undone.
            taking.add_done_callback(_give_back)
            raise

    async def _taken(self, key: str, holder: str) -> Lease | Refusal:
        for pause in (0.0, *_PAUSES_SECONDS):
            await asyncio.sleep(pause)
            kept_at = self._monotonic()
            try:
                async with asyncio.timeout(_TAKE_SECONDS):
                    revision = await self._bucket().create(key, holder.encode("ascii"))
            except nats.js.errors.KeyWrongLastSequenceError:
                continue
            except _FAULTS as fault:
                _log.warning("lease not taken", why=type(fault).__name__)
                return UNAVAILABLE
            lease = self._held[key] = Lease(self, key, holder, revision, kept_at)
            return lease
        return IN_USE

    def release(self, lease: Lease) -> None:
        """Remove the lease's key, if it is still ours."""
        if self._held.get(lease.key) is lease:
            del self._held[lease.key]
            self._tasks.start("release a lease", self._released(lease))

    async def _released(self, lease: Lease) -> None:
        # What cannot be removed is freed by its age.
        with contextlib.suppress(*_FAULTS):
            async with lease.writing, asyncio.timeout(_TAKE_SECONDS):
                await self._bucket().delete(lease.key, last=lease.revision)

    async def keep(self) -> None:
        """Write every lease again in time, until cancelled; an exchange whose lease is lost or too old is told to end."""
        while True:
            await asyncio.sleep(_KEEP_SECONDS)
            await asyncio.gather(*(self._kept(lease) for lease in tuple(self._held.values())))

    async def _kept(self, lease: Lease) -> None:
        async with lease.writing:
            if self._held.get(lease.key) is lease:
                await self._written_again(lease)

    async def _written_again(self, lease: Lease) -> None:
        asked_at = self._monotonic()
        reason = ""
        try:
            async with asyncio.timeout(_TAKE_SECONDS):
                lease.revision = await self._bucket().update(lease.key, lease.holder.encode("ascii"), last=lease.revision)
            lease.kept_at = asked_at
        except nats.js.errors.KeyWrongLastSequenceError:
            reason = await self._how_it_went(lease, asked_at)
        except _FAULTS as fault:
            _log.warning("lease not kept", request_id=lease.holder, why=type(fault).__name__)
        if not reason and self._monotonic() - lease.kept_at > SESSION_LEASE_SECONDS - _KEEP_SECONDS - _MARGIN_SECONDS:
            reason = UNAVAILABLE.reason
        if reason and self._held.get(lease.key) is lease:
            del self._held[lease.key]
            self._on_lost(lease.holder, reason)

    async def _how_it_went(self, lease: Lease, asked_at: float) -> str:
        """Take a lease up again whose entry is not the one that we knew of; return why the session must end, if it must."""
        try:
            async with asyncio.timeout(_TAKE_SECONDS):
                try:
                    entry = await self._bucket().get(lease.key)
                except nats.js.errors.KeyNotFoundError:  # the server lost it, or freed it: whoever comes first has it
                    lease.revision = await self._bucket().create(lease.key, lease.holder.encode("ascii"))
                else:
                    if entry.value != lease.holder.encode("ascii"):
                        return IN_USE.reason
                    lease.revision = entry.revision or 0  # a write of ours whose acknowledgement was lost
                    return ""
        except nats.js.errors.KeyWrongLastSequenceError:
            return IN_USE.reason
        except _FAULTS:
            return ""
        lease.kept_at = asked_at
        return ""

    def _bucket(self) -> KeyValue:
        """Return the bucket; it is made by the control plane, and asking for it first would cost a round trip."""
        streams = self._bus.jetstream
        return KeyValue(name=LEASES_BUCKET, stream=f"KV_{LEASES_BUCKET}", pre=f"$KV.{LEASES_BUCKET}.", js=streams, direct=True)


def _give_back(taking: "asyncio.Task[Lease | Refusal]") -> None:
    if not taking.cancelled() and taking.exception() is None and isinstance(lease := taking.result(), Lease):
        lease.release()
