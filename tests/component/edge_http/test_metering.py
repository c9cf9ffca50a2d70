"""What an answer's bytes say of its usage: audio by its format, errors inside a 200, forms by their files."""

import base64
import io
import json
import wave

import msgspec
import pytest

from policy.index import index_of
from policy.world import World
from tests.doubles.cartesia import CartesiaDouble, Connection, Received, answers
from tests.kit.edge import RAW_BODY, Client, Edge, request, speak, workspace_at
from tests.kit.tallies import final_of
from tests.kit.waiting import until


def wav(milliseconds: int) -> bytes:
    """A WAV of silence, 8 kHz, 16 bit."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(8000)
        writer.writeframes(bytes(milliseconds * 16))
    return file.getvalue()


def answer(body: bytes, content_type: str = "audio/wav", *headers: str) -> bytes:
    lines = ["HTTP/1.1 200 OK", f"Content-Type: {content_type}", *headers, f"Content-Length: {len(body)}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def event(**data: object) -> bytes:
    return b"event: x\ndata: " + json.dumps(data).encode() + b"\n\n"


def chunk(size: int) -> bytes:
    return event(type="chunk", data=base64.b64encode(bytes(size)).decode(), done=False, status_code=206)


DONE = event(type="done", done=True, status_code=200)
FAILED = event(type="error", title="No", message="No", error_code="model_unavailable", status_code=500, done=True)


def part(name: str, value: bytes, extra: str = "") -> bytes:
    return f'--b\r\nContent-Disposition: form-data; name="{name}"{extra}\r\n\r\n'.encode() + value + b"\r\n"


def form(target: str, *parts: bytes) -> bytes:
    return request(
        "POST", target, "Content-Type: multipart/form-data; boundary=b", "X-Double: x", body=b"".join(parts) + b"--b--\r\n"
    )


def output(container: bytes, encoding: bytes = b"pcm_s16le", rate: bytes = b"8000") -> bytes:
    named = {"container": container, "encoding": encoding, "sample_rate": rate}
    return b"".join(part(f"output_format[{name}]", value) for name, value in named.items())


def allow_voices(gateway: Edge, double: CartesiaDouble, *voices: str) -> None:
    """Let accounts speak with these voices alone, so that a form's voice is judged."""
    snapshot = workspace_at(double.origin)
    accounts = tuple(msgspec.structs.replace(account, allowed_voices=voices) for account in snapshot.accounts)
    gateway.world = World(index_of(workspace_at(double.origin, accounts=accounts)), gateway.world.revocations, gateway.world.keys)


