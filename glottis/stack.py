"""One installation on this machine: where everything is, made ready to be started. Reads no environment, starts nothing.

One folder holds everything: keys, certificates, each part's data, logs, the workspace file and the client's settings.
Read `parts.py` next for what is run, and `keys.py` for who may read what.
"""

from __future__ import annotations

import datetime
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from contracts.subjects import ROLES
from glottis.certificates import Certificates, ensure_certificates
from glottis.embedded import nats, postgres
from glottis.embedded.clickhouse import Clickhouse
from glottis.embedded.nats import Nats, NatsUser
from glottis.embedded.postgres import APPLICATION_ROLE, OWNER_ROLE, Postgres
from glottis.errors import SetupError
from glottis.keys import Keys, ensure_keys, nats_public_key, read, write_private
from glottis.ports import HOST, Ports, keep_ports, kept_ports
from glottis.processes import Command, unprivileged_identity

DATABASE: Final = "glottis"
NATS_ACCOUNT: Final = "GLOTTIS"

# Of the operator's environment: where programs and files are, how they look; never a proxy, never somebody's secret.
_PASSED_ON: Final = (
    "HOME",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "NO_COLOR",
    "PATH",
    "PYTHONPATH",
    "TMPDIR",
    "TZ",
    "XDG_CACHE_HOME",
)
# For the one part that fetches from a package registry at its first start (Kokoro's voices, with npm), and for no other.
_FOR_FETCHING: Final = ("HTTPS_PROXY", "HTTP_PROXY", "NODE_EXTRA_CA_CERTS", "NO_PROXY", "https_proxy", "http_proxy", "no_proxy")
_NPM_PREFIX: Final = "npm_config_"
# Settings of ours that are for the command line, or would turn a part into something else.
_NOT_PASSED_ON: Final = frozenset(
    {
        "GLOTTIS_TOKEN",
        "GLOTTIS_CONTROL_PLANE_URL",
        "GLOTTIS_GATEWAY_CONFIG",
        "GLOTTIS_DATABASE_URL",
        "GLOTTIS_MIGRATION_DATABASE_URL",
    }
)
# A first start writes about half of this: the database, ClickHouse's own tables, Kokoro's weights.
_SPACE_NEEDED_BYTES: Final = 1024 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Stack:
    """One installation on this machine, ready to be started."""

    folder: Path
    ports: Ports
    keys: Keys
    certificates: Certificates
    postgres: Postgres
    nats: Nats
    clickhouse: Clickhouse
    environment: Mapping[str, str]
    fetching: Mapping[str, str]
    """what a part that fetches from a package registry gets besides `environment`"""

    @property
    def log_folder(self) -> Path:
        return self.folder / "logs"

    @property
    def http_url(self) -> str:
        return f"http://{HOST}:{self.ports.http}"

    @property
    def https_url(self) -> str:
        return f"https://{HOST}:{self.ports.https}"

    @property
    def control_plane_url(self) -> str:
        return f"http://{HOST}:{self.ports.control_plane}"

    @property
    def kokoro_origin(self) -> str:
        return f"http://{HOST}:{self.ports.kokoro}"

    @property
    def application_url_file(self) -> Path:
        """Holds the database's address with the application's password."""
        return _url_file(self.folder, APPLICATION_ROLE)

    @property
    def owner_url_file(self) -> Path:
        """Holds the database's address with the owner's password: for migrations."""
        return _url_file(self.folder, OWNER_ROLE)

    def command(self, *arguments: str, **settings: str) -> Command:
        """Return the command that runs `glottis` with these arguments and settings (variables' names without GLOTTIS_)."""
        return Command(
            # -P: the data folder, where children run, is no place to import from.
            arguments=(sys.executable, "-P", "-m", "glottis", *arguments),
            environment={**self.environment, **{f"GLOTTIS_{name}": value for name, value in settings.items()}},
            folder=self.folder,
        )


def prepare_stack(
    folder: Path,
    ports: Ports,
    environ: Mapping[str, str],
    now: datetime.datetime,
    free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free,
) -> Stack:
    """Return the installation in `folder`, with its keys and certificates made if it is new.

    The caller holds the folder's lock. Raises SetupError for whatever is not as it must be: packages, ports, space.
    """
    ports.ensure_free(are_kept=kept_ports(folder) is not None)
    identity = unprivileged_identity()
    programs = postgres.locate_programs(identity)
    nats_program = nats.locate_program()
    home = postgres.locate_home(folder, identity)
    for place in {folder, _existing(home)}:
        if (free := free_bytes(place)) < _SPACE_NEEDED_BYTES:
            raise SetupError(
                f"The disk of {place} is almost full: {free >> 20} MiB are free, {_SPACE_NEEDED_BYTES >> 20} are needed.",
                "Free some space, or name a folder on another disk with --data-dir.",
            )
    keys = ensure_keys(folder)
    keep_ports(folder, ports)
    environment = passed_on(environ)
    database = Postgres(
        programs=programs,
        home=home,
        port=ports.postgres,
        superuser_password=read(keys.postgres_superuser),
        identity=identity,
        environment=environment,
        was_used=lambda: client_file(folder).exists() or applied_note(folder).exists(),
    )
    database.ensure_not_lost()
    for role, password in ((APPLICATION_ROLE, keys.postgres_application), (OWNER_ROLE, keys.postgres_owner)):
        # Files, because a process's environment is shown by /proc and by whatever reports a crash.
        write_private(_url_file(folder, role), database.url(role, read(password), DATABASE).encode() + b"\n")
    return Stack(
        folder=folder,
        ports=ports,
        keys=keys,
        certificates=ensure_certificates(folder, now),
        postgres=database,
        nats=Nats(
            program=nats_program,
            home=folder / "nats",
            port=ports.nats,
            accounts={
                NATS_ACCOUNT: [
                    NatsUser(nats_public_key(read(keys.nats_seed(role))), permissions) for role, permissions in ROLES.items()
                ]
            },
            environment=environment,
        ),
        clickhouse=Clickhouse(
            home=folder / "clickhouse",
            port=ports.clickhouse,
            password_file=keys.clickhouse,
            environment=environment,
        ),
        environment=environment,
        fetching={
            name: value for name, value in environ.items() if name in _FOR_FETCHING or name.lower().startswith(_NPM_PREFIX)
        },
    )


def client_file(folder: Path) -> Path:
    """Return where the client commands find address and token; written once the control plane has its owner."""
    return folder / "client.json"


def applied_note(folder: Path) -> Path:
    """Return the file whose existence says that the first workspace was applied."""
    return folder / "workspace.applied"


def passed_on(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what children get of the operator's environment."""
    return {
        name: value
        for name, value in environ.items()
        if name in _PASSED_ON or (name.startswith("GLOTTIS_") and name not in _NOT_PASSED_ON)
    }


def _url_file(folder: Path, role: str) -> Path:
    return folder / f"{role.replace('_', '-')}.url"


def _existing(folder: Path) -> Path:
    while not folder.exists():
        folder = folder.parent
    return folder
