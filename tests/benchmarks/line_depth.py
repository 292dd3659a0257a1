"""
What a waiting line costs the server, by its length: bytes for each waiting job, and time for each decision.

    python tests/benchmarks/line_depth.py [--waiting 1000 100000 1000000] [--tenants 1000]

Jobs wait for one limit of 1/s, which tenants share; the store is given the time. The time of
a decision is the server's own (INFO commandstats), of one run. Exits with 1 if a waiting job takes more than 160 bytes,
or a decision at the longest line more than three times what it takes at the shortest.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import redis

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.reports.command import parser_of
from support.reports.tables import table
from support.servers.processes import redis_server
from throttlekit import TokenBucket
from throttlekit._core.answer import Answer, Caller
from throttlekit._core.limit.share import Stake
from throttlekit._core.storage_keys import bucket_name
from throttlekit.stores import Request, StoreClaim
from throttlekit.stores.redis import RedisStore

LIMIT = TokenBucket("partner-api", "1/s", burst=1)
CHUNK, CALLS = 1000, 3000
MOST_BYTES, MOST_RATIO = 160, 3.0


class Line(NamedTuple):
    """A line of so many jobs, as the store keeps it, and its first and middle places."""

    store: RedisStore
    client: Any
    now_us: int
    tenants: int

    def request(self, number: int, place: Any = None, caller: Caller = Caller.JOB) -> Request:
        bucket = bucket_name(LIMIT.name, "", LIMIT.fingerprint)
        tenant = f"tenant{number % self.tenants}" if self.tenants > 1 else ""
        claim = StoreClaim(bucket, LIMIT.bind(1), 1, None, tenant, Stake(tenant).step(1))
        return Request([claim], caller, () if place is None else (place,))

    def ask(self, requests: Sequence[Request], now_us: int) -> list[Answer]:
        return [self.store.ask(request.claims, request.asker, now_us, attempt=request.attempt) for request in requests]

    def timed(self, requests: Sequence[Request], instants: Sequence[int]) -> float:
        """Microseconds of the server for each of *requests*."""
        self.client.config_resetstat()
        for request, now_us in zip(requests, instants, strict=True):
            self.store.ask(request.claims, request.asker, now_us, attempt=request.attempt)
        spent = self.client.info("commandstats")["cmdstat_evalsha"]
        return float(spent["usec"]) / int(spent["calls"])


def measure(url: str, waiting: int, tenants: int) -> tuple[float, list[float]]:
    """Bytes for each waiting job; and microseconds for a newcomer, a job that is early, a peek and the first's turn."""
    client: Any = redis.Redis.from_url(url)
    store = RedisStore(url, timeout=30)
    try:
        client.flushall()
        line = Line(store, client, time.time_ns() // 1000, tenants)
        line.ask([line.request(0)], line.now_us)
        before = client.info("memory")["used_memory"]
        places = [line.store.acquire(line.request(number), line.now_us).places[0] for number in range(waiting)]
        taken = (client.info("memory")["used_memory"] - before) / waiting
        now = [line.now_us] * CALLS
        middle = [line.request(n % waiting, places[n % waiting]) for n in range(waiting // 2, waiting // 2 + CALLS)]
        early = line.timed(middle, now)
        looked = line.timed([line.request(n, caller=Caller.PEEK) for n in range(CALLS)], now)
        newcomers = line.timed([line.request(waiting + n) for n in range(CALLS)], now)
        in_order = sorted(range(waiting), key=lambda n: (places[n].start, places[n].number))[:CALLS]
        turns = [line.now_us + 1_000_000 * (n + 1) for n in range(len(in_order))]
        passed = line.timed([line.request(n, places[n]) for n in in_order], turns)
        return taken, [newcomers, early, looked, passed]
    finally:
        store.close()
        client.close()


def alone(url: str) -> float:
    """Microseconds of the server for a decision where no job waits."""
    with redis.Redis.from_url(url) as client:
        client.flushall()
        store = RedisStore(url, timeout=30)
        line = Line(store, client, time.time_ns() // 1000, 1)
        try:
            line.ask([line.request(0)], line.now_us)
            return line.timed(
                [line.request(n) for n in range(CALLS)], range(line.now_us + 10**6, line.now_us + 10**10, 10**6)[:CALLS]
            )
        finally:
            store.close()


def rows_of(url: str, lengths: Sequence[int], tenants: int) -> Iterator[tuple[int, int, float, list[float]]]:
    for count in (1, tenants):
        for waiting in lengths:
            taken, spent = measure(url, waiting, count)
            print(f"{waiting} waiting, {count} tenants: measured", file=sys.stderr)
            yield waiting, count, taken, spent


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--waiting", type=int, nargs="+", default=[1_000, 100_000, 1_000_000])
    parser.add_argument("--tenants", type=int, default=1_000)
    options = parser.parse_args()
    with redis_server() as url:
        base = alone(url)
        rows = list(rows_of(url, sorted(options.waiting), options.tenants))
    heads = ["jobs that wait", "tenants", "bytes a job", "newcomer", "back too early", "peek", "its turn"]
    shown = [
        [f"{n:,}", str(tenants), f"{taken:.0f}", *(f"{each:.0f} µs" for each in spent)]
        for n, tenants, taken, spent in rows
    ]
    print(f"Where no job waits, a decision takes {base:.0f} µs of the server.\n")
    print(table(heads, shown))
    shortest = {tenants: spent for n, tenants, _, spent in rows if n == min(options.waiting)}
    slower = max(
        after / before for _, tenants, _, spent in rows for after, before in zip(spent, shortest[tenants], strict=True)
    )
    most = max(taken for n, _, taken, _ in rows if n == max(options.waiting))
    print(
        f"\nSlowest decision against that at the shortest line: {slower:.2f}. Bytes a job at the longest: {most:.0f}."
    )
    sys.exit(0 if most <= MOST_BYTES and slower <= MOST_RATIO else 1)


if __name__ == "__main__":
    main()
