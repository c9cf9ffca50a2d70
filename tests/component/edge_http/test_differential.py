"""The same random exchange, directly and through the gateway: equal byte for byte, but for the change table."""

import asyncio
import itertools

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contracts.snapshot import Grant
from policy.providers.profile import OPERATIONS
from tests.doubles.cartesia import CartesiaDouble, Connection, Received
from tests.kit.edge import CREDENTIAL, Answer, Client, alice, edge, workspace_at

TOKEN_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-"
# What the change table names, what frames, and what tells the double what to do: never drawn at random.
NAMED = [
    "authorization",
    "x-api-key",
    "proxy-authorization",
    "proxy-authenticate",
    "proxy-connection",
    "cookie",
    "forwarded",
    "connection",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "http2-settings",
    "host",
    "content-length",
    "expect",
    "origin",
    "content-encoding",
    "traceparent",
    "tracestate",
    "baggage",
    "sec-websocket-extensions",
    "sec-websocket-protocol",
    "x-tfy-metadata",
    "x-double",
    "location",
    "x-request-id",
    "x-amzn-sagemaker-model-invocation-path",
    "cartesia-version",
    "content-type",
]

names = st.text(TOKEN_LETTERS, min_size=1, max_size=12).filter(
    lambda name: name.lower() not in NAMED and not name.lower().startswith(("x-glottis-", "x-forwarded-"))
)
values = st.text(st.characters(min_codepoint=0x21, max_codepoint=0xFF, exclude_characters="\x7f"), max_size=20)
headers = st.lists(st.tuples(names, values), max_size=8)
queries = st.lists(
    st.tuples(st.text(TOKEN_LETTERS, min_size=1, max_size=6), st.text(TOKEN_LETTERS + "%20+./", max_size=8)).filter(
        lambda pair: pair[0] not in ("api_key", "access_token")
    ),
    max_size=4,
).map(lambda pairs: "&".join(f"{name}={value}" for name, value in pairs))
framings = st.sampled_from(["length", "chunked"])


def request_bytes(
    mount: str, method: str, query: str, more: list[tuple[str, str]], body: bytes, framing: str, cuts: list[int], credential: str
) -> bytes:
    target = f"{mount}/voices/v1{'?' + query if query else ''}"
    lines = [f"{method} {target} HTTP/1.1", "Host: provider", *(f"{name}: {value}" for name, value in more)]
    if framing == "chunked":
        lines.append("Transfer-Encoding: chunked")
    elif body:
        lines.append(f"Content-Length: {len(body)}")
    lines.append(f"Authorization: Bearer {credential}")
    head = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
    return head + (chunked(body, cuts) if framing == "chunked" else body)


def chunked(body: bytes, cuts: list[int]) -> bytes:
    edges = [0, *sorted({cut % (len(body) + 1) for cut in cuts}), len(body)]
    pieces = [body[start:end] for start, end in itertools.pairwise(edges) if end > start]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def seen(received: Received) -> tuple[str, str, list[tuple[str, str]], bytes]:
    """What the provider got, but for `Host`, which is the provider's own on both ways."""
    return (
        received.method,
        received.target,
        [header for header in received.headers if header[0].lower() != "host"],
        received.body,
    )


def told(answer: Answer) -> tuple[int, bytes, list[tuple[bytes, bytes]], bytes]:
    """What the client got, but for our request id and the framing, which is each connection's own."""
    ours = (b"x-glottis-request-id", b"transfer-encoding", b"content-length")
    return answer.status, answer.reason, [pair for pair in answer.headers if pair[0].lower() not in ours], answer.body


@given(
    method=st.sampled_from(["GET", "PATCH", "DELETE", "POST", "HEAD"]),
    query=queries,
    up=headers,
    body=st.binary(max_size=3000),
    framing=framings,
    down=headers,
    answer=st.binary(max_size=3000),
    answer_framing=framings,
    status=st.sampled_from([200, 201, 204, 206, 304, 400, 404, 429, 500]),
    cuts=st.lists(st.integers(0, 3000), max_size=5),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_an_exchange_is_the_same_with_and_without_the_gateway(
    method: str,
    query: str,
    up: list[tuple[str, str]],
    body: bytes,
    framing: str,
    down: list[tuple[str, str]],
    answer: bytes,
    answer_framing: str,
    status: int,
    cuts: list[int],
) -> None:
    async def script(double: CartesiaDouble, connection: Connection, received: Received) -> bool:
        lines = [f"HTTP/1.1 {status} Some Reason", *(f"{name}: {value}" for name, value in down)]
        has_body = status not in (204, 304) and received.method != "HEAD"
        if answer_framing == "chunked" and has_body:
            lines.append("Transfer-Encoding: chunked")
            payload = chunked(answer, cuts)
        else:
            lines.append(f"Content-Length: {len(answer)}")
            payload = answer if has_body else b""
        await connection.send("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + payload)
        return True

    async def both() -> None:
        async with CartesiaDouble() as double:
            double.default = script
            everything = Grant(id="g9", workspace="w1", account="a-eu", subject="user:u-alice", operations=OPERATIONS)
            async with edge(double.origin, snapshot=workspace_at(double.origin, plus_grants=(everything,))) as gateway:
                direct, through = await Client.connect(double.port), await gateway.client()
                await direct.send(request_bytes("", method, query, up, body, framing, cuts, CREDENTIAL))
                expected = await direct.answer(method)
                await through.send(request_bytes("/cartesia", method, query, up, body, framing, cuts, alice()))
                got = await through.answer(method)

                assert told(got) == told(expected)
                assert seen(double.requests[1]) == seen(double.requests[0])
                direct.close()
                through.close()

    asyncio.run(both())
