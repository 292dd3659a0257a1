"""
The Grafana dashboard over a live flood: every panel's queries are answered by a real Prometheus, and drawn.

    python tests/benchmarks/dashboard.py [--seconds N] [--svg docs/grafana/throttlekit.svg]

Needs redis-server and prometheus on PATH (Debian's packages have these names). A flood of threads asks for three
limits; after a third of the time one is paused, after two thirds Redis is away for some seconds. Prometheus scrapes
once a second. Each query of the dashboard is asked over the whole time, and must have an answer; the picture is of
these answers, panel for panel.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from prometheus_client import CollectorRegistry, start_http_server

from support.reports.command import parser_of
from support.servers.processes import RedisProcess, free_port
from support.waiting import wait_until
from throttlekit import Concurrency, Job, Limiter, StoreUnavailable, TokenBucket
from throttlekit.metrics.fleet import FleetMetrics
from throttlekit.metrics.prometheus import PrometheusMetrics

DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana" / "throttlekit.json"
PARTNER = TokenBucket("partner-api", "20/s", burst=20, on_store_failure="open")
TOKENS = TokenBucket("llm-tokens", "9000/minute", burst=300, cost=lambda job: job.kwargs["tokens"])
SLOTS = Concurrency("reports-db", 4, lease=5)
COLOURS = ("#3274d9", "#e0752d", "#56a64b", "#c4162a", "#8f3bb8", "#b877d9", "#7c2ea3", "#806eb7")


class Flood:
    """Threads that ask for limits, each time for another job, until it ends."""

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(36)]

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, number: int) -> None:
        limit, body = [(PARTNER, 0.0), (TOKENS, 0.0), (SLOTS, 0.3)][number % 3]
        while not self._over.wait(0.2):
            job = Job(id=os.urandom(8).hex(), name="call", kwargs={"tokens": 20 + number})
            while not (decision := self._limiter.acquire(limit, job=job)).allowed:
                if self._over.wait(decision.delay):
                    return
            self._limiter.keep(decision, lambda: None)
            self._over.wait(body)
            self._limiter.release(decision)
            if limit is TOKENS:
                with contextlib.suppress(StoreUnavailable):
                    self._limiter.settle(decision, actual=job.kwargs["tokens"] - 5 + number % 7)


@contextlib.contextmanager
def prometheus(target: int) -> Iterator[str]:
    """A Prometheus that scrapes *target* once a second; yields its URL."""
    binary = shutil.which("prometheus")
    if binary is None:
        sys.exit("no prometheus on PATH: it is Debian's package of that name")
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="tk-prometheus-") as folder:
        config = Path(folder) / "prometheus.yml"
        scrape = {
            "job_name": "workers",
            "scrape_interval": "1s",
            "static_configs": [{"targets": [f"127.0.0.1:{target}"]}],
        }
        config.write_text(json.dumps({"scrape_configs": [scrape]}))
        process = subprocess.Popen(
            [
                binary,
                f"--config.file={config}",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stderr=subprocess.DEVNULL,
        )
        url = f"http://127.0.0.1:{port}"
        try:
            wait_until(lambda: _ready(url), description="Prometheus answers")
            yield url
        finally:
            process.terminate()
            process.wait()


def _ready(url: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/-/ready", timeout=1) as answer:
        return bool(answer.status == 200)
    return False


def asked(url: str, expression: str, begin: float, end: float) -> list[dict[str, Any]]:
    """What Prometheus answers to *expression*, second by second: one row for each series."""
    filled = expression.replace("$__rate_interval", "10s").replace("$limit", ".*")
    query = urllib.parse.urlencode({"query": filled, "start": begin, "end": end, "step": 1})
    with urllib.request.urlopen(f"{url}/api/v1/query_range?{query}", timeout=30) as answer:
        told = json.load(answer)
    assert told["status"] == "success", told
    rows: list[dict[str, Any]] = told["data"]["result"]
    return rows


def panels(url: str, begin: float, end: float) -> list[tuple[str, str, list[tuple[str, list[tuple[float, float]]]]]]:
    """Each panel's title, unit and lines: a legend, and its points."""
    drawn = []
    for panel in json.loads(DASHBOARD.read_text("utf-8"))["panels"]:
        lines = []
        for target in panel["targets"]:
            for row in asked(url, target["expr"], begin, end):
                labels = row["metric"]
                legend = re.sub(r"{{(\w+)}}", lambda found, of=labels: of.get(found[1], ""), target["legendFormat"])
                points = [(at - begin, float(value)) for at, value in row["values"] if value not in ("NaN", "+Inf")]
                lines.append((legend.strip(), points))
        drawn.append((panel["title"], panel["fieldConfig"]["defaults"]["unit"], lines))
    return drawn


