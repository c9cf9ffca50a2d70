"""One provider origin of one account: how to reach it, and the connections to it that wait for work.

Deciding is synchronous (`take`, `give_back`, `sweep`), only dialling waits. A connection is taken last in, first out, so
that a quiet pool shrinks; it is looked at before each use and leaves by age. Read next: `gateway.upstream.upstreams`.
"""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from contracts.snapshot import Account
from gateway.tasks import Tasks
from gateway.upstream.connection import UpstreamConnection
from gateway.upstream.dial import Resolve, connected_socket, permitted_addresses, resolve
from gateway.upstream.faults import UpstreamFault
from gateway.upstream.tls import ResumingContext, context_for
from policy.origins import OriginRefused, is_listed, parse_origin


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """How connections to providers are kept. Seconds as named."""

    connect_seconds: float = 10.0
    """name, TCP and TLS together; over it 504"""
    idle_seconds: float = 55.0
    """shorter than the 60 s after which common servers close"""
    max_age_seconds: float = 300.0
    """so that a name that changed its address is followed"""
    warm_connections: int = 2
    """kept open for an origin in use, so that a burst pays no handshake; 0: none"""
    warm_seconds: float = 600.0
    """how long after its last use an origin counts as in use"""
    allowed_private_origins: frozenset[str] = frozenset()
    """origins that the operator lists: these may be plain HTTP or resolve to private addresses"""


class Origin:
    """The way to one account's provider. Made for one setting of origin and TLS; another setting makes another Origin."""

    def __init__(
        self,
        account: Account,
        settings: PoolSettings,
        tasks: Tasks,
        clock: Callable[[], float],
        resolver: Resolve = resolve,
    ) -> None:
        self.account = account
        self._settings = settings
        self._tasks = tasks
        self._clock = clock
        self._resolver = resolver
        try:
            self._where = parse_origin(account.origin)
        except OriginRefused as error:
            raise UpstreamFault("upstream_refused_address", "guard", detail=error.reason) from error
        self._may_be_private = is_listed(self._where, settings.allowed_private_origins)
        if self._where.scheme == "http" and not self._may_be_private:
            raise UpstreamFault("upstream_refused_address", "guard", detail="plain HTTP is not allowed for this origin")
        self.host = self._where.text.partition("://")[2].encode("ascii")
        """what `Host` says upstream"""
        self.tls: ResumingContext | None = None
        if self._where.scheme == "https":
            try:
                self.tls = context_for(account.ca_pem)
            except (ssl.SSLError, ValueError) as error:
                raise UpstreamFault("upstream_tls", "tls", detail="the account's CA is no PEM certificate") from error
        self._idle: list[UpstreamConnection] = []
        self._dialling = 0
        self._last_used = clock()
        self._is_retired = False

    def is_for(self, account: Account) -> bool:
        """Tell whether the account's record leads to this same origin over the same TLS settings."""
        mine = self.account
        return account.origin == mine.origin and account.ca_pem == mine.ca_pem and account.tls_server_name == mine.tls_server_name

    def take(self) -> UpstreamConnection | None:
        """Return an idle connection that is fit for use, or None if one has to be dialled."""
        self._last_used = now = self._clock()
        oldest = now - self._settings.max_age_seconds
        idle = self._idle
        while idle:
            connection = idle.pop()
            if connection.born_at >= oldest and connection.is_usable():
                return connection
            connection.abort()
        return None

    def give_back(self, connection: UpstreamConnection) -> None:
        """Take back a connection whose last answer was read to its end."""
        if self._is_retired or connection.is_lost or connection.transport.is_closing():
            connection.abort()
            return
        connection.receiver = None
        connection.idle_since = self._clock()
        if self.tls is not None and connection.session_looks:
            is_kept = self.tls.remember(connection.transport.get_extra_info("ssl_object"))
            connection.session_looks = 0 if is_kept else connection.session_looks - 1
        self._idle.append(connection)

    async def dial(self) -> UpstreamConnection:
        """Open a new connection. Raises UpstreamFault with its phase; nothing was sent then.

        One that is refused or reset is dialled once more, by a name that is resolved anew: a provider's rollout does that.
        """
        try:
            async with asyncio.timeout(self._settings.connect_seconds):
                try:
                    return await self._dial()
                except UpstreamFault as fault:
                    if fault.reason != "upstream_unreachable" or fault.phase == "resolve":
                        raise
                return await self._dial()
        except TimeoutError as error:
            raise UpstreamFault("upstream_timeout", "connect", detail="no connection in time") from error

    async def _dial(self) -> UpstreamConnection:
        where = self._where
        addresses = await permitted_addresses(
            where.host, where.port, may_be_private=self._may_be_private, resolver=self._resolver
        )
        sock = await connected_socket(addresses, where.port, self._tasks)
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: UpstreamConnection(self._lost, self._clock()),
                sock=sock,
                ssl=self.tls,
                server_hostname=(self.account.tls_server_name or where.host) if self.tls else None,
            )
        except (ssl.SSLError, ssl.CertificateError) as error:
            sock.close()
            raise UpstreamFault("upstream_tls", "tls", detail=getattr(error, "reason", "") or "handshake") from error
        except OSError as error:
            sock.close()
            raise UpstreamFault("upstream_unreachable", "tls", detail=type(error).__name__) from error
        return connection

    def sweep(self) -> None:
        """Close what idled or lived too long, and keep as many connections warm as the settings ask."""
        now = self._clock()
        settings = self._settings
        kept = []
        for connection in self._idle:
            if now - connection.idle_since > settings.idle_seconds or now - connection.born_at > settings.max_age_seconds:
                connection.transport.close()
            else:
                kept.append(connection)
        self._idle = kept
        if now - self._last_used < settings.warm_seconds and not self._is_retired:
            for _ in range(settings.warm_connections - len(kept) - self._dialling):
                self._dialling += 1
                self._tasks.start("warm connection", self._warm())

    async def _warm(self) -> None:
        try:
            self.give_back(await self.dial())
        except UpstreamFault:
            # an exchange that needs the provider will meet the same fault and report it; the next sweep tries again
            pass
        finally:
            self._dialling -= 1

    def retire(self) -> None:
        """Close idle connections now and used ones as they come back."""
        self._is_retired = True
        for connection in self._idle:
            connection.transport.close()
        self._idle.clear()

    @property
    def idle_count(self) -> int:
        """Return how many connections wait for work."""
        return len(self._idle)

    def _lost(self, connection: UpstreamConnection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)
