"""ClickHouse's tables, as numbered SQL files: one statement a file, applied in order by `control_plane.clickhouse.schema`.

A released file is never edited: a change is a new file. Statements are idempotent, because ClickHouse has no transaction
around DDL and a crash may fall between a statement and its record. Read next: `0001_usage_events.sql`.
"""
