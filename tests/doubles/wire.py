"""A wire between two processes that can be broken while it is in use: a TCP relay on loopback.

`mode` may be changed at any time: `""` passes everything, `silent` keeps both connections open and passes nothing (a
partition: nobody is told), `slow` passes each piece late, `read-only` answers ClickHouse's inserts as a server does whose
disk is read-only, and passes everything else.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final, Literal, TypeAlias

Mode: TypeAlias = Literal["", "silent", "slow", "read-only"]

_SLOW_SECONDS: Final = 0.3
_REFUSAL_TEXT: Final = b"Code: 242. DB::Exception: Table is in readonly mode. (TABLE_IS_READ_ONLY)"
_REFUSAL: Final = (
    b"HTTP/1.1 500 Internal Server Error\r\nX-ClickHouse-Exception-Code: 242\r\nConnection: close\r\n"
    b"Content-Type: text/plain\r\nContent-Length: %d\r\n\r\n%b" % (len(_REFUSAL_TEXT), _REFUSAL_TEXT)
)


class Wire:
    """One wire. `port`: where it listens; `passed`: bytes that went through."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._may_pass = asyncio.Event()
        self._may_pass.set()
        self._mode: Mode = ""
        self._left: int | None = None
        """bytes that clients may still send before it goes silent"""
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0
        self.refused = 0

    @property
    def mode(self) -> Mode:
        """How it behaves now."""
        return self._mode

    @mode.setter
    def mode(self, mode: Mode) -> None:
        self._mode = mode
        self._left = None
        if mode == "silent":
            self._may_pass.clear()
        else:
            self._may_pass.set()

    def silent_after(self, count: int) -> None:
        """Go silent once the clients have sent so many more bytes."""
        self._left = count

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self._writers.add(writer)
        try:
            await self._may_pass.wait()
            there, back = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.transport.abort()
            self._writers.discard(writer)
            return
        self._writers.add(back)
        try:
            await asyncio.gather(self._pump(reader, back, writer), self._pump(there, writer, None))
        except OSError:
            pass
        finally:
            for one in (writer, back):
                self._writers.discard(one)
                one.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, asker: asyncio.StreamWriter | None) -> None:
        """Pass one direction on until it ends. asker: who waits for an answer, if this is the direction of questions."""
        while data := await source.read(65_536):
            if asker is not None and self._left is not None:
                self._left -= len(data)
                if self._left < 0:
                    self.mode = "silent"
            await self._may_pass.wait()
            if self._mode == "slow":
                await asyncio.sleep(_SLOW_SECONDS)
            if self._mode == "read-only" and asker is not None and data.startswith(b"POST") and b"INSERT" in data:
                self.refused += 1
                asker.write(_REFUSAL)
                await asker.drain()
                raise ConnectionResetError("refused")
            sink.write(data)
            await sink.drain()
        sink.close()

    def cut(self) -> None:
        """End every connection at once."""
        for writer in list(self._writers):
            writer.transport.abort()


@contextlib.asynccontextmanager
async def wire_to(target_port: int) -> AsyncIterator[Wire]:
    """A wire to a port of this machine, for as long as the block runs."""
    wire = Wire(target_port)
    server = await asyncio.start_server(wire.take, "127.0.0.1", 0)
    wire.port = server.sockets[0].getsockname()[1]
    try:
        yield wire
    finally:
        wire.mode = ""
        server.close()
        wire.cut()
