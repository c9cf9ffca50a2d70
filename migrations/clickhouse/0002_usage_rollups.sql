-- Sums of deduplicated usage_events for five minutes each (ADR 0031). Every recomputation of a (workspace, slot) writes all
-- of its rows with one new `version`; the rows of the highest version are the truth, whatever the engine has merged so far.
-- `unit` '' carries the counts of events and exchanges; `currency` '' carries quantities that no price was found for.
CREATE TABLE IF NOT EXISTS usage_rollups
(
    workspace      LowCardinality(String),
    slot           DateTime('UTC'),
    principal      String,
    principal_kind LowCardinality(String),
    team           LowCardinality(String),
    account        LowCardinality(String),
    provider       LowCardinality(String),
    model          LowCardinality(String),
    operation      LowCardinality(String),
    unit           LowCardinality(String),
    currency       LowCardinality(String),
    version        UInt64,
    quantity       Int64,
    cost           Decimal(38, 18),
    events         UInt64,
    exchanges      UInt64,
    principal_name String,
    team_name      LowCardinality(String),
    account_name   LowCardinality(String)
)
ENGINE = ReplacingMergeTree(version)
PARTITION BY toYYYYMM(slot)
ORDER BY (workspace, slot, principal, principal_kind, team, account, provider, model, operation, unit, currency)
TTL slot + INTERVAL 760 DAY
