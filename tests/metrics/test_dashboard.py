"""The Grafana dashboard and the alerts query existing metrics, with labels that these metrics have."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from throttlekit import Concurrency, Job, Limiter, TokenBucket
from throttlekit.hookspecs import StoreFailed
from throttlekit.metrics.fleet import FleetMetrics
from throttlekit.metrics.prometheus import PrometheusMetrics

DOCS = Path(__file__).parents[2] / "docs"
DASHBOARD: dict[str, Any] = json.loads((DOCS / "grafana" / "throttlekit.json").read_text("utf-8"))
EXPRESSIONS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
_SUFFIXES = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_sum", "_count"]}


def _exported() -> dict[str, set[str]]:
    """Return every series that the plugin exports, with its labels."""
    registry = CollectorRegistry()
    metrics = PrometheusMetrics(registry=registry)
    limiter, limit, slots = Limiter(plugins=[metrics]), TokenBucket("a", "1/s"), Concurrency("b", 1)
    limiter.settle(limiter.acquire(limit, slots), actual=2, limit=limit)
    decision = limiter.acquire(limit, job=Job())
    metrics.throttlekit_store_failed(StoreFailed("TimeoutError", (limit,), "closed", decision, None))
    families = [family for family in registry.collect() if family.samples or family.type == "histogram"]
    families += FleetMetrics(Limiter("redis://127.0.0.1:1/0")).describe()
    labels = {family.name: {label for sample in family.samples for label in sample.labels} for family in families}
    by_limit = {"limit", "tier", "le"}
    return {
        name + suffix: labels[name] or by_limit
        for name, kind in ((family.name, family.type) for family in families)
        for suffix in _SUFFIXES[kind]
    }


def _names(text: str) -> set[str]:
    return set(re.findall(r"\bthrottlekit_\w+", text))


def test_every_metric_of_the_dashboard_is_exported() -> None:
    """Each name in the expressions and variables of the dashboard is a metric that the plugin exports."""
    queried = _names(" ".join(EXPRESSIONS)) | _names(json.dumps(DASHBOARD["templating"]))
    assert queried <= set(_exported())


def test_the_dashboard_shows_every_metric() -> None:
    """The dashboard has a panel for every exported metric."""
    shown = _names(" ".join(EXPRESSIONS))
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in _exported()}
    assert families == {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown}


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_label_in_an_expression_exists(expression: str) -> None:
    """A panel groups and filters by labels that its metrics have."""
    exported = _exported()
    known = set.union(*(exported[name] for name in _names(expression)))
    grouped = {label.strip() for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(",")}
    filtered = set(re.findall(r"(\w+)=~?\"", expression))
    assert grouped | filtered <= known


def test_the_docs_name_every_metric() -> None:
    """The table in docs/metrics.md has each exported metric, and the alerts query only such metrics."""
    page = (DOCS / "metrics.md").read_text("utf-8")
    table = {
        f"throttlekit_{name}" for name in re.findall(r"^\| `(\w+)` \| (?:counter|gauge|histogram)", page, re.MULTILINE)
    }
    exported = set(_exported())
    assert table == {re.sub(r"_(bucket|sum|count)$", "", name) for name in exported}
    alerts = _names(page.split("```yaml")[1].split("```")[0])
    assert alerts
    assert alerts <= exported
