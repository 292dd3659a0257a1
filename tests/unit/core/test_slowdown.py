"""A limit that is slower for a while: it only denies more, slows down once per overload, and recovers by itself."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from throttlekit import Adapt, Concurrency, ConfigurationError, FixedWindow, Limiter, SlidingWindow, TokenBucket
from throttlekit._core.answer import WITHOUT_JOB, Caller, Requester
from throttlekit._core.claim import StoreClaim
from throttlekit._core.job import Job
from throttlekit._core.late import late_owner
from throttlekit._core.limit.base import Limit
from throttlekit._core.serialize import dump, load
from throttlekit._core.slowdown import ONE, Refusal, Remaining, Slowdown, apply_refusal, apply_remaining, pace_of
from throttlekit._core.storage_keys import wait_names
from throttlekit.stores import MemoryStore, Slowing
from throttlekit.testing import FakeClock

NOW_US = 1_800_000_000_000_000
S = 1_000_000


class Downstream:
    """One limit, in a store whose time is an argument."""

    def __init__(self, limit: Limit) -> None:
        self.limit, self.store, self.now_us = limit, MemoryStore(), NOW_US
        self.claim = StoreClaim("tk1:{x:}:0", limit.bind(1, NOW_US))

    def is_granted(self) -> bool:
        return self.store.decide([self.claim], Requester(Caller.PEEK), self.now_us).allowed and (
            self.store.decide([self.claim], WITHOUT_JOB, self.now_us).allowed
        )

    def grants_in(self, us: int, step_us: int = 10_000) -> int:
        """Return how many requests are granted while there are always as many callers as units."""
        count, until_us = 0, self.now_us + us
        while self.now_us < until_us:
            while self.is_granted():
                count += 1
            self.now_us += step_us
        return count

    def refuse(self, granted_us: int | None = None, span_us: int = 10 * S, floor: int = ONE // 10) -> None:
        self.store.slow([Slowing(self.claim, Refusal(granted_us, span_us, floor))], self.now_us)

    def report_remaining(self, remaining: int, reset_us: int) -> None:
        self.store.slow([Slowing(self.claim, Remaining(remaining, reset_us))], self.now_us)


LIMITS: list[Any] = [TokenBucket("x", "100/s", burst=5), FixedWindow("x", "100/s"), SlidingWindow("x", "100/s")]


def test_rate_recovers_cubically_after_a_refusal() -> None:
    """
    A refusal reduces the rate to 0.76; it is 0.95 of its earlier value after a span, and the whole rate after two.
    """
    slow = apply_refusal(None, Refusal(None, 10 * S, ONE // 10), 0, NOW_US)
    parts = [slow.part(NOW_US + seconds * S) for seconds in (0, 5, 10, 15, 20)]
    assert parts == [760_000, 926_250, 950_000, 973_750, ONE], "the top is 0.95 of the rate before the refusal"
    lower = apply_refusal(slow, Refusal(NOW_US, 10 * S, ONE // 10), 0, NOW_US)
    assert lower.top == 684_000, "0.9 of the rate before: a refusal below the last top leaves room"
    assert lower.part(NOW_US) == 547_200
    assert lower.part(NOW_US + 10 * S) == 684_000
    assert lower.part(lower.back_us) == ONE


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: type(limit).__name__)
def test_limit_slows_down_after_a_refusal_and_recovers(limit: Limit) -> None:
    """
    For each algorithm, a refused limit grants about 0.76 of its rate, and later its rate; then the slow-down is
    deleted.
    """
    downstream = Downstream(limit)
    downstream.refuse()
    assert 70 <= downstream.grants_in(S) <= 82
    assert downstream.store._get(wait_names("tk1:{x:}:0")[0], downstream.now_us) is not None
    downstream.now_us = NOW_US + 60 * S
    assert 99 <= downstream.grants_in(S) <= 105
    downstream.now_us += 60 * S
    assert downstream.store._get(wait_names("tk1:{x:}:0")[0], downstream.now_us) is None


def test_one_overload_slows_the_limit_down_once() -> None:
    """
    Refusals of jobs that were granted before the last slow-down change nothing; one of a later job slows down again.
    """
    downstream = Downstream(TokenBucket("x", "100/s"))
    granted_us = downstream.now_us
    for _ in range(20):
        downstream.now_us += 1_000
        downstream.refuse(granted_us)
    assert 78 <= downstream.grants_in(S) <= 84
    downstream.refuse(downstream.now_us - 1)
    assert downstream.grants_in(S) < 72


def test_rate_never_falls_below_the_floor() -> None:
    """However many refusals there are, the limit grants units at the rate of its floor."""
    downstream = Downstream(TokenBucket("x", "100/s"))
    for _ in range(50):
        downstream.refuse(floor=ONE // 4)
    assert 24 <= downstream.grants_in(S) <= 26


def test_reported_remaining_units_are_paced_until_the_reset() -> None:
    """
    The units that a partner reports as remaining are spread evenly until its reset, and then the limit applies alone.
    """
    downstream = Downstream(TokenBucket("x", "100/s", burst=50))
    downstream.report_remaining(10, 5 * S)
    granted_us: list[int] = []
    while downstream.now_us < NOW_US + 5 * S - 1:
        if downstream.is_granted():
            granted_us.append(downstream.now_us - NOW_US)
        downstream.now_us += 10_000
    assert len(granted_us) == 9
    assert all(480_000 <= after - before <= 520_000 for before, after in pairwise(granted_us))
    downstream.now_us = NOW_US + 5 * S
    assert downstream.is_granted()
    assert downstream.grants_in(10_000) >= 40, "after the reset, the report no longer applies"


def test_remaining_zero_denies_until_the_reset() -> None:
    """If the partner has no unit left, no unit is granted before its reset."""
    downstream = Downstream(FixedWindow("x", "100/m"))
    downstream.report_remaining(0, 20 * S)
    assert downstream.grants_in(20 * S, 100_000) == 0
    assert downstream.is_granted()


def test_remaining_zero_applies_to_a_limit_whose_next_unit_is_sooner() -> None:
    """A part of the next unit may have passed: then the limit would grant one before a reset that is less than one."""
    downstream = Downstream(TokenBucket("x", "1/2s", burst=1))
    assert downstream.is_granted()
    downstream.now_us += 1_500_000
    downstream.report_remaining(0, S)
    assert downstream.grants_in(S, 10_000) == 0
    assert downstream.is_granted()


def test_report_only_ever_slows_the_limit_down() -> None:
    """A report that would allow a higher rate than the limit or an earlier report of the same window has no effect."""
    slow = apply_remaining(None, Remaining(100, 10 * S), 100, NOW_US)
    assert slow is None, "the limit itself grants no more"
    slow = apply_remaining(None, Remaining(10, 10 * S), 100, NOW_US)
    assert slow is not None
    assert slow.each_ns == 1_000_000_000
    assert apply_remaining(slow, Remaining(50, 10 * S), 100, NOW_US) is slow, "an older response of the same window"
    assert apply_remaining(slow, Remaining(20, 5 * S), 100, NOW_US) is slow, "a response of an older window"
    denied = apply_remaining(slow, Remaining(0, 5 * S), 100, NOW_US)
    assert denied is not None
    assert (denied.reported_until_us, denied.tat_us) == (NOW_US + 5 * S, NOW_US + 5 * S), (
        "but a lower one applies until its reset"
    )
    lower = apply_remaining(slow, Remaining(5, 10 * S), 100, NOW_US)
    assert lower is not None
    assert lower.each_ns == 2_000_000_000
    newer = apply_remaining(lower, Remaining(50, 20 * S), 100, NOW_US)
    assert newer is not None
    assert newer.each_ns == 400_000_000, "a newer window replaces it"


def test_clock_that_steps_back_does_not_prolong_a_slowdown() -> None:
    """If the clock steps back, the ends of a slow-down move back with it."""
    slow = Slowdown(
        fell_us=NOW_US,
        top=ONE,
        span_us=S,
        floor=1000,
        back_us=NOW_US + 3 * S,
        reported_at_us=NOW_US,
        reported_until_us=NOW_US + 5 * S,
        each_ns=1,
        tat_us=NOW_US + S,
    ).at(NOW_US - 3600 * S)
    assert (slow.back_us, slow.reported_until_us) == (NOW_US - 3597 * S, NOW_US - 3595 * S)


@given(
    st.lists(
        st.tuples(st.integers(0, 3 * S), st.integers(0, 3), st.integers(0, 40), st.integers(0, 8 * S)), max_size=30
    )
)
def test_bound_holds_whatever_is_reported(events: list[tuple[int, int, int, int]]) -> None:
    """With any refusals and reports, a slowed limit grants no unit that the plain limit would deny."""
    slowed, plain = Downstream(TokenBucket("x", "20/s", burst=4)), Downstream(TokenBucket("x", "20/s", burst=4))
    granted: list[int] = []
    for wait_us, kind, remaining, reset_us in events:
        slowed.now_us += wait_us
        if kind == 0:
            slowed.refuse(slowed.now_us - reset_us, span_us=max(1, reset_us))
        elif kind == 1:
            slowed.report_remaining(remaining, reset_us)
        while slowed.is_granted():
            granted.append(slowed.now_us)
    for at_us in granted:
        plain.now_us = at_us
        assert plain.is_granted(), "a unit was granted that the limit alone would deny"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Adapt("fast"), "is not a rate"),
        (lambda: Adapt("1/s", span=0), "the span must be"),
        (lambda: Adapt("1/s", span=True), "the span must be"),
        (lambda: TokenBucket("x", "10/s", adapt=Adapt("10/s")), "must be less than the rate"),
        (lambda: TokenBucket("x", "10/s", adapt=Adapt("1/d")), "at least a thousandth"),
        (lambda: TokenBucket("x", "10/s", adapt="1/s"), "adapt must be like Adapt"),  # type: ignore[arg-type]
        (lambda: Concurrency("x", 3, adapt=Adapt("1/s")), "a concurrency limit has none: write adapt=ByLatency"),
        (lambda: TokenBucket("x", {"a": "10/s", "b": "1/s"}, tier="{t}", adapt=Adapt("5/s")), "less than the rate"),
    ],
)
def test_bad_values_raise_at_once(make: Any, message: str) -> None:
    """An invalid floor, span or value of `adapt=` raises a ConfigurationError at the declaration."""
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_floor_is_compared_with_each_rate_of_a_callable() -> None:
    """If a callable returns the rate, the declaration has no rate to compare the floor with."""
    limit = TokenBucket("x", lambda job: job.name, adapt=Adapt("20/s"))
    assert limit.for_job(Job(name="100/s")).adapt == Adapt("20/s")
    with pytest.raises(ConfigurationError, match="must be less than the rate"):
        limit.for_job(Job(name="20/s"))


def test_default_span_follows_the_limits_period() -> None:
    """The default span is the longer of the rate's period and the time of 600 units; a given span overrides it."""
    refusal = Adapt("10/m").refusal(100, 60 * S, None)
    assert (refusal.span_us, refusal.floor) == (360 * S, ONE // 10)
    assert Adapt("1/s").refusal(1000, S, None).span_us == S
    assert Adapt("1/s", span=timedelta(seconds=7)).refusal(1000, S, None).span_us == 7 * S


def test_adapt_is_serialized_and_is_no_part_of_the_definition() -> None:
    """A limit in a message keeps its `adapt=`, which changes equality and repr but not the fingerprint."""
    limit = TokenBucket("x", "100/s", adapt=Adapt("10/s", span=3))
    given = load(dump(limit, Job()))
    assert given.adapt is not None
    assert given.adapt.refusal(0, 0, 7) == Refusal(7, 3 * S, ONE // 10)
    assert given.fingerprint == limit.fingerprint == TokenBucket("x", "100/s").fingerprint
    assert limit != TokenBucket("x", "100/s")
    assert repr(limit).endswith("adapt=Adapt('10/s', span=3))")


def test_reported_overload_slows_the_limit_down() -> None:
    """After `report_overload`, a limit grants fewer units; for a limit without `adapt=` it raises."""
    limit = TokenBucket("x", "1000/h", burst=1000, adapt=Adapt("100/h", span=3600))
    limiter = Limiter("memory://")
    assert limiter.acquire(limit, cost=500).allowed
    limiter.report_overload(limit)
    assert not limiter.acquire(limit, cost=500).allowed
    with pytest.raises(ConfigurationError, match="has no adapt="):
        limiter.report_overload(TokenBucket("y", "1/s"))


def test_429_outside_of_a_job_leaves_the_limit_empty_and_slower(limiter: Limiter, clock: FakeClock) -> None:
    """After a pause with `refused=True` the limit begins empty and slower; a plain pause keeps its units."""
    limit = TokenBucket("x", "10/s", burst=10, adapt=Adapt("1/s", span=10))
    limiter.pause(limit, 1, refused=True)
    clock.advance(1.0)
    assert limiter.peek(limit).reason == "exhausted"
    clock.advance(2.0)
    granted = sum(limiter.acquire(limit).allowed for _ in range(10))
    assert 0 < granted < 5, "a quarter of a second's worth at once, and not the burst"
    limiter.pause(TokenBucket("y", "10/s", burst=10), 1)
    clock.advance(1.0)
    assert limiter.acquire(TokenBucket("y", "10/s", burst=10), cost=10).allowed, (
        "a plain pause does not change the count"
    )


def test_waiting_jobs_are_scheduled_soon_after_the_slowdown(limiter: Limiter) -> None:
    """
    Jobs that wait for the partner's reset get retry times right after it: first a burst, then the limit's own rate.
    """
    limit = TokenBucket("x", "10/s", burst=10)
    limiter.apply_response({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "10"}, limit)
    delays = [limiter.acquire(limit, job=Job(id=str(number))).delay for number in range(30)]
    assert delays == sorted(delays)
    assert delays[0] == pytest.approx(10, abs=0.1)
    assert delays[-1] < 13, "the burst at the end, and the others at the limit's own rate"


def test_waiting_jobs_of_a_slow_limit_are_scheduled_by_its_recovery() -> None:
    """The retry times of many waiting jobs take into account that the rate recovers."""
    downstream = Downstream(TokenBucket("x", "10/s", burst=1))
    for _ in range(12):
        downstream.refuse(floor=ONE // 100)
    slow = downstream.store._get(wait_names("tk1:{x:}:0")[0], downstream.now_us).slow  # type: ignore[attr-defined]
    requesters = [Requester(Caller.JOB, str(number), late_owner(0.05)) for number in range(100)]
    retries_us = [downstream.store.decide([downstream.claim], each, downstream.now_us).retry_us for each in requesters]
    assert retries_us[-1] < slow.back_us + 15 * S


@pytest.mark.parametrize("step_s", [60, 3600])
def test_clock_that_steps_back_does_not_stop_a_slow_limit(step_s: int) -> None:
    """If the clock steps back during a slow-down, the limit continues to grant units."""
    downstream = Downstream(TokenBucket("x", "10/s", burst=1))
    downstream.refuse(span_us=3600 * S)
    downstream.grants_in(5 * S)
    downstream.now_us -= step_s * S
    downstream.store._values.pop("tk1:{x:}:0")  # the bucket keeps the state of a later clock for a while
    assert downstream.grants_in(5 * S) > 30


def test_slowdown_is_measured_from_the_end_of_the_pause(limiter: Limiter, clock: FakeClock) -> None:
    """After a pause with `refused=True`, the limit begins at its reduced rate, however long the pause was."""
    limit = TokenBucket("x", "100/s", burst=1, adapt=Adapt("1/s"))
    limiter.pause(limit, 30, refused=True)
    clock.advance(30.0)
    granted = 0
    for _ in range(100):
        clock.advance(0.01)
        granted += bool(limiter.acquire(limit))
    assert 60 < granted < 85


def test_newer_window_with_more_remaining_is_applied() -> None:
    """A report of a later window of the partner replaces the report of the window before."""
    slow = apply_remaining(None, Remaining(0, 600 * S), 10_000, NOW_US)
    newer = apply_remaining(slow, Remaining(500, 660 * S), 10_000, NOW_US + 10 * S)
    assert newer is not None
    assert newer.tat_us < NOW_US + 12 * S


def test_fastest_rates_can_be_slowed_down() -> None:
    """A limit with the highest rate can be at a thousandth of it, and still has a pace."""
    downstream = Downstream(TokenBucket("x", "2000000000/s", burst=10))
    for _ in range(30):
        downstream.refuse(floor=ONE // 1000)
    slow = downstream.store._get(wait_names("tk1:{x:}:0")[0], downstream.now_us).slow  # type: ignore[attr-defined]
    assert pace_of(slow, downstream.claim.algorithm.mark, 1, downstream.now_us) is not None
