"""A rate that the application returns for each job: all rates of a key share one count, also when they change."""

from __future__ import annotations

import pickle
from datetime import timedelta
from fractions import Fraction
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from throttlekit import (
    Concurrency,
    ConfigurationError,
    FixedWindow,
    Job,
    LeakyBucket,
    Limiter,
    SlidingLog,
    SlidingWindow,
    TokenBucket,
)
from throttlekit._core.limit.change import change_rate
from throttlekit._core.serialize import dump, load
from throttlekit.stores import MemoryStore
from throttlekit.testing import FakeClock

S, DAY = 1_000_000, 86_400_000_000
INTERVALS: dict[str, Fraction | int] = {
    "100/s": 10_000,
    "3/s": Fraction(S, 3),
    "1/m": 60 * S,
    "10/d": 8640 * S,
    "1/d": DAY,
}


def rate_of_plan(job: Job) -> Any:
    return job.kwargs["plan"]


KINDS: tuple[tuple[Any, Any, Any], ...] = (
    (TokenBucket, "10/s", "5/s"),
    (LeakyBucket, "10/s", "5/s"),
    (FixedWindow, "10/d", "5/d"),
    (SlidingWindow, "10/d", "5/d"),
    (Concurrency, 10, 5),
)


def job_of(plan: Any, id: str = "1") -> Job:
    return Job(id=id, kwargs={"plan": plan, "tenant": 7})