async def two_pieces(double: CartesiaDouble, connection: Connection, request: Received) -> bool:
    """Audio, and more audio when the test sets `go`."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: audio/pcm\r\nTransfer-Encoding: chunked\r\n\r\n"
    await connection.send(head + b"a\r\n%b\r\n" % bytes(10))
    await double.go.wait()
    await connection.send(b"a\r\n%b\r\n0\r\n\r\n" % bytes(10))
    return True


async def usage(
    client: Client, gateway: Edge, double: CartesiaDouble, sent: bytes, answered: bytes
) -> tuple[str, str, object, object]:
    """What a request that is answered so settles as: outcome, reason, what is owed, what the provider says."""
    double.scripts["x"] = answers(answered)
    await client.send(sent)
    await client.answer()
    (settled,) = await gateway.settled()
    assert settled.tally is not None
    final = final_of(settled.tally, settled.outcome, 0, is_owed=settled.is_owed)
    return settled.outcome, settled.reason, dict(final.totals), dict(final.provider_units)


SPOKEN = {"requests": 1, "characters": 6}


@pytest.mark.parametrize(
    ("format_", "body", "audio"),
    [
        ({"container": "wav", "encoding": "pcm_s16le", "sample_rate": 8000}, wav(1250), {"audio_out_ms": 1250}),
        ({"container": "raw", "encoding": "pcm_f32le", "sample_rate": 8000}, bytes(32_000), {"audio_out_ms": 1000}),
        ({"container": "mp3", "bit_rate": 128_000, "sample_rate": 44_100}, b"ID3" + bytes(15_997), {"audio_out_ms": 1000}),
        ({"container": "mp3"}, bytes(16_000), {"unmeasured": 1}),
        ({"container": "raw", "encoding": "pcm_s16le", "sample_rate": 8000}, b"", {}),
    ],
)
async def test_audio_is_measured_by_the_format_that_was_asked_for(
    client: Client, gateway: Edge, double: CartesiaDouble, format_: object, body: bytes, audio: dict[str, int]
) -> None:
    asked = json.dumps({"model_id": "sonic-3", "transcript": "Hello.", "voice": "v1", "output_format": format_}).encode()

    found = await usage(client, gateway, double, speak("X-Double: x", body=asked), answer(body))

    assert found == ("completed", "", SPOKEN | audio, {})


@pytest.mark.parametrize(
    ("events", "settled"),
    [
        (chunk(700) + event(type="timestamps") + chunk(50) + DONE, ("completed", "", SPOKEN | {"audio_out_ms": 750}, {})),
        (chunk(700) + FAILED, ("provider_error", "model_unavailable", {}, {})),
        (FAILED, ("provider_error", "model_unavailable", {}, {})),
        (b"event: error\ndata: broken\n\n", ("provider_error", "provider_error", {}, {})),
    ],
)
async def test_events_tell_how_much_was_spoken_and_an_error_inside_a_200_is_free(
    client: Client, gateway: Edge, double: CartesiaDouble, events: bytes, settled: object
) -> None:
    sent = speak("X-Double: x", body=RAW_BODY, target="/cartesia/tts/sse")

    assert await usage(client, gateway, double, sent, answer(events, "text/event-stream")) == settled


async def test_an_error_event_is_free_also_if_the_connection_breaks_behind_it(
    client: Client, gateway: Edge, double: CartesiaDouble
) -> None:
    cut = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 9999\r\n\r\n" + chunk(70) + FAILED
    double.scripts["x"] = answers(cut, goes_on=False)
    await client.send(speak("X-Double: x", body=RAW_BODY, target="/cartesia/tts/sse"))
    await client.rest()

    (settled,) = await gateway.settled()

    assert settled.tally is not None
    assert final_of(settled.tally, settled.outcome, 0, is_owed=settled.is_owed).totals == {}


async def test_a_compressed_answer_is_told_as_not_measured(client: Client, gateway: Edge, double: CartesiaDouble) -> None:
    sent = speak("X-Double: x", body=RAW_BODY, target="/cartesia/tts/sse")

    found = await usage(client, gateway, double, sent, answer(b"\x1f\x8b...", "text/event-stream", "Content-Encoding: gzip"))

    assert found == ("completed", "", SPOKEN | {"unmeasured": 1}, {})


async def test_infill_counts_its_fixed_part_beside_its_text(client: Client, gateway: Edge, double: CartesiaDouble) -> None:
    sent = form(
        "/cartesia/infill/bytes",
        part("model_id", b"sonic-3"),
        part("transcript", "hé <break time='1s'/>".encode()),
        part("voice_id", b"v1"),
        part("left_audio", wav(500), '; filename="l.wav"'),
        output(b"raw"),
    )

    found = await usage(client, gateway, double, sent, answer(bytes(8000)))

    assert found == ("completed", "", {"requests": 1, "characters": 304, "audio_out_ms": 500}, {})


@pytest.mark.parametrize(
    ("clip", "given"),
    [
        (part("clip", wav(2500), '; filename="c.wav"'), {"audio_in_ms": 2500}),
        # An MP3 has to be decoded to be measured: what came out is as long as what went in.
        (part("clip", b"ID3" + bytes(900), '; filename="c.mp3"'), {"audio_in_ms": 250}),
    ],
)
@pytest.mark.parametrize("has_voices", [False, True])
async def test_a_voice_changer_is_measured_by_the_clip_that_it_was_given(
    client: Client, gateway: Edge, double: CartesiaDouble, clip: bytes, given: dict[str, int], has_voices: bool
) -> None:
    if has_voices:
        allow_voices(gateway, double, "v1")
    sent = form("/cartesia/voice-changer/bytes", part("voice[id]", b"v1"), clip, output(b"wav"))

    found = await usage(client, gateway, double, sent, answer(wav(250)))

    assert found == ("completed", "", {"requests": 1, **given, "audio_out_ms": 250}, {})


async def test_a_voice_changer_that_answers_with_events_is_measured_alike(
    client: Client, gateway: Edge, double: CartesiaDouble
) -> None:
    clip = part("clip", b"OggS" + bytes(900), '; filename="c.ogg"')
    sent = form("/cartesia/voice-changer/sse", part("voice[id]", b"v1"), output(b"raw", b"pcm_mulaw", b"1000"), clip)

    found = await usage(client, gateway, double, sent, answer(chunk(300) + DONE, "text/event-stream"))

    assert found == ("completed", "", {"requests": 1, "audio_in_ms": 300, "audio_out_ms": 300}, {})


async def test_a_voice_changer_of_which_nothing_can_be_measured_is_told(
    client: Client, gateway: Edge, double: CartesiaDouble
) -> None:
    sent = form("/cartesia/voice-changer/bytes", part("clip", b"ID3" + bytes(900), '; filename="c.mp3"'), output(b"mp3"))

    found = await usage(client, gateway, double, sent, answer(bytes(900), "audio/mpeg"))

    assert found == ("completed", "", {"requests": 1, "unmeasured": 1}, {})


HEARD = b'{"type": "transcript", "text": "hi", "request_id": "r"%b}'


@pytest.mark.parametrize(
    ("query", "file", "extra", "found"),
    [
        ("", wav(2000), b', "duration": 2.5', ({"audio_in_ms": 2500}, {"audio_in_ms": 2500})),
        ("", wav(2000), b"", ({"audio_in_ms": 2000}, {})),
        ("?encoding=pcm_s16le&sample_rate=8000", bytes(16_000), b"", ({"audio_in_ms": 1000}, {})),
        ("", b"ID3" + bytes(900), b"", ({"unmeasured": 1}, {})),
        ("", b"ID3" + bytes(900), b', "duration": -1', ({"unmeasured": 1}, {})),
    ],
)
@pytest.mark.parametrize("is_model_first", [True, False])
async def test_batch_recognition_is_measured_by_what_the_provider_says_else_by_the_file(
    client: Client,
    gateway: Edge,
    double: CartesiaDouble,
    query: str,
    file: bytes,
    extra: bytes,
    found: tuple[dict[str, int], dict[str, int]],
    is_model_first: bool,
) -> None:
    parts = [part("model", b"ink-whisper"), part("file", file, '; filename="a"')]
    sent = form(f"/cartesia/stt{query}", *(parts if is_model_first else reversed(parts)))

    settled = await usage(client, gateway, double, sent, answer(HEARD % extra, "application/json"))

    assert settled == ("completed", "", {"requests": 1} | found[0], found[1])


async def test_a_recognition_whose_caller_left_is_owed_for_the_file_that_was_sent(
    client: Client, gateway: Edge, double: CartesiaDouble
) -> None:
    sent = form("/cartesia/stt", part("model", b"ink-whisper"), part("file", wav(1500), '; filename="a"'))
    await client.send(sent.replace(b"X-Double: x", b"X-Double: silent"))
    await until(lambda: len(double.requests) == 1)
    client.close()

    (settled,) = await gateway.settled()

    assert settled.tally is not None
    final = final_of(settled.tally, settled.outcome, 0, is_owed=settled.is_owed)
    assert (settled.outcome, final.totals) == ("client_gone", {"requests": 1, "audio_in_ms": 1500})


async def test_a_file_that_stands_twice_is_not_measured(client: Client, gateway: Edge, double: CartesiaDouble) -> None:
    file = part("file", wav(1500), '; filename="a"')

    found = await usage(
        client,
        gateway,
        double,
        form("/cartesia/stt", part("model", b"ink-whisper"), file, file),
        answer(HEARD % b"", "application/json"),
    )

    assert found == ("completed", "", {"requests": 1, "unmeasured": 1}, {})


async def test_an_error_status_is_no_audio(client: Client, gateway: Edge, double: CartesiaDouble) -> None:
    double.scripts["x"] = answers(b"HTTP/1.1 500 No\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
    await client.send(speak("X-Double: x"))
    await client.answer()

    (settled,) = await gateway.settled()

    assert (settled.outcome, settled.first_audio_at) == ("provider_error", 0.0)


async def test_the_largest_gap_between_two_arrivals_of_audio_is_kept(
    client: Client, gateway: Edge, double: CartesiaDouble
) -> None:
    double.scripts["two"] = two_pieces
    await client.send(speak("X-Double: two", body=RAW_BODY))
    await client.until(b"\0" * 10)
    gateway.now += 3
    double.go.set()
    await client.until(b"0\r\n\r\n")

    (settled,) = await gateway.settled()

    assert (settled.largest_audio_gap, settled.first_audio_at > 0) == (3.0, True)


def container(**asked: object) -> bytes:
    """A request to Kokoro's own container."""
    return speak("X-Double: x", body=json.dumps({"text": "Hello.", **asked}).encode(), target="/kokoro/invocations")


