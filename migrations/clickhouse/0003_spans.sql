-- One row a span. A span is written again on redelivery; its content never changes, so any copy may win.
CREATE TABLE IF NOT EXISTS spans
(
    workspace   LowCardinality(String)              COMMENT 'empty: refused before the principal was known',
    hour        DateTime('UTC')                     COMMENT 'start of the hour that the span started in',
    trace_id    String,
    span_id     String,
    parent_id   String,
    request_id  String,
    trace_state String,
    name        LowCardinality(String),
    kind        LowCardinality(String),
    start       DateTime64(9, 'UTC'),
    duration_ns UInt64,
    is_error    Bool,
    pod         LowCardinality(String),
    attributes  Map(LowCardinality(String), String) COMMENT 'numbers and booleans as JSON writes them',
    INDEX request_ids request_id TYPE bloom_filter GRANULARITY 4,
    INDEX trace_ids trace_id TYPE bloom_filter GRANULARITY 4
)
ENGINE = ReplacingMergeTree
PARTITION BY toYYYYMMDD(hour)
ORDER BY (workspace, hour, trace_id, span_id)
TTL hour + INTERVAL 30 DAY
