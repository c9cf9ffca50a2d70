"""The gateway's own answers on the wire: refusals, faults, preflights, `100 Continue`.

What they say comes from the refusal table; here they only become bytes. Read next: `policy.refusal`.
"""

from collections.abc import Iterable
from typing import Final

from policy.facts import Header, RequestHead
from policy.providers.profile import Endpoint, Profile
from policy.refusal import Refusal, http_answer

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_CLOSE: Final = b"Connection: close\r\n"
_PREFLIGHT_SECONDS: Final = b"600"


def head_bytes(status: int, reason: bytes, headers: Iterable[Header], extra: bytes = b"") -> bytes:
    """Return the head of an answer; `extra`: whole header lines of ours."""
    lines = [b"%b: %b\r\n" % header for header in headers]
    return b"HTTP/1.1 %d %b\r\n%b%b\r\n" % (status, reason, b"".join(lines), extra)


def own_answer(
    refusal: Refusal,
    request_id: str,
    *,
    head: RequestHead | None = None,
    place: Endpoint | Profile | None = None,
    version: str = "",
    closes: bool = False,
) -> bytes:
    """Return the answer that tells a refusal or fault, in the shape of the place that was asked.

    head: the request's, if it could be read; decides about the body (HEAD has none) and lets a browser's page read it.
    """
    status, phrase, headers, body = http_answer(refusal, place, version, request_id)
    if head is not None:
        headers = [*headers, *readable_by_page(head)]
        if head.method == "HEAD":
            body = b""
    return head_bytes(status, phrase.encode("ascii"), headers, _CLOSE if closes else b"") + body


def readable_by_page(head: RequestHead) -> list[Header]:
    """Return the headers that let the page of a browser read an answer of ours (Fetch standard, CORS protocol)."""
    origin = _value(head, b"origin")
    if origin is None:
        return []
    return [
        (b"Access-Control-Allow-Origin", origin),
        (b"Access-Control-Expose-Headers", b"X-Glottis-Request-Id, Retry-After"),
        (b"Vary", b"Origin"),
    ]


def preflight_answer(head: RequestHead, request_id: str) -> bytes | None:
    """Return the answer to a CORS preflight, None if the request is none.

    A preflight carries no token, so it is answered for any page: whether the page may use a token is decided with the
    request that carries it. Other OPTIONS requests go to the provider.
    """
    if head.method != "OPTIONS":
        return None
    origin, method = _value(head, b"origin"), _value(head, b"access-control-request-method")
    if origin is None or method is None:
        return None
    headers = [
        (b"Access-Control-Allow-Origin", origin),
        (b"Access-Control-Allow-Methods", method),
        (b"Access-Control-Max-Age", _PREFLIGHT_SECONDS),
        (b"Vary", b"Origin, Access-Control-Request-Method, Access-Control-Request-Headers"),
        (b"X-Glottis-Request-Id", request_id.encode("ascii")),
    ]
    asked = _value(head, b"access-control-request-headers")
    if asked is not None:
        headers.append((b"Access-Control-Allow-Headers", asked))
    return head_bytes(204, b"No Content", headers)


def _value(head: RequestHead, name: bytes) -> bytes | None:
    for spelled, value in head.headers:
        if spelled.lower() == name:
            return value
    return None
