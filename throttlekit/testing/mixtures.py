"""What a store must do with several limits in one request: all or nothing, whatever their algorithms."""

# ruff: noqa: S101 - these are tests, shipped

from __future__ import annotations

import threading
from collections.abc import Sequence

from throttlekit._core.acquire import Caller, Reason, Verdict
from throttlekit._core.limit.base import Limit
from throttlekit.testing.bench import NOW_US, ONE, SECOND_US, SLOW, STEP_US, TEN, Bench, OnTheBench
from throttlekit.testing.rules import RULES, Rule, each

__all__ = ["FIVE", "MixtureConformance", "OneGoConformance"]

FIVE: Sequence[Rule] = tuple(rule for rule in RULES if rule.label != "fixed_window_of_a_zone")
"""Five limits of five algorithms."""
_START_US = NOW_US + 20 * SECOND_US


def _five(first: int = 0) -> list[Limit]:
    """The five limits, beginning with one of them."""
    return [rule.limit for rule in (*FIVE[first:], *FIVE[:first])]


class MixtureConformance(OnTheBench):
    """What holds of every store, also of one that decides claim by claim and gives back."""

    def test_grant_charges_every_limit(self) -> None:
        """A request of five algorithms that passes takes its units from every one of them."""
        with self.bench() as bench:
            bench.now_us = _START_US
            verdict = bench.ask(*_five())
            assert verdict.allowed
            told = [
                use and limit.remaining(use, bench.now_us) for limit, use in zip(_five(), verdict.uses, strict=True)
            ]
            assert told == [bench.left(limit) for limit in _five()] == [4, 0, 4, 4, 4], told

    def test_each_limit_is_charged_its_own_cost(self) -> None:
        """One request may cost each limit something else; a cost of 0 passes where nothing is left."""
        with self.bench() as bench:
            bench.now_us = _START_US
            bench.drain(*_five()[1:2])
            assert bench.ask(*_five(), cost=(5, 0, 3, 0, 2)).allowed
            assert [bench.left(limit) for limit in _five()] == [0, 0, 2, 5, 3]

    @each(FIVE)
    def test_denial_by_one_charges_no_other(self, bench: Bench, rule: Rule) -> None:
        """All or nothing: a request that one of five limits denies, wherever it stands, leaves the others as new."""
        bench.now_us = _START_US
        bench.drain(rule.limit)
        others = [limit for limit in _five() if limit != rule.limit]
        before = bench.use(rule.limit)
        for first in range(5):
            for caller in (Caller.GUEST, Caller.JOB):
                limits = _five(first)
                verdict = bench.ask(*limits, caller=caller)
                assert (verdict.allowed, verdict.claim) == (False, limits.index(rule.limit)), verdict
                assert verdict.uses[verdict.claim] == before, verdict
        assert bench.untouched(*others)

    @each(FIVE)
    def test_denial_by_one_leaves_what_was_used_of_the_others(self, bench: Bench, rule: Rule) -> None:
        """All or nothing, too, where the others have been used: to the unit, and to the microsecond."""
        bench.now_us = _START_US
        others = [limit for limit in _five() if limit != rule.limit and limit.capacity > 1]
        for step, limit in enumerate(others):
            assert bench.ask(limit, cost=1 + step % 2).allowed
            bench.now_us += 10_000
            assert bench.ask(limit, cost=2).allowed
        bench.drain(rule.limit)
        before = [_seen(bench, limit) for limit in others]
        for limits in (_five(), _five()[::-1]):
            for _ in range(3):
                assert not bench.ask(*limits, caller=Caller.GUEST).allowed
        assert [_seen(bench, limit) for limit in others] == before

    def test_peek_tells_the_binding_limit_and_changes_nothing(self) -> None:
        """Of five limits that deny, the one that opens last binds, in any order; a peek writes nothing anywhere."""
        last_us = _START_US + 60 * SECOND_US
        with self.bench() as bench:
            bench.now_us = _START_US
            assert bench.look(*_five()).allowed
            assert bench.untouched(*_five())
            bench.drain(*_five())
            for first in range(5):
                verdict = bench.look(*_five(first))
                assert (verdict.due_us, verdict.retry_us) == (last_us, last_us), verdict
                assert _five(first)[verdict.claim] == FIVE[-1].limit, verdict
            for rule in FIVE:
                due_us = bench.ask(rule.limit).due_us
                assert due_us == bench.look(rule.limit).due_us - rule.interval_us, rule.label

    def test_holder_has_right_of_way_in_every_line(self) -> None:
        """A job that waited in one limit's line passes when it comes back, though others wait in the next one's."""
        bucket, leaky = FIVE[0].limit, FIVE[1].limit
        with self.bench() as bench:
            bench.drain(bucket, leaky)
            for _ in range(3):
                bench.ask(bucket)
                bench.ask(leaky)
            denied = bench.ask(leaky, bucket)
            for _ in range(3):
                bench.ask(bucket)
                bench.ask(leaky)
            bench.now_us = denied.due_us
            assert not bench.ask(leaky, bucket, caller=Caller.GUEST).allowed
            assert bench.ask(leaky, bucket, due_us=denied.due_us, of=denied.claim).allowed

    def test_early_return_charges_nothing(self) -> None:
        """A job that comes back before its slot takes nothing of any limit, wherever its line is."""
        for number, rule in enumerate(FIVE):
            with self.bench() as bench:
                bench.now_us = _START_US
                bench.drain(rule.limit)
                due_us = bench.ask(*_five()).due_us
                for _ in range(2):
                    verdict = bench.ask(*_five(), due_us=due_us, of=number)
                    assert (verdict.reason, verdict.due_us, verdict.claim) == (Reason.EARLY, due_us, number), verdict
                assert bench.untouched(*(limit for limit in _five() if limit != rule.limit))
                bench.reset(rule.limit)

    def test_place_in_one_line_is_none_in_another(self) -> None:
        """A slot that its own line does not know is ignored, though it lies within the line of another limit."""
        known, other = FIVE[0].limit, FIVE[-1].limit
        with self.bench() as bench:
            bench.drain(other)
            slots = [bench.ask(other).due_us for _ in range(3)]
            verdict = bench.ask(known, other, due_us=slots[1], of=0)
            end_us = slots[-1] + FIVE[-1].interval_us
            assert (verdict.reason, verdict.claim, verdict.due_us) == (Reason.EXHAUSTED, 1, end_us), verdict
            assert bench.untouched(known)

    def test_correction_of_five(self) -> None:
        """One call corrects any number of limits, each by its own rules: up, and down again."""
        with self.bench() as bench:
            bench.now_us = _START_US
            assert bench.ask(*_five()).allowed
            bench.settle(*_five(), was=1, actual=5)
            assert [bench.left(limit) for limit in _five()] == [0] * 5
            bench.settle(*_five(), was=5, actual=0)
            assert bench.untouched(*_five())

    def test_threads_never_pass_more_than_the_smallest(self) -> None:
        """However many threads ask for several limits at once, what passed is what each of them was charged."""
        limits = [rule.limit for rule in FIVE if rule.limit.capacity == 5]
        with self.bench() as bench:
            bench.now_us = _START_US
            passed = sum(verdict.allowed for verdict in _by_threads(bench, limits))
            assert 1 <= passed <= 5, passed
            assert [bench.left(limit) for limit in limits] == [5 - passed] * len(limits)


