"""Three text-to-speech calls with the official Cartesia SDK, through the gateway: what any client of Glottis looks like.

Run as a program of its own (`python -m glottis.first_voice`), as a client would be, with SSL_CERT_FILE naming the
gateway's authority. It knows a base URL and a token, and that answers carry a request id, by which their usage is
found. Writes a wav file each and one JSON object a line on stdout: when its first audio came, how long it is. A call
that fails ends it with `FAILED_STATUS` and one sentence on stderr.
"""

from __future__ import annotations

import base64
import json
import sys
import time
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click
import httpx
from cartesia import APIStatusError, Cartesia, CartesiaError
from cartesia.types import RawOutputFormatParam
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

FAILED_STATUS: Final = 2
"""the exit status when a call failed"""

SAMPLE_RATE: Final = 24_000
BYTES_A_SAMPLE: Final = 2
RAW: Final[RawOutputFormatParam] = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": SAMPLE_RATE}

# What is said, by wav file; the tests read the files back with a speech recogniser.
BYTES: Final = "Hello. This sentence was asked for in one request, and it came back as one file."
SSE: Final = "This one arrived in small pieces, so its first words could be played before the last were made."
WHOLE: Final = "Two voices share one connection. I am the first voice, and my text was sent at once."
PIECES: Final = (
    "I am the second voice. ",
    "My text came in three pieces, ",
    "as a language model would write it.",
)


