"""One pass over a request's head: where it goes, who it says it is, and what of it may go upstream.

Headers and query are walked once and in order; what is kept is kept byte for byte. The change table of the design is here,
as data: what is not named in it passes. Nothing is decided yet but what makes a head unreadable. The result depends on
nothing but the head and is kept on it, because a head is decided twice when its facts stand in the body. Read next:
`policy.authenticate`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote_to_bytes

import orjson

from contracts.claims import METADATA_ENTRIES, METADATA_KEY_CHARACTERS, METADATA_VALUE_CHARACTERS
from policy.facts import Facts, Header, RequestHead
from policy.providers import registry
from policy.providers.profile import Endpoint
from policy.providers.registry import Match
from policy.refusal import Refusal

SUBPROTOCOL = b"glottis.v1"
_AUTH_SUBPROTOCOL = b"glottis.auth."


@dataclass(slots=True)
class Scan:
    """What one pass over a head found."""

    match: Match
    target: bytes
    """request target for upstream"""
    header_block: bytes
    """headers for upstream, rendered, without the last line's end; trace headers are not in it"""
    traced_block: bytes
    """the same with the caller's trace headers in their places"""
    framing_at: int
    """offset into `header_block`, each of its lines ended, where the caller's framing header stood; negative: it had none"""
    traced_framing_at: int
    """the same for `traced_block`"""
    token: bytes | None = field(repr=False)
    """the one caller token presented"""
    digest: bytes | None
    """SHA-256 of the token, once it was needed"""
    origin: str | None
    """lower case; `?` if several were sent, which no allow-list contains"""
    version: str
    """the caller's version of the provider's protocol; empty if none"""
    facts: Facts
    """what the head says: a query's model, a header's model"""
    metadata: tuple[tuple[str, str], ...]
    subprotocol: bytes | None
    content_type: bytes | None
    content_types: int
    has_content_encoding: bool


# What becomes of a header. Plain numbers: members of an Enum cost more to look up than the rest of the walk together.
_KEEP: Final = 0
_DROP: Final = 1
_AUTHORIZATION: Final = 2
_API_KEY: Final = 3
_CONNECTION: Final = 4
_SUBPROTOCOL: Final = 5
_METADATA: Final = 6
_ORIGIN: Final = 7
_CONTENT_TYPE: Final = 8
_CONTENT_ENCODING: Final = 9
_TRACE: Final = 10
_EXPECT: Final = 11
_VERSION: Final = 12
_MODEL: Final = 13
_FRAMES: Final = 14
_OVERRIDE: Final = 15

_HOP_BY_HOP = (  # RFC 9110 §7.6.1, and the ones of RFC 2616 §13.5.1 that are still sent
    b"keep-alive",
    b"proxy-connection",
    b"proxy-authenticate",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
    b"http2-settings",
)
_DROPPED = (
    b"host",
    b"proxy-authorization",
    b"cookie",
    b"forwarded",
    b"sec-websocket-extensions",
)
_COMMON = (
    b"accept accept-encoding accept-language cache-control pragma user-agent x-cartesia-client x-stainless-lang "
    b"x-stainless-package-version x-stainless-os x-stainless-arch x-stainless-runtime x-stainless-runtime-version "
    b"x-stainless-async x-stainless-retry-count x-stainless-read-timeout x-stainless-timeout sec-websocket-key "
    b"sec-websocket-version sec-fetch-mode x-fern-language x-fern-sdk-name x-fern-sdk-version"
).split()
_HEADERS: dict[bytes, int] = {
    **dict.fromkeys(_COMMON, _KEEP),  # listed only so that one lookup settles the headers of every known client
    **dict.fromkeys(_HOP_BY_HOP, _DROP),
    **dict.fromkeys(_DROPPED, _DROP),
    **dict.fromkeys((b"content-length", b"transfer-encoding"), _FRAMES),
    b"authorization": _AUTHORIZATION,
    b"x-api-key": _API_KEY,
    b"connection": _CONNECTION,
    b"sec-websocket-protocol": _SUBPROTOCOL,
    b"x-glottis-metadata": _METADATA,
    b"x-tfy-metadata": _METADATA,
    b"origin": _ORIGIN,
    b"content-type": _CONTENT_TYPE,
    b"content-encoding": _CONTENT_ENCODING,
    b"traceparent": _TRACE,
    b"tracestate": _TRACE,
    b"baggage": _TRACE,
    b"expect": _EXPECT,
    b"cartesia-version": _VERSION,
    b"x-amzn-sagemaker-model-invocation-path": _MODEL,
    # Servers that honour these would do something else than what was judged.
    b"x-http-method-override": _OVERRIDE,
    b"x-http-method": _OVERRIDE,
    b"x-method-override": _OVERRIDE,
    b"x-original-url": _OVERRIDE,
    b"x-rewrite-url": _OVERRIDE,
}
_DROPPED_PREFIXES = (b"x-forwarded-", b"x-glottis-")
_CUT = frozenset((_DROP, _FRAMES, _AUTHORIZATION, _API_KEY, _CONNECTION, _METADATA))

