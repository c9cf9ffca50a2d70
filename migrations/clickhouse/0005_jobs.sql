-- Work that admins ask for and aggregators do: re-pricing and erasure (ADR 0034). Finished erasures stay, because an event
-- that comes late must not bring an erased subject back.
CREATE TABLE IF NOT EXISTS jobs
(
    workspace LowCardinality(String),
    id        String,
    kind      LowCardinality(String)    COMMENT 'reprice or erase',
    start     DateTime('UTC'),
    end       DateTime('UTC')           COMMENT 'what happened from this time on is not touched',
    subject   String                    COMMENT 'erase: the principal',
    asked_by  String,
    asked_at  DateTime64(3, 'UTC'),
    state     LowCardinality(String)    COMMENT 'asked, running, done or failed',
    detail    Map(LowCardinality(String), Int64),
    version   UInt64
)
ENGINE = ReplacingMergeTree(version)
ORDER BY (workspace, id)
TTL toDateTime(asked_at) + INTERVAL 760 DAY
