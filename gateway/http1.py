"""HTTP/1.1 on the wire, without I/O: heads in, header pairs out; body framing, so that both sides agree on every boundary.

Stricter than RFC 9112 allows, because a proxy that guesses is how requests are smuggled: CRLF only, no folded lines, no
blank before a colon, one length or one `chunked`, never both. Header names and values keep their bytes, order and case.
Knows nothing of policy or providers. Read next: `gateway.edge.protocol` (requests), `gateway.upstream.connection` (answers).
"""

import re
from dataclasses import dataclass, field
from typing import Final

from policy.facts import Header
from policy.scan import HOP_BY_HOP

_TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_NAME: Final = re.compile(_TOKEN + rb"\Z")
_CONTROLS: Final = bytes((*range(9), *range(10, 32), 127))
_REQUEST_LINE: Final = re.compile(rb"(" + _TOKEN + rb") ([^\x00-\x20\x7f]+) HTTP/([0-9])\.([0-9])\Z")
_VERSIONS: Final = (b"HTTP/1.1 ", b"HTTP/1.0 ")
_ABSOLUTE: Final = re.compile(rb"(?i)https?://([^/?#@]+)([/?].*)?\Z")
_MOST_DIGITS: Final = 18
"""of a length"""
_TRAILER: Final = re.compile(_TOKEN + rb":[^\x00-\x08\x0a-\x1f\x7f]*\Z")
_FRAMING_TRAILER: Final = re.compile(rb"(?i)(?:transfer-encoding|content-length):")
_CHUNK_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;[^\x00-\x08\x0a-\x1f\x7f]*)?\Z")
_PADDED_CHUNK_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\x00-\x08\x0a-\x1f\x7f]*)?\Z")

UNTIL_CLOSE: Final = -2
CHUNKED: Final = -1
"""values of a body's length when it is not counted in advance"""


class Malformed(Exception):
    """Bytes that are not acceptable HTTP. `reason`: a key of the refusal table; `detail`: a fixed text of ours."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


@dataclass(slots=True)
class Request:
    """A request's head and what it says about its framing."""

    method: str
    target: bytes
    """in origin form, as received; `*` for `OPTIONS *`"""
    minor: int
    """0 for HTTP/1.0"""
    headers: list[Header]
    length: int = 0
    """of the body in bytes, or CHUNKED"""
    framing: bytes = b""
    """the header line that says so, as received, with its end; empty if there is none"""
    host: bytes = b""
    """as received, with its port"""
    closes: bool = False
    """the connection ends after the answer"""
    expects_continue: bool = False
    upgrade: bytes = b""
    """the protocol asked for, in lower case; empty if `Connection` does not name `upgrade`"""
    trace_parent: bytes | None = None
    trace_state: bytes = b""


class Response:
    """An answer's head and what it says about its framing, before the request's method is considered.

    Not a dataclass: there is one an exchange, and a dataclass's `__init__` stays Python where all else is compiled.
    """

    length: int = UNTIL_CLOSE
    """of the body in bytes, CHUNKED or UNTIL_CLOSE"""
    location: bytes | None = None
    request_id: bytes = b""
    """the provider's own `X-Request-ID`"""
    content_type: bytes = b""
    """in lower case"""
    is_coded: bool = False
    """the body is compressed: it can be relayed, not read"""
    audio_ms: int | None = None
    """what Kokoro's container says of the length of its audio (`X-Audio-Duration`, in seconds)"""
    declared: int | None = None
    """the Content-Length, if there was one; on an answer without a body it is no framing"""

    def __init__(self, status: int, reason: bytes, lines: list[bytes], *, is_old: bool) -> None:
        """lines: header lines as received. is_old: HTTP/1.0."""
        self.status = status
        self.reason = reason
        self.lines = lines
        self.closes = is_old
        self.passes_whole = not is_old
        """an HTTP/1.1 head without hop-by-hop headers: every line of it may pass as it came"""

    @property
    def headers(self) -> list[Header]:
        """The headers one by one."""
        pairs = (line.partition(b":") for line in self.lines)
        return [(name, value.strip(b" \t")) for name, _, value in pairs]

    def has_body(self, method: str) -> bool:
        """Tell whether a body follows the head (RFC 9112 §6.3)."""
        return method != "HEAD" and self.status != 204 and self.status != 304


