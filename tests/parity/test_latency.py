"""Slots that adapt: over long runs of holds, the script and the reference learn exactly the same."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from parity.histories import NOW_US, Reference, Rule, Step, rule
from parity.replay import STRICT, Shas, check
from support.claims import claim_of
from throttlekit import ByLatency, Concurrency
from throttlekit._core.algorithms.concurrency import Holders
from throttlekit._core.answer import Caller
from throttlekit._core.latency import EVERY, LONGEST_HOLD_US, REMEMBERED_US, Drop, slots_of
from throttlekit.stores import Lease

SEEDS = (0, 3, 4, 8, 14, 15)


class _Run:
    """A partner that gets slower beyond a hidden number of slots, and whose callers take all slots that there are."""

    def __init__(self, seed: int) -> None:
        self._rnd = rnd = random.Random(seed)
        self._reference, self._now_us, self._number = Reference(), NOW_US, 0
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

    def steps(self, holds: int) -> list[Step]:
        rnd, steps = self._rnd, list[Step]()
        for _ in range(holds):
            kept = self._rules[0] if rnd.random() > 0.03 * self._often else rnd.choice(self._rules)
            while len(self._held) < 60:
                steps.append(self._grant(kept))
                assert isinstance(steps[-1].reply, list)
                if steps[-1].reply[0] != 0:
                    break
            before = self._gauge(kept)
            steps += self._end(kept)
            if rnd.random() < 0.02 * self._often:
                granted_us = rnd.choice([None, self._now_us, self._now_us - 2 * self._hold_us])
                if kept.limit.adapt is not None:
                    steps.append(self._reference.slow(self._now_us, [(kept, Drop(granted_us))]))
                    self.seen.add(f"drop {steps[-1].reply}")
            self._watch(before, self._gauge(kept))
            if rnd.random() < 0.01 * self._often:
                self._now_us += rnd.choice([-1, -1, 1]) * rnd.choice([5, self._hold_us, 100_000_000])
            if rnd.random() < 0.003:
                self._now_us += rnd.choice([kept.span_us, 3_600_000_000])
        return steps

    def _gauge(self, of: Rule) -> Any:
        state = self._reference.kept.get(of.bucket)
        return state.gauge if isinstance(state, Holders) else None

    def _grant(self, of: Rule) -> Step:
        self._number += 1
        holder = f"job%3A{self._number}#0"
        step = self._reference.ask(self._now_us, [(of, claim_of(of.bind(1, holder)))], Caller.GUEST)
        assert isinstance(step.reply, list)
        if step.reply[0] == 0:
            slower = max(1.0, len(self._held) / self._hidden) * (1 + self._spread * self._rnd.random() ** 3 * 4)
            self._held.append((self._now_us + int(self._hold_us * slower), holder, self._now_us))
        return step

    def _end(self, of: Rule) -> list[Step]:
        if not self._held:
            return []
        self._held.sort()
        until_us, holder, granted_us = self._held.pop(0)
        self._now_us = max(self._now_us, until_us)
        if self._rnd.random() < 0.01 * self._often:  # its worker is killed
            return []
        renewed = [Lease(of.bucket, of.bind(1, each), at_us) for _, each, at_us in self._held[:1]]
        lease = Lease(of.bucket, of.bind(1, holder), granted_us)
        steps = [self._reference.leased(self._now_us, "release", [lease])]
        if self._rnd.random() < 0.2 and renewed:
            steps.append(self._reference.leased(self._now_us, "renew", renewed))
        return steps

    def _watch(self, before: Any, after: Any) -> None:
        if before is not None and after is not None:
            self.seen |= {"grew"} if after.slots > before.slots else set()
            self.seen |= {"doubled"} if after.slots >= 2 * before.slots else set()
            self.seen |= {"fell"} if after.slots < before.slots and after.fell_us else set()
            self.seen |= {"measures"} if after.rounds >= EVERY else set()
            self.seen |= {"skips"} if after.skip else set()


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_learnt_of_holds_is_the_same(client: Any, seed: int) -> None:
    """Growth, falls, rounds that measure, holds of up to a day, amounts that change, and clocks that step."""
    run = _Run(seed)
    steps = run.steps(900)
    check(client, steps, Shas(client, STRICT if seed % 2 else ""))
    client.flushdb()


def test_all_of_it_is_seen() -> None:
    """The runs above meet everything that can happen to the slots."""
    seen = {what for seed in SEEDS for run in [_Run(seed)] if run.steps(900) for what in run.seen}
    assert seen >= {"grew", "doubled", "fell", "measures", "skips", "drop [0]", "drop [1]"}, seen


class _Batches:
    """Holds of exact lengths: all slots are taken, and given back as if each had been held for so long."""

    def __init__(self, of: Rule) -> None:
        self.of, self.reference, self.now_us, self.number = of, Reference(), NOW_US, 0
        self.steps: list[Step] = []

    @property
    def slots(self) -> int:
        return slots_of(self.gauge, self.of.bind(1).floor, self.of.limit.amount)  # type: ignore[attr-defined]

    @property
    def gauge(self) -> Any:
        state = self.reference.kept.get(self.of.bucket)
        return state.gauge if isinstance(state, Holders) else None

    def play(self, held_us: int, times: int, most: int = 99) -> None:
        for _ in range(times):
            held: list[Lease] = []
            while len(held) < min(most, self.slots):
                self.number += 1
                charge = self.of.bind(1, f"job%3A{self.number}#0")
                self.steps.append(self.reference.ask(self.now_us, [(self.of, claim_of(charge))], Caller.GUEST))
                held.append(Lease(self.of.bucket, charge, self.now_us))
            self.now_us += 1_000
            for each in held:
                lease = Lease(each.bucket, each.algorithm, self.now_us - held_us)
                self.steps.append(self.reference.leased(self.now_us, "release", [lease]))

    def round(self, held_us: int) -> int:
        """Play until a round has been judged; returns how many slots there are then."""
        before = self.gauge
        while self.gauge is None or before is None or self.gauge.rounds == before.rounds:
            before = before or self.gauge
            self.play(held_us, 1)
        return self.slots

    def drop(self, granted_us: int | None) -> None:
        self.steps.append(self.reference.slow(self.now_us, [(self.of, Drop(granted_us))]))


def test_edges_of_a_round_are_the_same(client: Any) -> None:
    """Just not slower, slower, just not congested, and congested."""
    batches = _Batches(rule(Concurrency("x", 40, adapt=ByLatency(2))))
    lengths = (100, 100, 116, 115, 116, 130, 133, 100, 100, 100, 262, 100, 100, 131, 99, 90)
    seen = [batches.round(held_us) for held_us in lengths]
    assert seen[:4] == [4, 8, 8, 9], seen
    assert seen[4] == seen[5] == 9, seen
    assert seen[6] < 9, seen
    at_floor = _Batches(batches.of)
    at_floor.play(100, 17, most=1)
    at_floor.play(1_000, 20)
    by_sixteenths = _Batches(batches.of)
    seen = [by_sixteenths.round(held_us) for held_us in (100, 100, 100, 100, 120, 100)]
    assert seen[-2:] == [32, 34], seen
    half_used = _Batches(batches.of)
    assert [half_used.round(100) for _ in range(2)] == [4, 8]
    half_used.play(400, 24, most=3)
    for each in (batches, at_floor, by_sixteenths, half_used):
        check(client, each.steps, Shas(client, STRICT))
        client.flushdb()


@pytest.mark.parametrize(("floor", "amount"), [(2, 9), (8, 9)])
def test_rounds_that_measure_are_the_same(client: Any, floor: int, amount: int) -> None:
    """With fewer slots, never below the floor, and none while the slots are not all in use. Drops meet them, too."""
    batches = _Batches(rule(Concurrency("x", amount, adapt=ByLatency(floor))))
    batches.play(100, 20)
    batches.round(119)
    while batches.gauge.rounds != EVERY:
        batches.play(100, 1)
    batches.drop(batches.now_us)
    batches.drop(batches.now_us - 1)
    batches.play(100, 12)
    assert batches.gauge.rounds < EVERY
    for _ in range(700 // floor):
        batches.play(100, 1, most=floor)
    assert batches.gauge.rounds == EVERY - 1
    check(client, batches.steps, Shas(client))
    client.flushdb()


@pytest.mark.parametrize("what", ["congested", "drop"])
@pytest.mark.parametrize(("floor", "amount"), [(2, 8), (20, 30)])
def test_amounts_that_change_are_met_alike(client: Any, floor: int, amount: int, what: str) -> None:
    """It falls from the amount that is in force, and the floor that is in force is kept."""
    first = rule(Concurrency("x", 40, adapt=ByLatency(2)))
    batches = _Batches(first)
    seen = [batches.round(100) for _ in range(4 if floor == 2 else 2)]
    batches.of = replace(first, limit=Concurrency("x", amount, adapt=ByLatency(floor)))
    if what == "drop":
        batches.drop(None)
    batches.play(200, 12)
    assert floor <= batches.slots <= amount < max(seen[-1], 40), seen
    check(client, batches.steps, Shas(client))
    client.flushdb()


def test_long_holds_and_clocks_are_the_same(client: Any) -> None:
    """A hold of more than a day counts as a day. A drop counts where a later clock wrote the last."""
    batches = _Batches(rule(Concurrency("x", 40, adapt=ByLatency(2, timeout=86_400))))
    other = _Batches(rule(Concurrency("x", 40, adapt=ByLatency(2))))
    for each in (batches, other):
        each.play(LONGEST_HOLD_US - 1, 20)
        each.play(LONGEST_HOLD_US + 1, 20)
        each.play(0, 2)
        each.play(-5, 2)
        each.drop(each.now_us)
        each.now_us -= 50_000_000
        each.drop(each.now_us - 5)
        each.drop(each.now_us - 4)
        each.drop(each.now_us)
        each.now_us += REMEMBERED_US
        each.play(LONGEST_HOLD_US, 9)
        check(client, each.steps, Shas(client, STRICT))
        client.flushdb()
