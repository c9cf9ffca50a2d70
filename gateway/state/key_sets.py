"""Keeps issuers' key sets: fetched in the background, kept while the issuer is away, asked anew once for an unknown key.

A request whose token names an unknown key waits for one shared fetch, which begins at once or as soon as ten seconds have
gone since the last one: the first token of a new key is answered within eleven, and a flood of made-up ones costs one fetch
in ten seconds an issuer. Only issuers of the configuration are ever asked, at their JWKS address, or at the one that their
discovery document names. What is fetched goes past the same egress guard as every provider. Read `policy.keyring`.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from contracts.snapshot import Issuer
from gateway.state.snapshot import SnapshotStore
from gateway.tasks import Tasks
from policy.keyring import KeySetRefused

_log = structlog.get_logger("gateway.state.key_sets")

Sleep = Callable[[float], Awaitable[None]]
Fetch = Callable[[str], Awaitable[bytes]]
"""address -> the document. Raises FetchFailed."""

LARGEST_DOCUMENT_BYTES = 1024 * 1024
_BETWEEN_FETCHES_SECONDS = 10.0
_FRESH_SECONDS = 300.0
"""an issuer's set is fetched again after this time, so that rotations are known before their first token"""
_ROUND_SECONDS = 1.0
_DISCOVERY = "/.well-known/openid-configuration"


class FetchFailed(Exception):
    """A document that could not be had; the text is for the operator."""


@dataclass(slots=True)
class _Known:
    issuer: Issuer
    fetched_at: float = 0.0
    """monotonic seconds; 0.0: never"""
    asked_at: float = float("-inf")
    under_way: asyncio.Future[None] | None = None
    has_begun: bool = False
    """what is under way has asked already: a key may be newer than its answer"""
    failures: int = 0


class KeySets:
    """The key sets of one pod. clock: monotonic seconds; on_fetch: told `ok` or `failed`; sleep: seconds of that clock."""

    def __init__(
        self,
        store: SnapshotStore,
        fetch: Fetch,
        tasks: Tasks,
        clock: Callable[[], float],
        on_fetch: Callable[[str], None] = lambda _: None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._sleep = sleep
        self._store = store
        self._fetch = fetch
        self._tasks = tasks
        self._clock = clock
        self._on_fetch = on_fetch
        self._known: dict[str, _Known] = {}

    async def refresh(self, issuer: Issuer, kid: str | None = None) -> None:
        """Bring the issuer's keys up to date. Shared by all who ask; at most one fetch per 10 s an issuer. Never raises.

        Within 10 s of the fetch before, it waits for the rest of them: a key may be new since then. kid: who comes while a
        fetch is answered already, and does not find this key in it, waits for the one after.
        """
        if _is_static(issuer):
            self._take_static(issuer)
            return
        known = self._of(issuer)
        has_begun = known.has_begun
        await asyncio.shield(known.under_way or self._ask(known))
        if has_begun and kid is not None:
            keys = self._store.world.keys
            if not any(key.kid == kid for key in keys.candidates(issuer, kid)):
                await asyncio.shield(known.under_way or self._ask(known))

    async def run(self) -> None:
        """Keep the sets of all issuers of the configuration fresh, until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(_ROUND_SECONDS)

    def look(self) -> None:
        """Take static sets, and ask for those that were never fetched or are not fresh any more."""
        issuers = self._store.world.index.issuers
        for gone in self._known.keys() - issuers.keys():
            del self._known[gone]
        now = self._clock()
        for issuer in issuers.values():
            if _is_static(issuer):
                self._take_static(issuer)
                continue
            known = self._of(issuer)
            is_due = not known.fetched_at or now - known.fetched_at > _FRESH_SECONDS
            pause = _BETWEEN_FETCHES_SECONDS * min(2**known.failures, 6)
            if is_due and known.under_way is None and now - known.asked_at >= pause:
                self._ask(known)

    def oldest_age(self) -> float:
        """Return the seconds since the key set that was not fetched for the longest time was; 0.0 if there are none."""
        now = self._clock()
        return max((now - known.fetched_at for known in self._known.values() if known.fetched_at), default=0.0)

    def _of(self, issuer: Issuer) -> _Known:
        known = self._known.get(issuer.id)
        if known is None:
            known = self._known[issuer.id] = _Known(issuer)
        elif known.issuer is not issuer:
            if _source(known.issuer) != _source(issuer):
                self._store.world.keys.forget(issuer.id)
                known = self._known[issuer.id] = _Known(issuer)
            known.issuer = issuer
        return known

    def _take_static(self, issuer: Issuer) -> None:
        keys = self._store.world.keys
        if issuer.jwks is not None and not keys.has_keys(issuer.id):
            self._set(issuer, issuer.jwks)

    def _ask(self, known: _Known) -> asyncio.Future[None]:
        known.under_way = under_way = self._tasks.start("fetch keys", self._fetched(known))
        return under_way

    async def _fetched(self, known: _Known) -> None:
        issuer = known.issuer
        try:
            pause = known.asked_at + _BETWEEN_FETCHES_SECONDS - self._clock()
            if pause > 0:
                await self._sleep(pause)
            known.asked_at = self._clock()
            known.has_begun = True
            document = await self._fetch(await self._address(issuer))
            if self._known.get(issuer.id) is known:  # else its source changed meanwhile, and this set is of the old one
                self._set(issuer, document)
            known.fetched_at = self._clock()
            known.failures = 0
            self._on_fetch("ok")
        except (FetchFailed, KeySetRefused) as fault:
            known.failures += 1
            self._on_fetch("failed")
            _log.warning("key set not fetched", issuer=issuer.issuer, failures=known.failures, why=str(fault))
        finally:
            known.has_begun = False
            known.under_way = None

    async def _address(self, issuer: Issuer) -> str:
        if issuer.jwks_uri is not None:
            return issuer.jwks_uri
        try:
            document = json.loads(await self._fetch(issuer.issuer.rstrip("/") + _DISCOVERY))
            address, says = document["jwks_uri"], document["issuer"]
        except (ValueError, KeyError, TypeError) as error:
            raise FetchFailed("the discovery document is not one") from error
        if says != issuer.issuer:  # OpenID Connect Discovery 1.0 §4.3
            raise FetchFailed("the discovery document names another issuer")
        if not isinstance(address, str):
            raise FetchFailed("the discovery document names no key set")
        return address

    def _set(self, issuer: Issuer, document: bytes) -> None:
        usable = self._store.world.keys.set_keys(issuer.id, document)
        _log.info("key set in force", issuer=issuer.issuer, keys=usable)


def _source(issuer: Issuer) -> tuple[str, str | None]:
    return issuer.issuer, issuer.jwks_uri


def _is_static(issuer: Issuer) -> bool:
    return issuer.jwks_uri is None and issuer.jwks is not None
