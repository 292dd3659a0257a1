"""Adaptive slots: over long runs of holds, the script and the reference have exactly the same state."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from parity.rules import Rule, rule
from parity.waits import NOW_US, BothStores
from throttlekit import ByLatency, Concurrency
from throttlekit._core.algorithms.concurrency import Holders
from throttlekit._core.answer import WITHOUT_JOB
from throttlekit._core.latency import EVERY, LONGEST_HOLD_US, REMEMBERED_US, Drop, slots_of
from throttlekit.stores import Lease, Slowing, StoreClaim

SEEDS = (0, 14)


class _Slots:
    """The calls of this file, on both stores."""

    def __init__(self, both: BothStores) -> None:
        self._both = both

    def gauge(self, of: Rule) -> Any:
        state = self._both.read_state(of.bucket)
        return state.gauge if isinstance(state, Holders) else None

    def grant(self, at_us: int, of: Rule, holder: str) -> bool:
        claim = StoreClaim(of.bucket, of.bind(1, holder), 1)
        return self._both.run("decide", [claim], at_us, WITHOUT_JOB).allowed  # type: ignore[no-any-return]

    def lease(self, at_us: int, verb: str, lease: Lease) -> None:
        self._both.run(verb, [StoreClaim(lease.bucket, lease.algorithm, 1)], at_us, what=[lease])

    def drop(self, at_us: int, of: Rule, granted_us: int | None) -> bool:
        """Report a refusal. Return whether it changed the state."""
        claim, before = StoreClaim(of.bucket, of.bind(1), 1), self.gauge(of)
        self._both.run("slow", [claim], at_us, what=[Slowing(claim, Drop(granted_us))])
        return bool(self.gauge(of) != before)


class _Run:
    """A partner that gets slower beyond a hidden number of slots, while its callers take all slots."""

    def __init__(self, seed: int, slots: _Slots) -> None:
        self._rnd = rnd = random.Random(seed)
        self._slots, self._now_us, self._number = slots, NOW_US, 0
        self._hold_us = rnd.choice([900, 100_000, 5_000_000, LONGEST_HOLD_US])
        self._hidden, self._spread = rnd.choice([3, 8, 100]), rnd.choice([0.0, 0.3, 1.5])
        floor, amount = rnd.choice([(1, 9), (2, 40), (3, 3), (5, 12)])
        timeout = rnd.choice([None, None, min(86_400.0, max(0.01, 3e-6 * self._hold_us))])
        lease = min(86_400.0, max(1.0, 1e-6 * self._hold_us * rnd.choice([1, 8])))
        adapts = [ByLatency(floor, timeout=timeout), ByLatency(1), None]
        amounts = [amount, amount, max(floor, amount // 2), amount * 2]
        self._rules = [rule(Concurrency("x", each, lease=lease, adapt=adapts[0])) for each in amounts]
        self._rules += [rule(Concurrency("x", amount, lease=lease, adapt=each)) for each in adapts[1:]]
        self._held: list[tuple[int, str, int]] = []
        self._often = rnd.choice([0.1, 1.0])
        self.seen: set[str] = set()

    def run_holds(self, holds: int) -> None:
        rnd = self._rnd
        for _ in range(holds):
            kept = self._rules[0] if rnd.random() > 0.03 * self._often else rnd.choice(self._rules)
            while len(self._held) < 60 and self._grant(kept):
                pass
            before = self._slots.gauge(kept)
            self._end(kept)
            if rnd.random() < 0.02 * self._often:
                granted_us = rnd.choice([None, self._now_us, self._now_us - 2 * self._hold_us])
                if kept.limit.adapt is not None:
                    self.seen.add(f"drop: {self._slots.drop(self._now_us, kept, granted_us)}")
            self._watch(before, self._slots.gauge(kept))
            if rnd.random() < 0.01 * self._often:
                self._now_us += rnd.choice([-1, -1, 1]) * rnd.choice([5, self._hold_us, 100_000_000])
            if rnd.random() < 0.003:
                self._now_us += rnd.choice([kept.span_us, 3_600_000_000])

    def _grant(self, of: Rule) -> bool:
        self._number += 1
        holder = f"job%3A{self._number}#0"
        granted = self._slots.grant(self._now_us, of, holder)
        if granted:
            slower = max(1.0, len(self._held) / self._hidden) * (1 + self._spread * self._rnd.random() ** 3 * 4)
            self._held.append((self._now_us + int(self._hold_us * slower), holder, self._now_us))
        return granted

    def _end(self, of: Rule) -> None:
        if not self._held:
            return
        self._held.sort()
        until_us, holder, granted_us = self._held.pop(0)
        self._now_us = max(self._now_us, until_us)
        if self._rnd.random() < 0.01 * self._often:  # its worker is killed
            return
        renewed = [Lease(of.bucket, of.bind(1, each), at_us) for _, each, at_us in self._held[:1]]
        self._slots.lease(self._now_us, "release", Lease(of.bucket, of.bind(1, holder), granted_us))
        if self._rnd.random() < 0.2 and renewed:
            self._slots.lease(self._now_us, "renew", renewed[0])

    def _watch(self, before: Any, after: Any) -> None:
        if before is not None and after is not None:
            self.seen |= {"grew"} if after.slots > before.slots else set()
            self.seen |= {"doubled"} if after.slots >= 2 * before.slots else set()
            self.seen |= {"fell"} if after.slots < before.slots and after.fell_us else set()
            self.seen |= {"measures"} if after.rounds >= EVERY else set()
            self.seen |= {"skips"} if after.skip else set()


def test_random_holds_change_both_stores_in_the_same_way(redis_url: str, client: Any) -> None:
    """Runs have growth, reductions, measuring rounds, holds of up to a day, changed amounts and clocks that step."""
    seen: set[str] = set()
    for seed in SEEDS:
        client.flushdb()
        both = BothStores(redis_url, client)
        run = _Run(seed, _Slots(both))
        run.run_holds(900)
        both.close()
        seen |= run.seen
    assert seen >= {"grew", "doubled", "fell", "measures", "skips", "drop: False", "drop: True"}, seen


class _Batches:
    """Holds of an exact length: all slots are taken, and released as if each had been held for that time."""

    def __init__(self, of: Rule, both: BothStores) -> None:
        self.of, self.calls, self.now_us, self.number = of, _Slots(both), NOW_US, 0

    @property
    def slots(self) -> int:
        return slots_of(self.gauge, self.of.bind(1).floor, self.of.limit.amount)  # type: ignore[attr-defined]

    @property
    def gauge(self) -> Any:
        return self.calls.gauge(self.of)

    def run_holds(self, held_us: int, times: int, most: int = 99) -> None:
        for _ in range(times):
            held: list[Lease] = []
            while len(held) < min(most, self.slots):
                self.number += 1
                holder = f"job%3A{self.number}#0"
                self.calls.grant(self.now_us, self.of, holder)
                held.append(Lease(self.of.bucket, self.of.bind(1, holder), self.now_us))
            self.now_us += 1_000
            for each in held:
                lease = Lease(each.bucket, each.algorithm, self.now_us - held_us)
                self.calls.lease(self.now_us, "release", lease)

    def round(self, held_us: int) -> int:
        """Run holds until a round is complete. Return the number of slots after it."""
        before = self.gauge
        while self.gauge is None or before is None or self.gauge.rounds == before.rounds:
            before = before or self.gauge
            self.run_holds(held_us, 1)
        return self.slots

    def drop(self, granted_us: int | None) -> None:
        self.calls.drop(self.now_us, self.of, granted_us)


def test_edges_of_a_round_are_the_same(both: BothStores) -> None:
    """Holds just below and above the thresholds of "slower" and "congested" change both stores in the same way."""
    batches, at_floor, by_sixteenths, half_used = (
        _Batches(rule(Concurrency(name, 40, adapt=ByLatency(2))), both) for name in "wxyz"
    )
    lengths = (100, 100, 116, 115, 116, 130, 133, 100, 100, 100, 262, 100, 100, 131, 99, 90)
    seen = [batches.round(held_us) for held_us in lengths]
    assert seen[:4] == [4, 8, 8, 9], seen
    assert seen[4] == seen[5] == 9, seen
    assert seen[6] < 9, seen
    at_floor.run_holds(100, 17, most=1)
    at_floor.run_holds(1_000, 20)
    seen = [by_sixteenths.round(held_us) for held_us in (100, 100, 100, 100, 120, 100)]
    assert seen[-2:] == [32, 34], seen
    assert [half_used.round(100) for _ in range(2)] == [4, 8]
    half_used.run_holds(400, 24, most=3)


@pytest.mark.parametrize(("floor", "amount"), [(2, 9), (8, 9)])
def test_rounds_that_measure_are_the_same(both: BothStores, floor: int, amount: int) -> None:
    """
    A measuring round uses fewer slots, but not below the floor, and does not count while not all slots are in use.
    Refusals during the round are handled in the same way.
    """
    batches = _Batches(rule(Concurrency("x", amount, adapt=ByLatency(floor))), both)
    batches.run_holds(100, 20)
    batches.round(119)
    while batches.gauge.rounds != EVERY:
        batches.run_holds(100, 1)
    batches.drop(batches.now_us)
    batches.drop(batches.now_us - 1)
    batches.run_holds(100, 12)
    assert batches.gauge.rounds < EVERY
    for _ in range(700 // floor):
        batches.run_holds(100, 1, most=floor)
    assert batches.gauge.rounds == EVERY - 1


@pytest.mark.parametrize("what", ["congested", "drop"])
@pytest.mark.parametrize(("floor", "amount"), [(2, 8), (20, 30)])
def test_changed_amounts_have_the_same_effect(both: BothStores, floor: int, amount: int, what: str) -> None:
    """The slots are reduced from the amount that is in force, and not below the floor that is in force."""
    first = rule(Concurrency("x", 40, adapt=ByLatency(2)))
    batches = _Batches(first, both)
    seen = [batches.round(100) for _ in range(4 if floor == 2 else 2)]
    batches.of = replace(first, limit=Concurrency("x", amount, adapt=ByLatency(floor)))
    if what == "drop":
        batches.drop(None)
    batches.run_holds(200, 12)
    assert floor <= batches.slots <= amount < max(seen[-1], 40), seen


def test_long_holds_and_clocks_are_the_same(both: BothStores) -> None:
    """A hold of more than a day counts as a day. A refusal counts even if a later clock wrote the last one."""
    batches = _Batches(rule(Concurrency("x", 40, adapt=ByLatency(2, timeout=86_400))), both)
    other = _Batches(rule(Concurrency("y", 40, adapt=ByLatency(2))), both)
    for each in (batches, other):
        each.run_holds(LONGEST_HOLD_US - 1, 20)
        each.run_holds(LONGEST_HOLD_US + 1, 20)
        each.run_holds(0, 2)
        each.run_holds(-5, 2)
        each.drop(each.now_us)
        each.now_us -= 50_000_000
        each.drop(each.now_us - 5)
        each.drop(each.now_us - 4)
        each.drop(each.now_us)
        each.now_us += REMEMBERED_US
        each.run_holds(LONGEST_HOLD_US, 9)
