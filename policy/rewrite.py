"""What goes up and what comes back: the head for the provider, the headers for the client, and a mask for the credential.

What may pass was found by `policy.scan`; here it is put together with exactly one credential. Knows no socket and no
framing: the relay says how the body is framed.
"""

from typing import Final

from contracts.secret import Secret
from policy.facts import Header
from policy.route import Route
from policy.scan import HOP_BY_HOP

_UPGRADE: Final = b"Upgrade: websocket\r\nConnection: Upgrade\r\n"
_REQUEST_ID: Final = b"X-Glottis-Request-Id"


def request_head(route: Route, method: str, host: bytes, credential: Secret, framing: bytes) -> bytes:
    """Return the whole upstream head, ready to send, its empty line included.

    host: the account's `Host` value. framing: the line that frames the body (`Content-Length: 3\\r\\n`,
    `Transfer-Encoding: chunked\\r\\n`), or empty; it is put where the caller's stood. The result holds the credential: it is
    sent and never kept.
    """
    block = route.header_block + b"\r\n" if route.header_block else b""
    if framing and (at := route.framing_at) >= 0:
        block = b"%b%b%b" % (block[:at], framing, block[at:])
        framing = b""
    scheme = b"Authorization: Bearer " if route.account.credential_scheme == "bearer" else b"X-API-Key: "
    return b"".join(
        (
            method.encode("ascii"),
            b" ",
            route.target,
            b" HTTP/1.1\r\nHost: ",
            host,
            b"\r\n",
            _UPGRADE if route.endpoint.is_websocket else b"",
            block,
            scheme,
            credential.reveal(),
            b"\r\n",
            framing,
            b"\r\n",
        )
    )


def response_headers(headers: list[Header], request_id: str) -> list[Header]:
    """Return the headers for the client: without hop-by-hop ones, with our request id; order, case, duplicates kept.

    `Content-Length` stays, for it describes the body also where none is sent (HEAD, 304); `Transfer-Encoding` goes.
    """
    dropped = HOP_BY_HOP
    for name, value in headers:
        if name.lower() == b"connection":
            # but never the length: without it the client could not tell where this answer ends
            dropped = (dropped | {option.strip().lower() for option in value.split(b",")}) - {b"content-length"}
    kept = [header for header in headers if header[0].lower() not in dropped]
    kept.append((_REQUEST_ID, request_id.encode("ascii")))
    return kept


def masked(text: bytes, secret: Secret) -> bytes:
    """Return the bytes with every occurrence of the secret overwritten by as many asterisks.

    The very object that was given comes back if the secret does not occur: whoever gets another one raises the alert.
    """
    clear = secret.reveal()
    if not clear or clear not in text:
        return text
    return text.replace(clear, b"*" * len(clear))
