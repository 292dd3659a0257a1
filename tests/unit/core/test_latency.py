"""Slots that adapt to latency: between floor and amount for every input, and close to what downstream can handle."""

from __future__ import annotations

import asyncio
import json
import random
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.partner.queueing import Ours, Partner, constant, even, happen, spread, stepped, two_kinds
from throttlekit import AsyncLimiter, ByLatency, Concurrency, ConfigurationError, Job, Limiter, TokenBucket
from throttlekit._core.algorithms.concurrency import AdaptiveConcurrencyAlgorithm, ConcurrencyAlgorithm, Holders
from throttlekit._core.latency import (
    EVERY,
    LONGEST_HOLD_US,
    REMEMBERED_US,
    Gauge,
    apply_drop,
    measure_hold,
    round_of,
    slots_of,
)
from throttlekit._core.limit.change import change_rate, scale_rate
from throttlekit._core.serialize import dump, load, load_in_force, plain
from throttlekit.adapter.body import decision_from_receipt, receipt, running
from throttlekit.stores import MemoryStore
from throttlekit.stores.memory import _KEPT_US  # pyright: ignore[reportPrivateUsage]
from throttlekit.testing import FakeClock

NOW_US = 1_800_000_000_000_000
HOUR_US = 3_600_000_000
LLM = Concurrency("llm", 40, adapt=ByLatency(floor=2))


def holders_of(store: MemoryStore) -> Holders:
    """Return the state of the only limit of slots in *store*."""
    (held,) = [value for value, _ in store._values.values() if isinstance(value, Holders)]
    return held


def gauge_of(store: MemoryStore) -> Gauge:
    gauge = holders_of(store).gauge
    assert gauge is not None
    return gauge


def rounds(gauge: Gauge | None, *means_us: int, used: int | None = None, floor: int = 2, most: int = 40) -> Gauge:
    """Return the gauge after one round for each of *means_us*, with all slots in use."""
    for mean_us in means_us:
        slots, before = slots_of(gauge, floor, most), gauge
        while gauge is None or gauge is before or gauge.skip or gauge.holds:
            gauge = measure_hold(gauge, mean_us, slots if used is None else used, floor, most, NOW_US)
    assert gauge is not None
    return gauge


# The rule


def test_slots_start_at_the_floor_and_double_until_a_round_is_slower() -> None:
    """
    The number of slots starts at the floor and doubles with each round; after a slower round it grows by a sixteenth.
    """
    assert slots_of(None, 2, 40) == 2
    assert rounds(None, 100).slots == 4
    assert rounds(None, 100, 100, 100).slots == 16
    slower = rounds(None, 100, 100, 100, 120)
    assert (slower.slots, slower.fell_us) == (16, NOW_US), "slower, and not yet congested"
    assert rounds(slower, 100).slots == 17, "no more doubling"


def test_congested_round_reduces_the_slots_to_the_sustained_load() -> None:
    """A round with holds more than 1.3 times as long as the base reduces the slots in proportion, at most to a half."""
    assert rounds(None, 100, 100, 100, 200).slots == 8, "half of 16: 16 x 0.9 x 100 / 200 is less"
    assert rounds(None, 100, 100, 100, 150).slots == 10
    assert rounds(None, 100, 100, 100, 130).slots == 16, "130 is the most that is not congested"


def test_spread_of_the_holds_is_no_congestion() -> None:
    """A round whose mean is higher only because its holds differ much does not reduce the slots."""
    gauge = rounds(None, 100, 100, 100, 100)
    while gauge.skip:
        gauge = measure_hold(gauge, 100, 32, 2, 40, NOW_US)
    for number in range(round_of(32, doubles=True)):
        gauge = measure_hold(gauge, 1000 if number % 6 == 0 else 10, 32, 2, 40, NOW_US)
    assert gauge.slots >= 32, "the mean is 180, and the error some 50"


def test_no_growth_while_the_slots_are_not_all_in_use() -> None:
    """The number of slots does not grow in rounds that never used all slots."""
    gauge = rounds(None, 100, 100)
    assert rounds(gauge, *[50] * 40, used=7).slots == 8
    assert rounds(gauge, 50, used=8).slots == 16


