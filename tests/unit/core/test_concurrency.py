"""Concurrency limits: each holder has a lease, and the waitlist is paced by the duration of holds."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.claims import claim_of
from throttlekit import Concurrency, ConfigurationError, CostExceedsLimit, Decision, Job, Limiter, TokenBucket
from throttlekit._core import decide
from throttlekit._core.algorithm import STALE_US, Use
from throttlekit._core.algorithms.concurrency import ConcurrencyAlgorithm, Holders
from throttlekit._core.answer import WITHOUT_JOB
from throttlekit._core.decide import Stored
from throttlekit._core.storage_keys import with_slots
from throttlekit.stores import MemoryStore
from throttlekit.testing import FakeClock

NOW_US = 1_800_000_000_000_000
LEASE_US = 30_000_000
SLOTS = Concurrency("reports-db", 2)


def slot(holder: str, amount: int = 2, lease_us: int = LEASE_US, size: int = 1) -> ConcurrencyAlgorithm:
    return ConcurrencyAlgorithm(size, amount, lease_us, holder)


def taken(*holders: str, at_us: int = NOW_US, amount: int = 9) -> Holders:
    state: Holders | None = None
    for holder in holders:
        state = slot(holder, amount).admit(state, at_us)
    assert state is not None
    return state


def _not_listening(bucket: str, owner: str, wake: object) -> bool:
    """No job waits, so no owner is notified."""
    return False


def live_holders(state: Holders | None, now_us: int) -> list[str]:
    return [holder for holder, until_us in (state.leases if state else ()) if until_us > now_us]


# The rule


def test_holder_that_does_not_renew_is_gone_when_its_lease_ends() -> None:
    """A slot is held until the last microsecond of the lease, and not one longer."""
    state = taken("a", "b")
    assert slot("c").ready_us(state, NOW_US + LEASE_US - 1) > NOW_US + LEASE_US - 1
    assert slot("c").ready_us(state, NOW_US + LEASE_US) == NOW_US + LEASE_US


def test_only_its_holder_releases_a_slot() -> None:
    """A holder without a slot, or whose slot was already released, releases nothing."""
    state = taken("a", "b")
    assert slot("c").release(state, NOW_US, NOW_US) is state
    freed = slot("a").release(state, NOW_US, NOW_US)
    assert live_holders(freed, NOW_US) == ["b"]
    assert slot("a").release(freed, NOW_US, NOW_US) is freed
    assert slot("a").release(None, NOW_US, NOW_US) is None


def test_lost_slot_is_not_released() -> None:
    """A release after the end of the lease is not measured as a hold, and does not free another holder's slot."""
    state = taken("a", "b")
    late_us = NOW_US + LEASE_US
    assert slot("a").release(state, late_us, NOW_US) is state
    state = slot("c").admit(state, late_us)
    assert slot("a").release(state, late_us, NOW_US) is state


def test_renewed_lease_lasts_from_now_on() -> None:
    """A holder that renews in time keeps its slot for another lease."""
    state, kept = slot("a").renew(taken("a", "b"), NOW_US + LEASE_US - 1)
    assert kept
    assert live_holders(state, NOW_US + LEASE_US) == ["a"]
    assert live_holders(state, NOW_US + 2 * LEASE_US - 2) == ["a"]
    assert live_holders(state, NOW_US + 2 * LEASE_US - 1) == []


def test_slot_returned_at_once_is_not_measured() -> None:
    """A slot that is returned because another limit denied leaves the mean unchanged; a higher cost changes nothing."""
    state = taken("a", "b")
    after = slot("a").settle(state, NOW_US + 5, NOW_US, -1)
    assert after is not None
    assert (live_holders(after, NOW_US), after.mean_us) == (["b"], 0)
    assert slot("c").settle(state, NOW_US, NOW_US, -1) is state
    assert slot("a").settle(state, NOW_US, NOW_US, 1) is state
    assert slot("a").settle(None, NOW_US, NOW_US, -1) is None


