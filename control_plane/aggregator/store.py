"""What the aggregator asks of ClickHouse, every statement with a name. Blocks: callers use threads.

`recompute` is the one operation behind new, late, repeated, re-priced and erased events (ADR 0031). Why it is right with
any number of aggregators: a recomputation takes its version after its own rows are in, and reads after it has the version.
So the recomputation with the highest version began after every other one's rows were in: it has seen them all, and the
highest version is the one that readers take.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import islice
from typing import Any

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import OperationalError

from control_plane.aggregator.rows import SPAN_COLUMNS, USAGE_COLUMNS, Row
from control_plane.clickhouse.connection import ClickHouse

_SLOTS_A_STATEMENT = 200
"""bounds the length of a statement, and what one recomputation holds in memory"""

_NEXT_VERSION = """
SELECT greatest(toUInt64(toUnixTimestamp64Nano(now64(9))), max(version) + 1)
FROM usage_rollups WHERE (workspace, slot) IN {touched:Array(Tuple(String, DateTime('UTC')))}
"""

# The first part sums the events; `unit` '' counts events and exchanges. The second writes a row of nothing for each slot,
# so that a slot whose events are all gone has a generation as well.
_RECOMPUTE = """
INSERT INTO usage_rollups
(workspace, slot, principal, principal_kind, team, account, provider, model, operation, unit, currency, version,
 quantity, cost, events, exchanges, principal_name, team_name, account_name)
SELECT
    workspace, slot, principal, principal_kind, team, account, provider, model, operation, unit,
    currencies[unit] AS currency, {version:UInt64} AS version,
    sum(units[unit]), sum(costs[unit]), countIf(unit = ''), countIf(unit = '' AND is_final),
    argMax(principal_name, at), argMax(team_name, at), argMax(account_name, at)
FROM (SELECT * FROM usage_events FINAL WHERE (workspace, slot) IN {touched:Array(Tuple(String, DateTime('UTC')))})
ARRAY JOIN arrayPushBack(mapKeys(units), '') AS unit
GROUP BY workspace, slot, principal, principal_kind, team, account, provider, model, operation, unit, currency
UNION ALL
SELECT
    touched.1, touched.2, '', '', '', '', '', '', '', '', '', {version:UInt64}, 0, toDecimal128(0, 18), 0, 0, '', '', ''
FROM (SELECT arrayJoin({touched:Array(Tuple(String, DateTime('UTC')))}) AS touched)
"""
_RECOMPUTE_SETTINGS = {
    "do_not_merge_across_partitions_select_final": 1,  # copies of an event share a partition
    "min_insert_block_size_rows": 1_000_000,  # one block, so that a generation appears at once
    "min_insert_block_size_bytes": 0,
    "max_insert_threads": 1,
}

_ASIDE_COLUMNS = ("stream", "sequence", "part", "subject", "reason", "at", "payload")
_ASIDE_OF_NEWER_RELEASES = """
SELECT sequence, part, payload FROM set_aside FINAL
WHERE stream = {stream:String} AND reason IN ('unsupported_schema', 'undecodable')
ORDER BY sequence, part LIMIT {limit:UInt32}
"""
_FORGET_ASIDE = (
    "DELETE FROM set_aside WHERE stream = {stream:String} AND (sequence, part) IN {places:Array(Tuple(UInt64, UInt32))}"
)


class Store:
    """ClickHouse, opened when first needed and again after a fault. Methods raise ClickHouseError or OSError."""

    def __init__(self, clickhouse: ClickHouse) -> None:
        self._clickhouse = clickhouse
        self._client: Client | None = None

    def check(self) -> None:
        """Return if ClickHouse answers and has our tables."""
        self.client().query("SELECT count() FROM usage_rollups WHERE slot = 0")

    def insert_usage(self, rows: Sequence[Row]) -> None:
        """Insert usage events; a copy of one that is there replaces it or vanishes."""
        self._insert("usage_events", rows, USAGE_COLUMNS)

    def insert_spans(self, rows: Sequence[Row]) -> None:
        """Insert spans; a copy of one that is there vanishes."""
        self._insert("spans", rows, SPAN_COLUMNS)

    def recompute(self, touched: Iterable[tuple[str, datetime]]) -> int:
        """Recompute the rollups of these (workspace, slot) pairs from the events that are there now.

        Return the lowest version that was given: rows of these slots with a lower one are of older generations.
        """
        pairs = iter(sorted(touched))
        lowest = 0
        while some := list(islice(pairs, _SLOTS_A_STATEMENT)):
            # The version must be older than the read that follows: never fold the two statements into one.
            version = self.next_version(some)
            self.write_generation(some, version)
            lowest = lowest or version
        return lowest

    def next_version(self, touched: Sequence[tuple[str, datetime]]) -> int:
        """Return a version above every one that these (workspace, slot) pairs have had."""
        return int(self.client().query(_NEXT_VERSION, parameters={"touched": touched}).result_rows[0][0])

    def write_generation(self, touched: Sequence[tuple[str, datetime]], version: int) -> None:
        """Write the rollups of these (workspace, slot) pairs as one generation, from the events that are there now."""
        self.client().command(_RECOMPUTE, parameters={"touched": touched, "version": version}, settings=_RECOMPUTE_SETTINGS)

    def set_aside(self, rows: Sequence[Row]) -> None:
        """Keep events that could not be counted: (stream, sequence, part, subject, reason, at, payload)."""
        self._insert("set_aside", rows, _ASIDE_COLUMNS)

    def aside_of_newer_releases(self, stream: str, limit: int) -> list[tuple[int, int, bytes]]:
        """Return (sequence, part, payload) of events that were set aside and that a newer release may have written.

        One in a shape without names says no schema to a reader that expects names: it was undecodable there.
        """
        result = self.client().query(
            _ASIDE_OF_NEWER_RELEASES,
            parameters={"stream": stream, "limit": limit},
            column_formats={"payload": "bytes"},
        )
        return [(int(sequence), int(part), bytes(payload)) for sequence, part, payload in result.result_rows]

    def forget_aside(self, stream: str, places: Sequence[tuple[int, int]]) -> None:
        """Delete events, by (sequence, part), that have been counted after all."""
        self.client().command(_FORGET_ASIDE, parameters={"stream": stream, "places": list(places)})

    def close(self) -> None:
        """Close the connection; the next call opens a new one."""
        client: Any = self._client
        self._client = None
        if client is not None:
            client.close()

    def _insert(self, table: str, rows: Sequence[Row], columns: Sequence[str]) -> None:
        """Insert, and believe it only if the server says that it wrote as many rows (a front was seen to lose some)."""
        written = self.client().insert(table, rows, column_names=columns).written_rows
        if 0 < written < len(rows):
            raise OperationalError(f"{table}: {written} of {len(rows)} rows written")

    def client(self) -> Client:
        """Return the connection, opened if it is not."""
        if self._client is None:
            self._client = self._clickhouse.open(timeout_seconds=120)
        return self._client
