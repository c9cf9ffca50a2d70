"""Multipart uploads: judged as they stream, never kept on disk, never sent where they must not go."""

import json

import pytest

from contracts.snapshot import Account, Grant, Model
from gateway.edge.context import Limits
from tests.doubles.cartesia import TRANSCRIPT, CartesiaDouble
from tests.kit.edge import Client, Edge, edge, request, workspace_at
from tests.kit.waiting import until

FORM = "Content-Type: multipart/form-data; boundary=edge"


def field(name: str, value: bytes) -> bytes:
    return b'--edge\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (name.encode(), value)


def file(content: bytes) -> bytes:
    return (
        b'--edge\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n'
        + content
        + b"\r\n"
    )


MODEL = field("model", b"ink-whisper")
END = b"--edge--\r\n"


@pytest.mark.parametrize("body", [MODEL + file(b"RIFF" * 100) + END, file(b"RIFF" * 100) + MODEL + END])
@pytest.mark.parametrize("is_chunked", [False, True])
async def test_a_form_arrives_byte_for_byte_whatever_its_order(
    client: Client, double: CartesiaDouble, body: bytes, is_chunked: bool
) -> None:
    wire = request("POST", "/cartesia/stt", FORM, body=body)
    if is_chunked:
        head = request("POST", "/cartesia/stt", FORM, "Transfer-Encoding: chunked")
        wire = head + b"".join(
            b"%x\r\n%b\r\n" % (len(body[at : at + 100]), body[at : at + 100]) for at in range(0, len(body), 100)
        )
        wire += b"0\r\n\r\n"
    await client.send(wire)

    answer = await client.answer()

    assert (answer.status, answer.body) == (200, TRANSCRIPT)
    assert double.requests[0].body == body


async def test_a_form_whose_model_is_not_granted_does_not_reach_the_provider(client: Client, double: CartesiaDouble) -> None:
    body = file(b"RIFF") + field("model", b"ink-9") + END
    await client.send(request("POST", "/cartesia/stt", FORM, "Cartesia-Version: 2026-08-14", body=body))

    answer = await client.answer()

    assert (answer.status, json.loads(answer.body)["error_code"]) == (403, "model_not_granted")
    assert double.connections == []


async def test_a_large_file_before_the_model_is_streamed_with_the_forms_end_withheld(
    gateway: Edge, double: CartesiaDouble
) -> None:
    double.reads_bodies = False
    double.default = _hold
    big = file(bytes(3 * 2**20))
    body = big + MODEL + END
    client = await gateway.client()
    await client.send(request("POST", "/cartesia/stt", FORM, f"Content-Length: {len(body)}") + big)

    await until(lambda: len(double.connections) == 1 and len(double.requests) == 1)
    connection = double.connections[0]
    await until(lambda: len(connection.received) > 2 * 2**20)
    assert len(connection.received) < len(big)
    await client.send(MODEL + END)

    await until(lambda: connection.received.endswith(MODEL + END))
    client.close()


async def _hold(double: CartesiaDouble, connection: object, received: object) -> bool:
    await connection.exactly(2**30)  # type: ignore[attr-defined]
    return False


async def test_a_large_file_before_a_model_that_is_not_granted_is_cut_off_at_the_provider(
    gateway: Edge, double: CartesiaDouble
) -> None:
    double.reads_bodies = False
    double.default = _hold
    body = file(bytes(3 * 2**20)) + field("model", b"ink-9") + END
    client = await gateway.client()
    await client.send(request("POST", "/cartesia/stt", FORM, "Cartesia-Version: 2026-08-14", body=body))

    answer = await client.answer()

    assert (answer.status, json.loads(answer.body)["error_code"]) == (403, "model_not_granted")
    await until(lambda: double.connections[0].gone.is_set())
    assert not double.connections[0].received.endswith(END)
    (settled,) = await gateway.settled()
    assert settled.tally is None
    client.close()


async def test_where_the_model_decides_between_accounts_only_a_bounded_part_is_held(double: CartesiaDouble) -> None:
    other = Account(id="a-two", workspace="w1", name="second", provider="cartesia", origin=double.origin)
    snapshot = workspace_at(double.origin)
    snapshot = workspace_at(
        double.origin,
        accounts=(*snapshot.accounts, other),
        plus_models=(Model(id="m9", workspace="w1", account="a-two", name="ink-2", type="speech-to-text"),),
        plus_grants=(Grant(id="g9", workspace="w1", account="a-two", subject="team:voice"),),
    )
    async with edge(double.origin, snapshot=snapshot, limits=Limits(held_form_bytes=10_000)) as gateway:
        client = await gateway.client()
        body = file(bytes(5_000)) + MODEL + END
        await client.send(request("POST", "/cartesia/stt", FORM, body=body))
        assert (await client.answer()).status == 200
        body = file(bytes(2_000_000)) + MODEL + END
        await client.send(request("POST", "/cartesia/stt", FORM, "Cartesia-Version: 2026-08-14", body=body))

        answer = await client.answer()

        assert (answer.status, json.loads(answer.body)["error_code"]) == (400, "form_order")
        assert len(double.requests) == 1


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (MODEL + MODEL + END, "form_field_twice"),
        (MODEL + file(b"RIFF"), "form_malformed"),
        (MODEL + file(b"RIFF") + field("model", b"ink-9") + END, "form_field_twice"),
    ],
)
async def test_a_form_that_two_readers_could_read_differently_is_refused(
    client: Client, double: CartesiaDouble, body: bytes, reason: str
) -> None:
    await client.send(request("POST", "/cartesia/stt", FORM, "Cartesia-Version: 2026-08-14", body=body))

    answer = await client.answer()

    assert (answer.status, json.loads(answer.body)["error_code"]) == (400, reason)
    assert [received for received in double.requests if received.body] == []


async def test_a_form_with_a_quota_for_expect_is_asked_for_its_body_by_the_gateway(
    client: Client, double: CartesiaDouble
) -> None:
    body = MODEL + file(b"RIFF") + END
    await client.send(request("POST", "/cartesia/stt", FORM, "Expect: 100-continue", f"Content-Length: {len(body)}"))

    assert await client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    await client.send(body)
    assert (await client.answer()).status == 200
    assert double.requests[0].body == body
