"""A store's tests for several limits in one request: all or nothing, with any algorithms."""

from __future__ import annotations

from collections.abc import Sequence

from conformance.suite.bench import (
    NOW_US,
    ONE,
    SECOND_US,
    SLOW,
    STEP_US,
    TEN,
    Bench,
    ConformanceSuite,
    run_in_threads,
)
from conformance.suite.cases import CASES, Case, for_each
from throttlekit._core.answer import Answer, Caller, Reason
from throttlekit._core.limit.base import Limit

__all__ = ["FIVE_CASES", "AtomicConformance", "SeveralLimitsConformance"]

FIVE_CASES: Sequence[Case] = tuple(case for case in CASES if case.label != "fixed_window_of_a_zone")
"""One limit for each of five algorithms."""
_START_US = NOW_US + 20 * SECOND_US


def _five_limits(first: int = 0) -> list[Limit]:
    """The five limits, starting with number *first*."""
    return [case.limit for case in (*FIVE_CASES[first:], *FIVE_CASES[:first])]


class SeveralLimitsConformance(ConformanceSuite):
    """What every store promises, also one that decides claim by claim and gives back."""

    def test_grant_charges_every_limit(self) -> None:
        """A request for five algorithms that passes takes its units from each of them."""
        with self.bench() as bench:
            bench.now_us = _START_US
            answer = bench.ask(*_five_limits())
            assert answer.allowed
            left = [
                use and limit.remaining(use, bench.now_us)
                for limit, use in zip(_five_limits(), answer.uses, strict=True)
            ]
            assert left == [bench.left(limit) for limit in _five_limits()] == [4, 0, 4, 4, 4], left

    def test_each_limit_is_charged_its_own_cost(self) -> None:
        """One request may have another cost for each limit; a cost of 0 passes where nothing is left."""
        with self.bench() as bench:
            bench.now_us = _START_US
            bench.drain(*_five_limits()[1:2])
            assert bench.ask(*_five_limits(), cost=(5, 0, 3, 0, 2)).allowed
            assert [bench.left(limit) for limit in _five_limits()] == [0, 0, 2, 5, 3]

    @for_each(FIVE_CASES)
    def test_denial_by_one_charges_no_other(self, bench: Bench, case: Case) -> None:
        """All or nothing: a request that one of five limits denies, at any position, leaves the others unused."""
        bench.now_us = _START_US
        bench.drain(case.limit)
        others = [limit for limit in _five_limits() if limit != case.limit]
        before = bench.use(case.limit)
        for first in range(5):
            for caller in (Caller.WITHOUT_JOB, Caller.JOB):
                limits = _five_limits(first)
                answer = bench.ask(*limits, caller=caller)
                assert (answer.allowed, answer.claim) == (False, limits.index(case.limit)), answer
                assert answer.uses[answer.claim] == before, answer
        assert bench.untouched(*others)

    @for_each(FIVE_CASES)
    def test_denial_by_one_leaves_what_was_used_of_the_others(self, bench: Bench, case: Case) -> None:
        """All or nothing where the others have been used, too: to the unit, and to the microsecond."""
        bench.now_us = _START_US
        others = [limit for limit in _five_limits() if limit != case.limit and limit.capacity > 1]
        for step, limit in enumerate(others):
            assert bench.ask(limit, cost=1 + step % 2).allowed
            bench.now_us += 10_000
            assert bench.ask(limit, cost=2).allowed
        bench.drain(case.limit)
        before = [_seen(bench, limit) for limit in others]
        for limits in (_five_limits(), _five_limits()[::-1]):
            for _ in range(3):
                assert not bench.ask(*limits, caller=Caller.WITHOUT_JOB).allowed
        assert [_seen(bench, limit) for limit in others] == before

    def test_peek_names_the_binding_limit_and_changes_nothing(self) -> None:
        """Of five limits that deny, the one that opens last binds, in any order; a peek writes nothing."""
        last_us = _START_US + 60 * SECOND_US
        with self.bench() as bench:
            bench.now_us = _START_US
            assert bench.look(*_five_limits()).allowed
            assert bench.untouched(*_five_limits())
            bench.drain(*_five_limits())
            for first in range(5):
                answer = bench.look(*_five_limits(first))
                assert answer.retry_us == last_us, answer
                assert _five_limits(first)[answer.claim] == FIVE_CASES[-1].limit, answer
            for case in FIVE_CASES:
                told_us = bench.look(case.limit).retry_us
                assert bench.ask(case.limit, job="first").retry_us == told_us, case.label

    @for_each(FIVE_CASES)
    def test_job_passes_when_it_is_woken(self, bench: Bench, case: Case) -> None:
        """A job that waits for one of five limits passes when it is woken; newcomers do not pass before it."""
        bench.now_us = _START_US
        bench.drain(case.limit)
        ids = [f"job {number}" for number in range(1 + case.together)]
        for id in ids:
            assert not bench.ask(*_five_limits(), job=id).allowed
        bench.now_us = bench.look(case.limit, job=ids[0]).retry_us
        assert not bench.ask(*_five_limits()).allowed
        assert bench.woken(case.limit)[0] == ids[0]
        assert bench.ask(*_five_limits(), job=ids[0]).allowed
        others = [limit for limit in _five_limits() if limit != case.limit]
        assert [bench.left(limit) for limit in others] == [limit.capacity - 1 for limit in others]

    def test_job_that_asks_too_soon_charges_nothing(self) -> None:
        """It takes nothing from any limit, whichever holds it back."""
        for number, case in enumerate(FIVE_CASES):
            with self.bench() as bench:
                bench.now_us = _START_US
                bench.drain(case.limit)
                for _ in range(3):
                    denied = bench.ask(*_five_limits(), job="too soon")
                    assert (denied.reason, denied.claim) == (Reason.EXHAUSTED, number), denied
                free = [limit for limit in _five_limits() if limit != case.limit]
                assert [bench.left(limit) for limit in free] == [limit.capacity for limit in free]
                for limit in _five_limits():
                    bench.reset(limit)

    def test_correction_of_five_limits(self) -> None:
        """One call corrects any number of limits, each by its own algorithm: up, and down again."""
        with self.bench() as bench:
            bench.now_us = _START_US
            assert bench.ask(*_five_limits()).allowed
            bench.settle(*_five_limits(), was=1, actual=5)
            assert [bench.left(limit) for limit in _five_limits()] == [0] * 5
            bench.settle(*_five_limits(), was=5, actual=0)
            assert bench.untouched(*_five_limits())

    def test_threads_never_pass_more_than_the_smallest(self) -> None:
        """With any number of threads, each limit was charged exactly what passed."""
        limits = [case.limit for case in FIVE_CASES if case.limit.capacity == 5]
        with self.bench() as bench:
            bench.now_us = _START_US
            passed = sum(answer.allowed for answer in _by_threads(bench, limits))
            assert 1 <= passed <= 5, passed
            assert [bench.left(limit) for limit in limits] == [5 - passed] * len(limits)


