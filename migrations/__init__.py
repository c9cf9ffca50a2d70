"""What turns an older database into this release's: `postgres` by Alembic, `clickhouse` by numbered SQL files."""
