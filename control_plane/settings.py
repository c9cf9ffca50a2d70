"""What the control plane is told from outside: environment variables and the key files that they name.

Read once, in `main`. Every mistake is one plain sentence that names the variable and what to do; a file's content is
never quoted. Read next: `app`.
"""

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from contracts.secret import Secret
from control_plane.clickhouse.connection import ClickHouse
from control_plane.vault import KeyFileError, read_keys
from control_plane.worker.environment import SettingsError as WorkerSettingsError
from control_plane.worker.environment import nats_tls

T = TypeVar("T")


class SettingsError(ValueError):
    """A setting that is missing or wrong: one plain sentence naming it, and what to do."""


@dataclass(frozen=True)
class Settings:
    """Everything that the process needs to know. `public_url`: without a trailing slash."""

    host: str
    port: int
    public_url: str
    database_url: Secret
    migration_database_url: Secret | None
    key_encryption_keys: tuple[Secret, ...]
    manifest_key: Secret
    fleet_public_key: bytes
    nats_url: str
    nats_seed: Secret | None
    nats_replicas: int
    nats_tls: ssl.SSLContext | None
    owner_secret_file: Path | None
    allowed_origins: tuple[str, ...]
    clickhouse: ClickHouse | None

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> "Settings":
        """Return the settings. Raises SettingsError."""
        host, port = address_of(environ, "GLOTTIS_CONTROL_PLANE_LISTEN", "127.0.0.1:8090")
        owner_file = environ.get("GLOTTIS_OWNER_SECRET_FILE")
        return cls(
            host=host,
            port=port,
            public_url=_public_url(environ),
            database_url=_database_url(environ),
            migration_database_url=secret_or_file(environ, "GLOTTIS_MIGRATION_DATABASE_URL"),
            key_encryption_keys=_keys(environ, "GLOTTIS_KEK_FILE"),
            manifest_key=_keys(environ, "GLOTTIS_MANIFEST_KEY_FILE")[0],
            fleet_public_key=_keys(environ, "GLOTTIS_FLEET_PUBLIC_KEY_FILE")[0].reveal(),
            nats_url=_required(environ, "GLOTTIS_NATS_URL", "the NATS server's address, for example nats://127.0.0.1:4222"),
            nats_seed=_secret_file(environ, "GLOTTIS_NATS_SEED_FILE"),
            nats_replicas=_count(environ, "GLOTTIS_NATS_REPLICAS", 1),
            nats_tls=_of_worker(nats_tls, environ),
            owner_secret_file=Path(owner_file) if owner_file else None,
            allowed_origins=tuple(
                part.strip() for part in environ.get("GLOTTIS_ALLOWED_PRIVATE_ORIGINS", "").split(",") if part.strip()
            ),
            clickhouse=_of_worker(ClickHouse.from_env, environ),
        )

    def owner_secret(self) -> Secret | None:
        """Return the one-time owner secret as its file has it now, None if there is no such file."""
        if self.owner_secret_file is None:
            return None
        try:
            content = self.owner_secret_file.read_bytes().strip()
        except OSError:
            return None
        return Secret(content) if len(content) >= 16 else None


def address_of(environ: Mapping[str, str], name: str, default: str) -> tuple[str, int]:
    """Return host and port of a listen address. Raises SettingsError."""
    text = environ.get(name) or default
    host, separator, port = text.rpartition(":")
    if not separator or not port.isdigit() or int(port) > 65535:
        raise SettingsError(f"{name} is {text!r}; write host:port, for example {default}.")
    return host.strip("[]"), int(port)


def secret_or_file(environ: Mapping[str, str], name: str) -> Secret | None:
    """Return what the variable `name` holds, or the file that `name`_FILE names; None if neither is set.

    A file keeps the secret out of the process's environment. Raises SettingsError.
    """
    if environ.get(name) and environ.get(f"{name}_FILE"):
        raise SettingsError(f"{name} and {name}_FILE are both set; set one of them.")
    return Secret(environ[name]) if environ.get(name) else _secret_file(environ, f"{name}_FILE")


def _of_worker(read: Callable[[Mapping[str, str]], T], environ: Mapping[str, str]) -> T:
    """Return a setting that the workers have as well."""
    try:
        return read(environ)
    except WorkerSettingsError as error:
        raise SettingsError(str(error)) from error


def _public_url(environ: Mapping[str, str]) -> str:
    text = _required(environ, "GLOTTIS_PUBLIC_URL", "the address under which others reach this control plane")
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise SettingsError(f"GLOTTIS_PUBLIC_URL is {text!r}; write https://host[:port][/path].")
    return text.rstrip("/")


def _required(environ: Mapping[str, str], name: str, what: str) -> str:
    value = environ.get(name)
    if not value:
        raise SettingsError(f"{name} is not set; set it to {what}.")
    return value


def _database_url(environ: Mapping[str, str]) -> Secret:
    name = "GLOTTIS_DATABASE_URL"
    return secret_or_file(environ, name) or Secret(_required(environ, name, "the application role's postgresql:// address"))


def _keys(environ: Mapping[str, str], name: str) -> tuple[Secret, ...]:
    path = Path(_required(environ, name, "the path of a file with 32 bytes as base64"))
    try:
        return read_keys(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{name} names {path}, which cannot be read; check the path and its permissions.") from error
    except KeyFileError as error:
        raise SettingsError(f"{name} names {path}, and {error}; write one key of 32 bytes a line, as base64.") from error


def _secret_file(environ: Mapping[str, str], name: str) -> Secret | None:
    path = environ.get(name)
    if not path:
        return None
    try:
        return Secret(Path(path).read_bytes().strip())
    except OSError as error:
        raise SettingsError(f"{name} names {path}, which cannot be read; check the path and its permissions.") from error


def _count(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name) or str(default)
    if not text.isdigit() or not 1 <= int(text) <= 5:
        raise SettingsError(f"{name} is {text!r}; write a number from 1 to 5.")
    return int(text)
