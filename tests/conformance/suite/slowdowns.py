"""A store's tests for limits that are slower for a while, for each algorithm with a rate."""

from __future__ import annotations

from conformance.suite.bench import SECOND_US, Bench, ConformanceSuite
from conformance.suite.cases import CASES, Case, for_each
from throttlekit._core.answer import Caller
from throttlekit._core.slowdown import Refusal, Remaining
from throttlekit.stores.base import Slowing

__all__ = ["SlowdownConformance"]

_RATES = [case for case in CASES if case.limit.period_us]


class SlowdownConformance(ConformanceSuite):
    @for_each(_RATES)
    def test_a_fall_slows_every_caller_down_and_ends(self, bench: Bench, case: Case) -> None:
        """Newcomers wait for longer than they would; after the slowdown nothing of it is left."""
        claim, now_us = bench.claim(case.limit), bench.now_us
        assert bench.look(case.limit).allowed
        for _ in range(9):
            bench.store.slow([Slowing(claim, Refusal(None, 60 * SECOND_US, 1_000))], now_us=now_us)
        passed, last_us = 0, now_us
        while bench.now_us < now_us + 10 * SECOND_US:
            answer = bench.ask(case.limit, caller=Caller.WITHOUT_JOB)
            passed += answer.allowed
            bench.now_us = last_us = max(bench.now_us + 1, answer.retry_us)
        slowest_us = case.limit.period_us / case.limit.amount
        assert passed <= 10 * SECOND_US / slowest_us * 0.3 + 1, passed
        bench.now_us = last_us + 20 * 60 * SECOND_US + 2 * case.limit.period_us
        assert bench.left(case.limit) == case.limit.capacity

    @for_each(_RATES)
    def test_what_is_left_is_spread_until_the_reset(self, bench: Bench, case: Case) -> None:
        """Two units until the reset: one in the middle of it, and one at its end. Then it is forgotten."""
        claim, now_us = bench.claim(case.limit), bench.now_us
        far_us = 100 * case.limit.period_us
        bench.store.slow([Slowing(claim, Remaining(2, far_us))], now_us=now_us)
        first = bench.look(case.limit)
        assert first.retry_us == now_us + far_us // 2, first
        bench.now_us = first.retry_us
        assert bench.ask(case.limit, caller=Caller.WITHOUT_JOB).allowed
        bench.now_us = now_us + far_us - 1
        assert not bench.look(case.limit).allowed
        bench.now_us = now_us + far_us
        assert bench.look(case.limit, cost=case.limit.capacity).allowed

    @for_each(_RATES)
    def test_after_the_reset_only_the_fall_counts(self, bench: Bench, case: Case) -> None:
        """An answer's pace ends with its reset, also while a fall lasts."""
        claim, now_us, far_us = bench.claim(case.limit), bench.now_us, 100 * case.limit.period_us
        bench.store.slow([Slowing(claim, Refusal(None, 1000 * far_us, 500_000))], now_us=now_us)
        bench.store.slow([Slowing(claim, Remaining(0, far_us))], now_us=now_us)
        assert bench.look(case.limit).retry_us >= now_us + far_us
        bench.now_us = now_us + far_us
        first = bench.ask(case.limit, caller=Caller.WITHOUT_JOB)
        bench.now_us = max(bench.now_us, first.retry_us)
        assert first.allowed or bench.ask(case.limit, caller=Caller.WITHOUT_JOB).allowed
        assert bench.look(case.limit).retry_us <= bench.now_us + 3 * case.limit.period_us

    @for_each(_RATES)
    def test_slowdown_that_is_over_holds_back_no_later_one(self, bench: Bench, case: Case) -> None:
        """What passed at the pace of the last one is made up for, once that is over."""
        claim, now_us, far_us = bench.claim(case.limit), bench.now_us, 100 * case.limit.period_us
        bench.store.slow([Slowing(claim, Remaining(2, far_us))], now_us=now_us)
        bench.now_us += far_us // 2
        assert bench.ask(case.limit, cost=case.limit.capacity, caller=Caller.WITHOUT_JOB).allowed
        bench.now_us = now_us + far_us
        bench.store.slow([Slowing(claim, Refusal(None, far_us, 500_000))], now_us=bench.now_us)
        assert bench.look(case.limit).retry_us <= bench.now_us + case.limit.period_us

    @for_each(_RATES)
    def test_other_keys_are_as_fast_as_ever(self, bench: Bench, case: Case) -> None:
        """A slowdown concerns the key that it names."""
        bench.store.slow([Slowing(bench.claim(case.limit, "a"), Remaining(0, SECOND_US))], now_us=bench.now_us)
        assert bench.look(case.limit, key="b", cost=case.limit.capacity).allowed
        assert not bench.look(case.limit, key="a").allowed
