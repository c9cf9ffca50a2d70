"""HTTP/1.1 heads and chunked bodies: what is taken, and that everything two readers could differ on is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http1 import (
    CHUNKED,
    UNTIL_CLOSE,
    ChunkedBody,
    Malformed,
    chunk_of,
    host_name,
    parse_request,
    parse_response,
    stays_on_host,
    without_length,
)


def request(*lines: bytes) -> bytes:
    return b"".join(line + b"\r\n" for line in lines)


def test_a_request_keeps_bytes_order_case_and_duplicates() -> None:
    head = request(b"PATCH /a%2Fb?x=1&x=2 HTTP/1.1", b"hOST: gw:80", b"X-A:  1 \t", b"x-a: \xe9", b"X-Empty:")

    parsed = parse_request(head, 100)

    assert parsed.method == "PATCH"
    assert parsed.target == b"/a%2Fb?x=1&x=2"
    assert parsed.headers == [(b"hOST", b"gw:80"), (b"X-A", b"1"), (b"x-a", b"\xe9"), (b"X-Empty", b"")]
    assert parsed.host == b"gw:80"
    assert parsed.length == 0
    assert not parsed.closes


@pytest.mark.parametrize(
    ("lines", "length"),
    [((b"Content-Length: 12",), 12), ((b"content-length:0",), 0), ((b"Transfer-Encoding: Chunked",), CHUNKED), ((), 0)],
)
def test_the_length_of_a_body_comes_from_its_one_framing_header(lines: tuple[bytes, ...], length: int) -> None:
    assert parse_request(request(b"POST / HTTP/1.1", b"Host: h", *lines), 100).length == length


@pytest.mark.parametrize(
    "lines",
    [
        (b"Content-Length: 5", b"Transfer-Encoding: chunked"),
        (b"Transfer-Encoding: chunked", b"Content-Length: 5"),
        (b"Content-Length: 5", b"Content-Length: 5"),
        (b"Content-Length: 5, 5",),
        (b"Content-Length: +5",),
        (b"Content-Length: 0x5",),
        (b"Content-Length: -1",),
        (b"Content-Length:",),
        (b"Content-Length: 1e3",),
        (b"Content-Length: 9999999999999999999",),
        (b"Transfer-Encoding: gzip, chunked",),
        (b"Transfer-Encoding: chunked, chunked",),
        (b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
        (b"Transfer-Encoding: xchunked",),
        (b"Transfer-Encoding: identity",),
        (b"Transfer-Encoding : chunked",),
        (b"Content-Length : 5",),
        (b" Content-Length: 5",),
        (b"X: a", b" folded"),
        (b"X: a", b"\tfolded"),
        (b"X: a\nContent-Length: 5",),
        (b"X: a\rContent-Length: 5",),
        (b"X: a\x00b",),
        (b"X: a\x0bTransfer-Encoding: chunked",),
        (b"X\x00: a",),
        (b"X(: a",),
        (b": empty name",),
        (b"no colon",),
        (b"",),
        (b"Expect: 200-ok",),
    ],
)
def test_a_head_that_two_readers_could_read_differently_is_refused(lines: tuple[bytes, ...]) -> None:
    with pytest.raises(Malformed) as refused:
        parse_request(request(b"POST / HTTP/1.1", b"Host: h", *lines), 100)

    assert refused.value.reason == "head_malformed"


@pytest.mark.parametrize(
    "line",
    [
        b"GET  / HTTP/1.1",
        b"GET / HTTP/1.1 ",
        b" GET / HTTP/1.1",
        b"GET / HTTP/2.0",
        b"GET / HTTP/1.2",
        b"GET / http/1.1",
        b"GET /",
        b"GET /a b HTTP/1.1",
        b"GET /\x7f HTTP/1.1",
        b"PRI * HTTP/2.0",
        b"CONNECT host:443 HTTP/1.1",
        b"GET host/path HTTP/1.1",
        b"GET ftp://h/ HTTP/1.1",
        b"GET http://user@h/ HTTP/1.1",
        b"G\xc9T / HTTP/1.1",
        b"",
    ],
)
def test_a_request_line_that_is_not_plain_is_refused(line: bytes) -> None:
    with pytest.raises(Malformed) as refused:
        parse_request(request(line, b"Host: h"), 100)

    assert refused.value.reason == "head_malformed"


@pytest.mark.parametrize("hosts", [(), (b"Host: a", b"Host: a"), (b"Host: a", b"hOsT: b")])
def test_a_request_without_exactly_one_host_is_refused(hosts: tuple[bytes, ...]) -> None:
    with pytest.raises(Malformed) as refused:
        parse_request(request(b"GET / HTTP/1.1", *hosts), 100)

    assert refused.value.reason == "host_invalid"


def test_the_absolute_form_becomes_the_origin_form_with_its_own_host() -> None:
    parsed = parse_request(request(b"GET HTTP://other:8080?q=1 HTTP/1.1", b"Host: h"), 100)

    assert (parsed.target, parsed.host) == (b"/?q=1", b"other:8080")


def test_more_headers_than_the_limit_are_refused() -> None:
    with pytest.raises(Malformed) as refused:
        parse_request(request(b"GET / HTTP/1.1", b"Host: h", b"A: 1", b"B: 2"), 2)

    assert refused.value.reason == "head_too_large"


@pytest.mark.parametrize(
    ("version", "connection", "closes"),
    [
        (b"1.1", b"Accept: x", False),
        (b"1.1", b"Connection: keep-alive, Close", True),
        (b"1.0", b"Accept: x", True),
        (b"1.0", b"Connection: Keep-Alive", False),
    ],
)
def test_the_version_and_connection_header_say_whether_the_connection_goes_on(
    version: bytes, connection: bytes, closes: bool
) -> None:
    assert parse_request(request(b"GET / HTTP/" + version, b"Host: h", connection), 100).closes is closes


def test_an_upgrade_counts_only_if_connection_names_it() -> None:
    named = parse_request(
        request(b"GET / HTTP/1.1", b"Host: h", b"Upgrade: WebSocket", b"Connection: x", b"Connection: Upgrade"), 9
    )
    unnamed = parse_request(request(b"GET / HTTP/1.1", b"Host: h", b"Upgrade: websocket"), 9)

    assert (named.upgrade, unnamed.upgrade) == (b"websocket", b"")


def test_a_response_keeps_its_reason_phrase_and_duplicate_headers() -> None:
    parsed = parse_response(request(b"HTTP/1.1 429 Slow  down", b"set-cookie: a", b"Set-Cookie: b", b"Content-Length: 3"), 100)

    assert (parsed.status, parsed.reason) == (429, b"Slow  down")
    assert parsed.headers == [(b"set-cookie", b"a"), (b"Set-Cookie", b"b"), (b"Content-Length", b"3")]
    assert parsed.length == 3


def test_a_response_without_framing_lasts_until_its_connection_closes() -> None:
    parsed = parse_response(request(b"HTTP/1.0 200"), 100)

    assert (parsed.length, parsed.closes, parsed.reason) == (UNTIL_CLOSE, True, b"")


@pytest.mark.parametrize(
    "lines",
    [
        (b"HTTP/2 200 OK",),
        (b"HTTP/1.1 99 X",),
        (b"HTTP/1.1 20",),
        (b"HTTP/1.1 099 X",),
        (b"HTTP/1.1 2000 X",),
        (b"HTTP/1.1  200 X",),
        (b"ICY 200 OK",),
        (b"HTTP/1.1 200 OK", b"Content-Length: 1", b"Transfer-Encoding: chunked"),
        (b"HTTP/1.1 200 OK", b"Content-Length: 1", b"Content-Length: 2"),
        (b"HTTP/1.1 200 OK", b"Transfer-Encoding: gzip"),
        (b"HTTP/1.1 200 OK", b"X: a", b" folded"),
    ],
)
def test_a_response_with_unclear_framing_is_a_protocol_fault(lines: tuple[bytes, ...]) -> None:
    with pytest.raises(Malformed) as refused:
        parse_response(request(*lines), 100)

    assert refused.value.reason == "upstream_protocol"


@pytest.mark.parametrize(
    ("method", "status", "has_body"), [("HEAD", 200, False), ("GET", 204, False), ("GET", 304, False), ("GET", 404, True)]
)
def test_head_204_and_304_have_no_body(method: str, status: int, has_body: bool) -> None:
    assert parse_response(request(b"HTTP/1.1 %d X" % status), 100).has_body(method) is has_body


def fed(body: ChunkedBody, *reads: bytes) -> tuple[bytes, bytes]:
    """Return the payload, and what was left over after the body's end."""
    payload = b""
    for at, read in enumerate(reads):
        pieces, used = body.feed(read)
        payload += b"".join(pieces)
        if body.is_complete:
            return payload, read[used:] + b"".join(reads[at + 1 :])
    return payload, b""


