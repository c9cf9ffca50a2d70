"""Every way to every provider: the origins of the accounts in use.

The edge asks for an account's origin and takes or dials a connection there. Records of accounts are swapped with each
snapshot; connections survive a swap unless origin or TLS settings changed. Read next: `gateway.upstream.origin`.
"""

import asyncio
from collections.abc import Callable

from contracts.snapshot import Account
from gateway.tasks import Tasks
from gateway.upstream.connection import UpstreamConnection
from gateway.upstream.dial import Resolve, resolve
from gateway.upstream.origin import Origin, PoolSettings

_SWEEP_SECONDS = 1.0


class Upstreams:
    """The origins by account. `clock`: monotonic seconds."""

    def __init__(self, settings: PoolSettings, tasks: Tasks, clock: Callable[[], float], resolver: Resolve = resolve) -> None:
        self._settings = settings
        self._tasks = tasks
        self._clock = clock
        self._resolver = resolver
        self._origins: dict[str, Origin] = {}

    def origin_of(self, account: Account) -> Origin:
        """Return the account's origin. Raises UpstreamFault if the account's settings cannot be dialled at all."""
        origin = self._origins.get(account.id)
        if origin is not None:
            if origin.account is account:
                return origin
            if origin.is_for(account):
                origin.account = account
                return origin
            origin.retire()
            del self._origins[account.id]
        origin = Origin(account, self._settings, self._tasks, self._clock, self._resolver)
        self._origins[account.id] = origin
        return origin

    async def connect(self, account: Account) -> UpstreamConnection:
        """Return a connection of one's own, warm or new, that never goes back. Raises UpstreamFault; nothing was sent then.

        For sessions: the caller sets `transport.set_protocol` (the connection is in no pool any more).
        """
        origin = self.origin_of(account)
        return origin.take() or await origin.dial()

    async def upkeep(self) -> None:
        """Sweep the pools once a second, for ever."""
        while True:
            for origin in tuple(self._origins.values()):
                origin.sweep()
            await asyncio.sleep(_SWEEP_SECONDS)

    def close(self) -> None:
        """Close every idle connection; those in use close when they come back."""
        for origin in self._origins.values():
            origin.retire()
