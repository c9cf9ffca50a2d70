"""What `glottis up` runs: which parts, in which order, with which settings. Reads no environment, starts nothing.

One folder holds everything: keys, certificates, each part's data, logs, the workspace file and the client's settings.
Read `supervisor.py` for how parts are run and `keys.py` for who may read what.
"""

from __future__ import annotations

import datetime
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from contracts.subjects import ROLES
from glottis.certificates import Certificates, ensure_certificates
from glottis.embedded import clickhouse, nats, postgres
from glottis.embedded.clickhouse import Clickhouse, answers_ok
from glottis.embedded.nats import Nats, NatsUser
from glottis.embedded.postgres import APPLICATION_ROLE, OWNER_ROLE, Postgres
from glottis.errors import SetupError
from glottis.keys import Keys, ensure_keys, nats_public_key, read
from glottis.ports import HOST, Ports
from glottis.processes import Command, unprivileged_identity
from glottis.supervisor import Part

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
# Settings of ours that are for the command line, or would turn a part into something else.
_NOT_PASSED_ON: Final = frozenset({"GLOTTIS_TOKEN", "GLOTTIS_CONTROL_PLANE_URL", "GLOTTIS_GATEWAY_CONFIG"})
# A first start writes about half of this: the database, ClickHouse's own tables, Kokoro's weights.
_SPACE_NEEDED_BYTES: Final = 1024 * 1024 * 1024
# The first start assembles the speech model from its packages.
_KOKORO_READY_SECONDS: Final = 600.0
# Its log, in JSON or for people: event="preparing weights", step="…".
_KOKORO_STEP: Final = re.compile(r"""\bstep["']?[:=]\s*["'](.+?)["'](?:[,}\s]|$)""")
_GATEWAY_DRAIN_SECONDS: Final = 10


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
    ports.ensure_free()
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
    environment = passed_on(environ)
    return Stack(
        folder=folder,
        ports=ports,
        keys=keys,
        certificates=ensure_certificates(folder, now),
        postgres=Postgres(
            programs=programs,
            home=home,
            port=ports.postgres,
            superuser_password=read(keys.postgres_superuser),
            identity=identity,
            environment=environment,
        ),
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
    )