def test_extensions_and_trailers_of_a_chunked_body_are_dropped() -> None:
    body = ChunkedBody()

    assert fed(body, b'5;a="b"\r\nhello\r\n3\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\nGET /') == (b"helloabc", b"GET /")
    assert body.is_complete


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.data())
def test_a_chunked_body_reads_the_same_however_it_is_cut(chunks: list[bytes], data: st.DataObject) -> None:
    wire = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\nrest"
    cuts = sorted(data.draw(st.sets(st.integers(1, len(wire) - 1), max_size=8)))
    reads = [wire[start:end] for start, end in zip([0, *cuts], [*cuts, len(wire)], strict=True)]

    assert fed(ChunkedBody(), *reads) == (b"".join(chunks), b"rest")


@pytest.mark.parametrize(
    "wire",
    [
        b"0\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"0\r\nX: 1\r\ncontent-length: 5\r\n\r\n",
        b"5\nhello\r\n",
        b"5\r\nhello\n",
        b"5\r\nhello!\r\n",
        b"5\r\nhelloX\n0\r\n\r\n",
        b"0x5\r\nhello\r\n",
        b"-1\r\n",
        b" 5\r\nhello\r\n",
        b"\r\n",
        b"5 5\r\nhello\r\n",
        b"5 \r\nhello\r\n",
        b"5\t;a\r\nhello\r\n",
        b"ffffffffffffffffff\r\n",
        b"5;" + b"a" * 300 + b"\r\nhello\r\n",
        b"0\r\n" + b"X: " + b"a" * 20_000 + b"\r\n\r\n",
        b"0\r\n" + b"X: a\r\n" * 5000,
        b"5;a\rb\r\nhello\r\n",
        b"0\r\nX-T: a\rb\r\n\r\n",
        b"0\r\n//X-T: 1\r\n\r\n",
        b"0\r\n X-T: 1\r\n\r\n",
    ],
)
def test_a_chunked_body_that_is_not_exact_is_refused(wire: bytes) -> None:
    with pytest.raises(Malformed):
        fed(ChunkedBody(), wire)