class AtomicConformance(ConformanceSuite):
    """What a store promises besides if it decides all claims of a request at one instant."""

    def test_binding_limit_opens_last(self) -> None:
        """Of several limits that deny a job, the one that opens last binds, in any order."""
        with self.bench() as bench:
            bench.drain(ONE, SLOW)
            for binding, limits in ((1, (ONE, SLOW)), (0, (SLOW, ONE))):
                for caller in (Caller.PEEK, Caller.WITHOUT_JOB):
                    answer = bench.ask(*limits, caller=caller, max_wait_us=0)
                    assert (answer.claim, answer.retry_us) == (binding, NOW_US + SECOND_US), answer

    def test_waits_on_the_list_that_holds_it_back_longest(self) -> None:
        """A job waits there, and has a position on the waitlists of the others; there it holds nobody back."""
        with self.bench() as bench:
            bench.drain(TEN, SLOW)
            assert bench.ask(TEN, SLOW, job="both").claim == 1
            assert bench.store.list_waiting(bench.claim(SLOW)).jobs == 1
            assert bench.store.list_waiting(bench.claim(TEN)).jobs == 0
            bench.now_us += STEP_US
            assert bench.ask(TEN, job="behind").allowed
            bench.now_us = NOW_US + SECOND_US
            assert bench.woken(SLOW) == ["both"]
            assert bench.ask(TEN, SLOW, job="both").allowed

    def test_waits_no_longer_for_any_limit(self) -> None:
        """A job that is forgotten leaves all waitlists, and no other job's position."""
        with self.bench() as bench:
            bench.drain(TEN, SLOW)
            for id in ("gone", "stays"):
                bench.ask(TEN, SLOW, job=id)
            bench.forget(TEN, SLOW, job="gone")
            claims = [bench.claim(TEN), bench.claim(SLOW)]
            assert bench.store.where(claims, "gone", bench.now_us) is None
            bench.now_us = NOW_US + SECOND_US
            assert bench.woken(SLOW) == ["stays"]

    def test_verdict_has_the_use_of_every_limit(self) -> None:
        """A answer has the use of every limit of the request, also of those after the one that denies."""
        with self.bench() as bench:
            bench.drain(ONE)
            assert bench.ask(TEN, SLOW, ONE, caller=Caller.WITHOUT_JOB).uses == (
                (0, NOW_US),
                (0, NOW_US),
                (0, NOW_US + STEP_US),
            )
            answer = bench.ask(TEN, SLOW)
        assert answer.uses == ((0, NOW_US + STEP_US), (0, NOW_US + SECOND_US)), answer

    def test_threads_pass_all_of_the_smallest(self) -> None:
        """With any number of threads, exactly the smallest limit's capacity passes."""
        limits = [case.limit for case in FIVE_CASES if case.limit.capacity == 5]
        with self.bench() as bench:
            bench.now_us = _START_US
            answers = _by_threads(bench, limits)
        assert sum(answer.allowed for answer in answers) == 5


def _seen(bench: Bench, limit: Limit) -> list[tuple[object, ...]]:
    """All that is visible of *limit* now: its use, and when each cost would pass."""
    looks = [bench.look(limit, cost=cost) for cost in range(limit.capacity + 1)]
    return [(look.reason, look.retry_us, look.uses) for look in looks]


def _by_threads(bench: Bench, limits: Sequence[Limit]) -> list[Answer]:
    """Make 40 requests in 4 threads."""
    answers: list[Answer] = []

    def work(_: int) -> None:
        answers.extend(bench.ask(*limits) for _ in range(10))

    run_in_threads(4, work)
    return answers
