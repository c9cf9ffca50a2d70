"""What `glottis up` runs: which parts, in which order, with which settings. Starts nothing.

Each part gets the files and addresses that it needs and no others: only the control plane sees a database password, only
gateways see the fleet's private key. Read `supervisor.py` for how parts are run and `first_run.py` for what a new
installation gets.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Final

from contracts.subjects import ROLES
from glottis import first_run
from glottis.embedded import clickhouse
from glottis.embedded.clickhouse import answers_ok
from glottis.keys import read
from glottis.ports import HOST
from glottis.stack import DATABASE, Stack
from glottis.supervisor import Part

# The first start assembles the speech model from its packages.
_KOKORO_READY_SECONDS: Final = 600.0
# Its log, in JSON or for people: event="preparing weights", step="…".
_KOKORO_STEP: Final = re.compile(r"""\bstep["']?[:=]\s*["'](.+?)["'](?:[,}\s]|$)""")
_GATEWAY_DRAIN_SECONDS: Final = 10


def parts(stack: Stack) -> list[Part]:
    """Return the parts in the order of their start."""
    return [
        *_embedded(stack),
        Part(
            name="migrate",
            command=stack.command("migrate", **_database(stack), **_migration_database(stack), **_clickhouse(stack)),
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
                **_database(stack),
                **_clickhouse(stack),
                **_nats(stack, "control-plane"),
            ),
            is_ready=lambda: answers_ok(HOST, stack.ports.control_plane, "/readyz"),
            port=stack.ports.control_plane,
            once_ready=lambda: first_run.ensure_client(stack),
        ),
        *_workspace(stack),
        Part(
            name="aggregator",
            command=stack.command(
                "aggregator",
                AGGREGATOR_LISTEN=f"{HOST}:{stack.ports.aggregator}",
                **_clickhouse(stack),
                **_nats(stack, "aggregator"),
            ),
            is_ready=lambda: answers_ok(HOST, stack.ports.aggregator, "/readyz"),
            port=stack.ports.aggregator,
        ),
        Part(
            name="exporter",
            command=stack.command(
                "exporter",
                EXPORTER_LISTEN=f"{HOST}:{stack.ports.exporter}",
                FLEET_KEY_FILE=str(stack.keys.fleet_private),
                **_nats(stack, "exporter"),
            ),
            is_ready=lambda: answers_ok(HOST, stack.ports.exporter, "/readyz"),
            port=stack.ports.exporter,
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
            port=stack.ports.gateway_admin,
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
            port=stack.ports.postgres,
            once_ready=ensure_database,
        ),
        Part(
            name="nats",
            command=stack.nats.command(),
            prepare=stack.nats.prepare,
            is_ready=lambda: stack.nats.is_ready(control_plane_seed, ROLES["control-plane"]),
            port=stack.ports.nats,
            stuck=_nats_stuck,
        ),
        Part(
            name="clickhouse",
            command=stack.clickhouse.command(),
            is_ready=stack.clickhouse.is_ready,
            port=stack.ports.clickhouse,
        ),
    ]


def _workspace(stack: Stack) -> list[Part]:
    # Once in an installation's life: afterwards the workspace is its operator's.
    if first_run.is_workspace_applied(stack.folder):
        return []
    file = str(first_run.workspace_file(stack.folder))

    # The owner's token is in `client.json` by the time that this runs.
    command = stack.command("apply", "-f", file, "--data-dir", str(stack.folder))

    async def note() -> None:
        first_run.note_workspace_applied(stack.folder)

    return [Part(name="workspace", command=command, runs_once=True, once_ready=note, note="making the first workspace")]


def _kokoro(stack: Stack) -> Part:
    cache = stack.environment.get("GLOTTIS_KOKORO_CACHE_DIR") or str(stack.folder / "kokoro")
    command = stack.command(
        "kokoro",
        KOKORO_LISTEN=f"{HOST}:{stack.ports.kokoro}",
        KOKORO_KEY_FILE=str(stack.keys.kokoro),
        KOKORO_CACHE_DIR=cache,
    )
    return Part(
        name="kokoro",
        command=replace(command, environment={**stack.fetching, **command.environment}),
        is_ready=lambda: answers_ok(HOST, stack.ports.kokoro, "/ping"),
        port=stack.ports.kokoro,
        starts_first=True,
        progress=_kokoro_progress,
        ready_seconds=_KOKORO_READY_SECONDS,
        note="preparing the speech model" if not Path(cache).exists() else "loading the speech model",
    )


def _nats_stuck(line: str) -> str | None:
    # A stream that met a full disk takes nothing any more, also when there is space again, until the server starts anew.
    if "critical write error" not in line.lower():
        return None
    return "cannot write to its disk, and is started anew until it can: free some space (what is used meanwhile is kept)"


def _kokoro_progress(line: str) -> str | None:
    match = _KOKORO_STEP.search(line)
    return match[1] if match else None


def _database(stack: Stack) -> dict[str, str]:
    return {"DATABASE_URL_FILE": str(stack.application_url_file)}


def _migration_database(stack: Stack) -> dict[str, str]:
    return {"MIGRATION_DATABASE_URL_FILE": str(stack.owner_url_file)}


def _clickhouse(stack: Stack) -> dict[str, str]:
    return {
        "CLICKHOUSE_URL": stack.clickhouse.url,
        "CLICKHOUSE_USER": clickhouse.USER,
        "CLICKHOUSE_PASSWORD_FILE": str(stack.keys.clickhouse),
    }


def _nats(stack: Stack, role: str) -> dict[str, str]:
    return {"NATS_URL": stack.nats.url, "NATS_SEED_FILE": str(stack.keys.nats_seed(role))}


def _allowed_private_origins(stack: Stack) -> str:
    # Kokoro is an upstream; the control plane serves the key set of the tokens that it mints.
    named = stack.environment.get("GLOTTIS_ALLOWED_PRIVATE_ORIGINS", "")
    return ",".join(filter(None, (named, stack.kokoro_origin, stack.control_plane_url)))
