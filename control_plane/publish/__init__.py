"""From rows to what gateways read: snapshot, prices and revocations on NATS.

Read in this order: `records` (rows to records, pure), `ledger` (records to chunks, pure), `reader` (the SQL), `bus` (buckets
and streams), `publisher` (the loop that ties them together).
"""

from control_plane.publish.bus import Bus, BusSettings
from control_plane.publish.publisher import Publisher

__all__ = ["Bus", "BusSettings", "Publisher"]
