"""What is kept of a head, what is cut, and where a token may stand."""

import pytest

from policy.facts import RequestHead
from policy.refusal import Refusal
from policy.scan import Scan, cartesia_version, scan_of
from tests.kit.heads import head_of

TOKEN = "eyJh.bG9uZ2Vub3VnaA.c2lnbmF0dXJl"


def scanned(head: RequestHead) -> Scan:
    found = scan_of(head, {})
    assert isinstance(found, Scan), found
    return found


def refused(head: RequestHead) -> str:
    found = scan_of(head, {})
    assert isinstance(found, Refusal), found
    return found.reason


@pytest.mark.parametrize(
    "header",
    [
        "Authorization: Bearer " + TOKEN,
        "authorization: bearer " + TOKEN,
        "AUTHORIZATION: BEARER   " + TOKEN,
        "X-API-Key: " + TOKEN,
        "x-api-key: " + TOKEN,
    ],
)
def test_a_token_in_a_header_is_found_and_cut(header: str) -> None:
    scan = scanned(head_of("POST /cartesia/tts/bytes", header, "Accept: audio/wav"))

    assert scan.token == TOKEN.encode()
    assert scan.header_block == b"Accept: audio/wav"


@pytest.mark.parametrize("name", ["access_token", "api_key"])
def test_a_token_in_the_query_is_found_and_cut(name: str) -> None:
    scan = scanned(head_of(f"GET /cartesia/tts/websocket?a=1&{name}={TOKEN}&b=%20", is_websocket=True))

    assert scan.token == TOKEN.encode()
    assert scan.target == b"/tts/websocket?a=1&b=%20"


@pytest.mark.parametrize(
    ("query", "kept"),
    [
        ("api_key=s", ""),
        ("api_key", ""),
        ("api_key=", ""),
        ("api_key=s&x=1", "x=1"),
        ("x=1&api_key=s", "x=1"),
        ("x=1&&api_key=s&&y", "x=1&&&y"),
        ("API_KEY=s&x=1", "x=1"),
        ("Access_Token=s&x=1", "x=1"),
        ("api%5Fkey=s&x=1", "x=1"),
        ("%61pi_key=s&x=1", "x=1"),
        ("api%255Fkey=s&x=1", "x=1"),
        ("api_key[]=s&x=1", "x=1"),
        ("api_key%5B0%5D=s&x=1", "x=1"),
        ("+api_key=s&x=1", "x=1"),
        ("api_key%00=s&x=1", "x=1"),
        ("x=1;api_key=s&y=2", "x=1&y=2"),
        ("api_key=s;x=1&y=2", "y=2"),
        ("x-glottis-metadata=%7B%7D&x=1", "x=1"),
        ("X-TFY-METADATA=%7B%7D&x=1", "x=1"),
        ("b=2&a=1&a=3&api_keys=4&my_api_key=5", "b=2&a=1&a=3&api_keys=4&my_api_key=5"),
        ("q=%41%20+&cartesia_client=cartesia-js%2F4.2.0", "q=%41%20+&cartesia_client=cartesia-js%2F4.2.0"),
    ],
)
def test_credentials_are_cut_from_the_query_in_every_spelling_and_other_bytes_kept(query: str, kept: str) -> None:
    scan = scanned(head_of(f"GET /cartesia/voices?{query}"))

    assert scan.target == b"/voices" + (b"?" + kept.encode() if kept else b"")


@pytest.mark.parametrize("query", ["API_KEY=", "api%5Fkey=", "api_key[]=", "x=1;api_key="])
def test_a_misspelled_query_credential_is_cut_but_not_accepted(query: str) -> None:
    scan = scanned(head_of(f"GET /cartesia/voices?{query}{TOKEN}"))

    assert scan.token is None
    assert TOKEN.encode() not in scan.target


