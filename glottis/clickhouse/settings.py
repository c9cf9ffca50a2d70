"""What `glottis clickhouse` is told by its environment. Read once, by `main`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from contracts.secret import Secret
from glottis.errors import SetupError


@dataclass(frozen=True, slots=True)
class Settings:
    """host, port: where to listen (port 0: any); folder: the data; user, password: the one account there is."""

    host: str
    port: int
    folder: Path
    user: str
    password: Secret

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Settings:
        """Raises SetupError naming the variable that is missing or wrong."""
        host, _, port = environ.get("GLOTTIS_CLICKHOUSE_LISTEN", "127.0.0.1:18123").rpartition(":")
        if not port.isdecimal():
            raise SetupError("GLOTTIS_CLICKHOUSE_LISTEN is not host:port.", "Set it like 127.0.0.1:18123.")
        for name in ("GLOTTIS_CLICKHOUSE_DATA_DIR", "GLOTTIS_CLICKHOUSE_PASSWORD_FILE"):
            if not environ.get(name):
                raise SetupError(f"{name} is not set.", "Set it, or let `glottis up` start this process.")
        password_file = Path(environ["GLOTTIS_CLICKHOUSE_PASSWORD_FILE"])
        try:
            password = Secret(password_file.read_text().strip())
        except OSError as fault:
            raise SetupError(
                f"GLOTTIS_CLICKHOUSE_PASSWORD_FILE cannot be read: {password_file}: {fault.strerror}.",
                "Name a file that this user can read.",
            ) from fault
        return cls(
            host=host or "127.0.0.1",
            port=int(port),
            folder=Path(environ["GLOTTIS_CLICKHOUSE_DATA_DIR"]),
            user=environ.get("GLOTTIS_CLICKHOUSE_USER", "default"),
            password=password,
        )
