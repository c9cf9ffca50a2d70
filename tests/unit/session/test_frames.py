"""Framing, read by read: what ends where, what is broken, what may be sent."""

import pytest

from policy import frames
from policy.frames import Gate, Tap, Walker, close_frame, frame, unmasked

MASK = b"\x12\x34\x56\x78"
LIMIT = 1 << 20


def client_frame(opcode: int, payload: bytes, *, is_final: bool = True) -> bytes:
    whole = bytearray(frame(opcode, payload, MASK))
    if not is_final:
        whole[0] &= 0x7F
    return bytes(whole)


def test_a_masked_payload_reads_as_the_client_meant_it() -> None:
    assert unmasked(bytes.fromhex("7f9f4d5158"), bytes.fromhex("37fa213d")) == b"Hello"


def test_an_unmasked_payload_is_given_back_as_it_is() -> None:
    assert unmasked(b"Hello", b"") == b"Hello"


@pytest.mark.parametrize(
    ("size", "head"),
    [
        (0, "8200"),
        (125, "827d"),
        (126, "827e007e"),
        (65535, "827effff"),
        (65536, "827f0000000000010000"),
    ],
)
def test_a_frame_of_ours_has_the_shortest_length_that_holds_it(size: int, head: str) -> None:
    assert frame(frames.BINARY, bytes(size))[: len(head) // 2].hex() == head


def test_a_close_frame_of_ours_holds_code_and_reason() -> None:
    assert close_frame(1008, "token_revoked") == b"\x88\x0f\x03\xf0token_revoked"


def test_a_close_reason_is_cut_to_123_bytes_between_characters() -> None:
    whole = close_frame(1008, "é" * 100)
    assert whole[1] == 2 + 122
    assert whole[4:].decode() == "é" * 61


@pytest.mark.parametrize("code", [0, 999, 1004, 1005, 1006, 1015, 1016, 2999, 5000])
def test_a_close_code_that_must_not_travel_is_a_protocol_error(code: int) -> None:
    walker = Walker("server", LIMIT)
    assert walker.walk(frame(frames.CLOSE, code.to_bytes(2, "big")))
    assert walker.fault is not None
    assert walker.fault.code == 1002


@pytest.mark.parametrize("at", [0, 1, 2, 5, 7])
def test_a_close_frame_that_must_not_travel_is_cut_off_or_ends_the_stream_where_it_was_cut(at: int) -> None:
    """at: how much of it passed with the read before."""
    before, bad = client_frame(frames.TEXT, b"one"), client_frame(frames.CLOSE, (1005).to_bytes(2, "big"))
    for end in (b"", client_frame(frames.TEXT, b"late")):
        walker = Walker("client", LIMIT)
        assert not walker.walk(before + bad[:at])
        assert walker.walk(bad[at:] + end)
        assert (walker.cut, walker.is_between_messages) == (0, at == 0)


@pytest.mark.parametrize("reader", [Walker("server", LIMIT), Tap(LIMIT, LIMIT)])
def test_what_stands_before_a_close_frame_that_must_not_travel_passes(reader: Walker) -> None:
    stream = frame(frames.TEXT, b"one") + frame(frames.PING, b"") + frame(frames.CLOSE, (1006).to_bytes(2, "big"))
    if isinstance(reader, Tap):
        reader.feed(stream)
    else:
        reader.walk(stream)
    assert (reader.cut, reader.is_over, reader.is_between_messages) == (5 + 2, True, True)


def test_a_close_without_a_code_reads_as_1005() -> None:
    walker = Walker("server", LIMIT)
    assert walker.walk(frame(frames.CLOSE, b""))
    assert walker.close is not None
    assert (walker.close.code, walker.close.reason) == (1005, b"")


def test_a_close_frame_of_a_client_is_unmasked_even_in_three_reads() -> None:
    walker = Walker("client", LIMIT)
    whole = close_frame(4001, "client bye", MASK)
    assert [walker.walk(part) for part in (whole[:1], whole[1:9], whole[9:])] == [False, False, True]
    assert walker.close is not None
    assert (walker.close.code, walker.close.reason) == (4001, b"client bye")


def test_what_stands_behind_a_close_frame_is_cut_off() -> None:
    walker = Walker("server", LIMIT)
    assert walker.walk(frame(frames.TEXT, b"one") + close_frame(1000, "") + frame(frames.TEXT, b"late"))
    assert walker.cut == 5 + 4
    assert walker.messages == 1


@pytest.mark.parametrize(
    ("first_read", "code"),
    [
        (frame(frames.TEXT, b"hello"), 1002),  # a client that does not mask
        (bytes.fromhex("c18100000000") + b"x", 1002),  # RSV1: permessage-deflate that nobody agreed on
        (bytes.fromhex("838000000000"), 1002),  # reserved data opcode
        (bytes.fromhex("8b8000000000"), 1002),  # reserved control opcode
        (bytes.fromhex("808000000000"), 1002),  # a continuation of nothing
        (bytes.fromhex("098000000000"), 1002),  # a fragmented ping
        (bytes.fromhex("89fe007e00000000"), 1002),  # a long ping
        (client_frame(frames.TEXT, b"a", is_final=False) + client_frame(frames.TEXT, b"b"), 1002),
        (bytes.fromhex("82ff000000000010000112345678"), 1009),
        (bytes.fromhex("82ffffffffffffffffff12345678"), 1009),
        (bytes.fromhex("888100000000") + b"x", 1002),  # a close frame of one byte
    ],
)
def test_broken_framing_is_told_with_its_close_code(first_read: bytes, code: int) -> None:
    for reader in (Walker("client", LIMIT), Gate(LIMIT)):
        if isinstance(reader, Gate):
            reader.feed(first_read)
        else:
            reader.walk(first_read)
        assert reader.fault is not None
        assert reader.fault.code == code


def test_a_masked_frame_of_a_server_is_broken() -> None:
    tap = Tap(LIMIT, LIMIT)
    assert tap.feed(frame(frames.TEXT, b"hello", MASK)) == []
    assert tap.fault is not None
    assert tap.fault.code == 1002


def test_a_message_at_the_limit_passes_and_one_byte_more_does_not() -> None:
    walker = Walker("client", 1000)
    assert not walker.walk(client_frame(frames.BINARY, bytes(1000)))
    assert walker.walk(client_frame(frames.BINARY, bytes(1001)))
    assert walker.fault is not None
    assert walker.fault.code == 1009


def test_the_limit_counts_all_frames_of_a_message() -> None:
    walker = Walker("client", 1000)
    assert not walker.walk(client_frame(frames.BINARY, bytes(600), is_final=False))
    assert walker.walk(client_frame(frames.CONTINUATION, bytes(401)))
    assert walker.fault is not None
    assert walker.fault.code == 1009


def test_payload_is_counted_by_kind_also_in_continuations() -> None:
    walker = Walker("client", LIMIT)
    walker.walk(client_frame(frames.BINARY, bytes(600), is_final=False) + client_frame(frames.PING, b"beat"))
    walker.walk(client_frame(frames.CONTINUATION, bytes(40)) + client_frame(frames.TEXT, b"finalize"))
    assert (walker.messages, walker.binary_bytes, walker.text_bytes) == (2, 640, 8)


def test_the_first_end_of_a_message_in_a_read_is_where_a_frame_of_ours_may_go() -> None:
    walker = Walker("server", LIMIT)
    whole = frame(frames.TEXT, bytes(300))
    walker.walk(whole[:100])
    assert not walker.is_between_messages
    walker.walk(whole[100:] + whole + whole[:50])
    assert walker.boundary == len(whole) - 100


def test_between_two_fragments_there_is_no_place_for_a_frame_of_ours() -> None:
    walker = Walker("server", LIMIT)
    walker.walk(b"\x01\x05hello")
    assert not walker.is_between_messages
    walker.walk(b"\x80\x00")
    assert walker.is_between_messages


def test_a_gate_gives_a_whole_message_as_it_came_and_as_it_reads() -> None:
    raw = client_frame(frames.TEXT, b'{"transcript": "hello"}')
    assert Gate(LIMIT).feed(raw) == [(frames.TEXT, raw, b'{"transcript": "hello"}')]


def test_a_gate_holds_fragments_until_the_last_one_and_lets_a_ping_pass_between() -> None:
    gate = Gate(LIMIT)
    first = client_frame(frames.TEXT, b"hel", is_final=False)
    ping = client_frame(frames.PING, b"beat")
    last = client_frame(frames.CONTINUATION, b"lo")
    assert gate.feed(first) == []
    assert gate.feed(ping) == [(frames.PING, ping, b"beat")]
    assert gate.held_bytes == len(first)
    assert gate.feed(last) == [(frames.TEXT, first + last, b"hello")]
    assert gate.held_bytes == 0


def test_a_gate_holds_no_more_than_so_many_frames_of_a_message() -> None:
    """A frame may be empty: a limit in bytes of payload let one message hold any number of them."""
    gate = Gate(LIMIT)
    assert gate.feed(client_frame(frames.TEXT, b"", is_final=False)) == []
    assert gate.feed(client_frame(frames.CONTINUATION, b"", is_final=False) * 16_383) == []
    assert gate.fault is None
    assert gate.feed(client_frame(frames.CONTINUATION, b"")) == []
    assert gate.fault is not None
    assert gate.fault.code == 1009


def test_a_tap_shows_text_that_ends_in_a_read_and_keeps_nothing_of_what_is_too_long() -> None:
    tap = Tap(LIMIT, 10)
    whole = frame(frames.TEXT, b"short") + b"\x01\x06abcdef" + b"\x80\x06ghijkl" + frame(frames.BINARY, b"\0")
    assert tap.feed(whole[:3]) == []
    assert tap.feed(whole[3:]) == [(frames.TEXT, b"short"), (frames.TEXT, None), (frames.BINARY, b"\0")]
