"""Bring ClickHouse's tables up to date: run the numbered files of `migrations/clickhouse` that were not run yet.

Each is recorded with the hash of its text; a file that changed after it ran is refused. Statements are idempotent, so a
crash between a statement and its record, or two runs at once, does no harm. Blocks; part of `glottis migrate`.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources

from control_plane.clickhouse.connection import ClickHouse

_RECORD_TABLE = """
CREATE TABLE IF NOT EXISTS schema_migrations
(number UInt32, name String, sha256 FixedString(64), applied_at DateTime('UTC') DEFAULT now())
ENGINE = ReplacingMergeTree(applied_at) ORDER BY number
"""


class MigrationRefused(RuntimeError):
    """The database and the files disagree; the text says which file and what to do."""


@dataclass(frozen=True)
class Migration:
    """One file: `number` from its name `NNNN_what.sql`."""

    number: int
    name: str
    statement: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.statement.encode()).hexdigest()


def migrations() -> Iterator[Migration]:
    """Yield the files in order."""
    files = [file for file in resources.files("migrations.clickhouse").iterdir() if file.name.endswith(".sql")]
    for file in sorted(files, key=lambda file: file.name):
        yield Migration(number=int(file.name.partition("_")[0]), name=file.name, statement=file.read_text(encoding="utf-8"))


def migrate(clickhouse: ClickHouse) -> list[str]:
    """Create the database if it is not there, apply what is missing, and return the names of the files applied.

    Raises MigrationRefused if a file that was applied has changed since, or if the database is newer than this release;
    ClickHouseError if ClickHouse is away or refuses a statement.
    """
    first = clickhouse.open(database="default")
    try:
        first.command(f"CREATE DATABASE IF NOT EXISTS {clickhouse.database}")
    finally:
        first.close()
    client = clickhouse.open()
    try:
        client.command(_RECORD_TABLE)
        rows = client.query("SELECT number, name, sha256 FROM schema_migrations FINAL").result_rows
        applied = {int(number): (str(name), _text(sha256)) for number, name, sha256 in rows}
        known = list(migrations())
        _refuse_drift(applied, known)
        done: list[str] = []
        for migration in known:
            if migration.number in applied:
                continue
            client.command(migration.statement)
            client.insert(
                "schema_migrations",
                [[migration.number, migration.name, migration.sha256.encode()]],
                column_names=["number", "name", "sha256"],
            )
            done.append(migration.name)
        return done
    finally:
        client.close()


def _refuse_drift(applied: dict[int, tuple[str, str]], known: list[Migration]) -> None:
    for migration in known:
        name, sha256 = applied.get(migration.number, (migration.name, migration.sha256))
        if sha256 != migration.sha256:
            raise MigrationRefused(
                f"{migration.name} was applied as {name} with another text. Restore the file and put the change in a new one."
            )
    unknown = sorted(set(applied) - {migration.number for migration in known})
    if unknown:
        raise MigrationRefused(
            f"ClickHouse has migration {applied[unknown[-1]][0]}, which this release does not know. Use the newer release."
        )


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