_LENGTH_OF_BODY: Final = 1
_CODING: Final = 2
_CONNECTION: Final = 3
_HOST: Final = 4
_EXPECT: Final = 5
_UPGRADE: Final = 6
_LOCATION: Final = 7
_TRACE_PARENT: Final = 8
_TRACE_STATE: Final = 9
_REQUEST_ID: Final = 10
_HOP: Final = 11
_CONTENT_TYPE: Final = 12
_CONTENT_CODING: Final = 13
_AUDIO_DURATION: Final = 14
_KINDS: Final = {
    **dict.fromkeys(HOP_BY_HOP, _HOP),
    b"content-length": _LENGTH_OF_BODY,
    b"transfer-encoding": _CODING,
    b"connection": _CONNECTION,
    b"host": _HOST,
    b"expect": _EXPECT,
    b"upgrade": _UPGRADE,
    b"location": _LOCATION,
    b"traceparent": _TRACE_PARENT,
    b"tracestate": _TRACE_STATE,
    b"x-request-id": _REQUEST_ID,
    b"content-type": _CONTENT_TYPE,
    b"content-encoding": _CONTENT_CODING,
    b"x-audio-duration": _AUDIO_DURATION,
}
_ORDINARY: Final = 0
_kinds_seen: Final[dict[bytes, int]] = {}
"""header names that are tokens, in every spelling that came, with their kind; saves the check of each name"""
_MOST_NAMES_SEEN: Final = 4096


def _kind_of(name: bytes) -> int:
    """Return what a header name means for framing. Raises Malformed if it is no token."""
    if _NAME.match(name) is None:
        raise Malformed("head_malformed", "a header line is not `name: value`")
    kind = _KINDS.get(name.lower(), _ORDINARY)
    if len(_kinds_seen) < _MOST_NAMES_SEEN and len(name) <= 64:
        _kinds_seen[name] = kind
    return kind


def _lines_of(head: bytes, max_headers: int) -> list[bytes]:
    """Return the first line and the header lines, where CRLF stands at each end and no other control character anywhere."""
    lines = head.split(b"\r\n")
    if lines.pop():
        raise Malformed("head_malformed", "the head does not end in CR LF")
    if max_headers and len(lines) > max_headers + 1:
        raise Malformed("head_too_large", "too many headers")
    # every CR and LF belongs to a counted CRLF, or there are more of them than that
    if len(head) - len(head.translate(None, _CONTROLS)) != 2 * len(lines):
        raise Malformed("head_malformed", "a control character, or a line not ended by CR LF")
    return lines


def _length_of(value: bytes, seen: int | None) -> int:
    if seen is not None:
        raise Malformed("head_malformed", "Content-Length occurs twice")
    if not value.isdigit() or len(value) > _MOST_DIGITS:
        raise Malformed("head_malformed", "Content-Length is not one decimal number")
    return int(value)


def parse_request(head: bytes, max_headers: int) -> Request:
    """Return the request whose head is given, from its first byte to the last header's CRLF (the empty line excluded).

    max_headers: 0 for any number.
    Raises Malformed with a reason that is answered 400 or 431.
    """
    lines = _lines_of(head, max_headers)
    line = _REQUEST_LINE.match(lines[0]) if lines else None
    if line is None:
        raise Malformed("head_malformed", "the request line is not `METHOD target HTTP/1.1`")
    method, target, major, minor = line.groups()
    if major != b"1" or minor > b"1":
        raise Malformed("head_malformed", "the version is not HTTP/1.1 or HTTP/1.0")
    headers: list[Header] = []
    request = Request(method.decode("ascii"), target, int(minor), headers)
    length: int | None = None
    is_chunked = keeps = has_host = False
    connection = upgrade = b""
    del lines[0]
    for text in lines:
        name, colon, value = text.partition(b":")
        value = value.strip(b" \t")
        headers.append((name, value))
        kind = _kinds_seen.get(name)
        if kind is None or not colon:
            kind = _kind_of(name if colon else b"")
        if kind == _ORDINARY:
            continue
        if kind == _HOST:
            if has_host:
                raise Malformed("host_invalid")
            has_host = True
            request.host = value
        elif kind == _CONNECTION:
            connection = connection + b"," + value if connection else value
        elif kind == _LENGTH_OF_BODY:
            length = _length_of(value, length)
            request.framing = text + b"\r\n"
        elif kind == _CODING:
            request.framing = text + b"\r\n"
            if is_chunked or value.lower() != b"chunked":
                raise Malformed("head_malformed", "Transfer-Encoding is not `chunked`")
            is_chunked = True
        elif kind == _EXPECT:
            if value.lower() != b"100-continue":
                raise Malformed("head_malformed", "Expect is not `100-continue`")
            request.expects_continue = minor == b"1"
        elif kind == _UPGRADE:
            upgrade = value.lower()
        elif kind == _TRACE_PARENT:
            request.trace_parent = value
        elif kind == _TRACE_STATE:
            request.trace_state = value
    if connection:
        options = [option.strip() for option in connection.lower().split(b",")]
        request.closes = b"close" in options
        keeps = b"keep-alive" in options
        if b"upgrade" in options:
            request.upgrade = upgrade
    if is_chunked:
        # RFC 9112 §6.3: a request with both is to be taken for an attempt at smuggling; so is a coding of HTTP/1.0
        if length is not None or minor == b"0":
            raise Malformed("head_malformed", "Transfer-Encoding beside Content-Length, or in HTTP/1.0")
        length = CHUNKED
    if minor == b"0":
        request.closes = request.closes or not keeps
    elif not has_host:
        raise Malformed("host_invalid")
    request.length = length or 0
    if not target.startswith(b"/"):
        _to_origin_form(request)
    return request


