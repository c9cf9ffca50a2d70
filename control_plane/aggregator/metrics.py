"""What the aggregator tells Prometheus. Labels come from enums: never a workspace, an id or a message."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from contracts.events import UNITS

OTHER = "other"


class Metrics:
    """One registry a process; `registry` is what `/metrics` shows."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.stored = Counter(
            "glottis_aggregator_events",
            "Events stored; copies count again",
            ["stream"],
            registry=registry,
        )
        self.set_aside = Counter(
            "glottis_aggregator_set_aside", "Events that could not be counted", ["stream", "reason"], registry=registry
        )
        self.unpriced = Counter(
            "glottis_aggregator_unpriced_units", "Units (characters, milliseconds, requests) stored without a price", ["unit"],
            registry=registry,
        )  # fmt: skip
        self.faults = Counter(
            "glottis_aggregator_faults", "Failed attempts, each tried again", ["stream", "phase"], registry=registry
        )
        self.batch_seconds = Histogram(
            "glottis_aggregator_batch_seconds", "From the last event of a batch to its acknowledgement", ["stream"],
            buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30), registry=registry,
        )  # fmt: skip
        self.lag_seconds = Gauge(
            "glottis_aggregator_lag_seconds", "Age of the last batch's oldest event when acknowledged", ["stream"],
            registry=registry,
        )  # fmt: skip
        self.waiting = Gauge(
            "glottis_aggregator_waiting_events",
            "Events in the stream that are not stored yet",
            ["stream"],
            registry=registry,
        )
        self.price_revision = Gauge("glottis_aggregator_price_revision", "Revision of the price book in use", registry=registry)
        self.refused_prices = Gauge(
            "glottis_aggregator_refused_prices", "Entries of the price book that are not usable", registry=registry
        )


def unit_label(unit: str) -> str:
    """Return the unit if it is one of ours: label values must be few."""
    return unit if unit in UNITS else OTHER
