"""
Jobs of one limit with many keys: the time from the grant of one job of a key to the grant of the next.

    python tests/benchmarks/many_keys.py [--quick] [--keys 10 400 5000] [--network 0 1]

Real Dramatiq workers, two processes of 8 threads, on Redis; a round trip to it takes --network milliseconds longer. All
keys together may run 67 jobs/s, and all jobs wait from the start. Exits with 1 if a job is lost, or the limit is
broken.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import dramatiq
import redis

from support.dramatiq.workers import make_broker, workers
from support.reports.command import parser_of
from support.reports.tables import Promise, about, print_results, table
from support.servers.processes import patient, redis_server
from support.servers.proxy import Proxy
from support.waiting import wait_until

PER_SECOND, PROCESSES, THREADS = 67, 2, 8
MOST_MEDIAN = 1.1

_TITLES = ["keys, + network", "jobs", "asked for, s", "median", "p90", "most"]
_NOTES = """\
* Asked for: seconds between two grants of one key, by its rate. Then what it was, of all keys, as the limits' Redis
  charged it. The gap after the first job of each key does not count: the workers start then. The bound, at worst: by
  how much the shortest gap was too short."""


class Found(NamedTuple):
    """
    Attributes:
        gaps: Seconds between two grants of one key, in order, without those of the first two jobs.
        least: The shortest gap, with those.
        lost: How many jobs did not run.
    """

    gaps: list[float]
    least: float
    lost: int


def run(keys: int, jobs: int, every: float, network: float) -> Found:
    """Run *jobs* of each of *keys* keys; each key may run one job in *every* seconds."""
    with ExitStack() as stack:
        url = stack.enter_context(redis_server())
        proxy = stack.enter_context(Proxy(urlsplit(url).port or 0))
        proxy.delay = network / 1000
        far = f"redis://127.0.0.1:{proxy.port}"
        plan = {"broker": f"{far}/0", "store": patient(f"{far}/1"), "record": f"{url}/2", "every": every}
        record: Any = stack.enter_context(redis.Redis.from_url(f"{url}/2"))
        broker = make_broker(f"{url}/0")
        for _, account in itertools.product(range(jobs), range(keys)):
            broker.enqueue(dramatiq.Message("default", "call", (account,), {}, {}))
        stack.enter_context(
            workers("support.flood.keyed_jobs", {"TK_KEYS": json.dumps(plan)}, processes=PROCESSES, threads=THREADS)
        )
        with suppress(AssertionError):  # the jobs that have not run then are counted as lost
            wait_until(lambda: record.llen("ran") >= keys * jobs, description="all ran", timeout=60 + 3 * jobs * every)
        ran: dict[str, list[int]] = {}
        for each in record.lrange("ran", 0, -1):
            key, at = each.decode().split()
            ran.setdefault(key, []).append(int(at))
        gaps = {key: [(b - a) / 1_000_000 for a, b in itertools.pairwise(sorted(times))] for key, times in ran.items()}
        return Found(
            sorted(gap for each in gaps.values() for gap in each[1:]),
            min(gap for each in gaps.values() for gap in each),
            keys * jobs - sum(map(len, ran.values())),
        )


def cells(found: Found) -> list[str]:
    """Return the median, the 90th percentile and the maximum, as cells."""
    at_90 = found.gaps[int(len(found.gaps) * 0.9)]
    return [f"{each:.2f}" for each in (statistics.median(found.gaps), at_90, found.gaps[-1])]


def judged(name: str, every: float, found: Found) -> Iterator[Promise]:
    median = statistics.median(found.gaps)
    yield Promise(f"{name}: jobs lost", str(found.lost), "0", found.lost == 0)
    beyond_ms = (every - found.least) * 1000
    yield Promise(f"{name}: the bound, at worst", f"{beyond_ms:+.1f} ms", "<= 0", beyond_ms <= 0)
    yield Promise(f"{name}: the median gap, × asked for", f"{median / every:.2f}", f"<= {MOST_MEDIAN}", None)


def main() -> int:
    parser = parser_of(__doc__, quick="few keys and jobs: is it all there?")
    parser.add_argument("--keys", type=int, nargs="+", default=[10, 400, 5_000], help="that have jobs")
    parser.add_argument(
        "--network", type=float, nargs="+", default=[0.0, 1.0], help="milliseconds that a round trip takes longer"
    )
    options = parser.parse_args()
    rows: list[list[str]] = []
    kept: list[Promise] = []
    for keys, network in itertools.product([10] if options.quick else options.keys, options.network):
        every = keys / PER_SECOND * (10 if options.quick else 1)
        jobs = 4 if options.quick else max(3, round(40 / every))
        name = f"{keys} keys + {network:g} ms"
        found = run(keys, jobs, every, network)
        kept += judged(name, every, found)
        rows.append([name, str(keys * jobs), f"{every:.2f}", *cells(found)])
        print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
    return print_results("many_keys", about("dramatiq", "redis"), [table(_TITLES, rows), _NOTES], kept)


if __name__ == "__main__":
    sys.exit(main())
