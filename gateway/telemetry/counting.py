"""Counters and histograms for the hot path: plain numbers in one thread, turned into Prometheus families when asked.

prometheus_client locks each number it changes, because its metrics serve any thread; the five histograms and four counters
of one exchange would cost ten microseconds there, and cost three here. Collectors by their shape alone: compiled code calls
a class that inherits from one of Python's as Python does. Read next: `gateway.telemetry.metrics`.
"""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from typing import cast

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry


class Count:
    """One number of a counter, for who adds to it often."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0


class Counts:
    """A counter with labels, which are given by their values, in order."""

    def __init__(self, name: str, text: str, labels: tuple[str, ...], registry: CollectorRegistry) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._values: dict[tuple[str, ...], Count] = {}
        registry.register(cast(Collector, self))

    def add(self, labels: tuple[str, ...], amount: float = 1.0) -> None:
        """Count."""
        self.of(labels).value += amount

    def of(self, labels: tuple[str, ...]) -> Count:
        """Return the number of these labels."""
        count = self._values.get(labels)
        if count is None:
            count = self._values[labels] = Count()
        return count

    def collect(self) -> Iterator[Metric]:
        """Yield the family, for the registry."""
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for labels, count in self._values.items():
            family.add_metric(labels, count.value)
        yield family

    def describe(self) -> Iterator[Metric]:
        """Yield the family without samples: the registry asks for its name."""
        yield CounterMetricFamily(self._name, self._text, labels=self._labels)


class Durations:
    """A histogram of seconds with labels. bounds: upper bounds of its buckets, growing; the last bucket has none."""

    def __init__(
        self, name: str, text: str, labels: tuple[str, ...], bounds: tuple[float, ...], registry: CollectorRegistry
    ) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._bounds = bounds
        self._series: dict[tuple[str, ...], list[float]] = {}
        registry.register(cast(Collector, self))

    def observe(self, seconds: float, labels: tuple[str, ...] = ()) -> None:
        """Count one observation; a negative one, from a clock that was set back, counts as none at all."""
        series = self._series.get(labels)
        if series is None:
            series = self._series[labels] = [0.0] * (len(self._bounds) + 2)
        if seconds < 0:
            seconds = 0.0
        series[bisect_left(self._bounds, seconds)] += 1.0
        series[-1] += seconds

    def collect(self) -> Iterator[Metric]:
        """Yield the family, for the registry."""
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        names = [*map(str, self._bounds), "+Inf"]
        for labels, series in self._series.items():
            family.add_metric(labels, list(zip(names, accumulate(series[:-1]), strict=True)), series[-1])
        yield family

    def describe(self) -> Iterator[Metric]:
        """Yield the family without samples: the registry asks for its name."""
        yield HistogramMetricFamily(self._name, self._text, labels=self._labels)
