"""Bodies packed and unpacked piece by piece."""

from __future__ import annotations

import gzip
import zlib

import lz4.frame
import pytest
from backports import zstd

from glottis.clickhouse.encoding import packer, unpacker

TEXT = b"the same line again and again\n" * 5000
PACKED = {
    "gzip": gzip.compress(TEXT),
    "deflate": zlib.compress(TEXT),
    "lz4": lz4.frame.compress(TEXT),
    "zstd": zstd.compress(TEXT),
    "identity": TEXT,
}


@pytest.mark.parametrize("encoding", sorted(PACKED))
@pytest.mark.parametrize("step", [1, 7, 10_000_000])
def test_a_body_is_unpacked_however_it_is_cut(encoding: str, step: int) -> None:
    body = PACKED[encoding]
    unpacking = unpacker(encoding)
    assert unpacking is not None

    pieces = [unpacking.unpack(body[start : start + step]) for start in range(0, len(body), step)]

    assert b"".join(pieces) == TEXT
    assert unpacking.is_whole


@pytest.mark.parametrize("encoding", ["gzip", "lz4", "zstd"])
def test_frames_that_follow_one_another_are_one_body(encoding: str) -> None:
    unpacking = unpacker(encoding)
    assert unpacking is not None

    assert unpacking.unpack(PACKED[encoding] * 3) == TEXT * 3
    assert unpacking.is_whole


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "lz4", "zstd"])
def test_a_body_cut_short_is_not_whole(encoding: str) -> None:
    unpacking = unpacker(encoding)
    assert unpacking is not None
    unpacking.unpack(PACKED[encoding][:-5])

    assert not unpacking.is_whole


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "lz4", "zstd"])
def test_bytes_of_another_encoding_are_refused(encoding: str) -> None:
    unpacking = unpacker(encoding)
    assert unpacking is not None
    with pytest.raises(ValueError, match="not of this encoding"):
        unpacking.unpack(b"SELECT 1, and more bytes than any header has")


def test_an_unknown_encoding_has_no_unpacker() -> None:
    assert unpacker("br") is None


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        ("lz4", "lz4"),
        ("zstd, lz4;q=0.5", "lz4"),
        ("gzip, zstd", "zstd"),
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("br", None),
        ("", None),
    ],
)
def test_what_is_packed_can_be_unpacked_by_who_accepts_it(accepted: str, encoding: str | None) -> None:
    chosen, packing = packer(accepted)
    unpacking = unpacker(chosen or "identity")
    assert unpacking is not None

    body = packing.pack(TEXT[:1000]) + packing.pack(TEXT[1000:]) + packing.finish()

    assert chosen == encoding
    assert unpacking.unpack(body) == TEXT