HOP_BY_HOP: frozenset[bytes] = frozenset((*_HOP_BY_HOP, b"connection", b"proxy-authorization"))

_CREDENTIAL_PARAMETERS = (b"access_token", b"api_key")
_METADATA_PARAMETERS = (b"x-glottis-metadata", b"x-tfy-metadata")
_OWN_PARAMETERS = frozenset((*_CREDENTIAL_PARAMETERS, *_METADATA_PARAMETERS))
_AUDIO_PARAMETERS = (b"encoding", b"sample_rate")

_UNSAFE_QUERY = re.compile(rb"[\x00-\x20\x7f#]")
_ODD_NAME = re.compile(rb"[^a-z0-9_]")
_DECORATION = re.compile(rb"[\x00-\x20]|\[.*\Z", re.DOTALL)

_NO_FACTS = Facts()

_FRAMING_PLACE: Header = (b":framing", b"")
"""told by its name's identity: stands among the kept headers where the framing header stood, which is the relay's to write"""

_SECRET_LENGTH = 16
"""bytes; what is shorter is no token, and may stand anywhere by chance"""


def scan_of(head: RequestHead, root_mounts: Mapping[bytes, str]) -> Scan | Refusal:
    """Return what the head holds; a Refusal if it cannot be read in exactly one way."""
    match = registry.match(head.method, head.path, head.is_websocket, head.host, root_mounts)
    if match is None:
        found = registry.profile_of(head.path, head.host, root_mounts)
        return Refusal("not_found" if found is None else "path_refused")
    endpoint = match.endpoint
    tokens: list[bytes] = []
    metadata: list[bytes] = []
    kept: list[Header] = []
    protocols: list[Header] = []
    named: set[bytes] | None = None
    origin: str | None = None
    version = ""
    model: bytes | None = None
    content_type: bytes | None = None
    content_types = 0
    has_content_encoding = False
    is_traced = has_framing = False
    known = _HEADERS.get
    for header in head.headers:
        name, value = header
        lower = name.lower()
        does = known(lower)
        if not does:
            if does is None:
                if not lower:
                    return Refusal("head_malformed")
                if b"_" in lower:
                    # CGI-like servers read X_API_KEY as X-API-Key: such a spelling is cut wherever the plain one is.
                    plain = lower.replace(b"_", b"-")
                    meant = known(plain)
                    if meant in _CUT or plain.startswith(_DROPPED_PREFIXES):
                        continue
                    if meant == _OVERRIDE:
                        return Refusal("override_refused", name.decode("latin-1"))
                elif lower.startswith(_DROPPED_PREFIXES):
                    continue
            kept.append(header)
        elif does == _DROP:
            continue
        elif does == _FRAMES:
            if not has_framing:
                has_framing = True
                kept.append(_FRAMING_PLACE)
        elif does == _CONTENT_TYPE:
            content_type = value
            content_types += 1
            kept.append(header)
        elif does == _VERSION:
            version = version or value.decode("latin-1")
            kept.append(header)
        elif does == _CONNECTION:
            options = value.lower()
            if options not in (b"keep-alive", b"close", b"upgrade"):
                named = named or set()
                named.update(option for part in options.split(b",") if (option := part.strip()))
        elif does == _AUTHORIZATION:
            scheme, _, rest = value.partition(b" ")
            if scheme.lower() == b"bearer":
                tokens.append(rest.strip())
            elif value:
                return Refusal("scheme_unsupported")
        elif does == _API_KEY:
            tokens.append(value)
        elif does == _SUBPROTOCOL:
            protocols.append(header)
            kept.append(header)
        elif does == _METADATA:
            metadata.append(value)
        elif does == _ORIGIN:
            origin = "?" if origin is not None else value.decode("latin-1").lower()
            kept.append(header)
        elif does == _CONTENT_ENCODING:
            has_content_encoding = has_content_encoding or value.lower() != b"identity"
            kept.append(header)
        elif does == _TRACE:
            is_traced = True
            kept.append(header)
        elif does == _EXPECT:
            # On judged bodies the gateway itself says 100, after it knows the caller.
            if endpoint.judged is None:
                kept.append(header)
        elif does == _OVERRIDE:
            return Refusal("override_refused", name.decode("latin-1"))
        else:  # _MODEL
            if lower == endpoint.model_header:
                if model is not None:
                    return Refusal("judged_parameter_twice", name.decode("latin-1"))
                model = value
            kept.append(header)
    if named is not None:
        kept = [header for header in kept if header[0].lower() not in named]
    subprotocol = None
    if protocols:
        answer = _own_subprotocols(kept, protocols, tokens)
        if isinstance(answer, Refusal):
            return answer
        kept, subprotocol = answer
    facts = _NO_FACTS
    target = match.path
    query = head.query
    if query:
        if _UNSAFE_QUERY.search(query):
            return Refusal("query_refused")
        parameters = _Query(query, endpoint, match.profile.version_query)
        if parameters.refusal is not None:
            return parameters.refusal
        tokens += parameters.tokens
        metadata += parameters.metadata
        version = parameters.version or version
        facts = parameters.facts
        if parameters.kept:
            target = target + b"?" + parameters.kept
    if model is not None:
        facts = Facts(model=model.strip(b"/").decode("latin-1"))
    token = None
    for presented in tokens:
        if not presented or presented == token:
            continue
        if token is not None:
            return Refusal("credentials_conflict")
        token = presented
    framing_at = framed_after = -1
    if has_framing:
        framed_after = next(at for at, header in enumerate(kept) if header[0] is _FRAMING_PLACE[0])
        del kept[framed_after]
        framing_at = _rendered_length(kept[:framed_after])
    block = b"\r\n".join([b": ".join(header) for header in kept])
    lines = len(kept) - 1 if kept else 0
    if block.count(b"\n") != lines or block.count(b"\r") != lines or b"\0" in block:
        return Refusal("head_malformed")
    if token is not None and len(token) >= _SECRET_LENGTH and (token in block or token in target):
        return Refusal("credential_misplaced")
    traced_block, traced_framing_at = block, framing_at
    if is_traced:
        if has_framing:
            traces = [header for header in kept[:framed_after] if known(header[0].lower()) == _TRACE]
            framing_at -= _rendered_length(traces)
        block = b"\r\n".join([b": ".join(header) for header in kept if known(header[0].lower()) != _TRACE])
    annotations: tuple[tuple[str, str], ...] = ()
    if metadata:
        read = _metadata_of(metadata)
        if read is None:
            return Refusal("metadata_invalid")
        annotations = read
    return Scan(
        match,
        target,
        block,
        traced_block,
        framing_at,
        traced_framing_at,
        token,
        None,
        origin,
        version,
        facts,
        annotations,
        subprotocol,
        content_type,
        content_types,
        has_content_encoding,
    )


