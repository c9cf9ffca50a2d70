"""Bodies packed as HTTP content encodings: what clickhouse-connect sends and accepts. No HTTP in here.

Both directions work piece by piece, so that neither an insert nor a result is ever whole in memory.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, Protocol

import lz4.frame
from backports import zstd

_GZIP = zlib.MAX_WBITS | 16


class Packer(Protocol):
    """Packs a stream."""

    def pack(self, piece: bytes) -> bytes:
        """Return what is ready to be sent after this piece, may be empty."""

    def finish(self) -> bytes:
        """Return the end of the stream."""


class _Lz4:
    def __init__(self) -> None:
        self._stream = lz4.frame.LZ4FrameCompressor()
        self._head: bytes = self._stream.begin()

    def pack(self, piece: bytes) -> bytes:
        head, self._head = self._head, b""
        packed: bytes = self._stream.compress(piece)
        return head + packed

    def finish(self) -> bytes:
        head, self._head = self._head, b""
        packed: bytes = self._stream.flush()
        return head + packed


class _Zstd:
    def __init__(self) -> None:
        self._stream = zstd.ZstdCompressor(level=1)

    def pack(self, piece: bytes) -> bytes:
        return bytes(self._stream.compress(piece))

    def finish(self) -> bytes:
        return bytes(self._stream.flush())


class _Deflated:
    def __init__(self, window: int) -> None:
        self._stream = zlib.compressobj(level=1, wbits=window)

    def pack(self, piece: bytes) -> bytes:
        return self._stream.compress(piece)

    def finish(self) -> bytes:
        return self._stream.flush()


class Plain:
    """Packs nothing."""

    def pack(self, piece: bytes) -> bytes:
        return piece

    def finish(self) -> bytes:
        return b""


def packer(accepted: str) -> tuple[str | None, Packer]:
    """Return the content encoding chosen from an Accept-Encoding header, and what packs it; (None, Plain()) for none."""
    names = {part.partition(";")[0].strip().lower() for part in accepted.split(",")}
    if "lz4" in names:
        return "lz4", _Lz4()
    if "zstd" in names:
        return "zstd", _Zstd()
    if "gzip" in names:
        return "gzip", _Deflated(_GZIP)
    if "deflate" in names:
        return "deflate", _Deflated(zlib.MAX_WBITS)
    return None, Plain()


class Unpacker:
    """Unpacks a stream of one frame after the other: clickhouse-connect packs each block as a frame of its own."""

    def __init__(self, new_frame: Callable[[], Any] | None) -> None:
        # Any: four libraries, whose decompressors have the same three members and no common type.
        self._new_frame = new_frame
        self._frame: Any = None

    @property
    def is_whole(self) -> bool:
        """Whether the stream may end here."""
        return self._frame is None or bool(self._frame.eof)

    def unpack(self, piece: bytes) -> bytes:
        """Return what this piece held. Raises ValueError for bytes that are not of this encoding."""
        if self._new_frame is None:
            return piece
        unpacked = bytearray()
        while piece:
            if self._frame is None or self._frame.eof:
                self._frame = self._new_frame()
            try:
                unpacked += self._frame.decompress(piece)
            except (zlib.error, zstd.ZstdError, RuntimeError) as error:  # RuntimeError is lz4's
                raise ValueError("not of this encoding") from error
            piece = (self._frame.unused_data or b"") if self._frame.eof else b""
        return bytes(unpacked)


def unpacker(encoding: str) -> Unpacker | None:
    """Return what unpacks a body with this Content-Encoding, None for an unknown one."""
    match encoding.lower():
        case "" | "identity":
            return Unpacker(None)
        case "lz4":
            return Unpacker(lz4.frame.LZ4FrameDecompressor)
        case "zstd":
            return Unpacker(zstd.ZstdDecompressor)
        case "gzip":
            return Unpacker(lambda: zlib.decompressobj(_GZIP))
        case "deflate":
            return Unpacker(zlib.decompressobj)
        case _:
            return None