def passed_on(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what children get of the operator's environment."""
    return {
        name: value
        for name, value in environ.items()
        if name in _PASSED_ON or (name.startswith("GLOTTIS_") and name not in _NOT_PASSED_ON)
    }


def parts(stack: Stack) -> list[Part]:
    """Return the parts in the order of their start."""
    return [
        *_embedded(stack),
        Part(
            name="migrate",
            command=stack.command("migrate", **_databases(stack), **_clickhouse(stack)),
            runs_once=True,
            note="bringing the databases up to date",
        ),
        Part(
            name="control-plane",
            command=stack.command(
                "control-plane",
                CONTROL_PLANE_LISTEN=f"{HOST}:{stack.ports.control_plane}",
                PUBLIC_URL=stack.control_plane_url,
                KEK_FILE=str(stack.keys.kek),
                MANIFEST_KEY_FILE=str(stack.keys.manifest_private),
                FLEET_PUBLIC_KEY_FILE=str(stack.keys.fleet_public),
                OWNER_SECRET_FILE=str(stack.keys.owner_secret),
                ALLOWED_PRIVATE_ORIGINS=_allowed_private_origins(stack),
                **_databases(stack),
                **_clickhouse(stack),
                **_nats(stack, "control-plane"),
            ),
            is_ready=lambda: answers_ok(HOST, stack.ports.control_plane, "/readyz"),
        ),
        Part(
            name="aggregator",
            command=stack.command(
                "aggregator",
                AGGREGATOR_LISTEN=f"{HOST}:{stack.ports.aggregator}",
                **_clickhouse(stack),
                **_nats(stack, "aggregator"),
            ),
            is_ready=lambda: answers_ok(HOST, stack.ports.aggregator, "/readyz"),
        ),
        _kokoro(stack),
        Part(
            name="gateway",
            command=stack.command(
                "gateway",
                GATEWAY_LISTEN=f"{HOST}:{stack.ports.http}",
                GATEWAY_TLS_LISTEN=f"{HOST}:{stack.ports.https}",
                GATEWAY_TLS_CERT=str(stack.certificates.server),
                GATEWAY_TLS_KEY=str(stack.certificates.server_key),
                GATEWAY_ADMIN_LISTEN=f"{HOST}:{stack.ports.gateway_admin}",
                GATEWAY_SPOOL_DIR=str(stack.folder / "gateway" / "spool"),
                GATEWAY_STATE_DIR=str(stack.folder / "gateway" / "state"),
                GATEWAY_DRAIN_SECONDS=str(_GATEWAY_DRAIN_SECONDS),
                MANIFEST_PUBLIC_KEY_FILE=str(stack.keys.manifest_public),
                FLEET_KEY_FILE=str(stack.keys.fleet_private),
                ALLOWED_PRIVATE_ORIGINS=_allowed_private_origins(stack),
                POD_NAME="local",
                **_nats(stack, "gateway"),
            ),
            is_ready=lambda: answers_ok(HOST, stack.ports.gateway_admin, "/readyz"),
            stop_seconds=_GATEWAY_DRAIN_SECONDS + 5,
        ),
    ]


def _embedded(stack: Stack) -> list[Part]:
    async def ensure_database() -> None:
        await stack.postgres.ensure_database(DATABASE, read(stack.keys.postgres_owner), read(stack.keys.postgres_application))

    control_plane_seed = read(stack.keys.nats_seed("control-plane"))
    return [
        Part(
            name="postgres",
            command=stack.postgres.command(),
            prepare=stack.postgres.prepare,
            is_ready=stack.postgres.is_ready,
            once_ready=ensure_database,
        ),
        Part(
            name="nats",
            command=stack.nats.command(),
            prepare=stack.nats.prepare,
            is_ready=lambda: stack.nats.is_ready(control_plane_seed, ROLES["control-plane"]),
        ),
        Part(name="clickhouse", command=stack.clickhouse.command(), is_ready=stack.clickhouse.is_ready),
    ]


def _kokoro(stack: Stack) -> Part:
    cache = stack.environment.get("GLOTTIS_KOKORO_CACHE_DIR") or str(stack.folder / "kokoro")
    return Part(
        name="kokoro",
        command=stack.command(
            "kokoro",
            KOKORO_LISTEN=f"{HOST}:{stack.ports.kokoro}",
            KOKORO_KEY_FILE=str(stack.keys.kokoro),
            KOKORO_CACHE_DIR=cache,
        ),
        is_ready=lambda: answers_ok(HOST, stack.ports.kokoro, "/ping"),
        starts_first=True,
        progress=_kokoro_progress,
        ready_seconds=_KOKORO_READY_SECONDS,
        note="preparing the speech model" if not Path(cache).exists() else "loading the speech model",
    )


def _kokoro_progress(line: str) -> str | None:
    match = _KOKORO_STEP.search(line)
    return match[1] if match else None


def _databases(stack: Stack) -> dict[str, str]:
    url, keys = stack.postgres.url, stack.keys
    return {
        "DATABASE_URL": url(APPLICATION_ROLE, read(keys.postgres_application), DATABASE),
        "MIGRATION_DATABASE_URL": url(OWNER_ROLE, read(keys.postgres_owner), DATABASE),
    }


def _clickhouse(stack: Stack) -> dict[str, str]:
    return {
        "CLICKHOUSE_URL": stack.clickhouse.url,
        "CLICKHOUSE_USER": clickhouse.USER,
        "CLICKHOUSE_PASSWORD_FILE": str(stack.keys.clickhouse),
    }


def _nats(stack: Stack, role: str) -> dict[str, str]:
    return {"NATS_URL": stack.nats.url, "NATS_SEED_FILE": str(stack.keys.nats_seed(role))}


def _allowed_private_origins(stack: Stack) -> str:
    named = stack.environment.get("GLOTTIS_ALLOWED_PRIVATE_ORIGINS", "")
    return ",".join(filter(None, (named, stack.kokoro_origin)))


def _existing(folder: Path) -> Path:
    while not folder.exists():
        folder = folder.parent
    return folder
