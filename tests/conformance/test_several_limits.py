"""
One request for several limits takes all or nothing, with any algorithms: in one script of a cluster, across its hash
slots, and across two stores, where claims are charged one after the other and returned if one denies. (For one script
of the other stores: see test_stores.py.)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from conformance.bench import NAME, NOW_US, SECOND_US, TEN, Bench
from conformance.conftest import store_named
from support.threads import run_in_threads
from throttlekit import Concurrency, FixedWindow, LeakyBucket, SlidingLog, SlidingWindow
from throttlekit._core.answer import Caller, Reason
from throttlekit._core.limit.base import Limit
from throttlekit.stores import MemoryStore
from throttlekit.stores.grouped import GroupedStore

START_US = NOW_US + 20 * SECOND_US
TOGETHER: list[Limit] = [FixedWindow(NAME, "5/m"), SlidingLog(NAME, "5/m")]
"""Limits whose next units are all admitted at the same time."""
FIVE: list[Limit] = [TEN, LeakyBucket(NAME, "10/s"), TOGETHER[0], SlidingWindow(NAME, "5/m"), TOGETHER[1]]
SPREAD = ["across hash slots", "across stores"]
each_limit = pytest.mark.parametrize("limit", FIVE, ids=lambda limit: limit.algorithm)


@pytest.fixture(params=["cluster", *SPREAD])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """A bench at the twentieth second of a minute. If claims are spread, each limit has a separate name."""
    spread = request.param in SPREAD
    store = store_named(
        {"across hash slots": "cluster", "across stores": "redis"}.get(request.param, request.param), request
    )
    if request.param == "across stores":
        store = GroupedStore(store, [(f"*{digit}", MemoryStore()) for digit in "02468ace"])
    with contextlib.closing(Bench(store, spread=spread)) as bench:
        bench.now_us = START_US
        yield bench


def _units_left(bench: Bench) -> list[int]:
    return [bench.units_left(limit) for limit in FIVE]


def _read_state(bench: Bench, limit: Limit) -> list[object]:
    """Return all that is visible of *limit* now: its use, and when each cost would be admitted."""
    return [bench.look(limit, cost=cost)[:5] for cost in range(limit.capacity + 1)]


def test_a_grant_charges_each_limit_its_own_cost(bench: Bench) -> None:
    """A cost of 0 is admitted if nothing is left. One call corrects all charges, up and down."""
    answer = bench.decide(*FIVE)
    left = [use and limit.remaining(use, bench.now_us) for limit, use in zip(FIVE, answer.uses, strict=True)]
    assert left == _units_left(bench) == [4, 0, 4, 4, 4]
    bench.settle(*FIVE, was=1, actual=5)
    assert _units_left(bench) == [0] * 5
    bench.settle(*FIVE, was=5, actual=0)
    assert bench.is_unused(*FIVE)
    bench.drain(FIVE[1])
    assert bench.decide(*FIVE, cost=(5, 0, 3, 0, 2)).allowed
    assert _units_left(bench) == [0, 0, 2, 5, 3]


@each_limit
def test_a_denial_by_one_limit_changes_no_other(bench: Bench, limit: Limit) -> None:
    """
    A denial changes no unit and no time of the other limits, in any order, used or unused. A job that waits takes
    nothing either.
    """
    others = [each for each in FIVE if each != limit]
    bench.drain(limit)
    for used in (False, True):
        if used:
            for each in others:
                assert bench.decide(each, cost=min(2, each.capacity)).allowed
                bench.now_us += 1_000
        before = [_read_state(bench, each) for each in others]
        for first in range(5):
            limits = [*FIVE[first:], *FIVE[:first]]
            for caller, job in ((Caller.PEEK, ""), (Caller.WITHOUT_JOB, ""), (Caller.JOB, "waits")):
                answer = bench.decide(*limits, caller=caller, job=job)
                assert (answer.allowed, answer.retry_us > bench.now_us) == (False, True), answer
            bench.forget(*limits, job="waits")
        assert [_read_state(bench, each) for each in others] == before


@each_limit
def test_a_woken_job_is_admitted_before_newcomers(bench: Bench, limit: Limit) -> None:
    """A job that waits for one of five limits is admitted when it is woken, and no newcomer is admitted before it."""
    bench.drain(limit)
    ids = [f"job {number}" for number in range(6 if limit in TOGETHER else 2)]
    for id in ids:
        denied = bench.decide(*FIVE, job=id)
        assert (denied.reason, FIVE[denied.claim]) == (Reason.EXHAUSTED, limit)
    bench.now_us = bench.look(limit, job=ids[0]).retry_us
    assert not bench.decide(*FIVE).allowed
    assert bench.woken_jobs(limit)[0] == ids[0]
    assert bench.decide(*FIVE, job=ids[0]).allowed
    others = [each for each in FIVE if each != limit]
    assert [bench.units_left(each) for each in others] == [each.capacity - 1 for each in others]


def test_a_denial_leaks_no_slot(bench: Bench) -> None:
    """A slot is taken only if the rate admits the job, and the rate is charged only if a slot is free."""
    slots = Concurrency("slots", 1, lease=30)
    bench.drain(TEN)
    assert not bench.decide(slots, TEN, holder="one").allowed
    bench.now_us += SECOND_US
    assert bench.decide(slots, holder="two").allowed
    assert not bench.decide(slots, TEN, holder="three").allowed
    assert bench.units_left(TEN) == TEN.capacity


def test_threads_are_admitted_at_most_by_the_smallest_limit(bench: Bench) -> None:
    """With any number of threads, each limit is charged for every grant; in one script, all 5 units are granted."""
    limits, admitted = [limit for limit in FIVE if limit.capacity == 5], list[bool]()
    run_in_threads(4, lambda _: admitted.extend(bench.decide(*limits).allowed for _ in range(10)))
    assert (1 if bench.spread else 5) <= sum(admitted) <= 5
    assert [bench.units_left(limit) for limit in limits] == [5 - sum(admitted)] * len(limits)
