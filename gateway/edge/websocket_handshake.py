"""Both handshakes of a session: what the client asked for, what the provider answered.

The client's `Sec-WebSocket-Key` goes to the provider as it came, so the provider's `Sec-WebSocket-Accept` is good for the
client as well, and its 101 reaches the client with the headers that it has. Extensions are never agreed on. Read next:
`gateway.edge.websocket_relay`.
"""

import asyncio
import base64
import binascii
import hashlib
import re
from dataclasses import dataclass
from typing import Final, cast

from gateway import http1
from gateway.upstream.faults import UpstreamFault
from policy.facts import Header, RequestHead
from policy.refusal import Refusal
from policy.rewrite import response_headers

_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_KEY: Final = re.compile(rb"[A-Za-z0-9+/]{22}==\Z")
_MOST_HEAD_BYTES: Final = 64 * 1024
_MOST_HEADERS: Final = 256
_MOST_REFUSAL_BYTES: Final = 1024 * 1024
"""of the body with which a provider refuses a handshake; it is held to be relayed with its length"""


def _values(headers: list[Header], name: bytes) -> list[bytes]:
    return [value for spelled, value in headers if spelled.lower() == name]


def _options(headers: list[Header], name: bytes) -> list[bytes]:
    return [option.strip() for value in _values(headers, name) for option in value.split(b",") if option.strip()]


def asked_key(head: RequestHead) -> bytes | Refusal:
    """Return the client's key, or why its handshake is none (RFC 6455 §4.2.1)."""
    versions = _options(head.headers, b"sec-websocket-version")
    if versions != [b"13"]:
        return Refusal("upgrade_refused", "version 13 is spoken here", ((b"Sec-WebSocket-Version", b"13"),))
    keys = _values(head.headers, b"sec-websocket-key")
    if len(keys) != 1 or _KEY.match(keys[0]) is None:
        return Refusal("upgrade_refused", "Sec-WebSocket-Key is not 16 bytes in base64")
    try:
        base64.b64decode(keys[0], validate=True)
    except binascii.Error:
        return Refusal("upgrade_refused", "Sec-WebSocket-Key is not 16 bytes in base64")
    return keys[0]


def accept_of(key: bytes) -> bytes:
    """Return the `Sec-WebSocket-Accept` that answers a key (RFC 6455 §4.2.2)."""
    return base64.b64encode(hashlib.sha1(key + _GUID, usedforsecurity=False).digest())


@dataclass(slots=True)
class Answer:
    """What a provider said to the handshake: `response.status` 101, or a refusal with its whole body."""

    response: http1.Response
    body: bytes = b""


