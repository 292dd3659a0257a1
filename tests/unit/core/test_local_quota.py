"""Prefetched units as arithmetic: the bound holds in every case, and how many units are prefetched."""

from __future__ import annotations

import heapq
import random
from collections.abc import Generator
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.faults import histories
from throttlekit import TokenBucket
from throttlekit._core.algorithms.gcra import Tat
from throttlekit._core.local_quota import LocalQuota, PrefetchQuota

START_US = 1_800_000_000_000_000
MS = 1_000
LEASE = PrefetchQuota(50, 250 * MS)
PLENTY = 10_000


@dataclass
class Fleet:
    """Processes with several threads, one bucket, and a slow network. A process may die."""

    limit: TokenBucket
    random: random.Random
    tat: Tat | None = None
    spent: list[tuple[int, int]] = field(default_factory=list)
    """(time, units), in true time."""
    charged: int = 0
    requests: int = 0
    most_left: int = 0
    requested_us: dict[int, int] = field(default_factory=dict)
    """When the units of each quota were requested, in true time."""
    oldest_us: int = 0
    """The longest time between that request and the use of a unit."""
    events: list[tuple[int, int, Generator[int, int, None]]] = field(default_factory=list)

    def run(
        self, until_us: int, quota: LocalQuota, offset_us: int, costs: list[int], gap_us: int
    ) -> Generator[int, int, None]:
        """Simulate one thread: yield how long to wait, and receive the time."""
        now_us = yield self.random.randrange(gap_us)
        while now_us < until_us:
            cost, requested_us, local_us = self.random.choice(costs), now_us, now_us + offset_us
            if quota.spend(cost, local_us):
                self.spent.append((now_us, cost))
                self.oldest_us = max(self.oldest_us, now_us - self.requested_us[id(quota)])
            else:
                ahead = quota.units_to_prefetch(cost, local_us)
                if ahead:
                    quota.begin(local_us)
                now_us = yield self.delay_us()
                allowed, remaining = self.decide(now_us, cost, ahead)
                now_us = yield self.delay_us()
                if ahead:
                    quota.end_request()
                if ahead and allowed:
                    quota.record_lease(ahead, cost, local_us, now_us + offset_us, remaining)
                    self.requested_us[id(quota)] = requested_us
                    self.most_left = max(self.most_left, quota.left)
                elif ahead:
                    quota.record_refusal(local_us)
                else:
                    quota.record_request(cost, allowed, local_us, remaining)
            now_us = yield self.gap_us(gap_us)

    def decide(self, now_us: int, cost: int, ahead: int) -> tuple[bool, int]:
        self.requests += 1
        charge = self.limit.bind_ahead(ahead) if ahead else self.limit.bind(cost)
        allowed = charge.ready_us(self.tat, now_us) <= now_us
        if allowed:
            self.tat = charge.admit(self.tat, now_us)
            self.spent.append((now_us, cost))
            self.charged += ahead or cost
        return allowed, self.limit.bucket.remaining(0 if self.tat is None else self.tat.at_us, now_us)

    def delay_us(self) -> int:
        return self.random.choice([50, 300, 2 * MS, self.random.randrange(400 * MS)])

    def gap_us(self, usual_us: int) -> int:
        return self.random.choice([0, 0, usual_us, self.random.randrange(40 * usual_us + 1)])

    def start(self, thread: Generator[int, int, None], at_us: int) -> None:
        heapq.heappush(self.events, (at_us + next(thread), len(self.events) + self.random.randrange(10**9), thread))

    def play(self) -> None:
        while self.events:
            now_us, number, thread = heapq.heappop(self.events)
            try:
                heapq.heappush(self.events, (now_us + thread.send(now_us), number, thread))
            except StopIteration:
                continue


