"""
Limiters with one interface, for a comparison: throttlekit's, those of its peers, and redis-py's INCR.

    bind = contender.make(url)
    request = bind(key, amount, seconds)   # a limit of amount in seconds, for one tenant
    assert request()                       # True: allowed

Each is used as its documentation says, on a Redis, with the client that it creates or requires.
"""

from __future__ import annotations

import datetime
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import redis
from redis.connection import Connection

from support.throughput.bare import EMPTY, GCRA, JOIN, incr, scripted, with_a_time_to_live
from throttlekit import Concurrency, FixedWindow, Job, LeakyBucket, Limit, Limiter, SlidingLog, SlidingWindow
from throttlekit import TokenBucket as OurBucket

__all__ = ["BASE", "CONTENDERS", "EMPTY_SCRIPT", "FLOOR", "PLACE", "SET", "Bind", "Contender", "Decide", "sent_by"]

Decide: TypeAlias = "Callable[[], bool]"
Bind: TypeAlias = "Callable[[str, int, int], Decide]"
BASE = "redis-py: INCR"
FLOOR = "redis-py: the least that a script can cost"

PLACE = "redis-py: the least that a place in a line can cost"
EMPTY_SCRIPT = "redis-py: an empty script"
SET = "redis-py: SET of an integer, with a time to live, under our name"


@dataclass(frozen=True)
class Contender:
    """
    One limiter.

    Attributes:
        package: The package whose version is shown. If it cannot be imported, the row says so.
        denies: Whether it can deny.
        memory: Whether it stores data for a tenant after one request.
    """

    name: str
    package: str
    make: Callable[[str], Bind]
    denies: bool = True
    memory: bool = True


# Ours


def _limits(url: str, make: Callable[[str, int, int], Limit], count: int = 1, job: bool = False) -> Bind:
    limiter, numbers = Limiter(url), itertools.count()

    @cache
    def limits(amount: int, seconds: int) -> list[Limit]:
        # Only the last limit is scarce, so that a denial has checked all of them.
        rates = [(1_000_000, 1)] * (count - 1) + [(amount, seconds)]
        return [make(f"partner-{n}-{amount}", *rate) for n, rate in enumerate(rates)]

    def bind(key: str, amount: int, seconds: int) -> Decide:
        of = limits(amount, seconds)
        if job:
            return lambda: limiter.acquire(*of, job=Job(id=str(next(numbers)), kwargs={"tenant": key})).allowed
        return lambda: limiter.acquire(*of, key=key).allowed

    return bind


def _bucket(name: str, amount: int, seconds: int) -> Limit:
    return OurBucket(name, (amount, seconds), burst=amount, key="{tenant}")


def _ours(make: Callable[[str, int, int], Limit] = _bucket, count: int = 1, job: bool = False) -> Callable[[str], Bind]:
    return lambda url: _limits(url, make, count, job)


def _slots(url: str) -> Bind:
    limiter = Limiter(url)
    many, one = Concurrency("many", 1_000_000, key="{tenant}"), Concurrency("one", 1, lease=3600, key="{tenant}")

    def bind(key: str, amount: int, seconds: int) -> Decide:
        def with_release() -> bool:
            decision = limiter.acquire(many, key=key)
            limiter.release(decision)
            return decision.allowed

        return with_release if amount > 1 else lambda: limiter.acquire(one, key=key).allowed

    return bind


def sent_by(decide: Callable[[], object]) -> list[bytes]:
    """Return the commands that *decide* sends, one item per round trip. Those of other threads are not counted."""
    trips: list[bytes] = []
    thread = threading.get_ident()
    send: Any = Connection.send_packed_command

    def record(self: Any, command: Any, check_health: bool = True) -> None:
        if threading.get_ident() == thread:
            trips.append(command if isinstance(command, bytes) else b"".join(command))
        send(self, command, check_health)

    Connection.send_packed_command = record  # type: ignore[method-assign]
    try:
        decide()
    finally:
        Connection.send_packed_command = send  # type: ignore[method-assign]
    return trips