class HandshakeReader(asyncio.Protocol):
    """Reads one provider's answer to the handshake; `answered` gives it, or raises UpstreamFault.

    What follows a 101 is kept in `rest`, in order, until another protocol takes the transport over; `is_over` tells that
    the connection has ended meanwhile.
    """

    def __init__(self, key: bytes, offered: list[bytes]) -> None:
        """offered: the subprotocols that the client offered to the provider."""
        self.answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.rest = b""
        self.is_over = False
        self.has_read = False
        """a byte of the answer came: asking again elsewhere is no retry of a stale connection"""
        self._key = key
        self._offered = offered
        self._answer: Answer | None = None
        self._chunks: http1.ChunkedBody | None = None
        self._buffer = b""

    def give_up(self) -> None:
        """Wait for the answer no longer."""
        if not self.answered.done():
            self._fault("upstream_timeout", "no answer to the handshake")

    def data_received(self, data: bytes) -> None:
        """Take bytes of the answer, or of what follows it."""
        self.has_read = True
        if self.answered.done():
            self.rest += data
        elif self._answer is not None:
            self._take_body(data)
        else:
            self._buffer += data
            self._take_head()

    def eof_received(self) -> bool:
        """Note the end; the transport stays, for what it holds is still to be relayed."""
        self.is_over = True
        self._ended()
        return True

    def connection_lost(self, _: Exception | None) -> None:
        """Note the end."""
        self.is_over = True
        self._ended()

    def _ended(self) -> None:
        if self.answered.done():
            return
        if self._answer is not None and self._answer.response.length == http1.UNTIL_CLOSE:
            self.answered.set_result(self._answer)
        else:
            self._fault("upstream_gone", "the connection ended before the answer did")

    def _fault(self, reason: str, detail: str) -> None:
        self.answered.set_exception(UpstreamFault(reason, "response_head", anything_sent=True, detail=detail))

    def _take_head(self) -> None:
        while True:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self._buffer) > _MOST_HEAD_BYTES:
                    self._fault("upstream_protocol", "the head is too large")
                return
            head, rest = self._buffer[: end + 2], self._buffer[end + 4 :]
            self._buffer = rest
            try:
                response = http1.parse_response(head, _MOST_HEADERS)
            except http1.Malformed as error:
                self._fault("upstream_protocol", error.detail)
                return
            if response.status == 101:
                self._take_101(response, rest)
                return
            if response.status >= 200:
                self._answer = Answer(response)
                self._begin_body(response, rest)
                return

    def _take_101(self, response: http1.Response, rest: bytes) -> None:
        headers = response.headers
        if [option.lower() for option in _options(headers, b"upgrade")] != [b"websocket"]:
            self._fault("upstream_protocol", "101 without Upgrade: websocket")
        elif b"upgrade" not in [option.lower() for option in _options(headers, b"connection")]:
            self._fault("upstream_protocol", "101 without Connection: Upgrade")
        elif _values(headers, b"sec-websocket-accept") != [accept_of(self._key)]:
            self._fault("upstream_protocol", "Sec-WebSocket-Accept does not answer the key")
        elif _options(headers, b"sec-websocket-extensions"):
            self._fault("upstream_protocol", "an extension was accepted that nobody offered")
        elif any(chosen not in self._offered for chosen in _values(headers, b"sec-websocket-protocol")):
            self._fault("upstream_protocol", "a subprotocol was chosen that nobody offered")
        else:
            self.rest = rest
            self._buffer = b""
            self.answered.set_result(Answer(response))

    def _begin_body(self, response: http1.Response, rest: bytes) -> None:
        if response.length == http1.CHUNKED:
            self._chunks = http1.ChunkedBody(may_be_padded=True)
        self._take_body(rest)

    def _take_body(self, data: bytes) -> None:
        answer = cast(Answer, self._answer)  # set before the body's first byte is taken
        length = answer.response.length
        is_complete = False
        if self._chunks is not None:
            try:
                pieces, _ = self._chunks.feed(data)
            except http1.Malformed as error:
                self._fault("upstream_protocol", error.detail)
                return
            answer.body += b"".join(pieces)
            is_complete = self._chunks.is_complete
        else:
            answer.body += data
            if length >= 0 and len(answer.body) >= length:
                answer.body = answer.body[:length]
                is_complete = True
        if not answer.response.has_body("GET"):
            answer.body = b""
            is_complete = True
        if len(answer.body) > _MOST_REFUSAL_BYTES:
            self._fault("upstream_protocol", "the refusal's body is too large")
        elif is_complete:
            self.answered.set_result(answer)


def switching_head(response: http1.Response, request_id: str, subprotocol: bytes | None) -> bytes:
    """Return the 101 for the client: the provider's own, with our request id. subprotocol: ours, where it chose none."""
    headers = response_headers(response.headers, request_id)
    if subprotocol is not None and not _values(headers, b"sec-websocket-protocol"):
        headers.append((b"Sec-WebSocket-Protocol", subprotocol))
    lines = b"".join(b"%b: %b\r\n" % header for header in headers)
    reason = response.reason or b"Switching Protocols"
    return b"HTTP/1.1 101 %b\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n%b\r\n" % (reason, lines)


def refusal_head(answer: Answer, request_id: str) -> bytes:
    """Return the head with which a provider's refusal reaches the client; its body is framed by its length."""
    dropped = b"content-length"
    headers = [header for header in response_headers(answer.response.headers, request_id) if header[0].lower() != dropped]
    lines = b"".join(b"%b: %b\r\n" % header for header in headers)
    framing = b"" if answer.response.status in (204, 304) else b"Content-Length: %d\r\n" % len(answer.body)
    return b"HTTP/1.1 %d %b\r\n%b%bConnection: close\r\n\r\n" % (answer.response.status, answer.response.reason, lines, framing)


def leads_elsewhere(response: http1.Response) -> bool:
    """Tell whether a refusal would lead the client to another host, with its token or without."""
    location = response.location
    return location is not None and 300 <= response.status < 400 and not http1.stays_on_host(location)
