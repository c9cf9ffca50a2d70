"""`glottis migrate`: bring Postgres, and ClickHouse if one is configured, to this release's schema.

Safe to run at every start and from several machines at once: what was applied is left alone, and one run waits for the
other. The migrations themselves are in `migrations/`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from urllib.parse import urlsplit

import asyncpg
import click
import structlog
from clickhouse_connect.driver.exceptions import ClickHouseError
from sqlalchemy.exc import DBAPIError

from control_plane.clickhouse import schema
from control_plane.clickhouse.connection import ClickHouse
from control_plane.settings import SettingsError as DatabaseSettingsError
from control_plane.settings import secret_or_file
from control_plane.worker.environment import SettingsError
from glottis.errors import SetupError
from glottis.logs import configure_logs
from migrations.postgres.upgrade import MigrationFailed, upgrade

log = structlog.get_logger(__name__)


@click.command()
def migrate() -> None:
    """Bring Postgres, and ClickHouse if one is configured, to this release's schema.

    Reads GLOTTIS_MIGRATION_DATABASE_URL (the owner role), GLOTTIS_DATABASE_URL (to know the application's role), or the
    files that these names with _FILE name, and GLOTTIS_CLICKHOUSE_URL, _USER, _PASSWORD_FILE (optional).
    """
    configure_logs(os.environ)
    _migrate_postgres(os.environ)
    _migrate_clickhouse(os.environ)


def _migrate_postgres(environ: Mapping[str, str]) -> None:
    owner_url = _database_url(environ, "GLOTTIS_MIGRATION_DATABASE_URL")
    role = urlsplit(_database_url(environ, "GLOTTIS_DATABASE_URL")).username
    if not role:
        raise SetupError("GLOTTIS_DATABASE_URL names no user.", "Write it as postgresql://user:password@host:port/database.")
    try:
        revision = asyncio.run(upgrade(owner_url, role))
    except MigrationFailed as error:
        raise SetupError("Postgres was not brought up to date.", str(error)) from error
    except (OSError, asyncpg.PostgresError, DBAPIError) as error:
        raise SetupError(
            f"Postgres cannot be used as GLOTTIS_MIGRATION_DATABASE_URL says ({type(error).__name__}).",
            "Check the address, the password, and that the role owns the database.",
        ) from error
    log.info("postgres migrated", revision=revision)


def _migrate_clickhouse(environ: Mapping[str, str]) -> None:
    try:
        clickhouse = ClickHouse.from_env(environ)
    except SettingsError as error:
        raise SetupError("ClickHouse is not configured rightly.", str(error)) from error
    if clickhouse is None:
        log.info("clickhouse not configured")
        return
    try:
        applied = schema.migrate(clickhouse)
    except schema.MigrationRefused as error:
        raise SetupError("ClickHouse was not brought up to date.", str(error)) from error
    except ClickHouseError as error:
        raise SetupError(
            f"ClickHouse cannot be used as GLOTTIS_CLICKHOUSE_URL says ({type(error).__name__}).",
            "Check the address, the user, the password file, and that the user may create tables.",
        ) from error
    log.info("clickhouse migrated", applied=applied)


def _database_url(environ: Mapping[str, str], name: str) -> str:
    try:
        url = secret_or_file(environ, name)
    except DatabaseSettingsError as error:
        raise SetupError("Postgres is not configured rightly.", str(error)) from error
    if url is None:
        raise SetupError(f"{name} is not set.", f"Set it or {name}_FILE, or let `glottis up` run this command.")
    return url.reveal().decode()
