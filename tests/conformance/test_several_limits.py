"""
One request for several limits takes all or nothing, with any algorithms: in one script, across the hash slots of a
cluster, and across two stores, where claims are charged one after the other and returned if one denies.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from conformance.bench import NOW_US, SECOND_US, SLOW, STEP_US, TEN, Bench
from conformance.cases import FIVE_CASES, Case
from conformance.conftest import store_named
from support.threads import run_in_threads
from throttlekit import Concurrency
from throttlekit._core.answer import Caller, Reason
from throttlekit._core.limit.base import Limit
from throttlekit.stores import MemoryStore
from throttlekit.stores.grouped import GroupedStore

START_US = NOW_US + 20 * SECOND_US
FIVE = [case.limit for case in FIVE_CASES]
TOGETHER = ["memory", "redis", "cluster"]
SPREAD = ["across hash slots", "across stores"]
each_case = pytest.mark.parametrize("case", FIVE_CASES, ids=lambda case: case.label)


@pytest.fixture(params=[*TOGETHER, *SPREAD])
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


@pytest.fixture
def in_one_script(request: pytest.FixtureRequest, bench: Bench) -> Bench:
    if bench.spread:
        pytest.skip("only if all claims are decided at the same time")
    return bench


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


@each_case
def test_a_denial_by_one_limit_changes_no_other(bench: Bench, case: Case) -> None:
    """
    A denial changes no unit and no time of the other limits, in any order, used or unused. A job that waits takes
    nothing either.
    """
    others = [limit for limit in FIVE if limit != case.limit]
    bench.drain(case.limit)
    for used in (False, True):
        if used:
            for limit in others:
                assert bench.decide(limit, cost=min(2, limit.capacity)).allowed
                bench.now_us += 1_000
        before = [_read_state(bench, limit) for limit in others]
        for first in range(5):
            limits = [*FIVE[first:], *FIVE[:first]]
            for caller, job in ((Caller.PEEK, ""), (Caller.WITHOUT_JOB, ""), (Caller.JOB, "waits")):
                answer = bench.decide(*limits, caller=caller, job=job)
                assert (answer.allowed, answer.retry_us > bench.now_us) == (False, True), answer
            bench.forget(*limits, job="waits")
        assert [_read_state(bench, limit) for limit in others] == before


@each_case
def test_a_woken_job_is_admitted_before_newcomers(bench: Bench, case: Case) -> None:
    """A job that waits for one of five limits is admitted when it is woken, and no newcomer is admitted before it."""
    bench.drain(case.limit)
    ids = [f"job {number}" for number in range(1 + case.together)]
    for id in ids:
        denied = bench.decide(*FIVE, job=id)
        assert (denied.reason, FIVE[denied.claim]) == (Reason.EXHAUSTED, case.limit)
    bench.now_us = bench.look(case.limit, job=ids[0]).retry_us
    assert not bench.decide(*FIVE).allowed
    assert bench.woken_jobs(case.limit)[0] == ids[0]
    assert bench.decide(*FIVE, job=ids[0]).allowed
    others = [limit for limit in FIVE if limit != case.limit]
    assert [bench.units_left(limit) for limit in others] == [limit.capacity - 1 for limit in others]


def test_a_denial_leaks_no_slot(bench: Bench) -> None:
    """A slot is taken only if the rate admits the job, and the rate is charged only if a slot is free."""
    slots = Concurrency("slots", 1, lease=30)
    bench.drain(TEN)
    assert not bench.decide(slots, TEN, holder="one").allowed
    bench.now_us += SECOND_US
    assert bench.decide(slots, holder="two").allowed
    assert not bench.decide(slots, TEN, holder="three").allowed
    assert bench.units_left(TEN) == TEN.capacity


def test_the_limit_with_the_latest_retry_time_is_reported(in_one_script: Bench) -> None:
    """
    Of several limits that deny, the one with the latest retry time is reported, in any order. The job waits on the
    waitlist of that limit, and keeps a position for the others.
    """
    bench = in_one_script
    bench.drain(TEN, SLOW)
    for limits in ((TEN, SLOW), (SLOW, TEN)):
        answer = bench.look(*limits)
        assert (limits[answer.claim], answer.retry_us) == (SLOW, START_US + SECOND_US)
    for id in ("gone", "stays"):
        assert bench.decide(TEN, SLOW, job=id).claim == 1
    bench.forget(TEN, SLOW, job="gone")
    assert bench.store.where([bench.claim(TEN), bench.claim(SLOW)], "gone", bench.now_us) is None
    assert [bench.store.list_waiting(bench.claim(limit)).jobs for limit in (SLOW, TEN)] == [1, 0]
    bench.now_us += STEP_US
    assert bench.decide(TEN, job="behind").allowed
    bench.now_us = START_US + SECOND_US
    assert bench.woken_jobs(SLOW) == ["stays"]
    assert bench.decide(TEN, SLOW, job="stays").allowed


def test_threads_are_admitted_at_most_by_the_smallest_limit(bench: Bench) -> None:
    """With any number of threads, each limit is charged for every grant; in one script, all 5 units are granted."""
    limits, admitted = [limit for limit in FIVE if limit.capacity == 5], list[bool]()
    run_in_threads(4, lambda _: admitted.extend(bench.decide(*limits).allowed for _ in range(10)))
    assert (1 if bench.spread else 5) <= sum(admitted) <= 5
    assert [bench.units_left(limit) for limit in limits] == [5 - sum(admitted)] * len(limits)
