"""
The time that the metrics plugins add to a decision.

    python tests/benchmarks/metrics_cost.py [--rounds N] [--calls N]

A limiter without a plugin and a limiter with each plugin decide in short rounds, in a shuffled order; the benchmark
prints the median and the quartiles of the differences between limiters of the same round. After each round it collects
the metrics, as a scrape or an exporter does; that time is separate, in µs for each decision of the round. The store is
in memory, so that only the work of this process is timed.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry

from support.reports.command import parser_of
from throttlekit import Delivery, Job, Limiter, TokenBucket, hookimpl
from throttlekit.hookspecs import Decided
from throttlekit.metrics.opentelemetry import OpenTelemetryMetrics
from throttlekit.metrics.prometheus import PrometheusMetrics
from throttlekit.stores import MemoryStore
from throttlekit.testing import FakeClock


class _EmptyPlugin:
    @hookimpl
    def throttlekit_decided(self, event: Decided) -> None:
        pass


def _ways(limiter: Limiter, clock: FakeClock) -> dict[str, Callable[[], object]]:
    """Calls of the limiter that can be repeated, each with the same kind of decision."""
    job = Job(id="1", name="call")
    wide = TokenBucket("wide", "1000000/s", burst=1_000_000)
    shut, short = TokenBucket("shut", "1/day", burst=1), TokenBucket("short", "1000000/s", burst=1)
    for limit in (shut, short):
        limiter.acquire(limit)
    limiter.acquire(short, job=job)
    clock.advance(1)
    limiter.acquire(short, job=job)

    def decide(limit: TokenBucket, delivery: Delivery = Delivery()) -> Callable[[], object]:  # noqa: B008
        return lambda: (clock.advance(0.001), limiter.acquire(limit, job=job, delivery=delivery))

    # The last job has waited and run, and requests its units again.
    return {
        "allowed": decide(wide),
        "denied": decide(shut),
        "started after a wait": decide(short, Delivery(again=True)),
    }


def _plugins() -> dict[str, tuple[list[object], Callable[[], object]]]:
    """By name: the plugins of a limiter, and the function that collects their metrics."""
    registry, reader = CollectorRegistry(), InMemoryMetricReader()
    return {
        "no plugin": ([], lambda: None),
        "a plugin that does nothing": ([_EmptyPlugin()], lambda: None),
        "prometheus": ([PrometheusMetrics(registry=registry)], lambda: list(registry.collect())),
        "opentelemetry": ([OpenTelemetryMetrics(meter_provider=MeterProvider([reader]))], reader.get_metrics_data),
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--calls", type=int, default=300)
    options = parser.parse_args()
    print(f"{'':22}{'plugin':28}{'µs added, median':>18}{'quartiles':>18}{'collected, µs':>16}")
    limiters: dict[str, tuple[dict[str, Callable[[], object]], Callable[[], object]]] = {}
    for name, (plugins, collect) in _plugins().items():
        clock = FakeClock()
        limiters[name] = _ways(Limiter(MemoryStore(clock_us=clock), plugins=plugins), clock), collect
    for case in limiters["no plugin"][0]:
        calls = {name: (ways[case], collect) for name, (ways, collect) in limiters.items()}
        rounds: dict[str, list[float]] = {name: [] for name in calls}
        collected: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(options.rounds):
            for name in random.sample(list(calls), len(calls)):
                decide, collect = calls[name]
                began = time.thread_time()
                for _ in range(options.calls):
                    decide()
                ended = time.thread_time()
                collect()
                rounds[name].append((ended - began) / options.calls * 1e6)
                collected[name].append((time.thread_time() - ended) / options.calls * 1e6)
        base = rounds.pop("no plugin")
        print(f"{case:22}{'no plugin (the whole call)':28}{statistics.median(base):18.2f}")
        for name, took in rounds.items():
            added = sorted(with_it - without for with_it, without in zip(took, base, strict=True))
            low, _, high = statistics.quantiles(added, n=4)
            spread = f"{low:.2f} … {high:.2f}"
            print(
                f"{'':22}{name:28}{statistics.median(added):18.2f}{spread:>18}{statistics.median(collected[name]):16.2f}"
            )


if __name__ == "__main__":
    main()