def test_cost_zero_needs_no_slot() -> None:
    """A claim of size 0 is admitted even if all slots are held, and holds none."""
    state = taken("a", "b")
    look = slot("c", size=0)
    assert look.ready_us(state, NOW_US) == NOW_US
    assert look.admit(state, NOW_US) is state
    assert look.admit(None, NOW_US) is None


def test_use_counts_the_holders_until_the_last_lease_ends() -> None:
    """The units are the live holders; the time is the end of the last lease."""
    assert slot("x").use(None, NOW_US) == Use(0, NOW_US)
    assert slot("x").use(taken("a", "b"), NOW_US) == Use(2, NOW_US + LEASE_US)
    assert slot("x").use(taken("a", "b"), NOW_US + LEASE_US) == Use(0, NOW_US + LEASE_US)


# Random histories


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32), amount=st.integers(1, 4), lease_ms=st.integers(1000, 4000))
def test_never_more_than_the_amount_over_random_histories(seed: int, amount: int, lease_ms: int) -> None:
    """
    Slots are requested, released, renewed, lost and taken again, in any order. According to an independent model, never
    more than the amount are held, and a request is denied only if fewer slots are free than it needs.
    """
    rnd = random.Random(seed)
    now_us, lease_us = NOW_US, lease_ms * 1000
    state = Stored()
    model: dict[str, int] = {}
    costs: dict[str, int] = {}
    holders: list[tuple[str, int]] = []
    for number in range(120):
        now_us += rnd.choice([0, 1, rnd.randrange(lease_us // 3), rnd.randrange(1 + lease_us // amount)])
        model = {holder: until_us for holder, until_us in model.items() if until_us > now_us}
        held = sum(costs[holder] for holder in model)
        kind = rnd.random()
        if kind < 0.5 or not holders:
            cost = rnd.choice([1, rnd.randint(1, amount)])
            charge = Concurrency("x", amount, lease=lease_us / 1e6).bind(cost, 0, f"job#{number}")
            name = charge.holder
            costs[name] = cost
            verdict, (state,) = decide.decide([claim_of(charge)], [state], now_us, WITHOUT_JOB, _not_listening, "e")
            assert verdict.allowed == (held + cost <= amount)
            if verdict.allowed:
                model[name] = now_us + lease_us
                holders.append((name, now_us))
        else:
            name, granted_us = rnd.choice(holders)
            charge = slot(name, amount, lease_us)
            if kind < 0.75:
                state = Stored(charge.release(state.taken, now_us, granted_us), None)
                model.pop(name, None)
                if rnd.random() < 0.5:
                    holders.remove((name, granted_us))
            else:
                after, kept = charge.renew(state.taken, now_us)
                state = Stored(after, None)
                assert kept == (name in model or held + costs[name] <= amount)
                if kept:
                    model[name] = now_us + lease_us
        assert sorted(live_holders(state.taken, now_us)) == sorted(model)
        assert slot("x").use(state.taken, now_us).units == sum(costs[holder] for holder in model) <= amount


def test_no_slot_leaks_when_another_limit_denies() -> None:
    """
    A rate, slots, and a rate for each account in one request, over two thousand random histories of two accounts: a
    denial takes nothing from any limit, a grant takes one from each, by a model that counts units and holders itself.
    """
    rate, account = TokenBucket("rate", "2/s", burst=3), TokenBucket("account", "5/s", burst=2)
    slots, rnd, denied_by = Concurrency("slots", 3, lease=1), random.Random(6), [0, 0, 0]
    for _ in range(2_000):
        states, now_us = {name: Stored() for name in ("rate", "slots", "a", "b")}, NOW_US
        units = {"rate": (3.0, NOW_US), "a": (2.0, NOW_US), "b": (2.0, NOW_US)}
        holders: dict[str, int] = {}
        for step in range(15):
            now_us += rnd.choice([0, 0, 0, 1, 100_000, 200_000, rnd.randrange(1_200_000)])
            holders = {holder: until_us for holder, until_us in holders.items() if until_us > now_us}
            if holders and rnd.random() < 0.3:
                holder = rnd.choice([*holders])
                charge: Any = slots.bind(1, 0, holder)
                states["slots"] = Stored(charge.release(states["slots"].taken, now_us, now_us))
                del holders[holder]
                continue
            key, holder = rnd.choice("ab"), f"{step}#x"
            charges = [rate.bind(1), slots.bind(1, 0, holder), account.bind(1)]
            names = ["rate", "slots", key]
            before = [states[name] for name in names]
            verdict, after = decide.decide(
                [claim_of(each) for each in charges], before, now_us, WITHOUT_JOB, _not_listening, "e"
            )
            left = {
                name: (min(burst, units[name][0] + (now_us - units[name][1]) / interval_us), now_us)
                for name, burst, interval_us in (("rate", 3.0, 500_000), (key, 2.0, 200_000))
            }
            assert verdict.allowed == (left["rate"][0] > 0.999999 and left[key][0] > 0.999999 and len(holders) < 3)
            if verdict.allowed:
                units |= {name: (had - 1, now_us) for name, (had, _) in left.items()}
                holders[holder] = now_us + 1_000_000
            else:
                denied_by[verdict.claim] += 1
                assert [state.taken for state in after] == [state.taken for state in before]
            states |= zip(names, (Stored(state.taken) for state in after), strict=True)
            assert sorted(live_holders(states["slots"].taken, now_us)) == sorted(holders)
    assert min(denied_by) > 100, denied_by


# Clocks


def test_clock_that_steps_back_a_little_frees_no_slot() -> None:
    """
    If the clock steps back a little, leases end later than they could, but are still trusted: the slots stay held.
    """
    state = taken("a", "b")
    back_us = NOW_US - STALE_US
    assert slot("c").sanitize(state, back_us) is state
    assert slot("c").ready_us(state, back_us) > back_us


def test_clock_that_was_far_ahead_blocks_for_one_lease_at_most() -> None:
    """Leases that are far ahead end one lease from now: live holders renew theirs, the other slots become free."""
    state = taken("a", "b")
    back_us = NOW_US - STALE_US - 1
    trusted = slot("c").sanitize(state, back_us)
    assert live_holders(trusted, back_us + LEASE_US - 1) == ["a", "b"]
    assert live_holders(trusted, back_us + LEASE_US) == []


def test_clock_that_jumps_forward_ends_leases_and_renewal_takes_them_back() -> None:
    """From the end of the lease on, every slot is free; a live holder takes one again, or its renewal fails."""
    for ahead_us in (NOW_US + LEASE_US, NOW_US + 3_600_000_000):
        state, renewed = slot("a").renew(slot("c").admit(taken("a", "b"), ahead_us), ahead_us)
        assert renewed
        assert live_holders(state, ahead_us) == ["a", "c"]
        assert slot("b").renew(state, ahead_us) == (state, False)
        assert slot("b").renew(None, ahead_us)[1]


def test_longer_leases_of_an_older_definition_are_honoured() -> None:
    """While a fleet changes from a lease of ten minutes to one of a second, no holder's lease is shortened."""
    old = slot("old", lease_us=600_000_000)
    state = slot("new", lease_us=1_000_000).admit(old.admit(None, NOW_US), NOW_US)
    assert slot("x", lease_us=1_000_000).sanitize(state, NOW_US) is state
    assert live_holders(state, NOW_US + 599_999_999) == ["old"]


def test_empty_state_is_never_stale() -> None:
    """Neither a key that is not stored nor one whose holders are all gone is stale."""
    assert slot("x").sanitize(None, NOW_US) is None
    empty = Holders((), 5, NOW_US, NOW_US)
    assert slot("x").sanitize(empty, NOW_US - STALE_US) is empty


# The pace


def _hold(state: Holders | None, now_us: int, held_us: int, holder: str = "h") -> tuple[Holders | None, int]:
    charge = slot(holder, 10)
    state = charge.admit(state, now_us)
    return charge.release(state, now_us + held_us, now_us), now_us + held_us


@pytest.mark.parametrize(("before_us", "after_us"), [(20_000, 500_000), (500_000, 20_000), (1_000, 1_000_000)])
def test_mean_adapts_within_a_few_holds(before_us: int, after_us: int) -> None:
    """If holds become much longer, or shorter, the mean is within a factor of two after about ten of them."""
    state, now_us = None, NOW_US
    for _ in range(20):
        state, now_us = _hold(state, now_us, before_us)
    assert state is not None
    assert before_us * 0.9 <= state.mean_us <= before_us
    needed = 0
    while not after_us / 2 <= state.mean_us <= after_us * 2:
        state, now_us = _hold(state, now_us, after_us)
        assert state is not None
        needed += 1
    assert needed <= 12


def test_first_hold_is_the_mean() -> None:
    """The first hold that ends is used as the mean, and a hold of no time counts as a microsecond."""
    for held_us, mean_us in ((700, 700), (0, 1)):
        state, _ = _hold(None, NOW_US, held_us)
        assert state is not None
        assert state.mean_us == mean_us


@pytest.mark.parametrize(
    ("slots", "mean_us", "since_grant_us", "pace_us"),
    [
        pytest.param(10, 1_000_000, 0, 100_000, id="the mean hold divided by the number of slots"),
        pytest.param(10, 1_000, 10_000_000, 1_000_000, id="each holder has held its slot since the last grant"),
        pytest.param(1, 50_000, -1_000_000, 50_000, id="the clock has stepped back"),
        pytest.param(1, 5, 0, 1_000, id="at least a millisecond"),
        pytest.param(1, 0, 0, 100_000, id="no hold has ended"),
        pytest.param(1, 0, 1_000_000, 2_000_000, id="no hold has ended, and each is half over"),
    ],
)
def test_slots_become_free_at_the_pace_of_holds(slots: int, mean_us: int, since_grant_us: int, pace_us: int) -> None:
    """A job waits for the time in which one of the slots becomes free, and for as long again for each job ahead."""
    state, charge = taken(*"abcdefghij"[:slots], amount=slots)._replace(mean_us=mean_us), slot("x", slots)
    now_us = NOW_US + since_grant_us
    assert charge.pace_us(state, now_us) == pace_us
    assert [charge.ready_us(state, now_us, ahead) - now_us for ahead in (0, 4)] == [pace_us, 5 * pace_us]
    assert charge.pace_us(None, now_us) == 100_000 // slots


def test_pace_of_large_costs_is_that_of_jobs() -> None:
    """
    The pace counts jobs, not units: if 16 jobs of 5 000 megabytes hold their slots for 1.6 s, one ends every 0.1 s.
    """
    jobs = [slot(with_slots(f"j{number}", 5_000), 80_000, size=5_000) for number in range(17)]
    state: Holders | None = Holders(mean_us=1_600_000)
    for job in jobs[:16]:
        state = job.admit(state, NOW_US)
    waits_us = [jobs[16].ready_us(state, NOW_US, ahead) - NOW_US for ahead in (0, 5_000, 5_001)]
    assert waits_us == [100_000, 200_000, 200_020]
    assert slot("x", 80_000).ready_us(state, NOW_US) == NOW_US + 1_000


# With the limiter


def test_grant_has_a_lease_and_release_ends_it(limiter: Limiter) -> None:
    """Each decision holds its own slot, even for the same job; releasing it twice frees one slot."""
    job = Job(id="7")
    first, second = limiter.acquire(SLOTS, job=job), limiter.acquire(SLOTS, job=job)
    assert first.allowed
    assert second.allowed
    (lease,), (other,) = first.leases, second.leases
    assert lease.holder.startswith("7#")
    assert lease.holder != other.holder
    assert not limiter.acquire(SLOTS)
    limiter.release(first)
    limiter.release(first)
    assert limiter.peek(SLOTS).remaining == 1
    assert limiter.acquire(SLOTS)
    assert not limiter.acquire(SLOTS)


def test_cost_may_be_derived_from_the_job(limiter: Limiter) -> None:
    """A callable returns how many slots a job needs; a cost that can never fit raises, and says what would be right."""
    slots = Concurrency("memory", 4, cost=lambda job: job.kwargs["gb"])
    assert limiter.acquire(slots, job=Job(kwargs={"gb": 0})).leases == ()
    large = limiter.acquire(slots, job=Job(kwargs={"gb": 3}))
    assert (large.cost, large.remaining, large.leases[0].cost) == (3, 1, 3)
    assert not limiter.peek(slots, job=Job(kwargs={"gb": 2}))
    assert limiter.acquire(slots, job=Job(kwargs={"gb": 0}))
    limiter.release(large)
    assert limiter.acquire(slots, job=Job(id="next", kwargs={"gb": 4})).remaining == 0
    with pytest.raises(CostExceedsLimit, match=r"'memory' can never admit a cost of 5.*raise the amount to at least 5"):
        limiter.acquire(slots, job=Job(kwargs={"gb": 5}))


@pytest.mark.parametrize(
    ("cost", "given", "held"),
    [(1, 9, 1), (0, 9, 1), (1, 0, 0), (2, None, 2), (2, 3, 3), (2, 0, 0), (lambda job: 2, 4, 4)],
)
def test_cost_of_a_call_applies_to_slots_with_a_cost(limiter: Limiter, cost: Any, given: int, held: int) -> None:
    """The cost of a call applies to all of its limits, but a limit of slots without `cost=` counts one slot."""
    slots = Concurrency("slots", 4, cost=cost)
    decision = limiter.acquire(slots, cost=given)
    assert limiter.peek(slots, cost=0).remaining == 4 - held
    limiter.release(decision)
    assert limiter.peek(slots, cost=0).remaining == 4


@pytest.mark.parametrize("cost", [2, lambda job: 2])
def test_cost_of_a_call_that_never_fits_is_refused(limiter: Limiter, cost: Any) -> None:
    """A cost of a call that is above the amount raises the same error as for a rate."""
    with pytest.raises(CostExceedsLimit, match="raise the amount to at least 5"):
        limiter.acquire(Concurrency("slots", 4, cost=cost), cost=5)


def test_tiers_have_amounts_and_leases_of_their_own(limiter: Limiter, clock: FakeClock) -> None:
    """Each tier has its own number of slots, and its own lease."""
    plan = Concurrency("plan", {"free": 1, "pro": 3}, lease={"free": 1, "pro": 60}, tier="{tier}")
    free, pro = Job(kwargs={"tier": "free"}), Job(kwargs={"tier": "pro"})
    assert limiter.acquire(plan, job=free)
    assert not limiter.acquire(plan, job=free)
    assert [limiter.acquire(plan, job=pro).allowed for _ in range(4)] == [True, True, True, False]
    clock.advance(1)
    assert limiter.acquire(plan, job=free)
    assert not limiter.acquire(plan, job=pro)


def test_redefined_limit_keeps_its_holders(store: MemoryStore, clock: FakeClock) -> None:
    """Another amount or lease counts the holders under the old one."""
    old, new = Limiter(store), Limiter(store)
    decisions = [old.acquire(Concurrency("same", 4, lease=600)) for _ in range(4)]
    smaller = Concurrency("same", 2, lease=1)
    assert not new.acquire(smaller)
    clock.advance(200)
    assert not new.acquire(smaller), "the longer leases of the old definition are not cut short"
    for decision in decisions[:2]:
        old.release(decision)
    assert not new.acquire(smaller)
    old.release(decisions[2])
    assert new.acquire(smaller)
    assert not new.acquire(smaller)
    assert old.acquire(Concurrency("same", 4, lease=600))


@pytest.mark.parametrize("other", [Concurrency("reports-db", 3), Concurrency("reports-db", 2, lease=31)])
def test_two_definitions_in_one_process_are_an_error(limiter: Limiter, other: Concurrency) -> None:
    """One name has one amount and one lease in a process; the same twice is one limit."""
    limiter.declare(SLOTS, Concurrency("reports-db", 2, lease=30.0))
    with pytest.raises(ConfigurationError, match="the name 'reports-db' is used for two limits"):
        limiter.declare(other)
    assert other != SLOTS


@pytest.mark.parametrize("amount", [0, -1, 1.0, "8", None, True, 1_000_001, (8, 60), "8/minute"])
def test_invalid_amount_is_refused(amount: Any) -> None:
    """The error for an invalid amount names the limit, the value and what would be right."""
    with pytest.raises(ConfigurationError, match=r"'x'.*must be a whole number from 1 to 1000000, not "):
        Concurrency("x", amount)


@pytest.mark.parametrize("lease", [0, 0.999, 86_401, float("nan"), float("inf"), "30", True, -5, timedelta(0)])
def test_invalid_lease_is_refused(lease: Any) -> None:
    """The error for an invalid lease names the limit, the value and what would be right."""
    with pytest.raises(ConfigurationError, match=r"'x'.*a number of seconds from 1 to a day \(86400\), or a .*, not "):
        Concurrency("x", 8, lease=lease)


@pytest.mark.parametrize(("lease", "seconds"), [(1, 1.0), (86_400, 86_400.0), (timedelta(minutes=2), 120.0)])
def test_lease_is_seconds_or_a_timedelta(lease: Any, seconds: float) -> None:
    """A lease is a number of seconds or a timedelta, including the shortest and the longest valid lease."""
    assert Concurrency("x", 8, lease=lease).lease == seconds


def test_cost_of_more_than_the_amount_is_refused_at_once() -> None:
    """A fixed cost that no tier, or no process's part, can admit raises at the declaration."""
    assert Concurrency("x", 8, cost=8).most == 8
    with pytest.raises(CostExceedsLimit, match=r"cost of 9.*raise the amount to at least 9"):
        Concurrency("x", 8, cost=9)
    assert Concurrency("x", {"free": 2, "pro": 9}, tier="{plan}", cost=9).most == 9
    with pytest.raises(CostExceedsLimit, match="cost of 9"):
        Concurrency("x", {"free": 2, "pro": 8}, tier="{plan}", cost=9)
    with pytest.raises(ConfigurationError, match="a share of 4 at once, which never admits a cost of 5"):
        Concurrency("x", 8, cost=5, on_store_failure="local", processes=2)
    with pytest.raises(ConfigurationError, match="whole number"):
        Concurrency("x", 8, cost=1.5)  # type: ignore[arg-type]


def test_concurrency_limit_has_no_rate(limiter: Limiter) -> None:
    """Slots have no period and no RateLimit headers, and a denial says when to retry."""
    assert (SLOTS.period_us, SLOTS.capacity) == (0, 2)
    decision: Decision | None = None
    for _ in range(3):
        decision = limiter.acquire(SLOTS)
    assert decision is not None
    assert decision.headers() == {"Retry-After": "1"}
    assert repr(SLOTS) == "Concurrency('reports-db', 2, lease=30.0)"


def test_slot_is_released_not_settled(limiter: Limiter) -> None:
    """Settling a decision that only holds slots raises, and says what to do; with a rate, the rate is settled."""
    with pytest.raises(ConfigurationError, match="is released, not settled"):
        limiter.settle(limiter.acquire(SLOTS), actual=1)
    rate = TokenBucket("rate", "10/s", burst=5)
    decision = limiter.settle(limiter.acquire(rate, SLOTS), actual=3)
    assert limiter.peek(rate).remaining == 2
    limiter.release(decision)
    assert limiter.peek(SLOTS).remaining == 1
