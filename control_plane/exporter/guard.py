"""Where the exporter may connect to: `policy.origins`' rules, asked again for the addresses of each dial.

Blocks (name resolution): called in a receiver's own thread. Read next: `sender`.
"""

import socket
from collections.abc import Collection
from urllib.parse import urlsplit

from policy.origins import Origin, OriginRefused, checked_origin, is_listed, is_refused_address


class EgressRefused(OSError):
    """An endpoint that must not be connected to. The text is a sentence for the operator."""


class Guard:
    """allowed: origins that the operator lists as exceptions."""

    def __init__(self, allowed: Collection[str]) -> None:
        self._allowed = tuple(allowed)

    def origin_of(self, endpoint: str) -> Origin:
        """Return the checked origin of an endpoint URL. Raises EgressRefused."""
        parts = urlsplit(endpoint)
        try:
            return checked_origin(f"{parts.scheme}://{parts.netloc}", self._allowed)
        except (OriginRefused, ValueError) as error:
            raise EgressRefused(str(error)) from error

    def addresses_of(self, origin: Origin) -> list[str]:
        """Return the addresses to dial, at least one. Raises EgressRefused if one of them is private, OSError if none."""
        found = socket.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        if not is_listed(origin, self._allowed) and any(is_refused_address(address) for address in addresses):
            raise EgressRefused(f"{origin.host} resolves to a private address.")
        return addresses
