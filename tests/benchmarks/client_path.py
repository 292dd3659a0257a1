"""
What one decision costs its caller: by way, as a ratio to redis-py's own `incr`. Prints a table.

    python tests/benchmarks/client_path.py [--rounds 41] [--calls 200] [--redis redis://host:port]

One fresh server and one connection each; the ways are shuffled within each round, and a ratio is the median of the
rounds' own. So a machine that is busy makes the spread wider, and the ratios not wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.servers import redis_server
from throttlekit import Job, Limiter, TokenBucket

FAST = {"rate": "900000/s", "burst": 900_000}
ONE, TWO, THREE = (TokenBucket(f"partner-{number}", **FAST) for number in (1, 2, 3))
KEYED = TokenBucket("account", **FAST, key="{account_id}")
EMPTY = TokenBucket("empty", "1/d", burst=1)
JOB = Job(id="0a1b2c3d-1", name="call_partner", queue="default", kwargs={"account_id": 42})


def ways(client: Any, limiter: Limiter) -> dict[str, Callable[[], object]]:
    """What is measured, by name; the first is what the others are told in."""
    return {
        "redis-py: client.incr": lambda: client.incr("counter"),
        "acquire, allowed": lambda: limiter.acquire(ONE),
        "acquire, denied": lambda: limiter.acquire(EMPTY),
        "acquire, for a job": lambda: limiter.acquire(ONE, job=JOB),
        "acquire, for a job, key from its arguments": lambda: limiter.acquire(KEYED, job=JOB),
        "acquire, key given": lambda: limiter.acquire(KEYED, key="42"),
        "acquire, two limits": lambda: limiter.acquire(ONE, TWO),
        "acquire, three limits": lambda: limiter.acquire(ONE, TWO, THREE),
    }


def measure(each: dict[str, Callable[[], object]], rounds: int, calls: int) -> dict[str, list[float]]:
    """Seconds of a call, by way and round."""
    took: dict[str, list[float]] = {name: [] for name in each}
    for _ in range(rounds + 1):
        for name in random.sample(list(each), len(each)):
            way, began = each[name], time.perf_counter()
            for _ in range(calls):
                way()
            took[name].append((time.perf_counter() - began) / calls)
    return {name: seconds[1:] for name, seconds in took.items()}  # the first round is for warming up


def table(took: dict[str, list[float]]) -> list[str]:
    plain = next(iter(took.values()))
    lines = ["| one call | × incr | quarter to quarter | µs |", "|---|---|---|---|"]
    for name, seconds in took.items():
        ratios = [mine / its for mine, its in zip(seconds, plain, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        lines.append(f"| {name} | {middle:.2f} | {low:.2f}-{high:.2f} | {statistics.median(seconds) * 1e6:.1f} |")
    return lines


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=41)
    options.add_argument("--calls", type=int, default=200)
    options.add_argument("--redis", help="URL of a server to ask, in place of one of its own")
    told = options.parse_args()
    with contextlib.ExitStack() as stack:
        url = told.redis or stack.enter_context(redis_server())
        client: Any = stack.enter_context(contextlib.closing(redis.Redis.from_url(url)))
        limiter = stack.enter_context(contextlib.closing(Limiter(url)))
        limiter.acquire(EMPTY)
        print("\n".join(table(measure(ways(client, limiter), told.rounds, told.calls))))


if __name__ == "__main__":
    main()