class CallFailed(Exception):
    """A call was refused or cut short. sentence: which one, with the SDK's error, status, reason and request id."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence


@dataclass(slots=True)
class Call:
    """One call as its caller saw it.

    key: what its usage is counted under; began: when it was asked for, by the process's clock, seconds; audio: 16-bit
    mono PCM at 24 kHz.
    """

    name: str
    transcript: str
    wav: str
    key: str = ""
    began: float = field(default_factory=time.perf_counter)
    seconds_to_first_audio: float | None = None
    audio: bytearray = field(default_factory=bytearray)

    def hear(self, audio: bytes) -> None:
        if audio and self.seconds_to_first_audio is None:
            self.seconds_to_first_audio = time.perf_counter() - self.began
        self.audio += audio

    @property
    def audio_seconds(self) -> float:
        return len(self.audio) / (SAMPLE_RATE * BYTES_A_SAMPLE)

    def save(self, folder: Path) -> None:
        with wave.open(str(folder / self.wav), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(BYTES_A_SAMPLE)
            file.setframerate(SAMPLE_RATE)
            file.writeframes(bytes(self.audio))


@contextmanager
def _named_failure(name: str) -> Iterator[None]:
    """Turn what the SDK and its transports raise into a CallFailed."""
    try:
        yield
    except APIStatusError as error:
        raise CallFailed(_sentence(name, error, error.status_code, error.body)) from error
    except InvalidStatus as error:
        raise CallFailed(_sentence(name, error, error.response.status_code, _parsed(error.response.body))) from error
    except ConnectionClosed as error:
        code = f"close code {error.rcvd.code}" if error.rcvd else "no close frame"
        raise CallFailed(f"{name} failed: {type(error).__name__}, {code}") from error
    except (CartesiaError, WebSocketException, httpx.HTTPError, OSError) as error:
        raise CallFailed(f"{name} failed: {type(error).__name__}, without an answer") from error


def _ensure_no_error(name: str, event: Any) -> None:
    # Any: the SDK's union of event types.
    if event.type == "error":
        raise CallFailed(
            _sentence(name, event, event.status_code, {"error_code": event.error_code, "request_id": event.request_id})
        )


def _sentence(name: str, error: object, status: int | None, body: object) -> str:
    # The answer's own message is left out: a provider's may quote what was to be said.
    fields = body if isinstance(body, dict) else {}
    details = (("status", status), ("reason", fields.get("error_code")), ("request", fields.get("request_id")))
    return ", ".join([f"{name} failed: {type(error).__name__}", *(f"{what} {value}" for what, value in details if value)])


def _parsed(body: bytes | bytearray) -> object:
    try:
        return json.loads(body)
    except ValueError:
        return None


@_named_failure("tts.bytes")
def tts_bytes(client: Cartesia, model: str, voice: str) -> Call:
    """The whole text in one request, the audio as the body of its answer."""
    call = Call("tts.bytes", BYTES, "bytes.wav")
    with client.tts.with_streaming_response.generate(model_id=model, transcript=BYTES, voice=voice, output_format=RAW) as answer:
        call.key = answer.headers["x-glottis-request-id"]
        for piece in answer.iter_bytes():
            call.hear(piece)
    return call


@_named_failure("tts.sse")
def tts_sse(client: Cartesia, model: str, voice: str) -> Call:
    """The whole text in one request, the audio as server-sent events."""
    call = Call("tts.sse", SSE, "sse.wav")
    events = client.tts.sse(
        model_id=model,
        transcript=SSE,
        voice=voice,
        output_format={"container": "raw", "encoding": "pcm_s16le", "sample_rate": SAMPLE_RATE},
    )
    call.key = events.response.headers["x-glottis-request-id"]
    for event in events:
        _ensure_no_error(call.name, event)
        _hear_event(call, event)
    return call


@_named_failure("tts.websocket")
def tts_websocket(client: Cartesia, model: str, voices: tuple[str, str]) -> list[Call]:
    """Two contexts on one socket, their audio interleaved; the second is fed in pieces that continue one another."""
    with client.tts.websocket_connect() as connection:
        # The SDK keeps the handshake's answer to itself; `response` is the websockets library's own name for it.
        handshake = connection._connection.response
        session = handshake.headers["x-glottis-request-id"] if handshake else ""
        pieces = Call("tts.websocket, in pieces", "".join(PIECES), "websocket-pieces.wav", key=f"{session}.1")
        whole = Call("tts.websocket, whole", WHOLE, "websocket-whole.wav", key=f"{session}.2")
        speaking = {"pieces": pieces, "whole": whole}
        in_pieces, at_once = (
            connection.context(name, model_id=model, voice=voice, output_format=RAW)
            for name, voice in zip(speaking, voices, strict=True)
        )
        in_pieces.push(PIECES[0])
        whole.began = time.perf_counter()
        at_once.push(WHOLE, continue_=False)
        for piece in PIECES[1:]:
            in_pieces.push(piece)
        in_pieces.no_more_inputs()
        for event in connection:
            _ensure_no_error("tts.websocket", event)
            name = event.context_id or ""
            _hear_event(speaking[name], event)
            if event.type == "done":
                del speaking[name]
            if not speaking:
                break
    return [pieces, whole]


def _hear_event(call: Call, event: Any) -> None:
    # Any: the SDK's union of event types.
    if event.type == "chunk":
        call.hear(base64.b64decode(event.data))


def _calls(client: Cartesia, model: str, voices: tuple[str, str]) -> Iterator[Call]:
    yield tts_bytes(client, model, voices[0])
    yield tts_sse(client, model, voices[0])
    yield from tts_websocket(client, model, voices)


@click.command()
@click.option("--base-url", required=True)
@click.option("--model", default="kokoro-82m")
@click.option("--voice", "voices", nargs=2, default=("af_heart", "am_michael"))
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), required=True)
@click.option("--token", envvar="GLOTTIS_DEMO_TOKEN", required=True)
def main(base_url: str, model: str, voices: tuple[str, str], out: Path, token: str) -> None:
    """Make the calls, write their wav files, print one JSON object a call."""
    out.mkdir(parents=True, exist_ok=True)
    client = Cartesia(base_url=base_url, api_key=token)
    try:
        for call in _calls(client, model, voices):
            call.save(out)
            _tell(call, out)
    except CallFailed as failure:
        click.echo(failure.sentence, err=True)
        sys.exit(FAILED_STATUS)


def _tell(call: Call, out: Path) -> None:
    json.dump(
        {
            "name": call.name,
            "wav": str(out / call.wav),
            "key": call.key,
            "seconds_to_first_audio": call.seconds_to_first_audio,
            "audio_seconds": call.audio_seconds,
        },
        sys.stdout,
    )
    sys.stdout.write("\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
