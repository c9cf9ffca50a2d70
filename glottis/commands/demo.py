"""`glottis demo`: the stack, three kinds of calls with the official SDK, and what they cost."""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from contracts.secret import Secret
from glottis.console import Console
from glottis.errors import SetupError
from glottis.first_run import caller_file, control_plane, ensure_caller_token
from glottis.first_voice import FAILED_STATUS
from glottis.ports import HOST, chosen_ports, kept_ports
from glottis.running import run_stack, stack_options
from glottis.stack import Stack
from glottis.welcome import base_url, welcome
from kokoro_backend.agent_demo import Speech, agent

# From the gateway's spool over the bus to the aggregator: a second or two, more on a busy machine.
_USAGE_DEADLINE_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class Spoken:
    """One call, as its caller saw it. key: of its usage events: the request's id, `.n` for a socket's nth context."""

    name: str
    wav: str
    key: str
    seconds_to_first_audio: float
    audio_seconds: float


@dataclass(frozen=True, slots=True)
class Counted:
    """The same call, as it was counted. cost: amount and currency, "unpriced" where no price is known."""

    characters: int
    cost: str


@click.group(invoke_without_command=True)
@click.pass_context
@stack_options
@click.option("--once", is_flag=True, help="Stop when the calls are made and counted.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default="demo",
    show_default=True,
    help="Where the wav files go.",
)
def demo(
    context: click.Context,
    data_dir: Path,
    port_base: int | None,
    http_port: int | None,
    https_port: int | None,
    once: bool,
    out: Path,
) -> None:
    """Run everything and speak through it with the official Cartesia SDK.

    Makes three kinds of calls (bytes, server-sent events, WebSocket), writes their audio, shows what they cost, and
    stays up until Ctrl-C.
    """

    if context.invoked_subcommand is not None:
        context.obj = lambda: speech_of_stack(data_dir.resolve())
        return
    folder = out.resolve()

    async def speak(stack: Stack, console: Console) -> None:
        token = await ensure_caller_token(stack, datetime.datetime.now(datetime.UTC))
        with console.waiting_for("demo", "three kinds of calls with the official SDK"):
            calls = await speak_once(stack, token, folder)
        with console.waiting_for("demo", "waiting until they are counted"):
            counted = await count(stack, [call.key for call in calls])
        console.say(table(calls, counted))
        console.say(await usage_by_user_and_model(stack))
        if not once:
            console.say(welcome(stack, token, shows_token=console.is_for_a_person))
            console.say("Ctrl-C stops everything.")
            await asyncio.Event().wait()

    run_stack(data_dir, chosen_ports(data_dir.resolve(), port_base, http_port, https_port), speak, shows_output=False)


demo.add_command(agent)


def speech_of_stack(folder: Path) -> Speech | None:
    """Return Kokoro's stream as callers of the stack in `folder` reach it, through the gateway; None if there is no stack."""
    ports = kept_ports(folder)
    if ports is None or not caller_file(folder).exists():
        return None
    token: str = json.loads(caller_file(folder).read_bytes())["token"]
    return Speech(f"ws://{HOST}:{ports.http}/kokoro/invocations-bidirectional-stream", token)


async def speak_once(stack: Stack, token: Secret, out: Path) -> list[Spoken]:
    """Make the calls in a program of their own, as a client would. Raises SetupError with its sentence if one fails."""
    environment = {
        **stack.environment,
        "SSL_CERT_FILE": str(stack.certificates.authority),
        "GLOTTIS_DEMO_TOKEN": token.reveal().decode(),
    }
    arguments = ("-P", "-m", "glottis.first_voice", "--base-url", base_url(stack), "--out", str(out))
    said = await _output_of("The demo's calls failed", arguments, environment, stack)
    return [Spoken(**json.loads(line)) for line in said.splitlines()]


async def count(stack: Stack, keys: list[str]) -> dict[str, Counted]:
    """Return what was counted of each call, when all of them have been and reports show it. Raises SetupError at the deadline."""
    client = control_plane(stack)

    async def rows(*question: tuple[str, str]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await asyncio.to_thread(client.json, "GET", "/api/v1/usage", list(question)))["rows"]
        return found

    deadline = time.monotonic() + _USAGE_DEADLINE_SECONDS
    while True:
        # Only the last event of a call counts as an exchange.
        found = await rows(("by", "exchange"), *(("exchange", key) for key in keys))
        counted = {row["exchange"]: _counted(row) for row in found if row["exchanges"]}
        missing = set(keys) - set(counted)
        # Outcomes are read from the events, models from the rollups, which are made of them a moment later.
        if not missing and _exchanges(await rows(("by", "outcome"))) <= _exchanges(await rows(("by", "model"))):
            return counted
        if time.monotonic() > deadline:
            raise SetupError(
                f"{len(missing)} of {len(keys)} calls were not counted in time."
                if missing
                else "The calls were counted, but reports did not show them in time.",
                f"The logs of gateway and aggregator say why: {stack.log_folder}",
            )
        await asyncio.sleep(_POLL_SECONDS)


async def usage_by_user_and_model(stack: Stack) -> str:
    """Return what `glottis usage --by user,model` prints."""
    arguments = ("-P", "-m", "glottis", "usage", "--by", "user,model", "--data-dir", str(stack.folder))
    report = await _output_of("`glottis usage` failed", arguments, dict(stack.environment), stack)
    return f"\n$ glottis usage --by user,model\n{report}"


def table(calls: list[Spoken], counted: dict[str, Counted]) -> str:
    """Return the calls as a table for people."""
    head = ("call", "first audio", "audio", "characters", "cost", "file")
    rows = [
        (
            call.name,
            f"{call.seconds_to_first_audio * 1000:.0f} ms",
            f"{call.audio_seconds:.2f} s",
            str(counted[call.key].characters),
            counted[call.key].cost,
            os.path.relpath(call.wav),
        )
        for call in calls
    ]
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in (head, *rows)]
    return "\n".join(["", lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def _exchanges(rows: list[dict[str, Any]]) -> int:
    return sum(row["exchanges"] for row in rows)


def _counted(row: dict[str, Any]) -> Counted:
    # Any: JSON. A call has one unit with a price: its characters.
    costs = [f"{amount} {currency}" for currency, amount in row["cost"].items()]
    return Counted(row["units"].get("characters", 0), ", ".join(costs) or "unpriced")


async def _output_of(failure: str, arguments: tuple[str, ...], environment: dict[str, str], stack: Stack) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=stack.folder,
        env=environment,
    )
    try:
        output, errors = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode == FAILED_STATUS:
        sentence = " ".join(errors.decode(errors="replace").split())
        raise SetupError(f"{failure}: {sentence}.", f"What the parts say is in {stack.log_folder}; start with gateway.log.")
    if process.returncode != 0:
        raise SetupError(f"{failure}.", f"It said last: {errors.decode(errors='replace')[-2000:].strip()}")
    return output.decode()