# The peers


def _of_limits(strategy: str) -> Callable[[str], Bind]:
    def make(url: str) -> Bind:
        from limits import RateLimitItemPerSecond, storage, strategies

        strategies_of: Any = strategies
        limiter = getattr(strategies_of, strategy)(storage.RedisStorage(url))

        def bind(key: str, amount: int, seconds: int) -> Decide:
            item = RateLimitItemPerSecond(amount, seconds)
            return lambda: bool(limiter.hit(item, key))

        return bind

    return make


def _pyrate(algorithm: str) -> Callable[[str], Bind]:
    def make(url: str) -> Bind:
        import pyrate_limiter as pyrate

        client: Any = redis.Redis.from_url(url)

        def bind(key: str, amount: int, seconds: int) -> Decide:
            rates = [pyrate.Rate(amount, 1000 * seconds)]
            bucket: Any
            if algorithm == "log":
                bucket = pyrate.RedisBucket.init(rates, client, f"pyrate:{key}:{amount}")
            else:
                store = pyrate.RedisStateStore(client, f"pyrate:{key}:{amount}")
                bucket = pyrate.StateBucket(rates, algorithm=pyrate.GCRA(), store=store)
            limiter = pyrate.Limiter(pyrate.SingleBucketFactory(bucket, schedule_leak=False))
            return lambda: bool(limiter.try_acquire(key, blocking=False))

        return bind

    return make


def _throttled(using: str) -> Callable[[str], Bind]:
    def make(url: str) -> Bind:
        import throttled

        store = throttled.RedisStore(server=url)

        @cache
        def limiter(amount: int, seconds: int) -> Any:
            quota = throttled.per_duration(datetime.timedelta(seconds=seconds), limit=amount, burst=amount)
            return throttled.Throttled(using=using, quota=quota, store=store, key_prefix=f"of-{amount}")

        def bind(key: str, amount: int, seconds: int) -> Decide:
            of = limiter(amount, seconds)
            return lambda: not of.limit(key).limited

        return bind

    return make


def _steindamm(url: str) -> Bind:
    from steindamm import MaxSleepExceededError, SyncRedisTokenBucket

    client: Any = redis.Redis.from_url(url)

    def bind(key: str, amount: int, seconds: int) -> Decide:
        bucket: Any = SyncRedisTokenBucket(
            connection=client,
            name=f"{key}:{amount}",
            capacity=amount,
            refill_amount=amount,
            refill_frequency=seconds,
            max_sleep=0.001,
            expiry=600,
        )

        def request() -> bool:
            try:
                with bucket:
                    return True
            except MaxSleepExceededError:
                return False

        return request

    return bind


def _dramatiq(kind: str) -> Callable[[str], Bind]:
    def make(url: str) -> Bind:
        from dramatiq import rate_limits
        from dramatiq.rate_limits.backends import RedisBackend

        limiter_of: Any = getattr(rate_limits, f"{kind}RateLimiter")
        backend: Any = RedisBackend(client=redis.Redis.from_url(url))

        def bind(key: str, amount: int, seconds: int) -> Decide:
            if kind == "Concurrent":
                limiter = limiter_of(backend, f"{key}:{amount}", limit=amount)
                if amount == 1:
                    return lambda: bool(limiter._acquire())  # without a release
            elif kind == "Bucket":
                limiter = limiter_of(backend, f"{key}:{amount}", limit=amount, bucket=1000 * seconds)
            else:
                # It keeps a counter for each second of its window, and reads all of them, so an hour would be unfair.
                limiter = limiter_of(backend, f"{key}:{amount}", limit=amount, window=min(seconds, 60))

            def request() -> bool:
                with limiter.acquire(raise_on_failure=False) as acquired:
                    return bool(acquired)

            return request

        return bind

    return make


