"""Where ClickHouse is, and a client of it.

clickhouse-connect's client blocks, so callers run it in threads (`asyncio.to_thread`); its asyncio client would bring
aiohttp along for nothing that we need. Knows no table. Read next: `schema`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import clickhouse_connect
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError, DataError

from contracts.secret import Secret
from control_plane.worker.environment import SettingsError, secret_in_file

DEFAULT_DATABASE = "glottis"
_DATABASE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}\Z")

_CODES_OF_BAD_ROWS = frozenset({6, 27, 33, 53, 69, 70, 117, 321, 407, 441})
"""error codes that mean "this data will never be taken": everything else may pass with time (ClickHouse, ErrorCodes.cpp)"""
_CODE = re.compile(r"(?:error code|Code:) (\d+)")


@dataclass(frozen=True)
class ClickHouse:
    """An address: `url` is `http(s)://host:port`, `database` the one that holds our tables."""

    url: str
    database: str
    user: str
    password: Secret

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> "ClickHouse | None":
        """Return the address that GLOTTIS_CLICKHOUSE_URL, _USER and _PASSWORD_FILE give; None if no URL is set.

        A path in the URL names the database (`http://host:8123/usage`); without one it is `glottis`. Raises SettingsError.
        """
        text = environ.get("GLOTTIS_CLICKHOUSE_URL", "")
        if not text:
            return None
        parts = urlsplit(text)
        database = parts.path.strip("/") or DEFAULT_DATABASE
        if parts.scheme not in ("http", "https") or not parts.hostname or not _DATABASE.match(database):
            raise SettingsError("GLOTTIS_CLICKHOUSE_URL must be http://host:port or http://host:port/database.")
        if parts.username or parts.password:
            raise SettingsError(
                "GLOTTIS_CLICKHOUSE_URL must not carry a password: name its file in GLOTTIS_CLICKHOUSE_PASSWORD_FILE."
            )
        return cls(
            url=f"{parts.scheme}://{parts.netloc}",
            database=database,
            user=environ.get("GLOTTIS_CLICKHOUSE_USER", "default"),
            password=secret_in_file(environ, "GLOTTIS_CLICKHOUSE_PASSWORD_FILE") or Secret(""),
        )

    def open(self, *, database: str | None = None, timeout_seconds: float = 30) -> Client:
        """Return a client that any number of threads may use at once. Blocks; raises ClickHouseError if it is away.

        database: None means ours; `default` always exists, also before the first migration.
        """
        parts = urlsplit(self.url)
        return clickhouse_connect.get_client(
            interface=parts.scheme,
            host=parts.hostname,
            port=parts.port or (8443 if parts.scheme == "https" else 8123),
            database=database or self.database,
            username=self.user,
            password=self.password.reveal().decode(),
            autogenerate_session_id=False,  # a session is locked by the query in it: no concurrency
            connect_timeout=5,
            send_receive_timeout=timeout_seconds,
            query_retries=0,  # whoever calls retries, and knows what is safe to
            client_name="glottis",
        )


def error_code(error: ClickHouseError) -> int | None:
    """Return ClickHouse's error code, None if the error did not come from the server."""
    code: Any = getattr(error, "code", None)
    if isinstance(code, int):
        return code
    match = _CODE.search(str(error))
    return int(match[1]) if match else None


def is_bad_data(error: ClickHouseError) -> bool:
    """Tell whether the rows themselves were refused, so that sending the same rows again can never help."""
    return isinstance(error, DataError) or error_code(error) in _CODES_OF_BAD_ROWS
