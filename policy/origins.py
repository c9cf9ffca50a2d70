"""Where the gateway and the control plane may connect to: the rules for origins and addresses.

Pure: texts and addresses in, a verdict out; who resolves names and dials is the caller's business, and must ask
`is_refused_address` again for every address that a name resolved to, at each dial (a name may turn private later).
Used for provider accounts, issuers, JWKS documents, export targets and credential tests. Read next: `policy.workspace_file`.
"""

import ipaddress
import re
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import urlsplit

_HOST_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)\Z")
_NUMERIC_LABEL = re.compile(r"(0x[0-9a-f]*|[0-9]+)\Z")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_NAT64_LOCAL = ipaddress.IPv6Network("64:ff9b:1::/48")
_METADATA_NAMES = frozenset({"metadata", "metadata.google.internal", "instance-data", "instance-data.ec2.internal"})
_PRIVATE_SUFFIXES = (".localhost", ".local", ".internal", ".home.arpa")


class OriginRefused(ValueError):
    """An origin that must not be used. `reason` is stable; the text is a plain sentence for the person who wrote it."""

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


@dataclass(frozen=True)
class Origin:
    """A checked origin. `host`: lower case, an IPv6 address without brackets; `text`: the normal form, default port left out."""

    scheme: str
    host: str
    port: int

    @property
    def text(self) -> str:
        """Return `scheme://host[:port]`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        default = {"http": 80, "https": 443}[self.scheme]
        return f"{self.scheme}://{host}" if self.port == default else f"{self.scheme}://{host}:{self.port}"


def parse_origin(text: str) -> Origin:
    """Return the origin that the text names: `http` or `https`, host, port, and nothing else. Raises OriginRefused."""
    if any(ord(letter) <= 0x20 or ord(letter) == 0x7F for letter in text) or "\\" in text:
        raise OriginRefused("origin_malformed", "An origin holds no spaces, control characters or backslashes.")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise OriginRefused("origin_malformed", "That is not an origin: write https://host or https://host:port.") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise OriginRefused("origin_malformed", "That is not an origin: write https://host or https://host:port.")
    if parts.username is not None or parts.password is not None:
        raise OriginRefused("origin_has_user", "An origin holds no user name or password; credentials have a field of their own.")
    if parts.path not in ("", "/") or parts.query or parts.fragment or "?" in text or "#" in text:
        raise OriginRefused("origin_has_path", "An origin ends after the host and port; paths come from the caller's request.")
    host = parts.hostname.rstrip(".").lower()
    if port == 0 or not _is_host(host):
        raise OriginRefused("origin_malformed", "That host or port is not one that can be connected to.")
    return Origin(parts.scheme, host, port or {"http": 80, "https": 443}[parts.scheme])


def checked_origin(text: str, allowed: Collection[str] = ()) -> Origin:
    """Return the origin if a workspace may use it; allowed: origins that the operator lists as exceptions, in any spelling.

    Raises OriginRefused: only https to public hosts, unless the operator lists exactly this origin.
    """
    origin = parse_origin(text)
    if is_listed(origin, allowed):
        return origin
    if origin.scheme != "https":
        raise OriginRefused(
            "origin_not_https", "Use https. An operator can list a plain http origin in GLOTTIS_ALLOWED_PRIVATE_ORIGINS."
        )
    if (address := _literal_address(origin.host)) is not None:
        if is_refused_address(address):
            raise OriginRefused("origin_private", _PRIVATE_SENTENCE)
    elif _is_numeric(origin.host):
        raise OriginRefused("origin_malformed", "Write an IPv4 address as four decimal numbers.")
    elif origin.host in _METADATA_NAMES or origin.host == "localhost" or origin.host.endswith(_PRIVATE_SUFFIXES):
        raise OriginRefused("origin_private", _PRIVATE_SENTENCE)
    return origin


_PRIVATE_SENTENCE = (
    "That host is private, loopback, link-local or a metadata service. "
    "An operator can list such an origin in GLOTTIS_ALLOWED_PRIVATE_ORIGINS."
)


def is_listed(origin: Origin, allowed: Collection[str]) -> bool:
    """Tell whether the operator lists this origin as an exception; a listed text that is no origin matches nothing."""
    for text in allowed:
        try:
            if parse_origin(text.strip()) == origin:
                return True
        except OriginRefused:
            continue
    return False


def is_refused_address(address: str | ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Tell whether an address must not be dialled: whatever is not global unicast, also inside an IPv6 wrapping.

    address: an address object or its text. Metadata services (169.254.169.254, fd00:ec2::254) are link-local and private.
    """
    if isinstance(address, str):
        address = ipaddress.ip_address(address.split("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and address.teredo is not None:
            inner = address.teredo[1]
        if inner is None and (address in _NAT64 or address in _NAT64_LOCAL or int(address) >> 32 == 0):
            inner = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
        if inner is not None:
            return is_refused_address(inner)
        if address.is_site_local:
            return True
    return not address.is_global or address.is_multicast or address.is_reserved or address.is_unspecified


def _literal_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _is_host(host: str) -> bool:
    if _literal_address(host) is not None:
        return True
    return 0 < len(host) <= 253 and all(_HOST_LABEL.match(label) for label in host.split("."))


def _is_numeric(host: str) -> bool:
    """Tell whether resolvers read the host as an IPv4 address in another notation: `2130706433`, `0x7f.1`, `127.1`."""
    return _NUMERIC_LABEL.match(host.split(".")[-1]) is not None