@given(
    steps=st.lists(st.tuples(st.sampled_from(sorted(INTERVALS)), st.integers(0, 5), st.integers(0, 3)), max_size=60),
    fills=st.sampled_from([timedelta(seconds=1), timedelta(seconds=90), timedelta(hours=5), timedelta(days=3)]),
)
def test_mixed_rates_admit_no_more_than_the_greatest(steps: list[tuple[str, int, int]], fills: timedelta) -> None:
    """In any window, rates that change with each job admit no more units than the greatest rate alone would."""
    clock = FakeClock()
    limiter, limit = Limiter(MemoryStore(clock_us=clock)), TokenBucket("api", rate_of_plan, burst=fills)
    granted: list[tuple[int, int]] = []
    for rate, units, wait in steps:
        clock.advance((0.0, 0.5, 70.0, 9000.0)[wait])
        units = min(units, limit.at(rate).capacity)
        if limiter.acquire(limit, job=job_of(rate), cost=units):
            granted.append((clock(), units))
    shortest_us = min((INTERVALS[rate] for rate, _, _ in steps), default=1)
    most_us = max(fills // timedelta(microseconds=1), shortest_us)
    for begin, (begin_us, _) in enumerate(granted):
        for end in range(begin, len(granted)):
            units = sum(each for _, each in granted[begin : end + 1])
            assert units * shortest_us <= most_us + granted[end][0] - begin_us


@pytest.mark.parametrize("order", ["lowered", "raised"])
@pytest.mark.parametrize(("kind", "high", "low"), KINDS)
def test_taken_units_count_at_every_rate(limiter: Limiter, kind: Any, high: Any, low: Any, order: str) -> None:
    """A key that has used up one rate has no fresh budget at another: a raised rate adds at most the difference."""
    limit = kind("api", rate_of_plan, key="{tenant}")
    first, second = (high, low) if order == "lowered" else (low, high)
    decided = [(rate, limiter.acquire(limit, job=job_of(rate)).allowed) for rate in [first] * 20 + [second] * 20]
    assert sum(allowed for _, allowed in decided) <= limit.at(high).capacity
    assert not any(allowed for _, allowed in decided[20:]) or order == "raised"


@pytest.mark.parametrize(("slow", "fast"), [("1/d", "100/s"), ("10/d", "3/s")])
def test_raised_rate_does_not_wait_for_the_old_one(limiter: Limiter, clock: FakeClock, slow: str, fast: str) -> None:
    """A tenant that moves from a unit a day to many a second is not blocked for the rest of the day."""
    limit = TokenBucket("api", rate_of_plan)
    assert limiter.acquire(limit, job=job_of(slow))
    assert not limiter.acquire(limit, job=job_of(fast))
    clock.advance(1)
    assert limiter.acquire(limit, job=job_of(fast))


def test_code_without_a_job_names_the_rate(limiter: Limiter) -> None:
    """`at` returns the limit with a rate for a caller without a job, and counts in the same bucket."""
    limit = TokenBucket("api", rate_of_plan, key="{tenant}")
    assert limiter.acquire(limit, job=job_of("1/m"))
    assert not limiter.acquire(limit.at("1/m"), key=7)
    assert limiter.acquire(limit.at("1/m"), key=8)
    with pytest.raises(
        ConfigurationError, match=r"takes its rate from the job: pass job=, or name the rate: limit\.at"
    ):
        limiter.acquire(limit, key=7)


def test_all_verbs_use_the_rate_of_the_job(limiter: Limiter) -> None:
    """Peek, pause, resume, reset and settle of a limit with a callable rate use its count."""
    limit = TokenBucket("api", rate_of_plan, key="{tenant}")
    limiter.pause(limit, 30, job=job_of("10/s"))
    assert limiter.peek(limit, job=job_of("5/s")).reason == "paused"
    limiter.resume(limit, job=job_of("5/s"))
    limiter.reset(limit, job=job_of("5/s"))
    taken = limiter.acquire(limit, job=job_of("10/s"), cost=10)
    assert taken
    limiter.settle(taken, actual=1)
    assert limiter.peek(limit, job=job_of("10/s")).remaining == 9


def test_rates_are_cached() -> None:
    """The same rate is the same object; the cache keeps the last few hundred rates."""
    limit = TokenBucket("api", rate_of_plan)
    assert limit.at("7/s") is limit.at("7/s")
    for amount in range(1, 2000):
        limit.at(f"{amount}/s")
    assert limit.rates is not None
    assert len(limit.rates) <= 256


@pytest.mark.parametrize(("kind", "high", "low"), KINDS)
def test_rate_is_serialized_and_counts_in_the_same_bucket(kind: Any, high: Any, low: Any) -> None:
    """A limit in a message has the rate of its job, and shares the count of all rates."""
    limit = kind("api", rate_of_plan, key="{tenant}")
    for rate in (high, low):
        sent = load(dump(limit, job_of(rate)))
        assert (sent.fingerprint, sent.amount) == (limit.at(rate).fingerprint, limit.at(rate).amount)
        assert sent.definition == limit.at(low).definition


@pytest.mark.parametrize("varying_us", [-1, True, 2**60, "1", 1.5])
def test_forged_message_is_refused(varying_us: Any) -> None:
    """A message cannot contain a fill time that is not a whole number of microseconds."""
    with pytest.raises(ConfigurationError, match="not one that throttlekit wrote"):
        load({**dump(TokenBucket("api", rate_of_plan), job_of("1/s")), "varying_us": varying_us})


def test_process_share_is_counted_for_all_rates() -> None:
    """While the store is unavailable, a process's share of every rate is one count too."""
    limit = TokenBucket("api", rate_of_plan, burst=timedelta(seconds=12), on_store_failure="local", processes=4)
    shares = [limit.at(rate).local_part for rate in ("100/m", "40/m")]
    assert [share and share.capacity for share in shares] == [5, 2]
    assert len({share and share.fingerprint for share in shares}) == 1


def test_operator_sets_one_rate_for_all() -> None:
    """A rate that live control sets applies to every job, and counts in the same bucket; a burst cannot be set."""
    limit = TokenBucket("api", rate_of_plan, burst=timedelta(seconds=12))
    for each in (limit, limit.at("5/s")):
        assert change_rate(each, "100/m") == limit.at("100/m")
    with pytest.raises(ConfigurationError, match="no burst option"):
        change_rate(limit, "100/m", 5)


def test_limits_are_compared_by_value() -> None:
    """Limits with a callable rate are equal if their options are; a limit at a fixed rate is another."""
    limit = TokenBucket("api", rate_of_plan)
    assert limit == TokenBucket("api", rate_of_plan) == pickle.loads(pickle.dumps(limit))
    others = [limit.at("1/s"), limit.at("2/s"), TokenBucket("api", "1/s"), TokenBucket("api", lambda job: "1/s")]
    assert all(limit != other for other in others)
    assert others[0] != others[2]
    assert "rate_of_plan" in repr(limit)


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (lambda: SlidingLog("x", rate_of_plan), "cannot be a callable"),
        (lambda: TokenBucket("x", rate_of_plan, burst=4), "must be a timedelta if rate= is a callable"),
        (lambda: TokenBucket("x", rate_of_plan, burst=timedelta(0)), "at most 366 days"),
        (lambda: TokenBucket("x", rate_of_plan, prefetch=4), "leave it out"),
        (lambda: TokenBucket("x", rate_of_plan, tier="{plan}"), "tier= needs a rate for each tier"),
        (lambda: TokenBucket("x", "1/s", burst=timedelta(1)), "must be a number of units"),
        (lambda: FixedWindow("x", rate_of_plan, tz="Nowhere"), "not known here"),
        (lambda: LeakyBucket("x", rate_of_plan, queue=-1), "queue must be"),
        (lambda: Concurrency("x", rate_of_plan, lease=0), "lease must be"),
        (lambda: TokenBucket("x", "1/s").at("2/s"), r"at\(\) is only for a limit whose rate= is a callable"),
        (lambda: TokenBucket("x", rate_of_plan).at(rate_of_plan), "a rate was expected"),  # type: ignore[arg-type]
    ],
)
def test_invalid_options_are_refused_at_once(make: Any, fault: str) -> None:
    """A mistake raises at the declaration, and the message says what would be right."""
    with pytest.raises(ConfigurationError, match=fault):
        make()