def test_some_rounds_measure_the_base_with_fewer_slots() -> None:
    """One round in 16 uses fewer slots, and moves the base halfway to the duration that it measures."""
    gauge, seen = rounds(None, 100, 100, 120), list[int]()
    for _ in range(2 * EVERY):
        gauge = rounds(gauge, 110)
        seen.append(slots_of(gauge, 2, 40))
    low = [after for before, after in pairwise(seen) if after < before]
    assert len(low) == 2
    assert gauge.base_us == 107, "100, halfway to 110, twice"


def test_base_adapts_at_the_floor() -> None:
    """If jobs become longer for good, the slots fall to the floor, and rise again from there."""
    gauge = rounds(None, 100, 100, 100)
    for _ in range(60):
        gauge = rounds(gauge, 300)
    assert gauge.slots == 40
    assert gauge.base_us > 280


def test_drop_takes_a_tenth_once_per_overload() -> None:
    """A drop reduces the slots by a tenth; drops of jobs that were granted before the last one change nothing."""
    gauge = rounds(None, 100, 100, 100)
    lower = apply_drop(gauge, NOW_US - 5, 2, 40, NOW_US)
    assert lower is not None
    assert (lower.slots, lower.fell_us) == (14, NOW_US)
    assert apply_drop(lower, NOW_US - 1, 2, 40, NOW_US + 1) is lower
    for granted_us, slots in [(NOW_US, 12), (None, 12)]:
        again = apply_drop(lower, granted_us, 2, 40, NOW_US + 1)
        assert again is not None
        assert again.slots == slots
    assert apply_drop(None, None, 2, 40, NOW_US) is None, "nothing is below the floor"


def test_clock_that_steps_back_is_harmless() -> None:
    """If the clock steps back, a drop counts once, and a hold whose length is unknown is not measured."""
    gauge = rounds(None, 100, 100, 100)
    lower = apply_drop(gauge, None, 2, 40, NOW_US)
    earlier_us = NOW_US - HOUR_US
    again = apply_drop(lower, earlier_us - 5, 2, 40, earlier_us)
    assert again is not None
    assert (again.slots, again.fell_us) == (12, earlier_us), (
        "the drop counts, and the next one belongs to the same overload"
    )
    assert apply_drop(again, earlier_us - 5, 2, 40, earlier_us + 1) is again
    slots = AdaptiveConcurrencyAlgorithm(1, 9, 30_000_000, "a", 2)
    held = slots.admit(None, NOW_US)
    after = slots.release(held, earlier_us, NOW_US)
    assert after is not None
    assert after.gauge is None, "a hold of unknown length"


_ENDS = st.tuples(
    st.sampled_from(["hold", "hold", "hold", "drop"]),
    st.integers(-(10**14), 10**14),
    st.integers(0, 50),
    st.integers(1, 60),
)


