"""
Random operations of several processes on one disturbed server, and a check of every grant.

    found = operate(30_000, processes=8, seed=1)
    assert found.broken == {}

Each process has a separate seed, and records each grant with the time at which the server charged it.
`python -m support.faults.operations` runs one process.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
import tempfile
import time
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from support.faults.histories import Broken, Grant, Rule, bucket, check, fixed_window, sliding_log, sliding_window
from support.faults.processes import Command
from support.servers.processes import RedisProcess
from support.waiting import wait_until
from throttlekit import (
    Decision,
    FixedWindow,
    Job,
    LeakyBucket,
    Limit,
    Limiter,
    SlidingLog,
    SlidingWindow,
    StoreUnavailable,
    TokenBucket,
)

__all__ = ["LIMITS", "Found", "operate"]

KEYS = 4
LIMITS: list[tuple[Limit, Rule]] = [
    (TokenBucket("token", "30/s", burst=12, key="{key}"), bucket(30, 1_000_000, 12)),
    (TokenBucket("token-uneven", (7, 0.033_333), burst=3, key="{key}"), bucket(7, 33_333, 3)),
    (TokenBucket("token-fast", "30000/s", burst=200, key="{key}"), bucket(30_000, 1_000_000, 200)),
    (LeakyBucket("leaky", "50/s", key="{key}"), bucket(50, 1_000_000, 1)),
    (LeakyBucket("leaky-queue", "50/s", queue=5, key="{key}"), bucket(50, 1_000_000, 1)),
    (FixedWindow("fixed", "25/s", key="{key}"), fixed_window(25, 1_000_000)),
    (FixedWindow("fixed-short", (5, 0.05), key="{key}"), fixed_window(5, 50_000)),
    (SlidingWindow("sliding", "25/s", key="{key}"), sliding_window(25, 1_000_000)),
    (SlidingWindow("sliding-short", (7, 0.033_333), key="{key}"), sliding_window(7, 33_333)),
    (SlidingLog("log", "25/s", key="{key}"), sliding_log(25, 1_000_000)),
    (SlidingLog("log-short", (7, 0.033_333), key="{key}"), sliding_log(7, 33_333)),
]
_MOST_WAITING = 12


@dataclass(kw_only=True)
class Found:
    """
    The result of a run.

    Attributes:
        operations: How many there were of each kind.
        grants: How many single claims were granted, by limit.
        broken: The violations, by limit and key.
        disturbances: How many there were of each kind.
    """

    operations: Counter[str] = field(default_factory=Counter[str])
    grants: Counter[str] = field(default_factory=Counter[str])
    broken: dict[str, Broken] = field(default_factory=dict[str, Broken])
    disturbances: Counter[str] = field(default_factory=Counter[str])
    seconds: float = 0.0

    def __str__(self) -> str:
        def shown(counts: Counter[str]) -> str:
            return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items()))

        return (
            f"{self.operations['in all']:,} operations in {self.seconds:.0f} s: {shown(self.operations)}\n"
            f"grants: {shown(self.grants)}\ndisturbances: {shown(self.disturbances)}\n"
            + ("\n".join(f"BROKEN  {name}: {broken}" for name, broken in self.broken.items()) or "Every bound held.")
        )


def operate(operations: int, *, processes: int = 8, seed: int = 1) -> Found:
    """Run *operations* in *processes* processes on a separate server, and check the grants."""
    rnd, began = random.Random(seed), time.monotonic()
    found = Found()
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(contextlib.closing(RedisProcess()))
        server.start()
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tk-operations-")))
        files = [folder / f"{number}" for number in range(processes)]
        workers: list[Command] = []
        for number, file in enumerate(files):
            arguments = [server.url, str(file), str(operations // processes), str(seed * 1000 + number)]
            workers.append(Command([sys.executable, "-m", "support.faults.operations", *arguments], {}))
            stack.callback(workers[-1].close)

        disturbances_to_come = _disturbances(rnd)

        def ended() -> bool:
            _disturb(server, next(disturbances_to_come), rnd, found.disturbances)
            return not any(worker.running for worker in workers)

        # Each check is a disturbance too.
        wait_until(ended, description="all processes have ended", timeout=180 + operations / 200, every=0.1)
        for worker, file in zip(workers, files, strict=True):
            assert file.exists(), worker.log()
        _judge(files, found)
    found.seconds = time.monotonic() - began
    return found


def _disturbances(rnd: random.Random) -> Iterator[str]:
    """Yield disturbances in random order, with each kind in every twenty."""
    while True:
        twenty = [*["nothing"] * 10, *["SCRIPT FLUSH"] * 5, *["CLIENT KILL"] * 4, "SIGSTOP"]
        rnd.shuffle(twenty)
        yield from twenty


def _disturb(server: RedisProcess, what: str, rnd: random.Random, done: Counter[str]) -> None:
    done[what] += 1
    if what == "SCRIPT FLUSH":
        server.client.script_flush()
    elif what == "CLIENT KILL":
        server.client.client_kill_filter(_type="normal", skipme=True)
    elif what == "SIGSTOP":
        server.hang()
        time.sleep(rnd.uniform(0.05, 0.6))  # longer than the time-out, or not
        server.go_on()


def _judge(files: list[Path], found: Found) -> None:
    histories: defaultdict[tuple[int, int], list[Grant]] = defaultdict(list)
    for file in files:
        grants = array("q")
        grants.frombytes(file.read_bytes())
        for at in range(0, len(grants), 4):
            number, key, at_us, units = grants[at : at + 4]
            histories[number, key].append((at_us, units))
        found.operations.update(json.loads(file.with_suffix(".counts").read_text()))
    for (number, key), history in sorted(histories.items()):
        limit, rule = LIMITS[number]
        found.grants[limit.name] += len(history)
        if broken := check(rule, history):
            found.broken[f"{limit.name}, key {key}"] = broken
    for limit, _ in LIMITS:
        found.grants[limit.name] += 0


# One process


class _Operator:
    def __init__(self, url: str, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self.grants = array("q")
        self._rnd = random.Random(seed)
        self._limiter = Limiter(url)
        self._numbers = {limit.name: number for number, (limit, _) in enumerate(LIMITS)}
        self._waiting: list[tuple[float, tuple[Limit, ...], Job]] = []
        self._settled: list[tuple[Decision, int]] = []

    def step(self) -> None:
        rnd, self.counts["in all"] = self._rnd, self.counts["in all"] + 1
        what = rnd.random()
        if what < 0.05:
            self._settle()
        elif what < 0.12:
            limits, key = self._pick()
            self.counts["peeks"] += 1
            with contextlib.suppress(StoreUnavailable):
                self._limiter.peek(*limits, key=key)
        elif self._waiting and (what < 0.2 or self._waiting[0][0] <= time.monotonic()):
            # Most jobs request after their delay, and some at any time.
            self._waiting.sort(key=lambda one: one[0])
            _, limits, job = self._waiting.pop(0 if what > 0.15 else rnd.randrange(len(self._waiting)))
            self._request(limits, job, int(job.kwargs["key"]))
        elif what < 0.5:
            limits, key = self._pick()
            self._request(limits, Job(id=str(rnd.random()), kwargs={"key": key}), key)
        else:
            limits, key = self._pick()
            self._request(limits, None, key)

    def _pick(self) -> tuple[tuple[Limit, ...], int]:
        rnd = self._rnd
        several = rnd.sample(LIMITS, rnd.choice([1] * 8 + [2, 3]))
        return tuple(limit for limit, _ in several), min(rnd.randrange(KEYS), rnd.randrange(KEYS))

    def _request(self, limits: tuple[Limit, ...], job: Job | None, key: int) -> None:
        rnd = self._rnd
        most = min(limit.capacity for limit in limits)
        cost = rnd.choice([1, 1, 1, 1, min(2, most), rnd.randint(1, most), 0])
        decision = self._limiter.acquire(*limits, job=job, key=None if job else key, cost=cost)
        self.counts[decision.reason] += 1
        if decision.reason == "store unavailable":
            self.counts["in all"] -= 1  # no call was made, or its effect is unknown: it does not count
            time.sleep(0.02)
        if decision.allowed:
            self._granted(decision, key)
        elif job is not None and not decision.final and len(self._waiting) < _MOST_WAITING:
            due = time.monotonic() + decision.delay
            self._waiting.append((due, limits, job))

    def _granted(self, decision: Decision, key: int) -> None:
        settled = self._rnd.random() < 0.1
        early_us = round(decision.retry_after * 1_000_000)  # how long after its request the job's body began
        for each in decision.charged:
            if each.cost and not (settled and _returns_units(each.limit)):
                self._write(each.limit, key, each.at_us + early_us, each.cost)
        if settled:
            self._settled.append((decision, key))

    def _settle(self) -> None:
        """
        Correct the charge of an earlier grant. Units that are returned to a window may be granted again, so the final
        cost is recorded. A bucket has already refilled some returned units, as its docs say, so only higher costs are
        settled.
        """
        self.counts["settles"] += 1
        if not self._settled:
            return
        decision, key = self._settled.pop(self._rnd.randrange(len(self._settled)))
        for each in decision.charged:
            if not each.cost:
                continue
            returns_units = _returns_units(each.limit)
            actual = self._rnd.randint(0, each.cost + 2) if returns_units else each.cost + self._rnd.randint(0, 2)
            with contextlib.suppress(StoreUnavailable):  # then the charge stays or not: the smaller one is recorded
                self._limiter.settle(decision, actual=actual, limit=each.limit)
            if returns_units and actual:
                self._write(each.limit, key, each.at_us, min(actual, each.cost))

    def _write(self, limit: Limit, key: int, at_us: int, units: int) -> None:
        self.grants.extend((self._numbers[limit.name], key, at_us, units))

    def finish(self) -> None:
        """Record the grants that were not settled with their original charges."""
        for decision, key in self._settled:
            for each in decision.charged:
                if each.cost and _returns_units(each.limit):
                    self._write(each.limit, key, each.at_us, each.cost)
        self._limiter.close()


def _returns_units(limit: Limit) -> bool:
    return not isinstance(limit, (TokenBucket, LeakyBucket))


def _main(url: str, file: str, operations: str, seed: str) -> None:
    operator = _Operator(url, int(seed))
    while operator.counts["in all"] < int(operations):
        operator.step()
    operator.finish()
    path = Path(file)
    path.with_suffix(".counts").write_text(json.dumps(operator.counts))
    path.write_bytes(operator.grants.tobytes())


if __name__ == "__main__":
    _main(*sys.argv[1:])
