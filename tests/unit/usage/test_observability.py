"""Alert rules, dashboard and expositions: they name what exists, and promtool agrees where it is installed."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from control_plane.aggregator.metrics import Metrics as AggregatorMetrics
from control_plane.exporter.metrics import Metrics as ExporterMetrics
from control_plane.publish.publisher import Metrics as PublisherMetrics
from gateway.telemetry.metrics import Metrics as GatewayMetrics

FOLDER = Path(__file__).parents[3] / "deploy" / "observability"
NAME = re.compile(r"\bglottis_[a-z0-9_]+")
SUFFIXES = ("", "_total", "_bucket", "_count", "_sum")

# `.ci/run` unpacks Debian's package there, which starts no server.
PROMTOOL = shutil.which("promtool") or shutil.which(Path(__file__).parents[3] / ".cache/prometheus/usr/bin/promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (apt: prometheus)")


def known_names() -> set[str]:
    """Return every series name that our processes expose."""
    published = CollectorRegistry()
    PublisherMetrics(published)
    registries = [GatewayMetrics().registry, AggregatorMetrics().registry, ExporterMetrics().registry, published]
    families = [family.name for registry in registries for family in registry.collect()]
    return {name + suffix for name in families for suffix in SUFFIXES}


def expressions(value: Any) -> list[str]:
    """Return every PromQL expression in a parsed file. Any: it is JSON or YAML."""
    if isinstance(value, dict):
        own = [value["expr"]] if isinstance(value.get("expr"), str) else []
        return own + [found for part in value.values() for found in expressions(part)]
    if isinstance(value, list):
        return [found for part in value for found in expressions(part)]
    return []


@pytest.mark.parametrize("file", ["alerts.yaml", "grafana-dashboard.json"])
def test_every_metric_that_is_asked_for_exists(file: str) -> None:
    text = (FOLDER / file).read_text()
    asked = expressions(json.loads(text) if file.endswith(".json") else yaml.safe_load(text))
    names = {name for expression in asked for name in NAME.findall(expression)}
    assert len(names) > 10
    assert names - known_names() == set()


def test_every_alert_says_what_it_means_and_what_to_do() -> None:
    groups = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]
    for rule in [rule for group in groups for rule in group["rules"]]:
        assert rule["labels"]["severity"] in ("warning", "critical"), rule["alert"]
        assert {"summary", "description"} <= rule["annotations"].keys(), rule["alert"]


@needs_promtool
@pytest.mark.parametrize(
    "arguments",
    [("check", "rules", "alerts.yaml"), ("test", "rules", "alerts_test.yaml"), ("check", "config", "prometheus.yaml")],
)
def test_promtool_accepts_the_files(arguments: tuple[str, ...]) -> None:
    result = subprocess.run([str(PROMTOOL), *arguments], cwd=FOLDER, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@needs_promtool
@pytest.mark.parametrize("metrics", [AggregatorMetrics, ExporterMetrics, GatewayMetrics])
def test_promtool_accepts_what_a_process_exposes(metrics: Any) -> None:
    exposition = generate_latest(metrics().registry)
    result = subprocess.run([str(PROMTOOL), "check", "metrics"], input=exposition, capture_output=True, timeout=60, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
