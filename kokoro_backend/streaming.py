"""Streamed HTTP answers whose first piece exists before their status is sent, and which stop when the client leaves."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

from fastapi import Request


class ClientGone(Exception):
    """The client hung up before there was anything to send; nobody reads an answer."""


async def primed(request: Request, stream: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    """Return `stream` with its first piece already made, so that what fails before it gets a status of its own.

    The request's body must have been read. Raises ClientGone if the client leaves first, and what `stream` raises.
    """

    async def first_piece() -> bytes | None:
        return await anext(stream, None)

    making = asyncio.ensure_future(first_piece())
    leaving = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({making, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not making.done():
            raise ClientGone
        first = making.result()
    finally:
        leaving.cancel()
        if not making.done():
            making.cancel()
            await asyncio.wait([making])
            await stream.aclose()

    async def whole() -> AsyncIterator[bytes]:
        try:
            if first is not None:
                yield first
            async for piece in stream:
                yield piece
        finally:
            await stream.aclose()

    return whole()
