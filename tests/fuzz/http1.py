"""Fuzzing HTTP/1.1 as the edge reads it: `python -m tests.fuzz http1 --seconds 60`.

What our parser accepts, llhttp (through httptools) has to accept as well, with the same method, target, headers and the same
end of the message: an independent reader that disagrees is how a request is smuggled. What failed is kept in
`tests/fuzz/corpus/http1/<target>/` and replayed by `tests/unit/edge_http/test_fuzz_corpus.py`.
"""

from collections.abc import Callable
from pathlib import Path

import httptools

from gateway.http1 import CHUNKED, UNTIL_CLOSE, ChunkedBody, Malformed, parse_request, parse_response, without_length

CORPUS = Path(__file__).parent / "corpus" / "http1"
GOLDEN = Path(__file__).parents[1] / "golden" / "edge_http"
NEXT = b"GET /next HTTP/1.1\r\nHost: h\r\n\r\n"


class Reader:
    """What llhttp makes of the bytes: the first message, and how many messages there were."""

    def __init__(self) -> None:
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = b""
        self.messages = 0
        self.heads = 0

    def on_url(self, url: bytes) -> None:
        if not self.heads:
            self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.heads:
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self.heads += 1

    def on_body(self, body: bytes) -> None:
        if not self.messages:
            self.body += body

    def on_message_complete(self) -> None:
        self.messages += 1


def fuzz_request(data: bytes) -> None:
    """Read a request with its body and one that follows, as we do and as llhttp does."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return
    head, rest = data[: end + 2], data[end + 4 :]
    try:
        request = parse_request(head, 100)
    except Malformed:
        return
    _check_length_line(head)
    if request.closes or request.upgrade or request.method not in ("GET", "POST", "PUT", "PATCH", "DELETE"):
        return  # llhttp stops at an upgrade and after a close, and knows its own list of methods alone
    if request.length == CHUNKED:
        body = ChunkedBody()
        try:
            pieces, used = body.feed(rest)
        except Malformed:
            return
        if not body.is_complete:
            return
        payload, rest = b"".join(pieces), rest[:used]
    else:
        if len(rest) < request.length:
            return
        payload = rest = rest[: request.length]
    reader = Reader()
    parser = httptools.HttpRequestParser(reader)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    try:
        parser.feed_data(head + b"\r\n" + rest + NEXT)
    except httptools.HttpParserUpgrade:
        return
    except httptools.HttpParserInvalidURLError:
        return
    except httptools.HttpParserError as error:
        if "chunk extensions" in str(error):
            return  # dropped here, whatever they hold
        raise
    assert reader.body == payload, (reader.body, payload)
    assert reader.messages == 2, "llhttp sees another number of messages"
    seen = [(name, value.rstrip(b" \t")) for name, value in reader.headers]  # llhttp keeps blanks at the end
    assert seen[: len(request.headers)] == request.headers


def _check_length_line(head: bytes) -> None:
    key, line, length = without_length(head)
    if length > 0 or line:
        again = (
            parse_request(key.replace(line.rstrip(b"\r\n0123456789"), line[:-2], 1), 100) if key.count(line[:16]) == 1 else None
        )
        assert again is None or again.length == length


def fuzz_response(data: bytes) -> None:
    """Read an answer's head: whatever is accepted has a status, whole lines and one framing."""
    end = data.find(b"\r\n\r\n")
    try:
        response = parse_response(data[: end + 2] if end >= 0 else data, 100)
    except Malformed:
        return
    assert 100 <= response.status <= 999
    assert response.length >= 0 or response.length in (CHUNKED, UNTIL_CLOSE)
    for line in response.lines:
        assert b":" in line
        assert not set(line) & {0, 10, 13}


def fuzz_chunked(data: bytes) -> None:
    """Read a chunked body whole and byte by byte, to the same end."""
    whole, single = ChunkedBody(), ChunkedBody()
    try:
        pieces, used = whole.feed(data)
    except Malformed:
        pieces, used = [], -1
    payload, taken = b"", 0
    try:
        for at in range(len(data)):
            if single.is_complete:
                break
            got, _ = single.feed(data[at : at + 1])
            payload += b"".join(got)
            taken += 1
    except Malformed:
        assert used == -1
        return
    if used >= 0:
        assert (payload, single.is_complete) == (b"".join(pieces), whole.is_complete)
        assert taken == used or not whole.is_complete


TARGETS: dict[str, Callable[[bytes], None]] = {
    "request": fuzz_request,
    "response": fuzz_response,
    "chunked": fuzz_chunked,
}


def seeds_of(target: str) -> list[bytes]:
    """Return inputs of the right shape, the kept failures among them."""
    kept = [file.read_bytes() for file in sorted((CORPUS / target).glob("*"))]
    chunked = b"5;a=1\r\nhello\r\n3\r\nabc\r\n0\r\nX-T: 1\r\n\r\n"
    if target == "chunked":
        return [*kept, chunked, b"0\r\n\r\n", b"a\r\n0123456789\r\n0\r\n\r\n"]
    if target == "response":
        return [
            *kept,
            b"HTTP/1.1 200 OK\r\nContent-Type: audio/wav\r\nContent-Length: 5\r\nConnection: close\r\n\r\n",
            b"HTTP/1.0 404 Not Found\r\nTransfer-Encoding: chunked\r\nSet-Cookie: a\r\n\r\n",
            b"HTTP/1.1 204\r\nX: \xe9\r\n\r\n",
        ]
    post = b"POST /cartesia/tts HTTP/1.1\r\nHost: h\r\nX-A:  b \r\n"
    kept += [post + b"Content-Length: 5\r\n\r\nhello", post + b"Transfer-Encoding: chunked\r\n\r\n" + chunked]
    for file in sorted(GOLDEN.glob("*.txt")):
        for case in file.read_bytes().split(b"=== ")[1:4]:
            head, _, rest = case.partition(b"\n")[2].partition(b"\n--- body ")
            kept.append(head.replace(b"\n", b"\r\n") + b"\r\n\r\n" + bytes.fromhex(rest.partition(b"\n")[0].decode()))
    return kept
