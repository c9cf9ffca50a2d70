"""Every recorded WebSocket of five SDKs, through the gateway: what the provider receives, byte for byte."""

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from contracts.snapshot import Model
from tests.doubles.cartesia_websocket import sockets_double
from tests.kit.edge import CREDENTIAL, workspace_at
from tests.kit.identities import idp_token
from tests.kit.sessions import SessionRecorder, connect, sockets_edge
from tests.kit.tallies import final_of
from tests.kit.waiting import until

FOLDER = Path(__file__).parent
MODELS = {
    "sonic-2": "text-to-speech",
    "sonic-2-2025-03-07": "text-to-speech",
    "sonic-turbo": "text-to-speech",
    "sonic-3-2026-01-12": "text-to-speech",
    "ink-2": "speech-to-text",
}


def _frame(line: str) -> bytes:
    header, mask, said = (part for part in line.split(" "))
    byte, _, count = said.partition("*")
    payload = bytes.fromhex(byte) * int(count or 1)
    key = bytes.fromhex(mask)
    return bytes.fromhex(header) + key + bytes(value ^ key[i % 4] for i, value in enumerate(payload))


def _cases() -> Iterator[object]:
    for file in sorted(FOLDER.glob("*.txt")):
        for case in file.read_text().split("=== ")[1:]:
            name, _, rest = case.partition("\n")
            received, _, rest = rest.partition("\n--- frames\n")
            frames, _, sent = rest.partition("--- sent\n")
            yield pytest.param(
                received, [_frame(line) for line in frames.splitlines()], sent.rstrip("\n"), id=f"{file.stem}-{name}"
            )


RECORDED = {str(case.id): case.values for case in _cases()}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("recording", "owed"),
    [
        # Two texts, an emoji among them, a flush and a close: each text counts once.
        ("py-4.2.0-tts_ws_wsbase.1", {"requests": 1, "characters": 17}),
        ("py-4.2.0-tts_ws_cancel.1", {"requests": 1, "characters": 9}),
        # The close names another model: it counts nothing, and nothing for that model.
        ("py-4.2.0-tts_ws_final_message_changes_model.1", {"requests": 1, "characters": 9}),
        ("py-4.2.0-stt_manual_http_base.1", {"requests": 1, "audio_in_ms": 200}),
    ],
)
async def test_a_recorded_session_owes_what_the_rules_say(recording: str, owed: dict[str, int]) -> None:
    received, frames, _ = RECORDED[recording]
    async with sockets_double() as double:
        double.script = "listen"
        models = tuple(
            Model(id=f"m-{name}", workspace="w1", account="a-eu", name=name, type=kind)  # type: ignore[arg-type]
            for name, kind in MODELS.items()
        )
        async with sockets_edge(double, snapshot=workspace_at(double.origin, plus_models=models)) as gateway:
            client = await connect(gateway.port)
            await client.send_raw(
                received.replace("CALLER_TOKEN", idp_token()).replace("\n", "\r\n").encode("latin-1") + b"\r\n\r\n"
            )
            await client.reader.readuntil(b"\r\n\r\n")
            for frame in frames:
                await client.send_raw(frame)
            [socket] = double.sockets
            await until(lambda: len(socket.received) >= sum(map(len, frames)))
            client.writer.close()
            [settled] = await gateway.settled()
            recorder = cast(SessionRecorder, gateway.recorder)
            ends = [*recorder.contexts, *([settled] if settled.tally is not None else [])]
            [end] = ends
            assert end.tally is not None
            assert final_of(end.tally, end.outcome, 0, is_owed=end.is_owed).totals == owed
            assert end.tally.to.model != "sonic-latest"


@pytest.mark.parametrize(("received", "frames", "sent"), list(_cases()))
async def test_a_recorded_session_arrives_as_it_was_but_for_the_change_table(
    received: str, frames: list[bytes], sent: str
) -> None:
    async with sockets_double() as double:
        double.script = "listen"
        models = tuple(
            Model(id=f"m-{name}", workspace="w1", account="a-eu", name=name, type=kind)  # type: ignore[arg-type]
            for name, kind in MODELS.items()
        )
        async with sockets_edge(double, snapshot=workspace_at(double.origin, plus_models=models)) as gateway:
            client = await connect(gateway.port)
            head = received.replace("CALLER_TOKEN", idp_token()).replace("\n", "\r\n").encode("latin-1") + b"\r\n\r\n"
            await client.send_raw(head)
            answer = await client.reader.readuntil(b"\r\n\r\n")
            if sent.startswith("refused "):
                assert answer.startswith(b"HTTP/1.1 " + sent.split()[1].encode())
                assert double.sockets == []
                return
            for frame in frames:
                await client.send_raw(frame)
            [socket] = double.sockets
            expected = sent.replace("PROVIDER_HOST", double.origin.removeprefix("http://"))
            expected = expected.replace("PROVIDER_CREDENTIAL", CREDENTIAL).replace("\n", "\r\n")
            assert socket.head == expected.encode("latin-1") + b"\r\n\r\n"
            await until(lambda: len(socket.received) >= sum(map(len, frames)))
            assert bytes(socket.received) == b"".join(frames)
            client.writer.close()
