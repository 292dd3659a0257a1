"""
The duration of one decision at a stated load: the median, and the times that 1 in 100 and 1 in 1 000 decisions exceed.

    python tests/benchmarks/tails.py [--quick] [--rounds 5] [--seconds 4] [--loads 1000 10000] [--only TEXT]

Eight processes on one server make the decisions of a load together, each at random instants of its own. A decision that
begins late, because the previous one took long, counts from the instant at which it should have begun. In each round
each contender runs at each load, in random order. Takes about 4 minutes.
"""

from __future__ import annotations

import multiprocessing
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import redis

from support.reports.command import parser_of
from support.reports.tables import Promise, about, print_results, ratios, spread, table, version_of
from support.servers.processes import redis_server
from support.throughput.contenders import BASE, CONTENDERS, Decide

PROCESSES = 8
OPEN = (1_000_000, 1)
PARTS = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
OURS = "throttlekit `TokenBucket`"
CHOSEN = (
    BASE,
    OURS,
    "throttlekit `TokenBucket`, as a job",
    "throttlekit 3 × `TokenBucket`",
    "throttlekit `FixedWindow`",
    "throttlekit `SlidingWindow`",
    "throttlekit `SlidingLog`",
    "throttlekit `Concurrency`, acquire and release",
    "limits, fixed window",
    "limits, moving window",
    "limits, sliding window counter",
)
_SOON = 0.3
REACHED = "reached"
_TITLES = [
    "one decision",
    "decisions/s",
    REACHED,
    *(f"{part}, µs" for part in PARTS),
    *(f"{part} × INCR" for part in PARTS),
]
_NOTES = """\
* Reached: the part of the load that the processes reached, in the median round. Below 1 the machine is too small for
  the load: each decision waits for all before it, and its time says nothing of the limiter.
* µs: the median of all rounds.
* × INCR: as a multiple of redis-py's INCR at the same load in the same round: the median of all rounds, and the middle
  half. Where the processes share few cores, most of it is waiting for a core, which INCR waits for as well."""


def decide(call: Decide, rate: float, seconds: float, begin: float) -> tuple[list[float], float]:
    """
    Decide *rate* times a second from *begin* on. Returns the seconds of each decision, and of all of them together.
    """
    took: list[float] = []
    at, end = begin + random.random() / rate, begin + seconds
    while at < end:
        left = at - time.time()
        if left > 0:
            time.sleep(left)
            began = time.time()  # the delay of the timer is not part of the decision
        else:
            began = at
        call()
        took.append(time.time() - began)
        at += random.uniform(0.5, 1.5) / rate
    return took, time.time() - begin


def serve(url: str, orders: Connection) -> None:
    """In a process of its own: decide at the rate of each order, until there are no more orders."""
    calls: dict[str, Decide] = {}
    for name, rate, seconds, begin in iter(orders.recv, None):
        if name not in calls:
            number, contender = next((i, each) for i, each in enumerate(CONTENDERS, start=1) if each.name == name)
            calls[name] = contender.make(f"{url}/{number}")("one", *OPEN)
        calls[name]()
        orders.send(decide(calls[name], rate, seconds, begin))


def run(processes: Sequence[Connection], name: str, load: int, seconds: float) -> dict[str, float]:
    """Return the percentiles of one run, in seconds, and the share of the load that was reached."""
    begin = time.time() + _SOON
    for each in processes:
        each.send((name, load / PROCESSES, seconds, begin))
    results: list[tuple[list[float], float]] = [each.recv() for each in processes]
    took = sorted(one for each, _ in results for one in each)
    found = {part: took[min(len(took) - 1, int(of * len(took)))] for part, of in PARTS.items()}
    return found | {REACHED: min(1.0, seconds / max(lasted for _, lasted in results))}


Found = dict[tuple[str, int], list[dict[str, float]]]


def rows(found: Found) -> Iterator[list[str]]:
    packages = {each.name: each.package for each in CONTENDERS}
    for name, load in found:
        runs, base = found[name, load], found[BASE, load]
        version = "" if "throttlekit" in name else f" ({version_of(packages[name]) or 'none'})"
        us = [f"{1e6 * statistics.median(each[part] for each in runs):.0f}" for part in PARTS]
        times = [spread(ratios([each[part] for each in runs], [each[part] for each in base])) for part in PARTS]
        reached = statistics.median(each[REACHED] for each in runs)
        yield [name + version, f"{load:,}", f"{reached:.2f}", *us, *times]


def judged(found: Found, loads: Sequence[int]) -> Iterator[Promise]:
    """Yield the percentiles of throttlekit and of peers, as multiples of INCR."""
    for load in loads:
        for name in (OURS, *(name for name in CHOSEN if name.startswith("limits"))):
            if (name, load) in found:
                measured = ", ".join(
                    f"{part} {statistics.median(ratios(*_of(found, part, load, name))):.2f}" for part in PARTS
                )
                yield Promise(f"{name} at {load:,} decisions a second, × INCR", measured, "", None)


def _of(found: Found, part: str, load: int, name: str) -> tuple[list[float], list[float]]:
    return [each[part] for each in found[name, load]], [each[part] for each in found[BASE, load]]


def main() -> int:
    parser = parser_of(__doc__, quick="short runs: is it all there?", only="the rows whose name holds this text")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each run")
    parser.add_argument("--loads", type=int, nargs="+", default=[1_000, 10_000], help="decisions a second, of all")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = 1, 0.5
    packages = {each.name: each.package for each in CONTENDERS}
    chosen = [each for each in CHOSEN if each == BASE or options.only in each]
    chosen = [each for each in chosen if "throttlekit" in each or version_of(packages[each])]
    found: Found = {(name, load): [] for load in options.loads for name in chosen}
    context = multiprocessing.get_context("spawn")
    with redis_server("--databases", str(len(CONTENDERS) + 1)) as url, ExitStack() as stack:
        ends: list[Connection] = []
        for _ in range(PROCESSES):
            here, there = context.Pipe()
            worker = context.Process(target=serve, args=(url, there), daemon=True)
            worker.start()
            stack.callback(worker.join, 10)
            stack.callback(here.send, None)
            ends.append(here)
        for name in chosen:  # each process connects, and loads its libraries and scripts
            run(ends, name, 100 * PROCESSES, 0.1)
        for _ in range(options.rounds):
            for name, load in random.sample([*found], len(found)):
                found[name, load].append(run(ends, name, load, options.seconds))
        version = redis.Redis.from_url(url).info("server")["redis_version"]
    head = about("redis", servers=[f"Redis {version}"])
    head += f"\n{options.rounds} rounds of {options.seconds:g} s each; {PROCESSES} processes."
    return print_results("tails", head, [table(_TITLES, rows(found)), _NOTES], judged(found, options.loads))


if __name__ == "__main__":
    sys.exit(main())
