"""The keyed hash of a transcript is HMAC-SHA-256, as a reader with the key computes it."""

import pytest

from gateway.telemetry.hashing import KeyedHash


@pytest.mark.parametrize(
    ("key", "text", "hashed"),
    [  # RFC 4231 §4.3, §4.7 (a key longer than a block)
        (b"Jefe", b"what do ya want for nothing?", "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"),
        (
            b"\xaa" * 131,
            b"Test Using Larger Than Block-Size Key - Hash Key First",
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
        ),
    ],
)
def test_the_hash_is_hmac_sha_256(key: bytes, text: bytes, hashed: str) -> None:
    assert KeyedHash(key).of(text) == hashed


def test_a_text_is_hashed_the_same_after_another_one() -> None:
    keyed = KeyedHash(b"Jefe")
    keyed.of(b"something else")

    assert keyed.of(b"what do ya want for nothing?") == "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