def _heimdall(url: str) -> Bind:
    from celery import Celery
    from celery_heimdall.task import HeimdallTask, RateLimit, rate_limited_countdown

    app = Celery("heimdall", broker=url, set_as_current=False)

    @cache
    def task(amount: int, seconds: int) -> Any:
        options = {"rate_limit": RateLimit((amount, seconds))}
        return app.task(_nothing, name=f"of-{amount}", base=HeimdallTask, heimdall=options)

    def bind(key: str, amount: int, seconds: int) -> Decide:
        of = task(amount, seconds)
        name = f"h-rate:{key}:{amount}"
        return lambda: rate_limited_countdown(of, name, (), {}) == 0

    return bind


def _nothing() -> None:
    """A task."""


def _leaky(name: str, amount: int, seconds: int) -> Limit:
    return LeakyBucket(name, (amount, seconds), key="{tenant}")


def _log(name: str, amount: int, seconds: int) -> Limit:
    return SlidingLog(name, (min(amount, 100_000), seconds), key="{tenant}")  # the maximum of SlidingLog


def _plain(kind: type[FixedWindow] | type[SlidingWindow]) -> Callable[[str, int, int], Limit]:
    return lambda name, amount, seconds: kind(name, (amount, seconds), key="{tenant}")


CONTENDERS = [
    Contender(BASE, "redis", incr, denies=False, memory=False),
    Contender(SET, "redis", with_a_time_to_live, denies=False),
    Contender(EMPTY_SCRIPT, "redis", scripted(EMPTY), denies=False, memory=False),
    Contender(FLOOR, "redis", scripted(GCRA)),
    Contender(PLACE, "redis", scripted(JOIN)),
    Contender("throttlekit `TokenBucket`", "throttlekit-jobs", _ours()),
    Contender("throttlekit `TokenBucket`, as a job", "throttlekit-jobs", _ours(job=True)),
    Contender("throttlekit 2 × `TokenBucket`", "throttlekit-jobs", _ours(count=2)),
    Contender("throttlekit 3 × `TokenBucket`", "throttlekit-jobs", _ours(count=3)),
    Contender("throttlekit `LeakyBucket`", "throttlekit-jobs", _ours(_leaky)),
    Contender("throttlekit `FixedWindow`", "throttlekit-jobs", _ours(_plain(FixedWindow))),
    Contender("throttlekit `SlidingWindow`", "throttlekit-jobs", _ours(_plain(SlidingWindow))),
    Contender("throttlekit `SlidingLog`", "throttlekit-jobs", _ours(_log)),
    Contender("throttlekit `Concurrency`, acquire and release", "throttlekit-jobs", _slots, memory=False),
    Contender("limits, fixed window", "limits", _of_limits("FixedWindowRateLimiter")),
    Contender("limits, moving window", "limits", _of_limits("MovingWindowRateLimiter")),
    Contender("limits, sliding window counter", "limits", _of_limits("SlidingWindowCounterRateLimiter")),
    Contender("pyrate-limiter, RedisBucket", "pyrate-limiter", _pyrate("log")),
    Contender("pyrate-limiter, GCRA", "pyrate-limiter", _pyrate("gcra")),
    Contender("throttled-py, token bucket", "throttled-py", _throttled("token_bucket")),
    Contender("throttled-py, GCRA", "throttled-py", _throttled("gcra")),
    Contender("throttled-py, fixed window", "throttled-py", _throttled("fixed_window")),
    Contender("throttled-py, sliding window", "throttled-py", _throttled("sliding_window")),
    Contender("steindamm, token bucket", "steindamm", _steindamm),
    Contender("Dramatiq `BucketRateLimiter`", "dramatiq", _dramatiq("Bucket")),
    Contender("Dramatiq `WindowRateLimiter`", "dramatiq", _dramatiq("Window")),
    Contender(
        "Dramatiq `ConcurrentRateLimiter`, acquire and release", "dramatiq", _dramatiq("Concurrent"), memory=False
    ),
    Contender("celery-heimdall, countdown", "celery-heimdall", _heimdall),
]