@pytest.mark.parametrize("returned", [None, "", "a lot", 5, ("5", 1), {"free": "1/s"}, b"1/s"])
def test_callable_that_returns_no_rate(limiter: Limiter, returned: Any) -> None:
    """A value that is not a rate raises an error that names the limit, and nothing is charged."""
    with pytest.raises(ConfigurationError, match=r"^limit 'api': "):
        limiter.acquire(TokenBucket("api", lambda job: returned), job=Job())


def test_callable_that_raises(limiter: Limiter) -> None:
    """The error names the callable, and not the text of its exception, which may contain an argument."""
    with pytest.raises(ConfigurationError, match="the rate rate_of_plan failed on job '': KeyError"):
        limiter.acquire(TokenBucket("api", rate_of_plan), job=Job())


def test_attributes_of_a_rate_are_read_from_it() -> None:
    """The attributes that depend on a rate raise on the limit, and the error says where to find them."""
    limit = TokenBucket("api", rate_of_plan)
    for name in ("amount", "period_us", "capacity"):
        with pytest.raises(AttributeError, match=r"for each rate: read it from limit\.at\(rate\)"):
            getattr(limit, name)


@pytest.mark.parametrize(("rate", "seconds"), list(product(["300/s", "7000/s", "10/s", "90000/m"], [1, 12])))
def test_burst_is_what_the_rate_gives_in_that_time(limiter: Limiter, rate: str, seconds: int) -> None:
    """The limit admits its capacity at once, and never has more remaining."""
    limit = TokenBucket("api", rate_of_plan, burst=timedelta(seconds=seconds)).at(rate)
    plain = TokenBucket("plain", rate)
    assert plain.burst * seconds * 0.99 <= limit.capacity <= plain.burst * seconds
    assert limiter.peek(limit).remaining == limit.capacity
    assert limiter.acquire(limit, cost=limit.capacity).remaining == 0
    assert not limiter.acquire(limit)
