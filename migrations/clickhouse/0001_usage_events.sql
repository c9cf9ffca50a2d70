-- Usage, one row an event (ADR 0030). Engine: the newest price revision of an event replaces the older ones, so that
-- redelivery, two aggregators and re-pricing are all "insert again". `slot`, `id` and `at` never change for an event, so
-- that copies of it always share a partition, without which the engine would not see that they are the same.
CREATE TABLE IF NOT EXISTS usage_events
(
    workspace      LowCardinality(String),
    slot           DateTime('UTC')                                   COMMENT 'start of the five minutes that `at` lies in',
    id             String                                            COMMENT 'event id, `<key>:<seq>`',
    key            String                                            COMMENT 'the exchange, or one context of its session',
    seq            UInt32,
    is_final       Bool,
    at             DateTime64(3, 'UTC'),
    pod            LowCardinality(String),
    principal      String,
    principal_kind LowCardinality(String),
    principal_name String,
    team           LowCardinality(String),
    team_name      LowCardinality(String),
    token          String                                            COMMENT 'jti of the caller token, never the token',
    account        LowCardinality(String),
    account_name   LowCardinality(String),
    provider       LowCardinality(String),
    model          LowCardinality(String),
    operation      LowCardinality(String),
    endpoint       LowCardinality(String),
    units          Map(LowCardinality(String), Int64)                COMMENT 'added by this event',
    totals         Map(LowCardinality(String), Int64)                COMMENT 'over the whole key, on the final event',
    provider_units Map(LowCardinality(String), Int64)                COMMENT 'what the provider said, beside ours',
    outcome        LowCardinality(String),
    metadata       Map(String, String),
    costs          Map(LowCardinality(String), Decimal(38, 18))      COMMENT 'unit to cost; a unit without an entry is unpriced',
    currencies     Map(LowCardinality(String), String)               COMMENT 'unit to currency of its cost',
    price_revision UInt64                                            COMMENT 'revision of the price book that was applied'
)
ENGINE = ReplacingMergeTree(price_revision)
PARTITION BY toYYYYMM(slot)
ORDER BY (workspace, slot, id)
TTL slot + INTERVAL 760 DAY
