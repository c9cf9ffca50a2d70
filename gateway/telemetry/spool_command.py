"""`glottis spool`: what waits in a gateway's spool folder, and how to publish it when no gateway will come back for it.

`inspect` only looks, also at a living gateway's files. `replay` does what a successor does at its start: it takes up the
files whose gateway is dead, settles what they left open, publishes everything and removes them.
"""

import asyncio
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from contracts.events import usage_event
from contracts.secret import Secret
from gateway.bus import Bus, stream_of
from gateway.tasks import Tasks
from gateway.telemetry.publisher import Publisher
from gateway.telemetry.ring import SMALLEST_CAPACITY, Ring, RingUnusable
from gateway.telemetry.spool import Kind, Spool, SpooledRing, spool_files


@dataclass(frozen=True, slots=True)
class SpoolFile:
    """What one file holds. `is_alive`: its gateway runs."""

    file: str
    is_alive: bool
    capacity: int
    used: int
    usage_events: int
    span_events: int
    open_keys: int
    oldest: str | None
    """when the oldest usage event that waits was measured, UTC; None: none waits"""


@click.group()
def spool() -> None:
    """Look into a gateway's spool, or publish what a dead gateway left."""


@spool.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def inspect(folder: Path, as_json: bool) -> int:
    """Show what waits in FOLDER (GLOTTIS_GATEWAY_SPOOL_DIR)."""
    found = inspected(folder)
    if as_json:
        click.echo(json.dumps([asdict(file) for file in found]))
        return 0
    if not found:
        click.echo(f"{folder} holds no spool file.")
    for file in found:
        click.echo(f"{file.file}: {'in use' if file.is_alive else 'left behind'}, {file.used} of {file.capacity} bytes")
        click.echo(f"  waiting: {file.usage_events} usage events, {file.span_events} span events")
        click.echo(f"  open: {file.open_keys} exchanges without a final event")
        if file.oldest is not None:
            click.echo(f"  oldest: {file.oldest}")
    return 0


@spool.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--nats-url", envvar="GLOTTIS_NATS_URL", required=True, help="Default: GLOTTIS_NATS_URL.")
@click.option(
    "--nats-seed-file",
    envvar="GLOTTIS_NATS_SEED_FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A gateway's nkey seed. Default: GLOTTIS_NATS_SEED_FILE.",
)
@click.option("--timeout", "timeout_seconds", type=float, default=60.0, show_default=True, help="Seconds.")
def replay(folder: Path, nats_url: str, nats_seed_file: Path | None, timeout_seconds: float) -> int:
    """Publish what dead gateways left in FOLDER, and remove their files. Living gateways' files are left alone."""
    seed = None if nats_seed_file is None else Secret(nats_seed_file.read_text().strip())
    try:
        published = asyncio.run(replayed(folder, nats_url, seed, timeout_seconds))
    except RingUnusable as fault:
        raise click.ClickException(str(fault)) from fault
    if published is None:
        raise click.ClickException("Not everything was published in time; what is left waits. Is NATS reachable?")
    click.echo(f"Published {published} events.")
    return 0


def inspected(folder: Path) -> list[SpoolFile]:
    """Return what each spool file of the folder holds; files that are none are left out."""
    found = []
    for path in spool_files(folder):
        try:
            ring = Ring.look_at(path)
        except RingUnusable:
            continue
        spooled = SpooledRing(ring)
        waiting = list(spooled.waiting())
        usage = [event for event in waiting if event.kind == Kind.USAGE]
        oldest = min((usage_event(event.encoded).at_ms for event in usage), default=None)
        found.append(
            SpoolFile(
                file=path.name,
                is_alive=ring.is_locked_by_another(),
                capacity=ring.capacity,
                used=ring.used,
                usage_events=len(usage),
                span_events=len(waiting) - len(usage),
                open_keys=len(spooled.journal),
                oldest=None if oldest is None else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(oldest / 1000)),
            )
        )
        ring.close()
    return found


async def replayed(folder: Path, nats_url: str, seed: Secret | None, timeout_seconds: float) -> int | None:
    """Publish what dead gateways left; return how many events, None if the time was too short. Raises RingUnusable."""
    tasks = Tasks()
    published = 0

    def count(events: int) -> None:
        nonlocal published
        published += events

    # The own ring of a spool takes new events; there are none, so the smallest one will do, and it goes at the end.
    found = Spool.open(folder, SMALLEST_CAPACITY, "replay")
    bus = Bus(nats_url, seed, "spool replay")
    try:
        bus.start(tasks)
        publisher = Publisher(found, stream_of(bus), count)
        tasks.keep("publisher", publisher.run)
        return published if await publisher.flush(timeout_seconds) else None
    finally:
        await tasks.stop()
        await bus.close()
        found.tidy()
        found.close()
