"""
A backlog of one limit on real workers, and the cost of each job: until it is drained, or while it is longest.

    with backlog_servers() as where:
        cost = drained(flood, where)            # until the last job is done
        cost = at_its_head(flood, where, 60)    # for 60 seconds, when every job has been denied
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import redis

from support.celery.flood import CeleryFlood
from support.flood.figures import bursts_beyond_us, inversions
from support.flood.meters import cpu_of_redis, scripts_run
from support.flood.run import Flood, Flooding, FloodLimit, FloodRecord, run
from support.rq.flood import OURS_SIMPLE, RqFlood
from support.servers.flood import Servers
from support.servers.processes import redis_server
from support.waiting import wait_until
from throttlekit import Limiter, TokenBucket

__all__ = ["Cost", "Meter", "at_its_head", "backlog_servers", "drained", "flood_of"]

_ROOM = 2  # the burst: half a second's worth
_SETTLE = 0.5
_MOST_OF_IT = 0.8


@dataclass(frozen=True)
class Cost:
    """
    The cost of one backlog.

    Attributes:
        burst: The burst of the limit.
        done: How many jobs are done; of a backlog that is not drained, those within the window.
        lost: How many jobs are not done, of a drained backlog.
        asks: Requests to the limits' store per job: over its whole life, or until now.
        denials: Denials per job that the burst did not admit.
        deliveries: Deliveries to workers per job. None: not known.
        use: The share of the limit that was used.
        beyond_us: By how much time the grants exceed the bound; <= 0: it is kept.
        store_us, broker_us: CPU of the limits' Redis and of the broker's Redis, per job.
        inverted: The share of pairs of jobs that started in the wrong order.
    """

    burst: int
    done: int
    lost: int
    asks: float
    denials: float
    deliveries: float | None
    use: float
    beyond_us: float
    store_us: float
    broker_us: float
    inverted: float


@contextlib.contextmanager
def backlog_servers() -> Iterator[Servers]:
    """One Redis for the broker, one for the record, and one only for the limits."""
    with redis_server() as broker, redis_server() as record, redis_server() as limits:
        yield Servers("redis", broker, record, f"{limits}/1")


def flood_of(framework: str, jobs: int, rate: int) -> Flood:
    limits = (FloodLimit("partner", f"{rate}/s", max(1, rate // _ROOM)),)
    kinds: dict[str, Callable[..., Flood]] = {
        "dramatiq": Flood,
        "rq": partial(RqFlood, kinds=(OURS_SIMPLE, OURS_SIMPLE)),
        "celery": CeleryFlood,
    }
    return kinds[framework](limits=limits, jobs=jobs, give_up=60 + 2 * jobs / rate, settle=_SETTLE)


class Meter:
    """Reads the requests to the limits' store, its CPU, and the broker's CPU, in seconds."""

    def __init__(self, where: Servers) -> None:
        self._store: Any = redis.Redis.from_url(where.store_url)
        self._broker: Any = redis.Redis.from_url(where.broker_url)
        self._store.flushall()

    def read(self) -> tuple[int, float, float]:
        return scripts_run(self._store), cpu_of_redis(self._store), cpu_of_redis(self._broker)

    def close(self) -> None:
        self._store.close()
        self._broker.close()


def drained(flood: Flood, where: Servers) -> Cost:
    """Send all jobs, start the workers, and wait until all jobs are done."""
    with contextlib.closing(Meter(where)) as meter:
        before = meter.read()
        result = run(flood, where)
        after = meter.read()
    times = [grant.at_us for grant in result.grants]
    done, limit = max(1, len(set(result.ends))), flood.limits[0]
    interval_us = _interval_us(flood)
    span_us = times[-1] - times[0] if times else 0
    return Cost(
        burst=limit.burst,
        done=len(set(result.ends)),
        lost=flood.jobs - len(set(result.ends)),
        asks=(after[0] - before[0]) / done,
        denials=(after[0] - before[0] - done) / max(1, done - limit.burst),
        deliveries=result.counts.get("deliveries", 0) / done,
        use=max(0, len(times) - limit.burst) * interval_us / span_us if span_us else 0.0,
        beyond_us=bursts_beyond_us(times, limit.burst, interval_us) if times else 0.0,
        store_us=1e6 * (after[1] - before[1]) / done,
        broker_us=1e6 * (after[2] - before[2]) / done,
        inverted=_inverted(result),
    )


def at_its_head(flood: Flood, where: Servers, seconds: float) -> Cost:
    """
    Send all jobs, start the workers, and wait until each job is on the waitlist. Then measure for *seconds*, or for
    most of the time that the other jobs need.

    A job's CPU is its share of the CPU until all jobs wait, and of the CPU in the window for the jobs that are granted
    there. It is an upper limit, because some work in the window is for later jobs.
    """
    with contextlib.closing(Meter(where)) as meter, flood.flooding(flood, where) as flooding:
        for index in range(flood.jobs):
            flooding.send("job", str(index), "one")
        before = meter.read()
        flooding.start()
        _wait_until_all_wait(flood, where, flooding)
        waiting, began_us, done_before = meter.read(), _now_us(flooding), _done(flooding)
        # Not until the end, when there is no backlog any more.
        time.sleep(min(seconds, _MOST_OF_IT * (flood.jobs - done_before) * _interval_us(flood) / 1e6))
        after, ended_us, done_after = meter.read(), _now_us(flooding), _done(flooding)
        result = flooding.stop()
    times = [grant.at_us for grant in result.grants]
    # The store and the record use the clock of one machine.
    inside = sum(began_us < at_us <= ended_us for at_us in times)
    done = max(1, done_after - done_before)
    first, window = ([b - a for a, b in zip(*pair, strict=True)] for pair in ((before, waiting), (waiting, after)))
    _, store, broker = (a / flood.jobs + b / done for a, b in zip(first, window, strict=True))
    denials = (after[0] - before[0] - done_after) / max(1, flood.jobs - flood.limits[0].burst)
    return Cost(
        burst=flood.limits[0].burst,
        done=done_after - done_before,
        lost=0,
        asks=1 + denials,
        denials=denials,
        deliveries=None,
        use=inside * _interval_us(flood) / (ended_us - began_us),
        beyond_us=bursts_beyond_us(times, flood.limits[0].burst, _interval_us(flood)),
        store_us=1e6 * store,
        broker_us=1e6 * broker,
        inverted=_inverted(result),
    )


def _wait_until_all_wait(flood: Flood, where: Servers, flooding: Flooding) -> None:
    """Wait until the retry time at the end of the waitlist is that of all jobs that are not done."""
    of = flood.limits[0]
    limit, limiter = TokenBucket(of.name, of.rate, burst=of.burst), Limiter(where.store_url)

    def all_are_waiting() -> bool:
        needed = (flood.jobs - _done(flooding)) * _interval_us(flood) / 1e6
        return limiter.peek(limit).retry_after >= needed - 0.5

    with contextlib.closing(limiter):
        wait_until(all_are_waiting, description="each job is on the waitlist", timeout=flood.give_up, every=0.25)


def _interval_us(flood: Flood) -> float:
    limit = TokenBucket("partner", flood.limits[0].rate)
    return limit.period_us / limit.amount


def _now_us(flooding: Flooding) -> int:
    seconds, micros = flooding.record.time()
    return int(seconds * 1_000_000 + micros)


def _done(flooding: Flooding) -> int:
    return int(flooding.record.scard("ended"))


def _inverted(result: FloodRecord) -> float:
    starts = sorted(result.starts, key=lambda one: one.at_us)
    return inversions([int(job) for job in dict.fromkeys(start.job for start in starts)])
