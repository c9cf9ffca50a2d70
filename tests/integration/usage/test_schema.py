"""Migrations of ClickHouse."""

import pytest

from control_plane.clickhouse.connection import ClickHouse
from control_plane.clickhouse.schema import MigrationRefused, migrate
from tests.kit.services import ClickhouseDatabase

FILES = ["0001_usage_events.sql", "0002_usage_rollups.sql", "0003_spans.sql", "0004_set_aside.sql", "0005_jobs.sql"]


@pytest.fixture
def empty(clickhouse_database: ClickhouseDatabase) -> ClickHouse:
    """A database without our tables."""
    database = clickhouse_database
    return ClickHouse(database.url, database.name, database.user, database.password)


def test_each_file_runs_once(empty: ClickHouse) -> None:
    assert migrate(empty)[: len(FILES)] == FILES
    assert migrate(empty) == []


def test_a_run_that_broke_off_before_its_record_is_repeated_without_harm(empty: ClickHouse) -> None:
    migrate(empty)
    client = empty.open()
    client.command("TRUNCATE TABLE schema_migrations")
    assert migrate(empty)[: len(FILES)] == FILES
    client.close()


def test_a_file_that_changed_after_it_ran_is_refused(empty: ClickHouse) -> None:
    migrate(empty)
    client = empty.open()
    client.command("TRUNCATE TABLE schema_migrations")
    client.insert("schema_migrations", [[1, "0001_usage_events.sql", b"0" * 64]], column_names=["number", "name", "sha256"])
    client.close()
    with pytest.raises(MigrationRefused, match=r"0001_usage_events\.sql was applied"):
        migrate(empty)


def test_a_database_of_a_newer_release_is_refused(empty: ClickHouse) -> None:
    migrate(empty)
    client = empty.open()
    client.insert("schema_migrations", [[9999, "9999_future.sql", b"0" * 64]], column_names=["number", "name", "sha256"])
    client.close()
    with pytest.raises(MigrationRefused, match=r"9999_future\.sql"):
        migrate(empty)


def test_every_table_of_events_forgets_with_time(empty: ClickHouse) -> None:
    migrate(empty)
    client = empty.open()
    tables = client.query(
        f"SELECT name FROM system.tables WHERE database = '{empty.database}' AND create_table_query NOT LIKE '%TTL%'"
    ).result_rows
    client.close()
    assert [name for (name,) in tables] == ["schema_migrations"]
