-- Events that could not be counted, as they came (ADR 0032); `part` is an event's place in its message, from 0. Written by a newer release: counted by the first aggregator
-- that knows their schema. Anything else: kept for whoever investigates.
CREATE TABLE IF NOT EXISTS set_aside
(
    stream   LowCardinality(String),
    sequence UInt64,
    part     UInt32,
    subject  String,
    reason   LowCardinality(String),
    at       DateTime('UTC'),
    payload  String CODEC(ZSTD)
)
ENGINE = ReplacingMergeTree
ORDER BY (stream, sequence, part, at)
TTL at + INTERVAL 90 DAY