def _rendered_length(headers: list[Header]) -> int:
    return sum([len(name) + len(value) + 4 for name, value in headers])


def _own_subprotocols(
    kept: list[Header], protocols: list[Header], tokens: list[bytes]
) -> tuple[list[Header], bytes | None] | Refusal:
    """Return the headers without our own subprotocols, and the one to answer with; adds the tokens found to `tokens`."""
    has_version = has_token = False
    rewritten: dict[Header, Header | None] = {}
    for header in protocols:
        others = []
        is_ours = False
        for offered in header[1].split(b","):
            protocol = offered.strip()
            # Subprotocols are compared as they are (RFC 6455 §4.1); cut in any case, so that no spelling passes.
            if protocol.lower().startswith(_AUTH_SUBPROTOCOL):
                has_token = is_ours = True
                tokens.append(protocol[len(_AUTH_SUBPROTOCOL) :])
            elif protocol.lower() == SUBPROTOCOL:
                has_version = is_ours = True
            else:
                others.append(protocol)
        if is_ours:
            rewritten[header] = (header[0], b", ".join(others)) if others else None
    if has_token and not has_version:
        return Refusal("subprotocol_alone")
    if rewritten:
        replaced = (rewritten.get(header, header) for header in kept)
        kept = [header for header in replaced if header is not None]
    return kept, SUBPROTOCOL if has_version else None


