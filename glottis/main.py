"""The command line: `glottis COMMAND`. Each command imports its own process, so that an image needs only one extra.

Nothing here knows how a process works. `SetupError`s end as two lines and exit status 2; a missing extra is told with
the pip command that brings it. Every process reads its settings from the environment: docs/operations.md lists them.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from typing import Final

import click

from glottis.errors import SetupError
from glottis.extras import missing_extra

SETUP_STATUS: Final = 2
"""the exit status of a SetupError, as of a wrong option"""


@dataclass(frozen=True, slots=True)
class _Lazy:
    """A command that is imported when it is used: where it is, which extra it needs, what `--help` says of it."""

    module: str
    name: str
    extra: str
    help: str


_COMMANDS: Final = {
    "up": _Lazy("glottis.commands.up", "up", "all-in-one", "Run everything on this machine."),
    "demo": _Lazy("glottis.commands.demo", "demo", "all-in-one", "Run everything and speak through it."),
    "apply": _Lazy("glottis.commands.apply", "apply", "control-plane", "Apply a workspace.yaml."),
    "tokens": _Lazy("glottis.commands.tokens", "tokens", "control-plane", "Mint, list and revoke access tokens."),
    "validate": _Lazy("glottis.commands.apply", "validate", "control-plane", "Check a workspace.yaml."),
    "export": _Lazy("glottis.commands.apply", "export", "control-plane", "Print a workspace as workspace.yaml."),
    "accounts": _Lazy("glottis.commands.resources", "accounts", "control-plane", "Provider accounts and their credentials."),
    "models": _Lazy("glottis.commands.resources", "models", "control-plane", "Models of an account."),
    "collaborators": _Lazy("glottis.commands.resources", "collaborators", "control-plane", "Who may use an account."),
    "teams": _Lazy("glottis.commands.resources", "teams", "control-plane", "Teams and who is in them."),
    "users": _Lazy("glottis.commands.resources", "users", "control-plane", "Users of the workspace."),
    "explain": _Lazy("glottis.commands.operations", "explain", "control-plane", "Why a request is admitted or refused."),
    "audit": _Lazy("glottis.commands.operations", "audit", "control-plane", "Who changed what."),
    "pods": _Lazy("glottis.commands.operations", "pods", "control-plane", "Which gateway pod runs what."),
    "sessions": _Lazy("glottis.commands.operations", "sessions", "control-plane", "Which sessions are open now."),
    "republish": _Lazy("glottis.commands.operations", "republish", "control-plane", "Rebuild what gateways read."),
    "rewrap": _Lazy("glottis.commands.operations", "rewrap", "control-plane", "Move stored secrets to new keys."),
    "usage": _Lazy("glottis.commands.usage", "usage", "control-plane", "Show what was used and what it cost."),
    "reprice": _Lazy("glottis.commands.jobs", "reprice", "control-plane", "Price what was used by today's prices."),
    "reconcile": _Lazy("glottis.commands.reconcile", "reconcile", "control-plane", "Compare with a provider's export."),
    "erase": _Lazy("glottis.commands.jobs", "erase", "control-plane", "Take a person out of what is stored."),
    "spool": _Lazy("gateway.telemetry.spool_command", "spool", "gateway", "Inspect or replay a gateway's spool."),
    "gateway": _Lazy("glottis.commands.processes", "gateway", "gateway", "Run the data plane."),
    "control-plane": _Lazy("glottis.commands.processes", "control_plane", "control-plane", "Run the control plane."),
    "migrate": _Lazy("glottis.commands.migrate", "migrate", "control-plane", "Bring the databases up to date."),
    "aggregator": _Lazy("glottis.commands.processes", "aggregator", "aggregator", "Run the usage aggregator."),
    "exporter": _Lazy("glottis.commands.processes", "exporter", "exporter", "Run the OTLP exporter."),
    "kokoro": _Lazy("glottis.commands.processes", "kokoro", "kokoro", "Run the Kokoro speech backend."),
    "clickhouse": _Lazy("glottis.commands.processes", "clickhouse", "all-in-one", "Run the embedded ClickHouse."),
}


class _Commands(click.Group):
    """The group of lazily imported commands."""

    def list_commands(self, _: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, _: click.Context, cmd_name: str) -> click.Command | None:
        lazy = _COMMANDS.get(cmd_name)
        if lazy is None:
            return None
        with missing_extra(lazy.extra, f"glottis {cmd_name}"):
            command: click.Command = getattr(importlib.import_module(lazy.module), lazy.name)
        return command

    def format_commands(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        # From the table, so that `--help` imports nothing.
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.help) for name, lazy in _COMMANDS.items()])


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="glottis", message="glottis %(version)s")
def glottis() -> None:
    """Glottis: a governance gateway for voice.

    `glottis up` runs everything on this machine; `glottis demo` speaks through it. The other processes are for
    deployments that run each part on its own.
    """


def main() -> None:
    """The console script. Exit status: the command's own; 2 for a wrong option or a SetupError."""
    try:
        status = glottis.main(standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except SetupError as error:
        click.secho(f"glottis: {error.what}", fg="red", err=True)
        click.echo(f"         {error.to_do}", err=True)
        sys.exit(SETUP_STATUS)
    sys.exit(status if isinstance(status, int) else 0)