@given(st.lists(_ENDS, max_size=60), st.integers(1, 30), st.integers(0, 30), st.randoms(use_true_random=False))
def test_slots_stay_between_floor_and_amount(
    ends: list[tuple[str, int, int, int]], floor: int, above: int, rnd: random.Random
) -> None:
    """The bounds hold for every input and every clock, and if the amount changes in between."""
    gauge: Gauge | None = None
    for what, at_us, used, times in ends:
        most = floor + rnd.choice([above, above, above // 2, 0])
        for _ in range(times):
            if what == "drop":
                gauge = apply_drop(gauge, rnd.choice([None, at_us]), floor, most, NOW_US + at_us // 7)
            else:
                gauge = measure_hold(gauge, max(1, abs(at_us)), used, floor, most, NOW_US + at_us)
            assert floor <= slots_of(gauge, floor, most) <= most
        if gauge is not None:
            assert all(0 <= number < 2**53 for number in gauge), "a store's numbers are doubles"
            assert gauge.sum_us <= gauge.holds * LONGEST_HOLD_US


# Downstream


@pytest.mark.parametrize(
    ("partner", "use", "longer"),
    [
        (Partner(constant(20), even), 0.95, 1.25),
        (Partner(constant(20), spread(0.3)), 0.94, 1.4),
        (Partner(constant(3), spread(0.3)), 0.93, 1.5),
        (Partner(stepped(20, 10, 20), even), 0.9, 1.3),
        (Partner(constant(20), spread(1.0)), 0.9, 1.8),
        (Partner(constant(20), two_kinds), 0.8, 2.0),
        (Partner(constant(20), lambda rnd, at: 0.15 if 1 / 3 < at < 2 / 3 else 0.1), 0.9, 1.3),
    ],
    ids=["even", "noise", "three slots", "halved, then doubled", "much noise", "two kinds", "longer by nature"],
)
def test_partner_is_used_and_its_queue_stays_short(partner: Partner, use: float, longer: float) -> None:
    """
    With partners of any capacity and noise, most of the capacity is used, and calls take little longer than without a
    queue.
    """
    found = happen(Ours(2, 40), partner, 120)
    assert found.use >= use, found
    assert found.longer <= longer, found


def test_partner_that_refuses_excess_requests_gets_few() -> None:
    """A partner that refuses calls beyond its capacity refuses at most 10 in the simulation, and is well used."""
    found = happen(Ours(2, 40), Partner(constant(20), spread(0.3), refuses=True), 120)
    assert found.use >= 0.88, found
    assert found.refused <= 10, found


def test_all_slots_are_used_if_downstream_can_handle_them() -> None:
    """If the partner serves more calls than there are slots, the number of slots rises to nearly all."""
    found = happen(Ours(2, 40), Partner(constant(100), spread(0.5)), 120)
    assert found.slots >= 36, found


def test_light_load_needs_no_more_slots() -> None:
    """While fewer jobs arrive than the partner can serve, the number of slots stays low."""
    found = happen(Ours(2, 40), Partner(constant(40), even, load=30), 60)
    assert found.slots <= 16, found


# In a store


def hold_all(limiter: Limiter, clock: FakeClock, limit: Concurrency, seconds: float, times: int) -> int:
    """Hold all free slots for *seconds*, *times* times; return how many there were in the last round."""
    held = 0
    for _ in range(times):
        decisions = []
        while decision := limiter.acquire(limit):
            decisions.append(decision)
        held = len(decisions)
        clock.advance(seconds)
        for decision in decisions:
            limiter.release(decision)
    return held


def test_limiter_has_more_slots_as_holds_stay_short(limiter: Limiter, clock: FakeClock) -> None:
    """
    A limiter begins with the floor, reaches all slots while holds stay short, and has fewer when they become longer.
    """
    assert hold_all(limiter, clock, LLM, 0.1, 1) == 2
    assert hold_all(limiter, clock, LLM, 0.1, 120) == 40
    assert hold_all(limiter, clock, LLM, 0.2, 12) < 40


def test_slots_that_are_held_stay_held_when_fewer_are_in_use(limiter: Limiter, clock: FakeClock) -> None:
    """No slot is revoked; the next are granted once fewer are held."""
    hold_all(limiter, clock, LLM, 0.1, 60)
    decisions = []
    while decision := limiter.acquire(LLM):
        decisions.append(decision)
    clock.advance(0.1)
    limiter.report_overload(LLM)
    slots = len(decisions) * 9 // 10
    for number, decision in enumerate(decisions):
        assert bool(limiter.peek(LLM)) is (len(decisions) - number < slots)
        limiter.release(decision)


def test_limits_without_adapt_are_not_measured(limiter: Limiter, store: MemoryStore, clock: FakeClock) -> None:
    """The store keeps no measurements for a concurrency limit without `adapt=`."""
    hold_all(limiter, clock, Concurrency("db", 4), 0.1, 20)
    assert holders_of(store).gauge is None


def test_gauge_expires(limiter: Limiter, store: MemoryStore, clock: FakeClock) -> None:
    """The measured state of a limit is deleted an hour after its last job."""
    hold_all(limiter, clock, LLM, 0.1, 60)
    assert gauge_of(store).slots > 2
    clock.advance((REMEMBERED_US + _KEPT_US) / 1e6 - 0.01)
    assert limiter.peek(LLM).allowed
    assert store._get(next(iter(store._values)), clock()) is not None
    clock.advance(0.02)
    assert store._get(next(iter(store._values)), clock()) is None


def test_hold_that_reaches_its_timeout_is_a_drop(limiter: Limiter, store: MemoryStore, clock: FakeClock) -> None:
    """A hold that lasts for `timeout=` reduces the slots by a tenth."""
    limit = Concurrency("llm", 40, adapt=ByLatency(2, timeout=timedelta(seconds=1)))
    hold_all(limiter, clock, limit, 0.999, 80)
    before = gauge_of(store).slots
    slow = limiter.acquire(limit)
    clock.advance(1)
    limiter.release(slow)
    assert gauge_of(store).slots == before * 9 // 10


def test_cancelled_decision_is_not_measured(limiter: Limiter, store: MemoryStore, clock: FakeClock) -> None:
    """No job ran: neither the mean, which paces waiting jobs, nor the slots in use take it into account."""
    decision = limiter.acquire(LLM)
    clock.advance(0.001)
    limiter.cancel(decision)
    held = holders_of(store)
    assert (held.leases, held.mean_us, held.gauge) == ((), 0, None)


@pytest.mark.parametrize("way", ["body", "receipt", "hold", "async hold"])
def test_every_way_to_hold_a_slot_is_measured(limiter: Limiter, store: MemoryStore, clock: FakeClock, way: str) -> None:
    """Holds are measured in the process that admitted the job, in another that reads its receipt, and without a job."""

    async def hold_async() -> None:
        async with AsyncLimiter(limiter).hold(LLM):
            clock.advance(0.5)

    if way == "hold":
        with limiter.hold(LLM):
            clock.advance(0.5)
    elif way == "async hold":
        asyncio.run(hold_async())
    else:
        decision = limiter.acquire(LLM, job=Job(id="j"))
        if way == "receipt":
            decision = decision_from_receipt(json.loads(json.dumps(receipt(decision))))
        with running(limiter, decision):
            clock.advance(0.5)
    gauge = gauge_of(store)
    assert (gauge.sum_us, gauge.holds, gauge.peak) == (500_000, 1, 1)


def test_worker_that_dies_is_a_drop(limiter: Limiter, store: MemoryStore, clock: FakeClock) -> None:
    """Leases that end without a release reduce the slots by a tenth, once for all leases of one process."""
    hold_all(limiter, clock, LLM, 0.1, 60)
    before = gauge_of(store).slots
    for _ in range(3):
        assert limiter.acquire(LLM)
    clock.advance(30)
    assert limiter.acquire(LLM)
    assert gauge_of(store).slots == before * 9 // 10, "three lost leases of one process are one drop"


def test_slot_of_a_request_that_another_limit_denied_is_not_measured(
    limiter: Limiter, store: MemoryStore, clock: FakeClock
) -> None:
    """A slot that was returned at once because another limit denied does not change the measurements."""
    hold_all(limiter, clock, LLM, 0.1, 3)
    before = gauge_of(store)
    limiter.acquire(LLM, TokenBucket("rate", "1/h"))
    assert not limiter.acquire(LLM, TokenBucket("rate", "1/h"))
    assert gauge_of(store) == before


def test_renewal_takes_no_slot_beyond_those_in_use() -> None:
    """
    The renewal of a lost slot fails while other jobs hold all slots in use, although the declared amount is higher.
    """
    slots = AdaptiveConcurrencyAlgorithm(1, 9, 1_000_000, "late", 2)
    other = AdaptiveConcurrencyAlgorithm(1, 9, 1_000_000, "other", 2)
    third = AdaptiveConcurrencyAlgorithm(1, 9, 1_000_000, "third", 2)
    state = third.admit(other.admit(None, NOW_US), NOW_US)
    assert slots.renew(state, NOW_US) == (state, False)
    assert ConcurrencyAlgorithm(1, 9, 1_000_000, "late").renew(state, NOW_US)[1], "a limit without adapt has all nine"


def test_waiting_jobs_are_paced_by_the_slots_in_use() -> None:
    """The pace of waiting jobs is the mean hold divided by the number of slots in use."""
    slots = AdaptiveConcurrencyAlgorithm(1, 100, 30_000_000, "a", 2)
    state = Holders(mean_us=1_000_000, gauge=Gauge(4))
    assert slots.pace_us(state, NOW_US) == 250_000
    assert slots.there(state, NOW_US) == 4


# The limit


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ByLatency(0), "at least 1"),
        (lambda: ByLatency(True), "at least 1"),
        (lambda: ByLatency("2"), "at least 1"),  # type: ignore[arg-type]
        (lambda: ByLatency(2, timeout=0), "0.01"),
        (lambda: ByLatency(2, timeout=float("nan")), "0.01"),
        (lambda: ByLatency(2, timeout=timedelta(days=2)), "86400"),
        (lambda: Concurrency("llm", 4, adapt=ByLatency(5)), "above the 4 slots"),
        (lambda: Concurrency("llm", {"a": 9, "b": 2}, tier="{t}", adapt=ByLatency(3)), "above the 2 slots"),
        (lambda: Concurrency("llm", 4, adapt=2), "ByLatency"),  # type: ignore[arg-type]
        (lambda: TokenBucket("llm", "4/s", adapt=ByLatency(2)), "Adapt"),
    ],
)
def test_invalid_options_are_refused(make: Any, text: str) -> None:
    """An invalid floor or timeout, or an `adapt=` of the wrong kind, raises a ConfigurationError."""
    with pytest.raises(ConfigurationError, match=text):
        make()


