"""The pod's Prometheus metrics: names, units, labels, buckets.

Labels come from enums and tables, never from a path, an id or a message; what is not in its table is counted as `other`.
Values that somebody else keeps (depths, ages) are read when Prometheus asks: the composition root sets their functions.
Read next: `gateway.telemetry.recorder`, which observes most of them.
"""

from collections.abc import Collection
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge

from gateway.telemetry.counting import Counts, Durations

_FAST = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
_AUDIO = (0.02, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0)
_LONG = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)


MetricT = TypeVar("MetricT", Counter, Gauge)


class Metrics:
    """Every metric of a gateway, on one registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._reasons: frozenset[str] = frozenset()

        kind = ("provider", "operation")
        self.exchanges = self._counts("exchanges", "Exchanges settled", (*kind, "outcome"))
        self.refusals = self._counts("refusals", "Refusals by their reason", ("reason",))
        self.upstream_faults = self._counts("upstream_faults", "Faults on the way to a provider, by phase", ("phase",))
        self.contexts = self._counts("contexts", "Contexts of multiplexed sockets settled", ("provider", "outcome"))
        self.usage = self._counts("usage", "Usage owed, by unit", ("provider", "unit"))
        self.open_exchanges = self._of(Gauge, "open_exchanges", "Exchanges in flight, sessions among them")
        self.sessions = self._of(Gauge, "sessions", "WebSocket sessions open")
        self.exchange_seconds = self._durations("exchange_seconds", "From head to end", kind, _LONG)
        self.first_byte_seconds = self._durations(
            "time_to_first_byte_seconds", "From the last request byte to the answer's first", kind, _AUDIO
        )
        self.first_audio_seconds = self._durations(
            "time_to_first_audio_seconds", "From the last request byte to the first audio", kind, _AUDIO
        )
        self.audio_gap_seconds = self._durations(
            "largest_audio_gap_seconds", "Largest gap between two arrivals of audio, an exchange", kind, _AUDIO
        )
        self.added_seconds = self._durations(
            "added_latency_seconds", "From the head's end to its departure, without dialling", kind, _FAST
        )
        self.dial_seconds = self._durations("dial_seconds", "Resolving, connecting, TLS", kind, _AUDIO)

        self.spool_used_bytes = self._of(Gauge, "spool_used_bytes", "Bytes taken in the spool")
        self.spool_capacity_bytes = self._of(Gauge, "spool_capacity_bytes", "Bytes that the spool can hold")
        self.spool_unpublished_bytes = self._of(Gauge, "spool_unpublished_bytes", "Bytes that wait to be published")
        self.spool_open_keys = self._of(Gauge, "spool_open_keys", "Usage keys without a final event")
        self.events_dropped = self._of(Counter, "events_dropped", "Events lost to a full spool", ("kind",))
        self.events_published = self._of(Counter, "events_published", "Events stored by the stream")
        self.publish_failures = self._of(Counter, "publish_failures", "Batches that have to be tried again", ("why",))

        self.config_revision = self._of(Gauge, "config_revision", "Revision of the configuration in force")
        self.config_age_seconds = self._of(Gauge, "config_age_seconds", "Since the configuration was last confirmed")
        self.config_refused = self._of(Counter, "config_refused", "Manifests refused", ("reason",))
        self.config_apply_seconds = self._durations("config_apply_seconds", "From a manifest to its swap", (), _LONG)
        self.key_set_age_seconds = self._of(Gauge, "key_set_age_seconds", "Age of the oldest key set")
        self.key_set_fetches = self._of(Counter, "key_set_fetches", "Key sets fetched", ("result",))
        self.bus_is_up = self._of(Gauge, "bus_up", "1 while NATS is connected")
        self.loop_faults = self._of(Counter, "loop_faults", "Background loops that failed and were started again", ("loop",))
        self.log_lines_dropped = self._of(Gauge, "log_lines_dropped", "Log lines lost to a reader that stalled")

    def know_reasons(self, reasons: Collection[str]) -> None:
        """Set which refusal reasons may be label values: those of the refusal table."""
        self._reasons = frozenset(reasons)

    def reason(self, reason: str) -> str:
        """Return the reason as a label value."""
        return reason if reason in self._reasons else "other"

    def _of(self, kind: type[MetricT], name: str, text: str, labels: tuple[str, ...] = ()) -> MetricT:
        made: MetricT = kind("glottis_gateway_" + name, text, labels, registry=self.registry)
        return made

    def _counts(self, name: str, text: str, labels: tuple[str, ...]) -> Counts:
        return Counts("glottis_gateway_" + name, text, labels, self.registry)

    def _durations(self, name: str, text: str, labels: tuple[str, ...], bounds: tuple[float, ...]) -> Durations:
        return Durations("glottis_gateway_" + name, text, labels, bounds, self.registry)


METRICS = Metrics()
"""the process's metrics"""