LIMITS = [
    TokenBucket("fast", "30000/s", burst=300, prefetch=50),
    TokenBucket("uneven", "7000/s", burst=90, prefetch=45, prefetch_for=0.02),
    TokenBucket("slow", "100/s", burst=100, prefetch=50, prefetch_for=0.25),
    TokenBucket("slower", "20/s", burst=40, prefetch=20, prefetch_for=2),
]


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.name)
@given(seed=st.integers(0, 2**64 - 1), processes=st.integers(1, 5))
def test_no_window_admits_more_than_the_bound(limit: TokenBucket, seed: int, processes: int) -> None:
    """
    In any window of length w at most `burst + (w + prefetch_for) / interval` units are spent, however slow the network,
    however many processes and threads, whatever their clocks show, and whenever they die.
    """
    chance = random.Random(seed)
    fleet = Fleet(limit, chance)
    assert limit.prefetch_quota is not None
    mean_us = limit.period_us // limit.amount + 1
    for _ in range(processes):
        quota, offset_us = LocalQuota(limit.prefetch_quota), chance.randrange(10**12)
        dies_us = START_US + chance.randrange(limit.prefetch_quota.for_us * 5)
        costs, gap_us = chance.choice([[1], [1, 3, 7]]), mean_us * chance.choice([1, 5, 30])
        for _ in range(chance.choice([1, 3])):
            fleet.start(fleet.run(min(dies_us, START_US + 300 * gap_us), quota, offset_us, costs, gap_us), START_US)
    fleet.play()
    rule = histories.leased_bucket(limit.amount, limit.period_us, limit.burst, limit.prefetch_quota.for_us)
    assert histories.check(rule, fleet.spent) is None
    assert fleet.oldest_us < limit.prefetch_quota.for_us
    assert fleet.most_left <= limit.prefetch_quota.tokens
    assert sum(units for _, units in fleet.spent) <= fleet.charged


def test_the_bound_is_reached() -> None:
    """
    The bound is reached if all prefetched units are spent just before their leases end, with the units that the bucket
    has gained since.
    """
    limit = TokenBucket("api", "200/s", burst=100, prefetch=25)
    prefetcher, tat = [LocalQuota(PrefetchQuota(25, 250 * MS)) for _ in range(4)], None
    for quota in prefetcher[:3]:
        assert limit.bind_ahead(25).ready_us(tat, START_US) == START_US
        tat = limit.bind_ahead(25).admit(tat, START_US)
        quota.record_lease(25, 1, START_US, START_US, 0)
    assert limit.bind_ahead(25).ready_us(tat, START_US) > START_US  # 25 are left, for requests of one job
    now_us = START_US + 250 * MS
    assert tat is not None
    left = limit.bucket.remaining(tat.at_us, now_us)
    spent = [(START_US, 3), *((now_us - 1, 24) for quota in prefetcher if quota.spend(24, now_us - 1)), (now_us, left)]
    assert sum(units for _, units in spent[1:]) == 72 + 75
    assert not any(quota.spend(1, now_us) for quota in prefetcher)
    for burst, holds in ((100, True), (99, False)):
        rule = histories.leased_bucket(200, 1000 * MS, burst, 250 * MS)
        assert (histories.check(rule, [(now_us - 1, 3), *spent[1:]]) is None) is holds


def filled_quota(units: int, *, cost: int = 1) -> LocalQuota:
    """Return a quota that has just got *units*, of which the first job used *cost*."""
    quota = LocalQuota(LEASE)
    quota.record_lease(units, cost, START_US, START_US, PLENTY)
    return quota


def test_units_can_be_spent_until_the_lease_ends() -> None:
    """The lease is counted from the time of the request, to the microsecond."""
    quota = filled_quota(10)
    assert quota.spend(1, START_US + LEASE.for_us - 1)
    assert not quota.spend(1, START_US + LEASE.for_us)
    assert quota.left == 8


def test_units_are_spent_all_or_none() -> None:
    """A cost that exceeds the remaining units takes nothing."""
    quota = filled_quota(10, cost=7)
    assert not quota.spend(4, START_US)
    assert quota.spend(3, START_US)
    assert not quota.spend(1, START_US)


def test_first_request_is_for_one_job_only() -> None:
    """A process that has just started prefetches nothing, and neither does one with a request once in a while."""
    quota = LocalQuota(LEASE)
    assert quota.units_to_prefetch(1, START_US) == 0
    for second in range(5):
        quota.record_request(1, True, START_US + second * 1000 * MS, PLENTY)
    assert quota.units_to_prefetch(1, START_US + 5000 * MS) == 0


def test_prefetched_amount_doubles_up_to_the_maximum() -> None:
    """A process that keeps requesting takes 2, 4, 8 … units, and soon `prefetch`."""
    quota, now_us, sizes = LocalQuota(LEASE), START_US, list[int]()
    quota.record_request(1, True, now_us, PLENTY)
    for _ in range(8):
        now_us += 100
        sizes.append(quota.units_to_prefetch(1, now_us))
        quota.record_lease(sizes[-1], 1, now_us, now_us, PLENTY)
        while quota.spend(1, now_us):
            now_us += 100
    assert sizes == [2, 4, 8, 16, 32, 50, 50, 50]