def test_a_provider_may_write_blanks_behind_a_size_as_old_servers_do() -> None:
    assert fed(ChunkedBody(may_be_padded=True), b"5  \r\nhello\r\n0 \r\n\r\n") == (b"hello", b"")


def test_pieces_become_one_chunk() -> None:
    assert chunk_of([b"0123456789", b"abcdef"]) == b"10\r\n0123456789abcdef\r\n"


@pytest.mark.parametrize(
    ("host", "name"),
    [(b"GW.Test:8443", b"gw.test"), (b"gw.test", b"gw.test"), (b"[::1]:80", b"[::1]"), (b"[::1]", b"[::1]"), (b"", b"")],
)
def test_a_host_name_is_lower_case_without_its_port(host: bytes, name: bytes) -> None:
    assert host_name(host) == name


@pytest.mark.parametrize(
    "location", [b"/", b"/cartesia/voices/", b"?page=2", b"#top", b"next", b"a/b:c", b"./x", b"/x?to=https://y", b""]
)
def test_a_relative_redirect_stays_on_its_host(location: bytes) -> None:
    assert stays_on_host(location)


@pytest.mark.parametrize(
    "location",
    [
        b"https://evil.test/",
        b"HTTPS:evil.test",
        b"https:/evil.test",
        b"//evil.test",
        b"/\\evil.test",
        b"\\\\evil.test",
        b"/\t/evil.test",
        b"ht\ttps://evil.test",
        b"x/\\evil.test",
    ],
)
def test_a_redirect_that_any_client_could_follow_to_another_host_does_not(location: bytes) -> None:
    assert not stays_on_host(location)


@pytest.mark.parametrize("lines", [(b"Location: //evil.test", b"location: /"), (b"Location: /", b"location: //evil.test")])
def test_of_two_redirects_the_one_that_leads_away_counts(lines: tuple[bytes, ...]) -> None:
    assert parse_response(request(b"HTTP/1.1 302 Found", *lines), 100).location == b"//evil.test"


_LINES = st.one_of(
    st.tuples(
        st.sampled_from([b"Content-Length: ", b"content-length: ", b"Content-length:"]), st.text("0159 +\t", max_size=3)
    ).map(lambda pair: pair[0] + pair[1].encode()),
    st.sampled_from([b"Transfer-Encoding: chunked", b"X: Content-Length: 5", b"X: 1"]),
)


@given(st.lists(_LINES, max_size=3), st.lists(_LINES, max_size=3))
def test_heads_that_are_alike_without_their_length_are_read_alike(known: list[bytes], next_one: list[bytes]) -> None:
    """What was found in the first is used for the second, which is not taken apart."""
    start = (b"GET / HTTP/1.1", b"Host: h")
    first, second = request(*start, *known), request(*start, *next_one)
    key, line, _ = without_length(first)
    other_key, other_line, length = without_length(second)
    try:
        parsed = parse_request(first, 9)
    except Malformed:
        return
    if parsed.framing != line or key != other_key or length < 0:
        return

    again = parse_request(second, 9)

    assert (again.length, again.framing) == (length, other_line)


@given(st.binary(max_size=200))
def test_any_bytes_are_parsed_or_refused(head: bytes) -> None:
    try:
        parsed = parse_request(head, 10)
    except Malformed:
        return
    assert parsed.target.startswith(b"/") or parsed.target == b"*"