@pytest.mark.parametrize(
    "header",
    [
        "Host: gateway.test",
        "Content-Length: 3",
        "Transfer-Encoding: chunked",
        "Keep-Alive: timeout=5",
        "TE: trailers",
        "Trailer: X-Sum",
        "Upgrade: h2c",
        "HTTP2-Settings: AAM",
        "Proxy-Connection: keep-alive",
        "Proxy-Authorization: Basic eA==",
        "Cookie: session=1",
        "Forwarded: for=10.0.0.1",
        "X-Forwarded-For: 10.0.0.1",
        "x-forwarded-proto: https",
        "X-Glottis-Anything: 1",
        "traceparent: 00-1-2-01",
        "tracestate: a=b",
        "baggage: a=b",
        "Sec-WebSocket-Extensions: permessage-deflate",
        "X_API_KEY: s",
        "X_Forwarded_For: 10.0.0.1",
    ],
)
def test_what_the_change_table_names_does_not_go_up(header: str) -> None:
    scan = scanned(head_of("POST /cartesia/tts/bytes", "A: 1", header, "B: 2"))

    assert scan.header_block == b"A: 1\r\nB: 2"


def test_everything_else_keeps_bytes_order_case_and_duplicates() -> None:
    scan = scanned(
        head_of(
            "GET /cartesia/tts/websocket",
            "X-Note: \xe9  two  blanks",
            "cartesia-VERSION: 2024-11-13",
            "x-note: again",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
            "Sec-WebSocket-Version: 13",
            "Origin: https://app.test",
            "Accept-Encoding: gzip, deflate",
            is_websocket=True,
        )
    )

    assert scan.header_block == (
        b"X-Note: \xe9  two  blanks\r\n"
        b"cartesia-VERSION: 2024-11-13\r\n"
        b"x-note: again\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        b"Sec-WebSocket-Version: 13\r\n"
        b"Origin: https://app.test\r\n"
        b"Accept-Encoding: gzip, deflate"
    )


def test_headers_that_connection_names_are_hop_by_hop() -> None:
    scan = scanned(head_of("GET /cartesia/voices", "X-Hop: 1", "Connection: close, X-Hop ,x-other", "X-Other: 2", "X-Kept: 3"))

    assert scan.header_block == b"X-Kept: 3"


def test_trace_headers_stay_in_their_places_for_accounts_that_forward_them() -> None:
    scan = scanned(head_of("GET /cartesia/voices", "A: 1", "traceparent: 00-1-2-01", "B: 2"))

    assert scan.header_block == b"A: 1\r\nB: 2"
    assert scan.traced_block == b"A: 1\r\ntraceparent: 00-1-2-01\r\nB: 2"


def test_expect_goes_up_only_where_the_provider_is_to_answer_it() -> None:
    assert scanned(head_of("POST /cartesia/voices/clone", "Expect: 100-continue")).header_block == b"Expect: 100-continue"
    assert scanned(head_of("POST /cartesia/stt", "Expect: 100-continue")).header_block == b""


@pytest.mark.parametrize(
    ("request_line", "headers"),
    [
        ("GET /cartesia/voices", ("Authorization: Bearer one", "X-API-Key: two")),
        ("GET /cartesia/voices", ("X-API-Key: one", "X-API-Key: two")),
        ("GET /cartesia/voices?api_key=two", ("Authorization: Bearer one",)),
        ("GET /cartesia/voices?api_key=one&access_token=two", ()),
        ("GET /cartesia/voices?api_key=one&api_key=two", ()),
        ("GET /cartesia/tts/websocket", ("X-API-Key: one", "Sec-WebSocket-Protocol: glottis.v1, glottis.auth.two")),
    ],
)
def test_tokens_that_differ_are_refused(request_line: str, headers: tuple[str, ...]) -> None:
    assert refused(head_of(request_line, *headers, is_websocket="websocket" in request_line)) == "credentials_conflict"


def test_tokens_that_agree_are_one() -> None:
    scan = scanned(head_of(f"GET /cartesia/voices?api_key={TOKEN}&access_token=", f"X-API-Key: {TOKEN}", token=TOKEN))

    assert scan.token == TOKEN.encode()
    assert scan.target == b"/voices"


