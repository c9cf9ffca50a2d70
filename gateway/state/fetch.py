"""Fetches a small document over HTTPS, past the egress guard: key sets and discovery documents.

The name is resolved here and each address is asked of the guard, then the connection goes to that very address, so that a
name cannot turn private in between. No redirects, no proxy variables, a bound on size and time. The guard itself is given.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from urllib.parse import urlsplit, urlunsplit

import httpx

from gateway.state.key_sets import LARGEST_DOCUMENT_BYTES, FetchFailed
from policy.origins import OriginRefused, checked_origin, is_listed

Addresses = Callable[[str, int, bool], Awaitable[Sequence[str]]]
"""(host, port, may be private) -> the addresses that may be dialled. Raises OSError if there is none."""

_SECONDS = 5.0


class DocumentFetcher:
    """Fetches documents. allowed_private_origins: the operator's exceptions to the guard."""

    def __init__(self, addresses: Addresses, allowed_private_origins: Collection[str]) -> None:
        self._addresses = addresses
        self._allowed = allowed_private_origins
        # No connection is kept: it was verified for one name, and another name may live at the same address.
        self._client = httpx.AsyncClient(
            follow_redirects=False, trust_env=False, timeout=_SECONDS, limits=httpx.Limits(max_keepalive_connections=0)
        )

    async def __call__(self, address: str) -> bytes:
        """Return the document at this address. Raises FetchFailed."""
        try:
            async with asyncio.timeout(2 * _SECONDS):
                return await self._document(address)
        except OriginRefused as refused:
            raise FetchFailed(f"the address may not be dialled: {refused.reason}") from refused
        except (httpx.HTTPError, OSError, TimeoutError) as error:
            raise FetchFailed(f"not reached: {type(error).__name__}") from error

    async def _document(self, address: str) -> bytes:
        parts = urlsplit(address)
        origin = checked_origin(f"{parts.scheme}://{parts.netloc}", self._allowed)
        permitted = await self._addresses(origin.host, origin.port, is_listed(origin, self._allowed))
        host = f"[{permitted[0]}]" if ":" in permitted[0] else permitted[0]
        url = urlunsplit((origin.scheme, f"{host}:{origin.port}", parts.path, parts.query, ""))
        headers = {"host": origin.text.partition("://")[2], "accept": "application/json"}
        document = bytearray()
        async with self._client.stream("GET", url, headers=headers, extensions={"sni_hostname": origin.host}) as answer:
            if answer.status_code != httpx.codes.OK:
                raise FetchFailed(f"answered {answer.status_code}")
            async for chunk in answer.aiter_bytes():
                document += chunk
                if len(document) > LARGEST_DOCUMENT_BYTES:
                    raise FetchFailed(f"the document is larger than {LARGEST_DOCUMENT_BYTES} bytes")
        return bytes(document)

    async def close(self) -> None:
        """Close idle connections."""
        await self._client.aclose()
