"""What server-sent events say of their answer."""

import base64
import json

import pytest

from policy.events import EventReader


def event(name: str = "", **data: object) -> bytes:
    return (f"event: {name}\n" if name else "").encode() + b"data: " + json.dumps(data).encode() + b"\n\n"


def chunk(size: int) -> bytes:
    return event("chunk", type="chunk", data=base64.b64encode(bytes(size)).decode(), done=False, status_code=206)


DONE = event("done", type="done", done=True, status_code=200)


def read(stream: bytes, piece: int = 1 << 20) -> EventReader:
    reader = EventReader()
    for at in range(0, len(stream), piece):
        reader.feed(stream[at : at + piece])
    return reader


@pytest.mark.parametrize("piece", [1, 3, 100, 5000])
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_audio_is_counted_however_lines_end_and_reads_are_cut(line_end: bytes, piece: int) -> None:
    stream = (chunk(301) + event(type="timestamps", word_timestamps={"words": ["data"]}) + chunk(4000) + DONE).replace(
        b"\n", line_end
    )
    assert read(stream, piece).audio_bytes == 4301


def test_data_over_several_lines_is_one_event() -> None:
    assert read(b'data: {"type": "chunk",\ndata: "data": "AAAA"}\n\n').audio_bytes == 3


def test_only_a_piece_with_audio_is_an_arrival_of_audio() -> None:
    reader = EventReader()
    assert [reader.feed(piece) for piece in (event(type="timestamps"), chunk(9)[:-1], b"\n", DONE)] == [False, False, True, False]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (event("error", type="error", title="No", error_code="model_not_found", status_code=400, done=True), "model_not_found"),
        (event(type="error", message="No", status_code=500, done=True), "status_500"),
        (event("error", message="No", status_code=429), "status_429"),
        (event(type="error", request_id="r", code="too_busy", message="No"), "too_busy"),
        (b"event: error\ndata: Something broke\n\n", "provider_error"),
    ],
)
def test_an_error_among_the_events_fails_the_answer(error: bytes, reason: str) -> None:
    reader = read(chunk(10) + error)
    assert (reader.has_failed, reader.reason) == (True, reason)


def test_nothing_makes_a_failed_answer_good_again() -> None:
    assert read(event("error", type="error", done=True, status_code=500) + DONE).has_failed


def test_an_error_that_is_not_the_end_is_forgotten_when_the_answer_is_done() -> None:
    warned = chunk(10) + event("error", type="error", done=False, status_code=400)
    assert read(warned).has_failed
    assert not read(warned + chunk(10) + DONE).has_failed


def test_a_line_beyond_the_limit_is_not_kept_and_what_follows_is_read() -> None:
    reader = read(b'data: {"type":"chunk","data":"' + b"A" * 1_500_000 + b'"}\n\n' + chunk(10), 65_536)
    assert (reader.is_whole, reader.audio_bytes) == (False, 10)


def test_the_containers_own_words_are_understood() -> None:
    stream = (
        event(type="audio_stream_start", request_id="r", format="pcm16", sample_rate=24_000)
        + event(type="audio_chunk", seq=0, data=base64.b64encode(bytes(4800)).decode())
        + event(type="audio_stream_end", total_chunks=1, duration_s=0.1)
    )
    reader = read(stream)
    assert (reader.audio_bytes, reader.said_audio_ms, reader.has_failed) == (4800, 100, False)
