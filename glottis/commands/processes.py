"""One command a process: read the settings from the environment, run, exit with the process's status.

Each process's package is imported by its command only. Logs are set up here; the gateway replaces this with a writer of
its own, which never waits for a slow reader. What the variables mean: docs/operations.md.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import click

from glottis.errors import SetupError
from glottis.extras import missing_extra
from glottis.logs import configure_logs


@click.command()
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A gateway.yaml: run on this file alone, without a control plane.",
)
def gateway(config: Path | None) -> int:
    """Run the data plane: a public listener for callers, an admin listener for operators."""
    environ = dict(os.environ)
    if config is not None:
        environ["GLOTTIS_GATEWAY_CONFIG"] = str(config)
    return _run("gateway", "gateway", environ)


@click.command()
def control_plane() -> int:
    """Run the control plane: REST API, dashboard, token issuer, publisher."""
    return _run("control_plane", "control-plane")


@click.command()
def aggregator() -> int:
    """Run the aggregator: usage events into priced rows."""
    return _run("control_plane.aggregator", "aggregator")


@click.command()
def exporter() -> int:
    """Run the exporter: span events to OTLP endpoints."""
    return _run("control_plane.exporter", "exporter")


@click.command()
def kokoro() -> int:
    """Run the Kokoro speech backend."""
    return _run("kokoro_backend", "kokoro")


@click.command()
def clickhouse() -> int:
    """Run the embedded ClickHouse: its HTTP interface over chDB, on loopback."""
    return _run("glottis.clickhouse", "all-in-one")


def _run(package: str, extra: str, environ: Mapping[str, str] = os.environ) -> int:
    configure_logs(environ)
    with missing_extra(extra, f"glottis {extra}"):
        # Settings before anything large is loaded: a mistake in them is told at once.
        settings = _settings(importlib.import_module(f"{package}.settings"), environ)
        main = importlib.import_module(f"{package}.main")
    status: int = main.run(settings)
    return status


def _settings(module: ModuleType, environ: Mapping[str, str]) -> object:
    # Each package has a SettingsError of its own: none of them imports this one.
    settings_error: type[Exception] = getattr(module, "SettingsError", SetupError)
    try:
        settings: object = module.Settings.from_env(environ)
    except SetupError:
        raise
    except settings_error as error:
        raise SetupError(str(error), "Set it, or let `glottis up` start this process.") from error
    return settings