class OneGoConformance(OnTheBench):
    """What holds besides where all claims of a request are decided on at one instant."""

    def test_binding_limit_has_the_latest_slot(self) -> None:
        """Of several limits that deny a job, the one that opens last binds, in any order."""
        with self.bench() as bench:
            bench.drain(ONE, SLOW)
            for binding, limits in ((1, (ONE, SLOW)), (0, (SLOW, ONE))):
                for caller in (Caller.PEEK, Caller.GUEST):
                    verdict = bench.ask(*limits, caller=caller, max_wait_us=0)
                    assert (verdict.claim, verdict.due_us) == (binding, NOW_US + SECOND_US), verdict

    def test_denial_books_in_the_binding_line_only(self) -> None:
        """A job that five limits deny joins one line; the other lines stay as they were."""
        with self.bench() as bench:
            bench.now_us = _START_US
            bench.drain(*_five())
            expected = [bench.look(limit).due_us for limit in _five()]
            assert bench.ask(*_five()).due_us == expected[-1]
            expected[-1] += FIVE[-1].interval_us
            assert [bench.look(limit).due_us for limit in _five()] == expected

    def test_verdict_tells_every_limit(self) -> None:
        """Every limit of a request is told, also behind the one that denies."""
        with self.bench() as bench:
            bench.drain(ONE)
            assert bench.ask(TEN, SLOW, ONE, caller=Caller.GUEST).uses == (
                (0, NOW_US),
                (0, NOW_US),
                (0, NOW_US + STEP_US),
            )
            verdict = bench.ask(TEN, SLOW)
        assert verdict.uses == ((0, NOW_US + STEP_US), (0, NOW_US + SECOND_US)), verdict

    def test_threads_pass_all_of_the_smallest(self) -> None:
        """However many threads ask at once, exactly the smallest limit's capacity passes."""
        limits = [rule.limit for rule in FIVE if rule.limit.capacity == 5]
        with self.bench() as bench:
            bench.now_us = _START_US
            verdicts = _by_threads(bench, limits)
        slots = [verdict.due_us for verdict in verdicts if not verdict.allowed]
        assert len(verdicts) - len(slots) == 5
        assert len(set(slots)) == len(slots), "no two waiters share a slot"


def _seen(bench: Bench, limit: Limit) -> list[tuple[object, ...]]:
    """All that anyone can see of *limit* now: what is used of it, and when each cost would pass."""
    looks = [bench.look(limit, cost=cost) for cost in range(limit.capacity + 1)]
    return [(look.reason, look.retry_us, look.due_us, look.uses) for look in looks]


def _by_threads(bench: Bench, limits: Sequence[Limit]) -> list[Verdict]:
    """Ask 40 times from 4 threads."""
    verdicts: list[Verdict] = []

    def ask_often() -> None:
        for _ in range(10):
            verdicts.append(bench.ask(*limits))

    threads = [threading.Thread(target=ask_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return verdicts
