"""Concurrency limits on every store: slots are held, renewed, released and lost, by jobs and by workflows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from conformance.bench import NAME, NOW_US, SECOND_US, Bench
from support.threads import run_in_threads
from throttlekit import ByLatency, Concurrency
from throttlekit._core.answer import Answer, Caller, Reason
from throttlekit._core.latency import Drop
from throttlekit._core.limit.base import Limit
from throttlekit._core.storage_keys import workflow_name
from throttlekit.stores.base import Lease, Slowing

SLOTS, LEASE_US = Concurrency(NAME, 5, lease=30), 30 * SECOND_US
ADAPTS = Concurrency(NAME, 9, lease=30, adapt=ByLatency(2, timeout=20))
WORKFLOWS = Concurrency(NAME, 2, lease=30)


def _slots_in_use(bench: Bench, limit: Limit) -> int:
    use = bench.decide(limit, holder="looks", caller=Caller.PEEK).uses[0]
    assert use is not None
    return use.units


def test_no_more_slots_are_held_than_exist(bench: Bench) -> None:
    """The sum of the holders' costs is bounded. A release by another holder, or a second release, changes nothing."""
    taken = [bench.decide(SLOTS, holder=holder, cost=cost).allowed for holder, cost in (("a", 2), ("b", 1), ("c", 3))]
    assert taken == [True, True, False]
    assert bench.decide(SLOTS, holder="free", cost=0).allowed
    for holder, cost, held in (("stranger", 1, 3), ("b", 2, 3), ("a", 2, 1), ("a", 2, 1), ("b", 1, 0)):
        bench.release(bench.lease(SLOTS, holder, cost=cost))
        assert _slots_in_use(bench, SLOTS) == held, (holder, cost)
    granted = list[bool]()
    run_in_threads(8, lambda n: granted.extend(bench.decide(SLOTS, holder=f"{n}-{i}").allowed for i in range(5)))
    assert sum(granted) == 5


def test_a_slot_is_free_when_its_lease_expires(bench: Bench) -> None:
    """A slot is free exactly when its lease expires. A renewal keeps it; a late renewal takes free slots, or none."""
    assert bench.decide(SLOTS, holder="dead", cost=3).allowed
    assert bench.decide(SLOTS, holder="lives", cost=2).allowed
    dead, lives = bench.lease(SLOTS, "dead", cost=3), bench.lease(SLOTS, "lives", cost=2)
    bench.now_us += LEASE_US - 1
    assert not bench.decide(SLOTS, holder="next").allowed
    assert bench.renew(lives) == [True]
    bench.now_us += 1
    assert _slots_in_use(bench, SLOTS) == 2
    assert bench.decide(SLOTS, holder="next").allowed
    assert bench.renew(dead, lives) == [False, True]
    bench.release(bench.lease(SLOTS, "next"))
    bench.pause(SLOTS, SECOND_US)  # jobs that hold a slot continue to run
    assert bench.renew(dead) == [True]
    assert _slots_in_use(bench, SLOTS) == 5


def test_released_slots_are_for_the_first_waiting_job(bench: Bench) -> None:
    """The first waiting job gets released slots, however many it needs; retry times are multiples of the mean hold."""
    for number in range(5):
        assert bench.decide(SLOTS, holder=f"a{number}").allowed
    bench.now_us += 5 * SECOND_US
    bench.release(*(bench.lease(SLOTS, f"a{number}", NOW_US) for number in range(5)))
    for number in range(5):
        assert bench.decide(SLOTS, holder=f"b{number}").allowed
    retries = [bench.decide(SLOTS, holder=f"w{n}", job=f"w{n}").retry_us - bench.now_us for n in range(3)]
    assert retries == [SECOND_US, 2 * SECOND_US, 3 * SECOND_US]
    for n in range(3):
        bench.forget(SLOTS, job=f"w{n}")
    for holder, cost in (("large", 2), ("small", 1)):
        assert not bench.decide(SLOTS, holder=holder, job=holder, cost=cost).allowed
    bench.release(bench.lease(SLOTS, "b0"))
    assert bench.woken_jobs(SLOTS) == []
    bench.release(bench.lease(SLOTS, "b1"))
    assert bench.woken_jobs(SLOTS) == ["large"]
    assert bench.decide(SLOTS, holder="new").reason is Reason.IN_LINE
    assert bench.decide(SLOTS, holder="large", job="large", cost=2).allowed