def test_a_process_takes_what_it_spends_in_half_a_lease() -> None:
    """At 80 jobs a second and a lease of 0.25 s it takes 10 at a time, so that none goes unused."""
    quota, taken = LocalQuota(LEASE), list[int]()
    for now_us in range(START_US, START_US + 2_000 * MS, 12_500):
        if quota.spend(1, now_us):
            continue
        if units := quota.units_to_prefetch(1, now_us):
            quota.record_lease(units, 1, now_us, now_us, PLENTY)
            taken.append(units)
        else:
            quota.record_request(1, True, now_us, PLENTY)
    assert len(taken) >= 12
    assert set(taken[4:]) == {10}


def test_never_more_than_half_of_what_is_left() -> None:
    """
    A prefetch, also the first one, takes at most half of the remaining units that the last reply reported, and leaves
    the rest to other processes.
    """
    quota = LocalQuota(LEASE)
    quota.record_request(10, True, START_US, 8)
    assert quota.units_to_prefetch(1, START_US + 1) == 4
    quota.record_lease(40, 1, START_US, START_US, 31)
    while quota.spend(1, START_US + 100):
        pass
    assert quota.units_to_prefetch(1, START_US + 200) == 15
    assert TokenBucket("api", "30000/s", burst=300).bind_ahead(15).ready_us(Tat(START_US), START_US) == START_US


@pytest.mark.parametrize("large", [1, 4])
def test_small_processes_get_what_they_need(large: int) -> None:
    """
    While the total demand is below the rate, no request is denied: neither of the processes that prefetch, nor of one
    that requests a unit now and then. Few units go unused.
    """
    limit = TokenBucket("api", "1000/s", burst=100, prefetch=50)
    fleet = Fleet(limit, random.Random(1))
    prefetcher, small = [LocalQuota(LEASE) for _ in range(large)], LocalQuota(LEASE)
    wanted = 0
    for tick in range(8_000):
        now_us = START_US + tick * 1_250
        for quota in [prefetcher[tick % large], *[small] * (tick % 40 == 7)]:
            wanted += 1
            if quota.spend(1, now_us):
                continue
            ahead = quota.units_to_prefetch(1, now_us)
            allowed, remaining = fleet.decide(now_us, 1, ahead)
            if ahead and allowed:
                quota.record_lease(ahead, 1, now_us, now_us, remaining)
                continue
            if ahead:
                quota.record_refusal(now_us)
                allowed, remaining = fleet.decide(now_us, 1, 0)
            assert allowed
            quota.record_request(1, allowed, now_us, remaining)
    assert fleet.requests < wanted / 8
    assert fleet.charged < wanted * 1.02


def test_denial_is_followed_by_plain_requests() -> None:
    """While other jobs wait, or no unit is left, each job needs one request: nothing is prefetched for one lease."""
    quota = filled_quota(1)
    quota.record_request(1, False, START_US, PLENTY)
    quota.record_request(1, True, START_US + 100, PLENTY)
    assert quota.units_to_prefetch(1, START_US + 200) == 0
    assert quota.units_to_prefetch(1, START_US + LEASE.for_us - 1) == 0
    quota.record_request(1, True, START_US + LEASE.for_us, PLENTY)
    assert quota.units_to_prefetch(1, START_US + LEASE.for_us + 100) == 2


def test_no_thread_prefetches_while_another_does() -> None:
    """A quota holds at most one lease, with any number of threads."""
    quota = filled_quota(20)
    while quota.spend(1, START_US):
        pass
    assert quota.units_to_prefetch(1, START_US + 100) == 40
    quota.begin(START_US + 100)
    assert quota.units_to_prefetch(1, START_US + 101) == 0
    quota.end_request()
    assert quota.units_to_prefetch(1, START_US + 101) == 40
    quota.begin(START_US + 100)  # this request never ends
    assert quota.units_to_prefetch(1, START_US + 99 + LEASE.for_us) == 0
    assert quota.units_to_prefetch(1, START_US + 100 + LEASE.for_us) > 0


def test_nothing_is_prefetched_while_there_is_enough() -> None:
    """A thread prefetches nothing if another thread has filled the quota since: those units would be lost."""
    quota = filled_quota(20)
    assert quota.units_to_prefetch(19, START_US + 100) == 0
    assert quota.units_to_prefetch(20, START_US + 100) == 40