_LENGTH_LINES: Final = (b"\r\nContent-Length: ", b"\r\ncontent-length: ")
"""as the clients that we know spell it; both are of one length"""
_UNKNOWN: Final = -9


def without_length(head: bytes) -> tuple[bytes, bytes, int]:
    """Return a head with the digits of its Content-Length cut out, that header's line, and the length that stood there.

    No line and 0 if there is none; a negative length if it is not one that can be cut out with certainty. Tells nothing
    about whether the head is acceptable: the caller compares the first result with that of a head that was.
    """
    for start in _LENGTH_LINES:
        at = head.find(start)
        if at >= 0:
            value = at + len(start)
            end = head.find(b"\r\n", value)
            digits = head[value:end]
            if digits.isdigit() and len(digits) <= _MOST_DIGITS:
                return head[:value] + head[end:], head[at + 2 : end + 2], int(digits)
            return head, b"", _UNKNOWN
    return head, b"", 0


def _to_origin_form(request: Request) -> None:
    """Turn the absolute form, which RFC 9112 §3.2.2 asks servers to accept, into the origin form."""
    if request.target == b"*" and request.method == "OPTIONS":
        return
    absolute = _ABSOLUTE.match(request.target)
    if absolute is None:
        raise Malformed("head_malformed", "the request target is not a path")
    request.host = absolute[1]
    rest = absolute[2] or b"/"
    request.target = rest if rest.startswith(b"/") else b"/" + rest


def parse_response(head: bytes, max_headers: int) -> Response:
    """Return the answer whose head is given, up to the last header's CRLF (the empty line excluded). Raises Malformed."""
    try:
        lines = _lines_of(head, max_headers)
        first = lines[0] if lines else b""
        version, digits = first[:9], first[9:12]
        if (
            version not in _VERSIONS
            or not digits.isdigit()
            or len(digits) < 3
            or digits < b"100"
            or first[12:13] not in (b" ", b"")
        ):
            raise Malformed("upstream_protocol", "status line")
        is_old = version == b"HTTP/1.0 "
        del lines[0]
        response = Response(int(digits), first[13:], lines, is_old=is_old)
        _read_headers(response)
    except Malformed as error:
        raise Malformed("upstream_protocol", error.detail or error.reason) from error
    return response


def _read_headers(response: Response) -> None:
    is_chunked = False
    for text in response.lines:
        name, colon, value = text.partition(b":")
        kind = _kinds_seen.get(name)
        if kind is None or not colon:
            kind = _kind_of(name if colon else b"")
        if kind == _ORDINARY:
            continue
        value = value.strip(b" \t")
        if kind == _LENGTH_OF_BODY:
            response.declared = _length_of(value, response.declared)
        elif kind == _REQUEST_ID:
            response.request_id = value
        elif kind == _LOCATION:
            if response.location is None or stays_on_host(response.location):  # of several, one that leads away
                response.location = value
        elif kind == _CONTENT_TYPE:
            response.content_type = value.lower()
        elif kind == _CONTENT_CODING:
            response.is_coded = value.lower() != b"identity"
        elif kind == _AUDIO_DURATION:
            response.audio_ms = _milliseconds(value)
        elif kind == _CODING:
            if is_chunked or value.lower() != b"chunked":
                raise Malformed("upstream_protocol", "transfer coding")
            is_chunked = True
            response.passes_whole = False
        elif kind == _CONNECTION:
            response.closes = response.closes or b"close" in [option.strip() for option in value.lower().split(b",")]
            response.passes_whole = False
        elif kind == _HOP:
            response.passes_whole = False
    if is_chunked:
        if response.declared is not None:
            raise Malformed("upstream_protocol", "Transfer-Encoding beside Content-Length")
        response.length = CHUNKED
    elif response.declared is not None:
        response.length = response.declared


