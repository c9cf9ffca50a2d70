"""Run the whole stack in this process's name: lock, preparation, console, supervisor, and the work once it is up."""

from __future__ import annotations

import asyncio
import datetime
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from glottis.console import Console
from glottis.lock import lock_on
from glottis.parts import parts
from glottis.ports import Ports
from glottis.stack import Stack, prepare_stack
from glottis.supervisor import Supervisor

_Command = TypeVar("_Command", bound=Callable[..., Any])

DEFAULT_DATA_DIR = ".glottis"


def stack_options(command: _Command) -> _Command:
    """Add the options that say where the stack lives. Any: click's decorators take every signature."""
    for option in (
        click.option("--https-port", type=click.IntRange(1, 65535), help="The gateway's HTTPS port [8443]."),
        click.option("--http-port", type=click.IntRange(1, 65535), help="The gateway's HTTP port [8080]."),
        click.option("--port-base", type=int, metavar="PORT", help="Use consecutive ports from here on for everything."),
        click.option(
            "--data-dir",
            type=click.Path(file_okay=False, path_type=Path),
            default=DEFAULT_DATA_DIR,
            show_default=True,
            help="Where keys, databases and logs are kept.",
        ),
    ):
        command = option(command)
    return command


def run_stack(
    data_dir: Path,
    ports: Ports,
    once_up: Callable[[Stack, Console], Awaitable[None]],
    *,
    shows_output: bool,
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Start everything, await `once_up`, stop everything. Raises SetupError with what stands in the way."""
    folder = data_dir.resolve()
    with lock_on(folder):
        stack = prepare_stack(folder, ports, environ, datetime.datetime.now(datetime.UTC))
        everything = parts(stack)
        console = Console([part.name for part in everything], stack.log_folder, shows_output=shows_output, environ=environ)
        try:
            asyncio.run(Supervisor(everything, console).run(lambda: once_up(stack, console)))
        finally:
            console.close()
