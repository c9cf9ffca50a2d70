"""Which profile and endpoint a raw path means.

Exact spellings are found with one dictionary lookup. Anything else is read as the most forgiving upstream might read it
(percent-decoded, case-folded, one trailing slash ignored), so that no spelling of a judged path escapes its judgement; a
path that can be read in more than one way is not matched at all. What goes upstream is the path as received, without
mount and pin. Read next: `policy.scan`, which calls this first.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from urllib.parse import unquote_to_bytes

from contracts.ids import is_handle
from policy.providers import cartesia, kokoro
from policy.providers.profile import Endpoint, Profile

PROFILES: dict[str, Profile] = {profile.name: profile for profile in (cartesia.PROFILE, kokoro.PROFILE)}
_MOUNTS: dict[bytes, Profile] = {profile.mount: profile for profile in PROFILES.values()}

NO_ROOT_MOUNTS: Mapping[bytes, str] = {}


@dataclass(slots=True)
class Match:
    """Where a request goes, as far as its path tells."""

    profile: Profile
    endpoint: Endpoint
    pin: str | None
    """name of the account in `/<mount>/@name/…`"""
    path: bytes
    """as received, without mount and pin; begins with `/`"""


@dataclass(frozen=True, slots=True)
class _Template:
    segments: tuple[bytes, ...]
    """literal ones in lower case; empty: any one segment"""
    is_open: bool
    endpoints: tuple[Endpoint, ...]


class _Table:
    """One profile's endpoints, arranged for lookup."""

    def __init__(self, profile: Profile) -> None:
        self.exact: dict[tuple[str, bytes, bool], Endpoint] = {}
        by_path: dict[str, list[Endpoint]] = {}
        for endpoint in profile.endpoints:
            by_path.setdefault(endpoint.path, []).append(endpoint)
        templates = []
        for path, endpoints in by_path.items():
            segments = path.encode().strip(b"/").split(b"/")
            is_open = segments[-1] == b"{*}"
            closed = tuple(b"" if segment.startswith(b"{") else segment for segment in (segments[:-1] if is_open else segments))
            templates.append(_Template(closed, is_open, tuple(endpoints)))
            if b"{" in path.encode():
                continue
            for endpoint in endpoints:
                for method in endpoint.methods:
                    for spelling in {path.rstrip("/").encode() or b"/", path.rstrip("/").encode() + b"/"}:
                        self.exact.setdefault((method, spelling, endpoint.is_websocket), endpoint)
        # Literal segments before variables, closed templates before open ones: `/agents/calls` is not an agent's id.
        templates.sort(key=lambda template: (template.is_open, [segment == b"" for segment in template.segments]))
        self.templates = tuple(templates)
        self.unlisted = {
            is_websocket: Endpoint(
                "unlisted.websocket" if is_websocket else "unlisted", profile.name, "unlisted", (), "/{*}", is_websocket
            )
            for is_websocket in (False, True)
        }
        self.preflights = {
            endpoint.id: replace(
                endpoint,
                id=endpoint.id + ".options",
                methods=("OPTIONS",),
                judged=None,
                model_key=None,
                model_in_query=False,
                model_header=None,
                takes_only_model=False,
                metering="none",
                is_websocket=False,
                is_answered_here=False,
            )
            for endpoint in profile.endpoints
        }

    def find(self, method: str, segments: tuple[bytes, ...], is_websocket: bool) -> Endpoint:
        """Return the endpoint of a canonical path, or the profile's unlisted one."""
        asked = "GET" if method == "HEAD" else method
        for template in self.templates:
            if not _covers(template, segments):
                continue
            if asked == "OPTIONS" and not is_websocket:
                return self.preflights[template.endpoints[0].id]
            for endpoint in template.endpoints:
                if endpoint.is_websocket == is_websocket and (not endpoint.methods or asked in endpoint.methods):
                    return endpoint
        return self.unlisted[is_websocket]


