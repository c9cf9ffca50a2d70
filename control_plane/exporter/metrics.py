"""What the exporter tells Prometheus. Labels come from enums: which target it is, the log says."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class Metrics:
    """One registry a process; `registry` is what `/metrics` shows."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.events = Counter(
            "glottis_exporter_events",
            "Span events by what became of them at a target: delivered, dropped_full, dropped_failing, dropped_refused",
            ["protocol", "result"],
            registry=registry,
        )
        self.failures = Counter(
            "glottis_exporter_failures", "Failed attempts to deliver a batch", ["protocol"], registry=registry
        )
        self.undecodable = Counter(
            "glottis_exporter_undecodable", "Messages or events that are no span events", registry=registry
        )
        self.held = Gauge("glottis_exporter_held_messages", "Messages that some target has not settled yet", registry=registry)
        self.failing = Gauge("glottis_exporter_failing_targets", "Targets whose last attempt failed", registry=registry)
        self.targets = Gauge("glottis_exporter_targets", "Targets in use", registry=registry)
