"""The exporter's process: settings in, exit status out. Composition only. Read next: `intake`, then `lane`."""

import asyncio
import logging

from contracts.subjects import CONFIG_BUCKET, EXPORTS_KEY
from control_plane.exporter.intake import Intake
from control_plane.exporter.lanes import Lanes
from control_plane.exporter.metrics import Metrics
from control_plane.exporter.settings import Settings
from control_plane.worker.bus import Bus
from control_plane.worker.ops import OpsListener
from control_plane.worker.process import live
from control_plane.worker.tasks import Tasks

NAME = "exporter"


def run(settings: Settings) -> int:
    """Run until SIGTERM or SIGINT; return the exit status."""
    # The library logs a receiver's own words, several lines a failure; what matters is logged by the lane.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    return asyncio.run(Exporter(settings).live())


class Exporter:
    """The process's parts."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._metrics = Metrics()
        self._bus = Bus(settings.bus, NAME)
        self._lanes: Lanes | None = None
        self._intake: Intake | None = None

    async def live(self) -> int:
        """Run; return the exit status."""
        ops = OpsListener(self._metrics.registry, self._why_not_ready)
        try:
            return await live(NAME, self._bus, ops, self._settings.listen, self._setup, self._settings.drain_seconds)
        finally:
            if self._lanes is not None:
                self._lanes.close()

    async def _setup(self, tasks: Tasks, draining: asyncio.Event) -> list["asyncio.Task[None]"]:
        lanes = self._lanes = Lanes(self._settings, self._metrics, tasks)
        intake = self._intake = Intake(self._bus, lanes, self._settings, self._metrics, draining)
        tasks.start("watch targets", self._bus.watch(CONFIG_BUCKET, EXPORTS_KEY, lanes.take))
        tasks.start("acknowledge", intake.acknowledge())
        tasks.start("keep", intake.keep())
        return [tasks.start("spans", self._after_targets(lanes, intake))]

    async def _after_targets(self, lanes: Lanes, intake: Intake) -> None:
        """Take spans in once the published targets are known: before, a workspace's would pass by its receivers."""
        await lanes.known.wait()
        await intake.run()

    def _why_not_ready(self) -> list[str]:
        reasons = [] if self._bus.is_connected else ["the event bus does not answer"]
        if self._lanes is None or not self._lanes.known.is_set():
            reasons.append("the export targets are not known yet")
        if self._intake is None or not self._intake.is_bound:
            reasons.append("the span stream is not there yet")
        return reasons
