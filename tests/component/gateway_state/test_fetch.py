"""Documents are fetched from where they may be fetched, and from nowhere else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
import pytest_asyncio

from gateway.state.fetch import DocumentFetcher
from gateway.state.key_sets import LARGEST_DOCUMENT_BYTES, FetchFailed

JWKS = b'{"keys": []}'


class Issuer:
    """An issuer on a free port that answers every request with the same bytes. `heads`: what it was asked."""

    def __init__(self) -> None:
        self.answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(JWKS), JWKS)
        self.heads: list[bytes] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(self.answer)
        writer.close()


@pytest_asyncio.fixture
async def issuer() -> AsyncIterator[Issuer]:
    issuer = Issuer()
    server = await asyncio.start_server(issuer.serve, "127.0.0.1", 0)
    issuer.port = server.sockets[0].getsockname()[1]
    yield issuer
    server.close()


class Guard:
    """The egress guard, scripted. `asked`: (host, port, may be private)."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses
        self.asked: list[tuple[str, int, bool]] = []

    async def __call__(self, host: str, port: int, may_be_private: bool) -> Sequence[str]:
        self.asked.append((host, port, may_be_private))
        if not self._addresses:
            raise OSError("refused")
        return self._addresses


async def fetched(issuer: Issuer, guard: Guard, host: str = "idp.test") -> bytes:
    origin = f"http://{host}:{issuer.port}"
    fetcher = DocumentFetcher(guard, {origin})
    try:
        return await fetcher(origin + "/keys?v=1")
    finally:
        await fetcher.close()


async def test_the_document_is_fetched_at_the_address_that_the_guard_let_pass(issuer: Issuer) -> None:
    guard = Guard(["127.0.0.1"])

    document = await fetched(issuer, guard)

    assert document == JWKS
    assert guard.asked == [("idp.test", issuer.port, True)]
    assert issuer.heads[0].startswith(b"GET /keys?v=1 HTTP/1.1\r\n")
    assert f"host: idp.test:{issuer.port}".encode() in issuer.heads[0].lower()


async def test_an_address_that_the_guard_refuses_is_not_dialled(issuer: Issuer) -> None:
    with pytest.raises(FetchFailed):
        await fetched(issuer, Guard([]))

    assert issuer.heads == []


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("http://idp.test/keys", "origin_not_https"),
        ("https://127.0.0.1/keys", "origin_private"),
        ("https://169.254.169.254/latest", "origin_private"),
        ("file:///etc/passwd", "origin_malformed"),
        ("https://user:password@idp.test/keys", "origin_has_user"),
    ],
)
async def test_an_origin_that_nobody_listed_must_be_https_and_public(address: str, reason: str) -> None:
    guard = Guard(["127.0.0.1"])
    fetcher = DocumentFetcher(guard, ())

    with pytest.raises(FetchFailed, match=reason):
        await fetcher(address)

    assert guard.asked == []
    await fetcher.close()


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n", "answered 302"),
        (b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n", "answered 500"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (LARGEST_DOCUMENT_BYTES + 1), "larger than"),
        (b"SSH-2.0-OpenSSH\r\n", "not reached"),
        (b"", "not reached"),
    ],
)
async def test_an_answer_that_is_no_document_is_refused(issuer: Issuer, answer: bytes, sentence: str) -> None:
    issuer.answer = answer

    with pytest.raises(FetchFailed, match=sentence):
        await fetched(issuer, Guard(["127.0.0.1"]))

    assert len(issuer.heads) == 1