def _covers(template: _Template, segments: tuple[bytes, ...]) -> bool:
    wanted = template.segments
    if len(segments) <= len(wanted) if template.is_open else len(segments) != len(wanted):
        return False
    return all(literal in (b"", segment) for literal, segment in zip(wanted, segments, strict=False))


_TABLES = {profile.name: _Table(profile) for profile in PROFILES.values()}

# RFC 3986 §3.3 without `;`: some servers cut a segment there, others do not.
_PATH = re.compile(rb"(?:[A-Za-z0-9\-._~!$&'()*+,=:@/]|%[0-9A-Fa-f]{2})+\Z")
_UNSAFE_DECODED = re.compile(rb"[\x00-\x20\x7f/\\;%?#]")


def is_mount(path: bytes, host: bytes = b"", root_mounts: Mapping[bytes, str] = NO_ROOT_MOUNTS) -> bool:
    """Tell whether the request belongs to a provider, and not to the gateway's own routes.

    path: raw, without query. host: lower case, without port. root_mounts: host name -> profile, for the clients that drop
    path prefixes; everything on such a host is the provider's.
    """
    end = path.find(b"/", 1)
    return (path[1:] if end < 0 else path[1:end]) in _MOUNTS or host in root_mounts


def match(
    method: str, path: bytes, is_websocket: bool, host: bytes = b"", root_mounts: Mapping[bytes, str] = NO_ROOT_MOUNTS
) -> Match | None:
    """Return what the path means, or None if it is under no mount or can be read in more than one way."""
    end = path.find(b"/", 1)
    mount = path[1:] if end < 0 else path[1:end]
    name = root_mounts.get(host) if root_mounts else None
    if name is not None:
        # A client that keeps the prefix reaches the same place on the dedicated host.
        profile = PROFILES[name]
        rest = path if mount != profile.mount else path[len(mount) + 1 :]
    else:
        found = _MOUNTS.get(mount)
        if found is None:
            return None
        profile = found
        rest = path[len(mount) + 1 :]
    pin = None
    if rest[:1] != b"/":
        rest = b"/" + rest
    elif rest[1:2] == b"/":  # older SDKs join `/cartesia/` and `/tts/…`
        rest = b"/" + rest.lstrip(b"/")
    if rest[1:2] == b"@":
        raw_pin, _, tail = rest[2:].partition(b"/")
        pin = raw_pin.decode("latin-1")
        if not is_handle(pin):
            return None
        rest = b"/" + tail.lstrip(b"/")
    table = _TABLES[profile.name]
    endpoint = table.exact.get((method, rest, is_websocket))
    if endpoint is None:
        segments = _canonical(rest)
        if segments is None:
            return None
        endpoint = table.find(method, segments, is_websocket)
    return Match(profile, endpoint, pin, rest)


def profile_of(path: bytes, host: bytes = b"", root_mounts: Mapping[bytes, str] = NO_ROOT_MOUNTS) -> Profile | None:
    """Return the profile whose mount the path is under, also where the rest of it is refused."""
    name = root_mounts.get(host)
    if name is not None:
        return PROFILES[name]
    end = path.find(b"/", 1)
    return _MOUNTS.get(path[1:] if end < 0 else path[1:end])


def _canonical(path: bytes) -> tuple[bytes, ...] | None:
    """Return the path's segments as the most forgiving reader sees them; None if readers may differ on them."""
    if _PATH.match(path) is None:
        return None
    segments = []
    for raw in path[1:].removesuffix(b"/").split(b"/") if path != b"/" else [b""]:
        segment = unquote_to_bytes(raw) if b"%" in raw else raw
        if segment in (b".", b"..") or (not segment and path != b"/") or _UNSAFE_DECODED.search(segment):
            return None
        try:
            segments.append(segment.decode("utf-8").casefold().encode())
        except UnicodeDecodeError:  # overlong forms of `.` and `/` among them
            return None
    return tuple(segments)


def endpoint_named(profile: Profile, endpoint_id: str) -> Endpoint | None:
    """Return the profile's endpoint with this id."""
    return next((endpoint for endpoint in profile.endpoints if endpoint.id == endpoint_id), None)
