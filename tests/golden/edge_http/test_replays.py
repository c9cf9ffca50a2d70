"""Every recorded HTTP request of five SDKs, through the gateway: what the provider receives, byte for byte."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from contracts.snapshot import Grant, Model
from policy.providers.profile import OPERATIONS
from tests.doubles.cartesia import CartesiaDouble
from tests.kit.edge import CREDENTIAL, Edge, alice, edge, workspace_at
from tests.kit.tallies import final_of

FOLDER = Path(__file__).parent
MODELS = {
    "sonic-2": "text-to-speech",
    "sonic-latest": "text-to-speech",
    "ink-2": "speech-to-text",
}


def _cases() -> Iterator[object]:
    for file in sorted(FOLDER.glob("*.txt")):
        for case in file.read_bytes().split(b"=== ")[1:]:
            name, _, rest = case.partition(b"\n")
            received, _, rest = rest.partition(b"\n--- body ")
            body, _, sent = rest.partition(b"\n--- sent\n")
            yield pytest.param(received, bytes.fromhex(body.decode()), sent.rstrip(b"\n"), id=f"{file.stem}-{name.decode()}")


@pytest_asyncio.fixture(loop_scope="function")
async def double() -> AsyncIterator[CartesiaDouble]:
    async with CartesiaDouble() as double:
        yield double


@pytest_asyncio.fixture(loop_scope="function")
async def gateway(double: CartesiaDouble) -> AsyncIterator[Edge]:
    snapshot = workspace_at(
        double.origin,
        plus_grants=(Grant(id="g9", workspace="w1", account="a-eu", subject="user:u-alice", operations=OPERATIONS),),
        plus_models=tuple(
            Model(id=f"m-{name}", workspace="w1", account="a-eu", name=name, type=kind)  # type: ignore[arg-type]
            for name, kind in MODELS.items()
        ),
    )
    async with edge(double.origin, snapshot=snapshot) as running:
        yield running


def _recording(name: str) -> tuple[bytes, bytes]:
    file, _, case = name.partition("/")
    text = (FOLDER / f"{file}.txt").read_bytes().partition(f"=== {case}\n".encode())[2]
    received, _, rest = text.partition(b"\n--- body ")
    return received, bytes.fromhex(rest.partition(b"\n--- sent\n")[0].decode())


EVENTS = {"requests": 1, "characters": 5}


@pytest.mark.parametrize(
    ("recording", "owed"),
    [
        # é is one character, an emoji is one, a break is one
        ("py-4.2.0/tts_bytes.1", {"requests": 1, "characters": 11, "audio_out_ms": 63}),
        ("py-3.5.1/tts_bytes.1", {"requests": 1, "characters": 11, "audio_out_ms": 63}),
        ("py-2.0.17/tts_bytes.1", {"requests": 1, "characters": 8, "audio_out_ms": 63}),
        ("js-4.2.0/tts_bytes.1", {"requests": 1, "characters": 9, "audio_out_ms": 63}),
        ("py-4.2.0/tts_sse.1", EVENTS),
        ("js-4.2.0/tts_sse.1", EVENTS),
        ("py-4.2.0/infill.1", {"requests": 1, "characters": 306, "audio_out_ms": 63}),
        ("js-4.2.0/infill.1", {"requests": 1, "characters": 303, "audio_out_ms": 63}),
        # The recorded clip is no audio: what came out stands for what went in.
        ("py-4.2.0/voice_changer.1", {"requests": 1, "audio_in_ms": 63, "audio_out_ms": 63}),
        ("py-4.2.0/voice_changer_sse.1", {"requests": 1}),
        ("py-4.2.0/stt_batch.1", {"requests": 1, "audio_in_ms": 2500}),
        ("js-4.2.0/stt_batch.1", {"requests": 1, "audio_in_ms": 2500}),
        ("py-4.2.0/stt_batch_raw.1", {"requests": 1, "audio_in_ms": 2500}),
        ("py-4.2.0/voices_list_paged.1", {"requests": 1}),
    ],
)
async def test_a_recorded_request_owes_what_the_rules_say(gateway: Edge, recording: str, owed: dict[str, int]) -> None:
    received, body = _recording(recording)
    client = await gateway.client()
    head = received.replace(b"CALLER_TOKEN", alice().encode()).replace(b"\n", b"\r\n") + b"\r\n\r\n"
    await client.send(head + body)
    await client.answer()

    (settled,) = await gateway.settled()

    assert settled.tally is not None
    assert final_of(settled.tally, settled.outcome, 0, is_owed=settled.is_owed).totals == owed
    client.close()


@pytest.mark.parametrize(("received", "body", "sent"), list(_cases()))
async def test_a_recorded_request_arrives_as_it_was_but_for_the_change_table(
    gateway: Edge, double: CartesiaDouble, received: bytes, body: bytes, sent: bytes
) -> None:
    client = await gateway.client()
    head = received.replace(b"CALLER_TOKEN", alice().encode()).replace(b"\n", b"\r\n") + b"\r\n\r\n"
    await client.send(head + body)

    answer = await client.answer(head.split(b" ", 1)[0].decode())

    if sent == b"answered here":
        assert double.connections == []
    elif sent.startswith(b"refused "):
        assert (answer.status, double.connections) == (int(sent.split()[1]), [])
    else:
        assert answer.status < 300, answer.body
        expected = (
            sent.replace(b"\n", b"\r\n")
            .replace(b"PROVIDER_HOST", double.origin.removeprefix("http://").encode())
            .replace(b"PROVIDER_CREDENTIAL", CREDENTIAL.encode())
        )
        assert bytes(double.connections[0].received) == expected + b"\r\n\r\n" + body
    client.close()
