"""
The cost of the waitlists for the server: microseconds of its main thread per call, and bytes per waiting job.

    python tests/benchmarks/waitlist_cost.py [--quick]

Calls are sent in pipelines, so that the server does not wake up for each of them. Each case is measured with 100 and
with 100 000 jobs on the waitlist, of 1 and of 50 owners; the figure is the best of some rounds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import redis

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import throttlekit_lua
from support.reports.command import parser_of
from support.servers.processes import redis_server
from throttlekit import TokenBucket
from throttlekit._core.answer import Caller, Requester
from throttlekit._core.claim import StoreClaim
from throttlekit._core.storage_keys import bucket_name, granted_name
from throttlekit.stores.wire import claims_arguments, requester_arguments, wait_keys

_BATCH = 200
_DECIDE, _LOOK = (throttlekit_lua.read(verb, frozenset("t")) for verb in ("decide", "wait_look"))


class Bench:
    def __init__(self, url: str, rounds: int) -> None:
        self.client: Any = redis.Redis.from_url(url)
        self.rounds = rounds
        self.number = 0
        self.bytes_of_a_job = 0.0
        self._shas = {text: self.client.script_load(text) for text in (_DECIDE, _LOOK)}
        self.pipeline = self.client.pipeline(transaction=False)

    def claim(self, rate: str, burst: int = 1, name: str = "bench") -> StoreClaim:
        limit = TokenBucket(name, rate, burst=burst)
        return StoreClaim(bucket_name(limit.name, "", limit.fingerprint), limit.bind(1))

    def decide(self, claims: Sequence[StoreClaim], job: str, owner: str, *, attempt: str = "", now: Any = "") -> None:
        keys = wait_keys(claims) + ([granted_name(claims[0].bucket, job)] if attempt else [])
        args = requester_arguments(claims, Requester(Caller.JOB, job, owner, 8), now or None, "ab", attempt)
        self.pipeline.evalsha(self._shas[_DECIDE], len(keys), *keys, *args, *claims_arguments(claims))

    def look(self, claim: StoreClaim, owner: str, ids: Sequence[str] = (), now: Any = "") -> None:
        keys, claims = wait_keys([claim]), claims_arguments([claim])
        self.pipeline.evalsha(self._shas[_LOOK], len(keys), *keys, now, owner, "8 0", *claims, *ids)

    def fill(self, claims: Sequence[StoreClaim], jobs: int, owners: Sequence[str], now: Any = "") -> None:
        """Add *jobs* waiting jobs. No process is subscribed, and no unit is free."""
        self.client.flushall()
        before = self.client.info("memory")["used_memory"]
        for first in range(0, jobs, 1000):
            for n in range(first, min(jobs, first + 1000)):
                self.decide(claims, f"old{n:06}", owners[n % len(owners)], now=now)
            self.pipeline.execute()
        self.bytes_of_a_job = (self.client.info("memory")["used_memory"] - before) / jobs / len(claims)

    def cost(self, call: Callable[[int], None]) -> float:
        """Microseconds of the main thread for each call."""
        best = float("inf")
        for _ in range(self.rounds):
            for _ in range(_BATCH):
                self.number += 1
                call(self.number)
            began = self._processor_us()
            self.pipeline.execute()
            best = min(best, (self._processor_us() - began) / _BATCH)
        return best

    def _processor_us(self) -> float:
        cpu = self.client.info("cpu")
        return 1e6 * sum(float(cpu[f"used_cpu_{kind}_main_thread"]) for kind in ("user", "sys"))


def measure(bench: Bench, jobs: int, owners: int) -> dict[str, float]:
    slow, other, third = (bench.claim("1/h", name=f"slow{n}") for n in range(3))
    found: dict[str, float] = {}

    names = [f"owner{n}" for n in range(owners)]

    def owner(n: int) -> str:
        return names[n % owners]

    bench.fill([slow], jobs, names)
    print(f"  {'bytes a job':24}{bench.bytes_of_a_job:7.0f}")
    found["denied, 1 limit"] = bench.cost(lambda n: bench.decide([slow], f"new{n}", owner(n), attempt="1"))
    found["denied again"] = bench.cost(
        lambda n: bench.decide([slow], f"old{n % jobs:06}", owner(n % jobs), attempt="1")
    )
    found["look, no ids"] = bench.cost(lambda n: bench.look(slow, owner(n)))
    ids = [f"old{n * owners:06}" for n in range(8) if n * owners < jobs]
    found["look, 8 ids"] = bench.cost(lambda n: bench.look(slow, "owner0", ids))
    bench.fill([slow, other, third], jobs, names)
    found["denied, 3 limits"] = bench.cost(
        lambda n: bench.decide([slow, other, third], f"new{n}", owner(n), attempt="1")
    )
    if jobs > 2_000:
        # The bucket gains one unit a millisecond: each call is granted, and its answer wakes the next job.
        fast = bench.claim("1000/s")
        now = 1_800_000_000_000_000
        bench.fill([fast], jobs, ["me"], now)
        step = [1, now]

        def granted(_: int) -> None:
            bench.decide([fast], f"old{step[0]:06}", "me", attempt="1", now=step[1] + 1_000)
            step[0], step[1] = step[0] + 1, step[1] + 1_000

        bench.look(fast, "me", now=now + 1_000)
        bench.pipeline.execute()
        found["woken and granted"] = bench.cost(granted)
    bench.client.flushall()
    many = bench.claim("1000000/s", 1_000_000, name="many")
    found["no job waits, granted"] = bench.cost(lambda n: bench.decide([many], f"new{n}", owner(n), attempt="1"))
    return found


def main() -> None:
    quick = parser_of(__doc__, quick="few rounds, and 4 000 jobs instead of 100 000").parse_args().quick
    with redis_server() as url:
        bench = Bench(url, 3 if quick else 10)
        for jobs, owners in ((100, 1), (100, 50), (4_000 if quick else 100_000, 1), (4_000 if quick else 100_000, 50)):
            print(f"{jobs} jobs of {owners} owners")
            for name, cost in measure(bench, jobs, owners).items():
                print(f"  {name:24}{cost:7.1f} us")


if __name__ == "__main__":
    main()