CONTAINER_EVENTS = (
    event(type="audio_stream_start", request_id="r", format="pcm16", voice="af_heart", sample_rate=8000)
    + event(type="audio_chunk", seq=0, data=base64.b64encode(bytes(8000)).decode())
    + event(type="audio_stream_end", total_chunks=1, duration_s=0.5)
)


@pytest.mark.parametrize(
    ("asked", "answered", "owed", "said"),
    [
        ({"sample_rate": 8000}, answer(wav(750)), {"audio_out_ms": 750}, {}),
        ({"format": "pcm"}, answer(bytes(48_000), "audio/pcm"), {"audio_out_ms": 1000}, {}),
        ({"format": "pcm", "sample_rate": 8000}, answer(bytes(8000), "audio/pcm"), {"audio_out_ms": 500}, {}),
        ({"format": "mp3"}, answer(bytes(6000), "audio/mpeg"), {"audio_out_ms": 1000}, {}),
        (
            {"stream": False, "sample_rate": 8000},
            answer(wav(750), "audio/wav", "X-Audio-Duration: 0.751"),
            {"audio_out_ms": 750},
            {"audio_out_ms": 751},
        ),
        (
            {"transport": "sse", "sample_rate": 8000},
            answer(CONTAINER_EVENTS, "text/event-stream"),
            {"audio_out_ms": 500},
            {"audio_out_ms": 500},
        ),
    ],
)
async def test_kokoros_container_is_measured_and_its_own_figure_stands_beside_ours(
    client: Client, gateway: Edge, double: CartesiaDouble, asked: dict[str, object], answered: bytes,
    owed: dict[str, int], said: dict[str, int],
) -> None:  # fmt: skip
    assert await usage(client, gateway, double, container(**asked), answered) == ("completed", "", SPOKEN | owed, said)


async def test_an_error_among_the_containers_events_is_free(client: Client, gateway: Edge, double: CartesiaDouble) -> None:
    failed = CONTAINER_EVENTS.rpartition(b"event: x")[0] + event(type="error", request_id="r", code="engine_failed", message="No")

    found = await usage(client, gateway, double, container(transport="sse"), answer(failed, "text/event-stream"))

    assert found == ("provider_error", "engine_failed", {}, {})