@pytest.mark.parametrize("header", ["Authorization: Basic dXNlcjpwYXNz", "Authorization: Token abc", "Authorization: abc"])
def test_another_scheme_than_bearer_is_refused(header: str) -> None:
    assert refused(head_of("GET /cartesia/voices", header)) == "scheme_unsupported"


@pytest.mark.parametrize(
    ("request_line", "headers"),
    [
        ("GET /cartesia/voices", (f"X-Debug: key={TOKEN}",)),
        ("GET /cartesia/voices", (f"Referer: https://app.test/?access_token={TOKEN}",)),
        (f"GET /cartesia/voices?q={TOKEN}", ()),
        (f"GET /cartesia/voices/{TOKEN}", ()),
    ],
)
def test_a_token_that_would_reach_the_provider_elsewhere_is_refused(request_line: str, headers: tuple[str, ...]) -> None:
    assert refused(head_of(request_line, *headers, token=TOKEN)) == "credential_misplaced"


@pytest.mark.parametrize(
    ("offered", "block", "answered", "has_token"),
    [
        ("glottis.v1, glottis.auth." + TOKEN, b"", b"glottis.v1", True),
        ("glottis.auth." + TOKEN + ",glottis.v1", b"", b"glottis.v1", True),
        ("realtime, glottis.v1, glottis.auth." + TOKEN, b"Sec-WebSocket-Protocol: realtime", b"glottis.v1", True),
        ("realtime,  other", b"Sec-WebSocket-Protocol: realtime,  other", None, False),
    ],
)
def test_our_subprotocols_do_not_go_up(offered: str, block: bytes, answered: bytes | None, has_token: bool) -> None:
    scan = scanned(head_of("GET /cartesia/tts/websocket", "Sec-WebSocket-Protocol: " + offered, is_websocket=True))

    assert scan.header_block == block
    assert scan.subprotocol == answered
    assert scan.token == (TOKEN.encode() if has_token else None)


def test_the_auth_subprotocol_alone_is_refused() -> None:
    head = head_of("GET /cartesia/tts/websocket", f"Sec-WebSocket-Protocol: glottis.auth.{TOKEN}", is_websocket=True)

    assert refused(head) == "subprotocol_alone"


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("model=ink-2&model=ink-3", "judged_parameter_twice"),
        ("model=ink-2&encoding=pcm_s16le&encoding=pcm_f32le", "judged_parameter_twice"),
        ("%6dodel=ink-2", "judged_parameter_spelling"),
        ("Model=ink-2", "judged_parameter_spelling"),
        ("model=ink-2&model[]=ink-3", "judged_parameter_spelling"),
        ("a b", "query_refused"),
        ("a\r\nb", "query_refused"),
        ("a#b", "query_refused"),
    ],
)
def test_a_judged_query_that_can_be_read_in_two_ways_is_refused(query: str, reason: str) -> None:
    assert refused(RequestHead("GET", b"/cartesia/stt/websocket", query.encode(), [], True)) == reason


def test_the_query_of_a_speech_to_text_socket_says_model_and_format() -> None:
    query = "keyterm=a+b&model=ink%2D2&encoding=pcm_s16le&sample_rate=16000&keyterm=c"
    scan = scanned(head_of(f"GET /cartesia/stt/websocket?{query}", is_websocket=True))

    assert (scan.facts.model, scan.facts.encoding, scan.facts.sample_rate) == ("ink-2", "pcm_s16le", 16000)
    assert scan.target == b"/stt/websocket?" + query.encode()


@pytest.mark.parametrize(
    "request_line",
    [
        "GET /cartesia/voices?X-Glottis-Metadata=%7B%22agent%22%3A%22a+1%22%7D",
        'GET /cartesia/voices?x-tfy-metadata={"agent":"a+1"}',
    ],
)
def test_metadata_is_read_from_the_query(request_line: str) -> None:
    scan = scanned(head_of(request_line))

    assert scan.metadata == (("agent", "a 1"),)
    assert scan.target == b"/voices"


