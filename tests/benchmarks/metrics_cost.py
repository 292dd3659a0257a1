"""
What the metrics plugins add to a decision.

    python tests/benchmarks/metrics_cost.py [--rounds N] [--calls N]

One limiter without a plugin and one with each are asked in turn, in short rounds in a shuffled order; printed is the
median of the differences between limiters of the same round, and their spread. After each round the metrics are
collected, as a scrape or an exporter does it; that is timed by itself, as µs for each decision of the round. The store
is memory, so that nothing but this process's own work is timed.
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


class _Deaf:
    @hookimpl
    def throttlekit_decided(self, event: Decided) -> None:
        pass


def _ways(limiter: Limiter, clock: FakeClock) -> dict[str, Callable[[], object]]:
    """Decisions that the limiter makes again and again."""
    job = Job(id="1", name="call")
    wide = TokenBucket("wide", "1000000/s", burst=1_000_000)
    shut, short = TokenBucket("shut", "1/day", burst=1), TokenBucket("short", "1000000/s", burst=1)
    for limit in (shut, short):
        limiter.acquire(limit)
    limiter.acquire(short, job=job)
    clock.advance(1)
    limiter.acquire(short, job=job)

    def ask(limit: TokenBucket, delivery: Delivery = Delivery()) -> Callable[[], object]:  # noqa: B008
        return lambda: (clock.advance(0.001), limiter.acquire(limit, job=job, delivery=delivery))

    # The last has waited and run, and asks again.
    return {"allowed": ask(wide), "denied": ask(shut), "started after a wait": ask(short, Delivery(again=True))}


def _plugins() -> dict[str, tuple[list[object], Callable[[], object]]]:
    """By name: the plugins of a limiter, and what collects their metrics."""
    registry, reader = CollectorRegistry(), InMemoryMetricReader()
    return {
        "no plugin": ([], lambda: None),
        "a plugin that does nothing": ([_Deaf()], lambda: None),
        "prometheus": ([PrometheusMetrics(registry=registry)], lambda: list(registry.collect())),
        "opentelemetry": ([OpenTelemetryMetrics(meter_provider=MeterProvider([reader]))], reader.get_metrics_data),
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--calls", type=int, default=300)
    options = parser.parse_args()
    print(f"{'':22}{'plugin':28}{'µs added, median':>18}{'quartiles':>18}{'collected, µs':>16}")
    made: dict[str, tuple[dict[str, Callable[[], object]], Callable[[], object]]] = {}
    for name, (plugins, collect) in _plugins().items():
        clock = FakeClock()
        made[name] = _ways(Limiter(MemoryStore(clock_us=clock), plugins=plugins), clock), collect
    for case in made["no plugin"][0]:
        asks = {name: (ways[case], collect) for name, (ways, collect) in made.items()}
        rounds: dict[str, list[float]] = {name: [] for name in asks}
        collected: dict[str, list[float]] = {name: [] for name in asks}
        for _ in range(options.rounds):
            for name in random.sample(list(asks), len(asks)):
                ask, collect = asks[name]
                began = time.thread_time()
                for _ in range(options.calls):
                    ask()
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
