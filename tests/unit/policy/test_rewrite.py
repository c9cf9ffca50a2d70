"""The upstream head, the client's headers, and the mask over a credential."""

import pytest

from contracts.secret import Secret
from contracts.snapshot import Account
from policy.decide import Admit, Route, decide
from policy.index import index_of
from policy.rewrite import masked, request_head, response_headers
from policy.world import World
from tests.kit.heads import head_of
from tests.kit.identities import NOW, idp_token, voice_workspace

KEY = Secret("sk_car_real")


def route_of(request_line: str, *headers: str, **account: object) -> Route:
    accounts = tuple(
        Account(id=a.id, workspace=a.workspace, name=a.name, provider=a.provider, origin=a.origin, **account)  # type: ignore[arg-type]
        for a in voice_workspace().accounts
    )
    head = head_of(request_line, *headers, token=idp_token(), is_websocket="websocket" in request_line)
    decision = decide(head, None, World(index_of(voice_workspace(accounts=accounts))), NOW)
    assert isinstance(decision, Admit), decision
    return decision.route


def test_the_whole_head_goes_up_with_one_credential() -> None:
    route = route_of("GET /cartesia/voices?limit=2&expand%5B%5D=x", "Accept: */*", "Content-Length: 0")

    assert request_head(route, "GET", b"api.cartesia.test", KEY, b"Content-Length: 0\r\n") == (
        b"GET /voices?limit=2&expand%5B%5D=x HTTP/1.1\r\n"
        b"Host: api.cartesia.test\r\n"
        b"Accept: */*\r\n"
        b"Content-Length: 0\r\n"
        b"Authorization: Bearer sk_car_real\r\n"
        b"\r\n"
    )


def test_the_framing_line_goes_where_the_callers_stood() -> None:
    head = ("A: 1", "traceparent: 00-1-2-01", "content-LENGTH: 5", "B: 2")
    plain = route_of("GET /cartesia/voices", *head)
    traced = route_of("GET /cartesia/voices", *head, forwards_trace_headers=True)

    assert b"A: 1\r\ncontent-LENGTH: 5\r\nB: 2\r\nAuth" in request_head(plain, "GET", b"h", KEY, b"content-LENGTH: 5\r\n")
    assert b"A: 1\r\ntraceparent: 00-1-2-01\r\ncontent-LENGTH: 5\r\nB: 2\r\nAuth" in request_head(
        traced, "GET", b"h", KEY, b"content-LENGTH: 5\r\n"
    )


def test_a_framing_line_that_the_caller_did_not_send_comes_last() -> None:
    route = route_of("GET /cartesia/voices", "A: 1")

    assert request_head(route, "GET", b"h", KEY, b"Content-Length: 0\r\n").endswith(
        b"A: 1\r\nAuthorization: Bearer sk_car_real\r\nContent-Length: 0\r\n\r\n"
    )


def test_an_account_may_want_its_credential_in_x_api_key() -> None:
    route = route_of("GET /cartesia/voices", credential_scheme="x-api-key")

    assert request_head(route, "GET", b"api.cartesia.test", KEY, b"") == (
        b"GET /voices HTTP/1.1\r\nHost: api.cartesia.test\r\nX-API-Key: sk_car_real\r\n\r\n"
    )


def test_a_handshake_asks_for_the_upgrade_anew() -> None:
    route = route_of(
        "GET /cartesia/tts/websocket?cartesia_version=2024-11-13",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Extensions: permessage-deflate",
    )

    assert request_head(route, "GET", b"api.cartesia.test:8443", KEY, b"") == (
        b"GET /tts/websocket?cartesia_version=2024-11-13 HTTP/1.1\r\n"
        b"Host: api.cartesia.test:8443\r\n"
        b"Upgrade: websocket\r\n"
        b"Connection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        b"Authorization: Bearer sk_car_real\r\n"
        b"\r\n"
    )


def test_trace_headers_go_up_only_where_the_account_forwards_them() -> None:
    headers = ("A: 1", "traceparent: 00-1-2-01", "B: 2")

    assert route_of("GET /cartesia/voices", *headers).headers == ((b"A", b"1"), (b"B", b"2"))
    assert route_of("GET /cartesia/voices", *headers, forwards_trace_headers=True).headers == (
        (b"A", b"1"),
        (b"traceparent", b"00-1-2-01"),
        (b"B", b"2"),
    )


def test_response_headers_lose_what_is_hop_by_hop_and_gain_our_request_id() -> None:
    came = [
        (b"content-TYPE", b"audio/wav"),
        (b"Set-Cookie", b"a=1"),
        (b"Connection", b"close, X-Hop"),
        (b"Set-Cookie", b"b=2"),
        (b"x-hop", b"1"),
        (b"Transfer-Encoding", b"chunked"),
        (b"Keep-Alive", b"timeout=5"),
        (b"Content-Length", b"3"),
    ]

    assert response_headers(came, "0192") == [
        (b"content-TYPE", b"audio/wav"),
        (b"Set-Cookie", b"a=1"),
        (b"Set-Cookie", b"b=2"),
        (b"Content-Length", b"3"),
        (b"X-Glottis-Request-Id", b"0192"),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'{"message":"bad key sk_car_real"}', b'{"message":"bad key ***********"}'),
        (b"sk_car_realsk_car_real", b"*" * 22),
    ],
)
def test_a_credential_is_masked_to_equal_length(text: bytes, expected: bytes) -> None:
    assert masked(text, KEY) == expected


def test_what_needs_no_mask_comes_back_as_the_same_object() -> None:
    text = b"nothing to see"

    assert masked(text, KEY) is text
    assert masked(text, Secret("")) is text