@pytest.mark.parametrize("name", ["X-Glottis-Metadata", "X-TFY-METADATA", "x-tfy-metadata"])
def test_metadata_is_read_from_its_header_and_its_alias(name: str) -> None:
    scan = scanned(head_of("GET /cartesia/voices", f'{name}: {{"agent": "a1", "tenant": "t"}}'))

    assert scan.metadata == (("agent", "a1"), ("tenant", "t"))
    assert scan.header_block == b""


@pytest.mark.parametrize(
    "headers",
    [
        ("X-Glottis-Metadata: {",),
        ("X-Glottis-Metadata: []",),
        ('X-Glottis-Metadata: {"a": 1}',),
        ('X-Glottis-Metadata: {"": "x"}',),
        ('X-Glottis-Metadata: {"a": "' + "x" * 129 + '"}',),
        ('X-Glottis-Metadata: {"' + "a" * 65 + '": "x"}',),
        ("X-Glottis-Metadata: {" + ",".join(f'"k{n}": ""' for n in range(33)) + "}",),
        ('X-Glottis-Metadata: {"a": "1"}', 'X-TFY-METADATA: {"a": "1"}'),
    ],
)
def test_metadata_that_is_not_as_it_must_be_is_refused(headers: tuple[str, ...]) -> None:
    assert refused(head_of("GET /cartesia/voices", *headers)) == "metadata_invalid"


@pytest.mark.parametrize("value", [b"a\r\nX-API-Key: b", b"a\nb", b"a\rb", b"a\0b"])
def test_a_header_value_that_would_begin_another_line_is_refused(value: bytes) -> None:
    assert refused(RequestHead("GET", b"/cartesia/voices", b"", [(b"X-Note", value)])) == "head_malformed"


@pytest.mark.parametrize(
    ("request_line", "headers", "version"),
    [
        ("GET /cartesia/tts/websocket", (), ""),
        ("GET /cartesia/tts/websocket", ("Cartesia-Version: 2026-08-14",), "2026-08-14"),
        ("GET /cartesia/tts/websocket?cartesia_version=2024-11-13", ("Cartesia-Version: 2026-08-14",), "2024-11-13"),
        ("GET /cartesia/../x?cartesia_version=2024-11-13", (), "2024-11-13"),
        ("GET /elsewhere?cartesia_version=2024-11-13", (), ""),
    ],
)
def test_the_query_names_the_protocol_version_before_the_header(
    request_line: str, headers: tuple[str, ...], version: str
) -> None:
    assert cartesia_version(head_of(request_line, *headers)) == version


def test_neither_a_head_nor_its_scan_prints_the_token() -> None:
    head = head_of(f"GET /cartesia/voices?api_key={TOKEN}", f"X-API-Key: {TOKEN}", token=TOKEN)

    assert TOKEN not in repr(scanned(head))
    assert TOKEN not in repr(head)


@pytest.mark.parametrize(
    "name", ["X-HTTP-Method-Override", "x-http-method", "X-Method-Override", "X-Original-URL", "X_Rewrite_Url"]
)
def test_a_header_that_would_change_what_was_judged_is_refused(name: str) -> None:
    assert refused(head_of("GET /cartesia/voices/v1", f"{name}: DELETE")) == "override_refused"


@pytest.mark.parametrize("value", ["", ",", "close,", ", ,X-Hop", "content-length", "close, Content-Length"])
def test_an_empty_connection_option_names_nothing(value: str) -> None:
    # Found by fuzzing: the empty option took the place of the framing header away, and the scan failed.
    scan = scanned(head_of("POST /cartesia/tts/bytes", "A: 1", f"Connection: {value}", "Content-Length: 3", "B: 2"))

    assert scan.header_block == b"A: 1\r\nB: 2"
    assert scan.framing_at == len(b"A: 1\r\n")


def test_a_header_without_a_name_is_refused() -> None:
    assert refused(RequestHead("GET", b"/cartesia/voices", b"", [(b"", b"x")])) == "head_malformed"
