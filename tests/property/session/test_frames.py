"""However a byte stream is cut into reads, it means the same."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from policy import frames
from policy.frames import Close, FramingFault, Gate, Tap, Walker, unmasked

LIMIT = 2000

_payloads = st.one_of(st.binary(max_size=140), st.integers(120, 2100).map(lambda size: bytes(i & 0xFF for i in range(size))))


@st.composite
def _frame(draw: st.DrawFn, is_client: bool) -> bytes:
    """One frame, usually legal by itself; sometimes with one byte of its header changed."""
    opcode = draw(st.sampled_from([frames.TEXT, frames.BINARY, frames.CONTINUATION, frames.PING, frames.PONG, frames.CLOSE]))
    if opcode == frames.CLOSE:
        payload = draw(st.sampled_from([b"", b"\x03\xe8", b"\x03\xf0token_revoked", b"\x0f\xa1client bye", b"\x03", b"\x03\xed"]))
    else:
        payload = draw(_payloads)
        if opcode >= 8:
            payload = payload[:125]
    whole = bytearray(frames.frame(opcode, payload, draw(st.binary(min_size=4, max_size=4)) if is_client else b""))
    if opcode < 8 and draw(st.booleans()):
        whole[0] &= 0x7F
    if draw(st.integers(0, 19)) == 0:
        whole[draw(st.integers(0, 1))] ^= 1 << draw(st.integers(0, 7))
    return bytes(whole)


def _stream(is_client: bool) -> st.SearchStrategy[bytes]:
    well_formed = st.lists(_frame(is_client), max_size=8).map(b"".join)
    return st.one_of(well_formed, well_formed, st.binary(max_size=60))


@st.composite
def _reads(draw: st.DrawFn, is_client: bool) -> tuple[bytes, list[bytes]]:
    stream = draw(_stream(is_client))
    cuts = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    edges = [0, *cuts, len(stream)]
    return stream, [stream[a:b] for a, b in itertools.pairwise(edges) if a < b]


def _one_by_one(stream: bytes) -> list[bytes]:
    return [stream[i : i + 1] for i in range(len(stream))]


def _end(reader: Walker | Gate) -> object:
    close: Close | None = reader.close
    fault: FramingFault | None = reader.fault
    return (close and (close.code, close.reason), fault and fault.code)


def _walked(sender: frames.Sender, reads: list[bytes]) -> object:
    walker = Walker(sender, LIMIT)
    passed = 0
    for read in reads:
        if walker.walk(read):
            passed += walker.cut
            break
        passed += len(read)
    between = walker.is_between_messages if walker.fault is None else None
    return _end(walker), walker.messages, walker.binary_bytes, walker.text_bytes, between, walker.fault is None and passed


def _gated(reads: list[bytes]) -> object:
    gate = Gate(LIMIT)
    found = []
    for read in reads:
        found += gate.feed(read)
        if gate.fault is not None or gate.close is not None:
            break
    return _end(gate), found


def _tapped(reads: list[bytes]) -> object:
    tap = Tap(LIMIT, 500)
    found = []
    for read in reads:
        found += tap.feed(read)
        if tap.fault is not None or tap.close is not None:
            break
    return _end(tap), found, tap.messages, tap.binary_bytes, tap.text_bytes


@given(_reads(True))
@settings(max_examples=400)
def test_a_clients_stream_is_walked_alike_in_any_reads(case: tuple[bytes, list[bytes]]) -> None:
    stream, reads = case
    expected = _walked("client", _one_by_one(stream))
    assert _walked("client", reads) == expected
    assert _walked("client", [stream] if stream else []) == expected


@given(_reads(False))
@settings(max_examples=400)
def test_a_servers_stream_is_walked_alike_in_any_reads(case: tuple[bytes, list[bytes]]) -> None:
    stream, reads = case
    expected = _walked("server", _one_by_one(stream))
    assert _walked("server", reads) == expected
    assert _walked("server", [stream] if stream else []) == expected


@given(_reads(True))
@settings(max_examples=400)
def test_a_gate_gives_the_same_messages_for_any_reads(case: tuple[bytes, list[bytes]]) -> None:
    stream, reads = case
    expected = _gated(_one_by_one(stream))
    assert _gated(reads) == expected
    assert _gated([stream] if stream else []) == expected


@given(_reads(False))
@settings(max_examples=400)
def test_a_tap_shows_the_same_messages_for_any_reads(case: tuple[bytes, list[bytes]]) -> None:
    stream, reads = case
    expected = _tapped(_one_by_one(stream))
    assert _tapped(reads) == expected
    assert _tapped([stream] if stream else []) == expected


@given(st.binary(max_size=3000), st.binary(min_size=4, max_size=4))
def test_unmasking_is_what_rfc_6455_says(payload: bytes, mask: bytes) -> None:
    assert unmasked(payload, mask) == bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))


@given(st.lists(st.tuples(st.sampled_from([frames.TEXT, frames.BINARY]), _payloads), min_size=1, max_size=6))
def test_what_a_gate_gives_back_is_what_came_byte_for_byte(sent: list[tuple[int, bytes]]) -> None:
    stream = b"".join(frames.frame(opcode, payload, b"\x01\x02\x03\x04") for opcode, payload in sent)
    gate = Gate(LIMIT)
    given_back = b"".join(raw for _, raw, _ in gate.feed(stream))
    assert stream.startswith(given_back)
    assert given_back == stream or gate.fault is not None