def svg(drawn: list[Any], seconds: float) -> str:
    wide, high, across = 400, 220, 3
    down = -(-len(drawn) // across)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide * across} {high * down}" '
        'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="#fff"/>'
    ]
    for number, (title, unit, lines) in enumerate(drawn):
        parts.append(f'<g transform="translate({number % across * wide},{number // across * high})">')
        parts.append(f'<text x="10" y="18" font-size="13" font-weight="bold" fill="#222">{escape(title)}</text>')
        parts.append(_plot(unit, lines, seconds, wide, high))
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


def _plot(unit: str, lines: list[tuple[str, list[tuple[float, float]]]], seconds: float, wide: int, high: int) -> str:
    left, top, right, bottom = 52, 28, wide - 12, high - 52
    most = max((value for _, points in lines for _, value in points), default=0.0) * 1.1 or 1.0
    parts = []
    for share in (0.0, 0.5, 1.0):
        y = bottom - share * (bottom - top)
        parts.append(f'<path d="M{left} {y:.0f}H{right}" stroke="#ddd"/>')
        parts.append(
            f'<text x="{left - 4}" y="{y + 4:.0f}" text-anchor="end" fill="#666">{_shown(share * most, unit)}</text>'
        )
    x_legend, y_legend = left, bottom + 18
    for number, (legend, points) in enumerate(lines):
        colour = COLOURS[number % len(COLOURS)]
        path = "".join(
            f"{'M' if not i or at - points[i - 1][0] > 1.5 else 'L'}"
            f"{left + at / seconds * (right - left):.1f} {bottom - value / most * (bottom - top):.1f}"
            for i, (at, value) in enumerate(points)
        )
        parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        if x_legend + 6 * len(legend) + 20 > right and x_legend > left:
            x_legend, y_legend = left, y_legend + 13
        parts.append(f'<text x="{x_legend}" y="{y_legend}" fill="{colour}">{escape(legend)}</text>')
        x_legend += 6 * len(legend) + 16
    return "\n".join(parts)


def _shown(value: float, unit: str) -> str:
    if unit == "percentunit":
        return f"{value:.0%}"
    if unit == "s" and value < 1:
        return f"{value * 1000:.3g} ms"
    return f"{value:.3g}{' s' if unit == 's' else '/s' if unit == 'ops' else ''}"


def flood(redis: RedisProcess, registry: CollectorRegistry, seconds: float) -> None:
    limiter = Limiter(redis.url, plugins=[PrometheusMetrics(registry=registry)])
    registry.register(FleetMetrics(limiter))
    with Flood(limiter):
        time.sleep(seconds / 3)
        with contextlib.suppress(StoreUnavailable):
            limiter.pause(PARTNER, seconds / 8)
        time.sleep(seconds / 3)
        redis.hang()  # leases run out meanwhile
        time.sleep(max(7.0, seconds / 10))
        redis.go_on()
        time.sleep(max(1.0, seconds / 3 - 7))
    limiter.close()


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--seconds", type=float, default=75.0)
    parser.add_argument("--svg", type=Path)
    options = parser.parse_args()
    os.environ.pop("PROMETHEUS_MULTIPROC_DIR", None)
    registry, port, redis = CollectorRegistry(), free_port(), RedisProcess()
    served, thread = start_http_server(port, "127.0.0.1", registry=registry)
    redis.start()
    try:
        with prometheus(port) as url:
            begin = time.time()
            flood(redis, registry, options.seconds)
            end = time.time()
            drawn = panels(url, begin, end)
    finally:
        redis.close()
        served.shutdown()
        thread.join()
    empty = [title for title, _, lines in drawn if not any(points for _, points in lines)]
    for title, _, lines in drawn:
        print(f"{title:42}{len(lines):3} lines{sum(len(points) for _, points in lines):6} points")
    if options.svg:
        options.svg.write_text(svg(drawn, end - begin), "utf-8")
    if empty:
        sys.exit(f"no data: {', '.join(empty)}")


if __name__ == "__main__":
    main()