def _milliseconds(seconds: bytes) -> int | None:
    """Return a number of seconds in a header as milliseconds; None if it is none."""
    found = _SECONDS.fullmatch(seconds)
    return None if found is None else round(float(seconds) * 1000)


_SECONDS: Final = re.compile(rb"[0-9]{1,6}(?:\.[0-9]{1,9})?")
_LONGEST_SIZE_LINE: Final = 256


@dataclass(slots=True)
class ChunkedBody:
    """Takes a chunked body apart: payload out, extensions and trailers dropped.

    Both are dropped and not refused: neither is forwarded, so no peer can understand them otherwise than we do, and both
    are bounded. Raises Malformed from `feed` for anything else that RFC 9112 §7.1 does not name, and for a trailer that
    speaks of framing (RFC 9110 §6.5.1 forbids it; some readers take it for a header).
    """

    may_be_padded: bool = False
    """blanks may stand behind a size: servers exist that write them, but no client; llhttp refuses them"""
    max_trailer_bytes: int = 16 * 1024
    is_complete: bool = False
    _left: int = field(default=0, init=False)
    """payload bytes of the current chunk that are still to come"""
    _partial: bytes = field(default=b"", init=False)
    """a size line, the CRLF after a chunk, or a trailer line, as far as it came"""
    _at: int = field(default=0, init=False)
    """0: a size line is next, 1: the CRLF that ends a chunk, 2: trailer lines"""
    _overhead: int = field(default=0, init=False)

    def feed(self, data: bytes) -> tuple[list[bytes], int]:
        """Return the payload pieces in the data, and how many of its bytes were taken (fewer only at the body's end)."""
        pieces: list[bytes] = []
        position, end = 0, len(data)
        while position < end:
            if self._left:
                piece = data[position : position + self._left] if position or end > self._left else data
                pieces.append(piece)
                position += len(piece)
                self._left -= len(piece)
                if not self._left:
                    self._at = 1
                continue
            newline = data.find(b"\n", position, position + _LONGEST_SIZE_LINE if self._at != 2 else end)
            if newline < 0:
                self._partial += data[position:]
                if len(self._partial) > (_LONGEST_SIZE_LINE if self._at != 2 else self.max_trailer_bytes):
                    raise Malformed("head_malformed", "a line of the chunked body is too long")
                return pieces, end
            line = self._partial + data[position : newline + 1] if self._partial else data[position : newline + 1]
            self._partial = b""
            position = newline + 1
            if len(line) < 2 or line[-2] != 13:
                raise Malformed("head_malformed", "a line of the chunked body is not ended by CR LF")
            self._take_line(line[:-2])
            if self.is_complete:
                return pieces, position
        return pieces, position

    def _take_line(self, line: bytes) -> None:
        if self._at == 1:
            if line:
                raise Malformed("head_malformed", "a chunk is longer than its size")
            self._at = 0
        elif self._at == 0:
            size = (_PADDED_CHUNK_SIZE if self.may_be_padded else _CHUNK_SIZE).match(line)
            if size is None:
                raise Malformed("head_malformed", "a chunk size is not hexadecimal")
            self._left = int(size[1], 16)
            if not self._left:
                self._at = 2
        elif line:
            self._overhead += len(line)
            if _TRAILER.match(line) is None:
                raise Malformed("head_malformed", "a trailer is not `name: value`")
            if _FRAMING_TRAILER.match(line) is not None:
                raise Malformed("head_malformed", "a trailer speaks of framing")
            if self._overhead > self.max_trailer_bytes:
                raise Malformed("head_malformed", "the trailers are too long")
        else:
            self.is_complete = True


def chunk_of(pieces: list[bytes]) -> bytes:
    """Return the payload pieces, at least one of them not empty, as one chunk."""
    if len(pieces) == 1:
        return b"%x\r\n%b\r\n" % (len(pieces[0]), pieces[0])
    payload = b"".join(pieces)
    return b"%x\r\n%b\r\n" % (len(payload), payload)


LAST_CHUNK: Final = b"0\r\n\r\n"


def host_name(host: bytes) -> bytes:
    """Return the name in a Host value: lower case, without the port."""
    name, _, port = host.rpartition(b":")
    return (name if name and port.isdigit() else host).lower()


_ON_HOST: Final = re.compile(rb"(?!//)[^:/?#\\\t]*(?:[/?#][^\\\t]*)?\Z")
"""a relative reference without an authority (RFC 3986 §4.2), as browsers read it too: they drop tabs, and take `\\` for `/`"""


def stays_on_host(location: bytes) -> bool:
    """Tell whether a redirect leads to a path on the host that the client asked: SDKs carry their key to any other."""
    return _ON_HOST.match(location) is not None
