"""All lanes: which workspace's events go where, kept up with what the control plane publishes.

A target that did not change keeps its lane and what is queued in it; one that is gone gives its events up. Read next: `lane`.
"""

import asyncio
from collections.abc import Callable

import structlog

from contracts import codec
from contracts.events import SpanEvent
from contracts.exports import EVERY_WORKSPACE, ExportTarget, ExportTargets
from control_plane.exporter.credentials import HeaderSafe, HeadersUnreadable
from control_plane.exporter.guard import Guard
from control_plane.exporter.lane import Item, Lane
from control_plane.exporter.metrics import Metrics
from control_plane.exporter.sender import Sender
from control_plane.exporter.settings import Settings
from control_plane.worker.tasks import Tasks

_log = structlog.get_logger()

LARGEST_HELD = 20_000
"""events in all lanes together: the process's memory is bounded by it"""


class Lanes:
    """The lanes of the operator's targets from the start, and of the published ones from `take` on."""

    def __init__(self, settings: Settings, metrics: Metrics, tasks: Tasks) -> None:
        self._settings = settings
        self._metrics = metrics
        self._tasks = tasks
        self._safe = HeaderSafe(settings.fleet_keys)
        self._guard = Guard(settings.allowed_origins)
        self._lanes: list[Lane] = []
        self._by_workspace: dict[str, list[Lane]] = {}
        self.known = asyncio.Event()
        self._use(())

    async def take(self, data: bytes | None) -> None:
        """Use the published targets; None: none are published. An unreadable list leaves the last in use."""
        self.known.set()
        if data is None:
            return self._use(())
        try:
            published = codec.decode(data, ExportTargets)
        except codec.Undecodable as error:
            _log.error("export targets refused, the last ones stay", error=str(error))
            return None
        _log.info("export targets taken", revision=published.revision, targets=len(published.targets))
        return self._use(tuple(target for target in published.targets if target.workspace != EVERY_WORKSPACE))

    def lanes_of(self, workspace: str) -> int:
        """Return how many lanes an event of this workspace goes into."""
        return len(self._lanes_of(workspace))

    def offer(self, event: SpanEvent, settled: Callable[[], None]) -> None:
        """Queue an event in the lanes of its workspace; `settled` is called once for each of them."""
        for lane in self._lanes_of(event.workspace):
            lane.offer(Item(event, settled))
        while self.held > LARGEST_HELD:
            max(self._lanes, key=len).drop_oldest()

    def _lanes_of(self, workspace: str) -> list[Lane]:
        return self._by_workspace.get(workspace, []) + self._by_workspace.get(EVERY_WORKSPACE, [])

    @property
    def held(self) -> int:
        """Return how many events wait or are on their way, a copy a lane."""
        return sum(len(lane) for lane in self._lanes)

    def observe(self) -> None:
        """Set the gauges."""
        self._metrics.targets.set(len(self._lanes))
        self._metrics.failing.set(sum(lane.is_failing for lane in self._lanes))

    def close(self) -> None:
        """Stop every lane; what they hold is given again to the next exporter."""
        for lane in self._lanes:
            lane.stop()

    def _use(self, published: tuple[ExportTarget, ...]) -> None:
        known = {(lane.target.workspace, lane.target.id): lane for lane in self._lanes}
        self._lanes = []
        self._by_workspace = {}
        for target in (*self._settings.targets, *published):
            old = known.pop((target.workspace, target.id), None)
            lane = old if old is not None and old.target == target else self._new_lane(target)
            if old is not None and old is not lane:
                _hand_over(old, lane)
            if lane is not None:
                self._lanes.append(lane)
                self._by_workspace.setdefault(target.workspace, []).append(lane)
        for gone in known.values():
            _hand_over(gone, None)

    def _new_lane(self, target: ExportTarget) -> Lane | None:
        if target.is_disabled:
            return None
        try:
            headers = (self._settings.secret_headers or {}).get(target.id) or self._safe.headers_of(target)
        except HeadersUnreadable as error:
            _log.error("export target not used", target=target.id, name=target.name, why=str(error))
            return None
        lane = Lane(target, Sender(target, headers, self._guard), self._settings, self._metrics)
        lane.start(self._tasks)
        return lane


def _hand_over(old: Lane, new: Lane | None) -> None:
    """Stop a lane; what it holds goes to the lane that takes its place, or is given up."""
    for item in old.stop():
        if new is None:
            item.settled()
        else:
            new.offer(item)
