"""What the kernel's record of a connection means; the bytes are those of struct tcp_info (linux/tcp.h)."""

import struct

import pytest

from gateway.liveness import is_silent


def info(retransmits: int, unacknowledged: int, last_ack_ms: int) -> bytes:
    """Return TCP_INFO's bytes: eight single bytes, then 32-bit numbers."""
    numbers = [0] * 24
    numbers[4] = unacknowledged
    numbers[12] = last_ack_ms
    return bytes([1, 0, retransmits, 0, 0, 0, 0, 0]) + struct.pack("24I", *numbers) + bytes(88)


@pytest.mark.parametrize(
    ("retransmits", "unacknowledged", "last_ack_ms", "expected"),
    [
        (3, 5, 10_000, True),
        (3, 5, 9_999, False),
        (0, 5, 60_000, False),  # just sent, after a long silence
        (3, 0, 60_000, False),  # a closed window is probed, not sent into: a listener that plays slowly
    ],
)
def test_a_peer_is_dead_when_what_was_sent_again_is_not_acknowledged_for_ten_seconds(
    retransmits: int, unacknowledged: int, last_ack_ms: int, expected: bool
) -> None:
    assert is_silent(info(retransmits, unacknowledged, last_ack_ms)) is expected
