"""Checking the audit log's chain: each entry's hash covers its content and the hash before it."""

from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.audit import queries
from control_plane.audit.queries import in_order, page
from control_plane.audit.schemas import Verified
from control_plane.kit.unit import FIRST_HASH, entry_hash

__all__ = ["in_order", "page", "verify"]


async def verify(connection: AsyncConnection) -> Verified:
    """Return whether every entry is there and as it was written, up to the noted head."""
    previous, seq = FIRST_HASH, 0
    async for row in queries.in_order(connection):
        seq += 1
        if row["seq"] != seq or row["previous_hash"] != previous or row["hash"] != entry_hash(previous, row):
            return Verified(entries=seq, is_whole=False, broken_at=row["seq"], head=previous.hex())
        previous = row["hash"]
    noted = await queries.head(connection)
    is_whole = noted == (seq, previous) or (noted is None and seq == 0)
    return Verified(entries=seq, is_whole=is_whole, broken_at=None if is_whole else seq + 1, head=previous.hex())
