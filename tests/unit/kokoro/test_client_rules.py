"""Telling audio from control without frame types, and putting events together from any pieces."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from kokoro_backend.client import Audio, Control, SseReassembler, told_apart
from kokoro_backend.container_messages import complete_frame, error_frame, sse_chunk, sse_end, start_frame
from kokoro_backend.errors import QUEUE_SATURATED

CONTROL = st.one_of(
    st.text(min_size=1, max_size=20).map(lambda name: start_frame(name, 24000)),
    st.text(min_size=1, max_size=20).map(lambda name: complete_frame(name, 1.5, 0.2)),
    st.text(min_size=1, max_size=20).map(lambda name: error_frame(name, QUEUE_SATURATED)),
)


@given(st.binary(max_size=200))
def test_pcm_that_begins_like_json_is_audio(rest: bytes) -> None:
    pcm = b"{" + rest
    assert told_apart(pcm, keeps_frame_types=False) == Audio(pcm)


def test_two_bytes_that_are_an_empty_object_are_a_sample() -> None:
    assert told_apart(b"{}", keeps_frame_types=False) == Audio(b"{}")


@given(CONTROL)
def test_every_control_frame_is_told_apart_by_text_and_by_shape(frame: str) -> None:
    expected = Control(json.loads(frame))
    assert told_apart(frame, keeps_frame_types=True) == expected
    assert told_apart(frame.encode(), keeps_frame_types=False) == expected


@given(CONTROL)
def test_binary_frames_are_audio_where_types_are_kept(frame: str) -> None:
    assert told_apart(frame.encode(), keeps_frame_types=True) == Audio(frame.encode())


@given(st.lists(st.integers(0, 2000), max_size=20), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_events_are_the_same_however_they_are_cut(cuts: list[int], line_end: bytes) -> None:
    stream = b"".join(sse_chunk(number, bytes(range(50))) for number in range(5)) + sse_end(5, 1.0)
    stream = stream.replace(b"\n", line_end)
    reassembler = SseReassembler()
    events = []
    start = 0
    for cut in [*sorted(min(cut, len(stream)) for cut in cuts), len(stream)]:
        events += reassembler.feed(stream[start:cut])
        start = cut
    if line_end == b"\r":
        events += reassembler.feed(b"\n")  # A final CR could still have been half of a CR LF.
    assert [event["type"] for event in events] == ["audio_chunk"] * 5 + ["audio_stream_end"]
    assert [event.get("seq") for event in events[:5]] == [0, 1, 2, 3, 4]
