"""Request heads, written as they stand on the wire, and the recorded heads of the SDKs."""

from pathlib import Path

from policy.facts import Header, RequestHead

RECORDINGS = Path(__file__).parent.parent / "golden" / "cartesia"


def head_of(
    request_line: str,
    *headers: str,
    token: str | None = None,
    is_websocket: bool = False,
    host: bytes = b"gateway.test",
) -> RequestHead:
    """Return the head of `METHOD target`, with headers written `Name: value`. token: sent as a bearer first of all."""
    method, _, target = request_line.partition(" ")
    path, _, query = target.encode("latin-1").partition(b"?")
    lines = [f"Authorization: Bearer {token}"] if token is not None else []
    return RequestHead(method, path, query, [_header(line) for line in (*lines, *headers)], is_websocket, host=host)


def _header(line: str) -> Header:
    name, _, value = line.partition(":")
    return name.encode("latin-1"), value.strip().encode("latin-1")


def recorded_head(text: bytes) -> RequestHead:
    """Return the head of a recorded request. text: the request line and the headers, lines ended by LF."""
    first, *lines = text.decode("latin-1").rstrip("\n").split("\n")
    method, target, _ = first.split(" ")
    headers = [_header(line) for line in lines]
    path, _, query = target.encode("latin-1").partition(b"?")
    is_websocket = any(name.lower() == b"upgrade" and value == b"websocket" for name, value in headers)
    host = next(value for name, value in headers if name.lower() == b"host").split(b":")[0]
    return RequestHead(method, path, query, headers, is_websocket, host=host)