class _Query:
    """One pass over a raw query string."""

    __slots__ = ("facts", "kept", "metadata", "refusal", "tokens", "version")

    def __init__(self, query: bytes, endpoint: Endpoint, version_name: bytes) -> None:
        self.tokens: list[bytes] = []
        self.metadata: list[bytes] = []
        self.version = ""
        self.refusal: Refusal | None = None
        self.facts = _NO_FACTS
        judged: dict[bytes, str] = {}
        wanted: tuple[bytes, ...] = ()
        named_model = endpoint.model_key.encode() if endpoint.model_in_query and endpoint.model_key is not None else b""
        if named_model:
            wanted = (named_model, *_AUDIO_PARAMETERS)
        elif endpoint.metering == "stt_batch":
            wanted = _AUDIO_PARAMETERS
        pieces = query.split(b"&")
        is_cut = False
        for at, piece in enumerate(pieces):
            name, _, value = piece.partition(b"=")
            canonical = _plain_name(name) if _ODD_NAME.search(name) else name
            if canonical in _OWN_PARAMETERS:
                is_cut = True
                pieces[at] = b"\n"  # a mark: no query holds a line feed
                if canonical in _METADATA_PARAMETERS:
                    self.metadata.append(unquote_to_bytes(value.replace(b"+", b" ")))
                elif canonical == name:
                    self.tokens.append(unquote_to_bytes(value))
                continue
            if b";" in piece and _has_own_after_semicolon(piece):
                # `a=1;api_key=…`: servers that split at semicolons would see the credential.
                is_cut = True
                pieces[at] = b";".join(part for part in piece.split(b";") if _name_of(part) not in _OWN_PARAMETERS) or b"\n"
            if canonical in wanted:
                if canonical != name:
                    self.refusal = Refusal("judged_parameter_spelling", canonical.decode("latin-1"))
                    return
                key = name.decode("latin-1")
                if name in judged:
                    self.refusal = Refusal("judged_parameter_twice", key)
                    return
                judged[name] = unquote_to_bytes(value.replace(b"+", b" ")).decode("utf-8", "replace")
            elif canonical == version_name and not self.version:
                self.version = unquote_to_bytes(value).decode("latin-1")
        self.kept = b"&".join([piece for piece in pieces if piece != b"\n"]) if is_cut else query
        if judged:
            rate = judged.get(b"sample_rate", "")
            self.facts = Facts(
                model=judged.get(named_model) or None,
                encoding=judged.get(b"encoding"),
                sample_rate=int(rate) if rate.isascii() and rate.isdigit() and len(rate) < 9 else None,
            )


def _plain_name(name: bytes) -> bytes:
    """Return a parameter's name as the most forgiving server reads it."""
    plain = name
    for _ in range(4):  # more levels of encoding than any chain of servers takes off
        decoded = unquote_to_bytes(plain)
        if decoded == plain:
            break
        plain = decoded
    return _DECORATION.sub(b"", plain.replace(b"+", b" ")).lower()


def _name_of(part: bytes) -> bytes:
    return _plain_name(part.partition(b"=")[0])


def _has_own_after_semicolon(piece: bytes) -> bool:
    return any(_name_of(part) in _OWN_PARAMETERS for part in piece.split(b";"))


_METADATA_BYTES = 4096


def _metadata_of(values: list[bytes]) -> tuple[tuple[str, str], ...] | None:
    """Return the caller's annotations in their order, or None if they are not as they must be."""
    if len(values) != 1 or len(values[0]) > _METADATA_BYTES:
        return None
    try:
        read = orjson.loads(values[0])
    except orjson.JSONDecodeError:
        return None
    return metadata_in(read)


def metadata_in(read: object) -> tuple[tuple[str, str], ...] | None:
    """Return the annotations that an object holds, or None if they are not as they must be."""
    if not isinstance(read, dict) or len(read) > METADATA_ENTRIES:
        return None
    for key, value in read.items():
        if not isinstance(value, str) or not 0 < len(key) <= METADATA_KEY_CHARACTERS or len(value) > METADATA_VALUE_CHARACTERS:
            return None
    return tuple(read.items())


def cartesia_version(head: RequestHead, root_mounts: Mapping[bytes, str] = registry.NO_ROOT_MOUNTS) -> str:
    """Return the version of the provider's protocol that the caller speaks, also from a head that was refused.

    The query wins over the header (Cartesia docs, WebSocket versioning). Empty if there is none.
    """
    if head.scan is not None:
        return head.scan.version
    profile = registry.profile_of(head.path, head.host, root_mounts)
    if profile is None:
        return ""
    for piece in head.query.split(b"&"):
        name, _, value = piece.partition(b"=")
        if name == profile.version_query:
            return unquote_to_bytes(value).decode("latin-1")
    for name, value in head.headers:
        if name.lower() == profile.version_header:
            return value.decode("latin-1")
    return ""
