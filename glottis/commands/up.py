"""`glottis up`: everything on this machine, until Ctrl-C. Prints where it is and how to use it."""

from __future__ import annotations

import asyncio
import datetime
from pathlib import Path

import click

from glottis.console import Console
from glottis.first_run import ensure_caller_token
from glottis.ports import chosen_ports
from glottis.running import run_stack, stack_options
from glottis.stack import Stack
from glottis.welcome import welcome


@click.command()
@stack_options
@click.option("--quiet", is_flag=True, help="Do not show what the parts say; it is in the log files.")
def up(data_dir: Path, port_base: int | None, http_port: int | None, https_port: int | None, quiet: bool) -> None:
    """Run everything on this machine: databases, bus, control plane, aggregator, Kokoro and the gateway.

    Listens on loopback only. Keeps its state in --data-dir; a restart finds everything again.
    """
    run_stack(data_dir, chosen_ports(data_dir.resolve(), port_base, http_port, https_port), _stay, shows_output=not quiet)


async def _stay(stack: Stack, console: Console) -> None:
    token = await ensure_caller_token(stack, datetime.datetime.now(datetime.UTC))
    console.say(welcome(stack, token, shows_token=console.is_for_a_person))
    await asyncio.Event().wait()