def _hold_all(bench: Bench, holds: int, us: int = SECOND_US) -> int:
    """Hold all adaptive slots for *us*, until *holds* holds have ended; return how many were held in the last round."""
    most = number = 0
    while number < holds:
        names, granted_us = [f"h{number}#{each}" for each in range(10)], bench.now_us
        held = [each for each in names if bench.decide(ADAPTS, holder=each).allowed]
        bench.now_us += us
        bench.release(*(bench.lease(ADAPTS, each, granted_us) for each in held))
        most = len(held)
        number += most
    return most


def test_adaptive_slots_follow_the_hold_times(bench: Bench) -> None:
    """Slots double from the minimum; a refusal, a time-out and an expired lease each remove slots once."""
    assert (_hold_all(bench, 16), _hold_all(bench, 16), _hold_all(bench, 200)) == (2, 4, 9)
    bench.reset(ADAPTS)
    for us in (20 * SECOND_US, LEASE_US):
        assert _hold_all(bench, 70) == 9
        granted_us = bench.now_us
        assert bench.decide(ADAPTS, holder="late").allowed
        bench.now_us += us
        bench.release(bench.lease(ADAPTS, "late", granted_us))
        assert [bench.decide(ADAPTS, holder=f"{us}-{n}").allowed for n in range(9)] == [True] * 8 + [False]
        bench.reset(ADAPTS)
    assert _hold_all(bench, 140) == 9
    granted_us = bench.now_us
    bench.now_us += SECOND_US
    for _ in range(5):  # refusals of jobs that were admitted before the first refusal
        bench.store.slow([Slowing(bench.claim(ADAPTS), Drop(granted_us))], now_us=bench.now_us)
    assert [bench.decide(ADAPTS, holder=f"n{n}").allowed for n in range(9)] == [True] * 8 + [False]
    plain = Concurrency(NAME, 9, lease=30)
    assert bench.decide(plain, holder="of a process that does not adapt").allowed


def test_workflows_hold_a_slot_from_job_to_job(bench: Bench) -> None:
    """
    A workflow holds its slot until it is done, or for a lease after its last job. Jobs of a workflow with a slot are
    admitted before waiting jobs.
    """

    def decide(workflow: str, **options: Any) -> Answer:
        return bench.decide(WORKFLOWS, holder=workflow_name(workflow), **options)

    def lease(workflow: str, *, done: bool = False) -> Lease:
        found: Any = bench.lease(WORKFLOWS, workflow_name(workflow))
        return replace(found, algorithm=replace(found.algorithm, lease_us=0)) if done else found  # type: ignore[no-any-return]

    for _ in range(2):
        assert [decide(each).allowed for each in "abc"] == [True, True, False]
        bench.release(lease("a"))
    assert _slots_in_use(bench, WORKFLOWS) == 2
    for id, workflow in (("first", "c"), ("second", "c"), ("last", "d")):
        assert not decide(workflow, job=id).allowed
    assert decide("a", job="admitted").allowed
    bench.release(lease("a", done=True))
    assert bench.woken_jobs(WORKFLOWS)[0] == "first"
    assert [decide("c", job=id).allowed for id in ("first", "second")] == [True, True]
    assert bench.renew(lease("a")) == [False]
    bench.pause(WORKFLOWS, SECOND_US)
    assert decide("c", job="third").reason is Reason.PAUSED
    bench.now_us += LEASE_US - 1
    bench.release(lease("c"))
    bench.now_us += 2
    assert _slots_in_use(bench, WORKFLOWS) == 1, "the end of a job renews the lease"