def test_adapt_is_a_value_and_no_part_of_the_definition() -> None:
    """`ByLatency` objects compare by value, and change equality and repr of a limit, but not its fingerprint."""
    assert ByLatency(2) == ByLatency(2)
    assert ByLatency(2, timeout=3) == ByLatency(2, timeout=timedelta(seconds=3)) != ByLatency(2)
    assert repr(LLM.adapt) == "ByLatency(2)"
    assert repr(ByLatency(2, timeout=9.5)) == "ByLatency(2, timeout=9.5)"
    assert "adapt=ByLatency(2)" in repr(LLM)
    assert LLM.fingerprint == Concurrency("llm", 40).fingerprint
    assert LLM.definition == Concurrency("llm", 40).definition
    assert Concurrency("llm", 40) != LLM


def test_adapt_is_serialized_with_the_limit() -> None:
    """A limit in a message keeps its `adapt=`; data that throttlekit did not write is refused."""
    limit = Concurrency("llm", 40, adapt=ByLatency(2, timeout=1.5))
    data = dump(limit, Job(name="j"))
    assert data["adapt"] == [2, 1_500_000]
    assert load(data).bind(1) == limit.bind(1)
    assert load(dump(LLM, Job(name="j"))).adapt == LLM.adapt
    assert "adapt" not in dump(Concurrency("llm", 40), Job(name="j"))
    for wrong in ([0, 0], [2], [2, "x"], [2, 0.5], [2, -1], "x", 7):
        with pytest.raises(ConfigurationError):
            load({**data, "adapt": wrong})


def test_set_and_scaled_amounts_bound_the_floor() -> None:
    """The floor is absolute, and never above the amount in force."""
    for made, floor, amount in [
        (change_rate(LLM, 10), 2, 10),
        (change_rate(LLM, 1), 1, 1),
        (scale_rate(LLM, 500), 2, 20),
        (scale_rate(LLM, 25), 1, 1),
    ]:
        algorithm: Any = load_in_force(plain(made, "", 1)).bind(1)
        assert (algorithm.floor, algorithm.amount) == (floor, amount)
    varying = Concurrency("llm", lambda job: 1, adapt=ByLatency(2))
    assert varying.for_job(Job(name="j")).bind(1).params[2] == "1 0 "