def test_a_cost_as_large_as_the_lease_is_requested_by_itself() -> None:
    """If a job's cost would leave nothing for other jobs, nothing is prefetched."""
    quota = filled_quota(50)
    while quota.spend(1, START_US):
        pass
    assert quota.units_to_prefetch(49, START_US + 100) == 50
    assert quota.units_to_prefetch(50, START_US + 100) == 0
    assert quota.units_to_prefetch(51, START_US + 100) == 0


@pytest.mark.parametrize(("after_us", "left"), [(200, 40), (LEASE.for_us - 1, 40), (LEASE.for_us, 20)])
def test_remaining_units_are_spent_with_the_next_lease(after_us: int, left: int) -> None:
    """
    Costs that do not fit evenly lose nothing: the rest of the last lease is used with the next one. It is lost if the
    last lease has ended, even while the next one was requested.
    """
    quota = filled_quota(50, cost=30)
    quota.record_lease(50, 30, START_US + 100, START_US + after_us, PLENTY)
    assert quota.left == left


def test_units_are_put_back_into_their_own_lease() -> None:
    """Units that were not needed can be spent again while their lease lasts, and not as part of a later one."""
    quota = filled_quota(10)
    until_us = quota.until_us
    assert quota.spend(4, START_US)
    quota.put_back(4, until_us)
    assert quota.left == 9
    assert quota.spend(9, START_US)
    quota.record_lease(10, 1, START_US + 5, START_US + 5, PLENTY)
    quota.put_back(9, until_us)
    assert quota.left == 9


def test_an_emptied_quota_stays_empty() -> None:
    """Emptying a quota discards its remaining units, and no units can be put back into it."""
    quota = filled_quota(10)
    until_us = quota.until_us
    quota.empty()
    assert (quota.left, quota.until_us) == (0, 0)
    quota.put_back(1, until_us)
    assert quota.left == 0
    assert not quota.spend(1, START_US)


def test_returning_units_would_break_the_bound() -> None:
    """
    Prefetched units are not returned, because that would break the bound. The rate is 1/s, the burst 100, a lease 10 s.
    Process a takes a burst at 0 and returns it at 10; c takes it again, and spends it at 20. In the same moment all
    units gained since 5 are spent, because b returned at 15 what it had taken at 5.
    """
    limit = TokenBucket("api", "1/s", burst=100)
    tat = limit.bind(100).admit(None, START_US)  # a takes all
    tat = limit.bind(5).admit(tat, START_US + 5_000 * MS)  # b takes what was gained
    tat = limit.bind(1).settle(tat, START_US + 10_000 * MS, START_US, -limit.bind(100).size)  # a returns its units
    tat = limit.bind(100).admit(tat, START_US + 10_000 * MS)  # c takes all
    tat = limit.bind(1).settle(tat, START_US + 15_000 * MS, START_US, -limit.bind(5).size)  # b returns its units
    now_us = START_US + 20_000 * MS
    left = limit.bucket.remaining(tat.at_us, now_us) if tat is not None else 0
    spent = [(now_us, 100), (now_us, left)]  # c spends what it has just before its lease ends; others take the rest
    assert histories.check(histories.leased_bucket(1, 1000 * MS, 100, 10_000 * MS), spent) is not None


def test_units_that_were_put_back_are_not_counted_as_spent() -> None:
    """A process prefetches according to what it has spent, as soon as its lease has ended."""
    quota = filled_quota(10, cost=0)
    assert quota.spend(9, START_US)
    assert quota.units_to_prefetch(1, quota.until_us) == 5
    quota.put_back(9, quota.until_us)
    assert quota.units_to_prefetch(1, quota.until_us) == 0


def test_requests_during_a_prefetch_count_as_spent() -> None:
    """Plain requests while another thread prefetches are part of what the process will need."""
    quota = filled_quota(10, cost=10)
    quota.begin(START_US + 1)
    quota.record_request(9, True, START_US + 2, PLENTY)
    quota.end_request()
    assert quota.units_to_prefetch(1, START_US + 250 * MS) == 5


def test_quota_starts_over_after_a_denial() -> None:
    """After a denial, earlier amounts do not count: the next request is for one job only."""
    quota = LocalQuota(LEASE)
    quota.record_request(10, True, START_US, PLENTY)
    quota.record_refusal(START_US - 200 * MS)
    assert quota.units_to_prefetch(1, START_US + 50 * MS) == 0
