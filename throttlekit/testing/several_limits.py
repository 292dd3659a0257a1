"""A store's tests for several limits in one request: all or nothing, with any algorithms."""

# ruff: noqa: S101 - these are tests, shipped

from __future__ import annotations

from collections.abc import Sequence

from throttlekit._core.algorithms.leaky_bucket import LeakyBucket
from throttlekit._core.limit.base import Limit
from throttlekit._core.verdict import Caller, Reason, Verdict
from throttlekit.testing.bench import (
    NAME,
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
from throttlekit.testing.cases import CASES, Case, for_each

__all__ = ["FIVE_CASES", "AtomicConformance", "SeveralLimitsConformance"]

FIVE_CASES: Sequence[Case] = tuple(case for case in CASES if case.label != "fixed_window_of_a_zone")
"""One limit for each of five algorithms."""
_START_US = NOW_US + 20 * SECOND_US
_SLACK_US = 20_000
"""How much later a job is due in the line of `SLOW` for each job before it."""


def _five_limits(first: int = 0) -> list[Limit]:
    """The five limits, starting with number *first*."""
    return [case.limit for case in (*FIVE_CASES[first:], *FIVE_CASES[:first])]


class SeveralLimitsConformance(ConformanceSuite):
    """What every store promises, also one that decides claim by claim and gives back."""

    def test_grant_charges_every_limit(self) -> None:
        """A request for five algorithms that passes takes its units from each of them."""
        with self.bench() as bench:
            bench.now_us = _START_US
            verdict = bench.ask(*_five_limits())
            assert verdict.allowed
            left = [
                use and limit.remaining(use, bench.now_us)
                for limit, use in zip(_five_limits(), verdict.uses, strict=True)
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
            for caller in (Caller.GUEST, Caller.JOB):
                limits = _five_limits(first)
                verdict = bench.ask(*limits, caller=caller)
                assert (verdict.allowed, verdict.claim) == (False, limits.index(case.limit)), verdict
                assert verdict.uses[verdict.claim] == before, verdict
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
                assert not bench.ask(*limits, caller=Caller.GUEST).allowed
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
                verdict = bench.look(*_five_limits(first))
                assert (verdict.due_us, verdict.retry_us) == (last_us, last_us), verdict
                assert _five_limits(first)[verdict.claim] == FIVE_CASES[-1].limit, verdict
            for case in FIVE_CASES:
                told_us = bench.look(case.limit).due_us
                assert bench.ask(case.limit).due_us == told_us, case.label

    @for_each(FIVE_CASES)
    def test_waiting_job_passes_when_due(self, bench: Bench, case: Case) -> None:
        """A job that waits in the line of one of five limits passes when it is due; newcomers do not pass before it."""
        bench.now_us = _START_US
        bench.drain(case.limit)
        denied = bench.ask(*_five_limits())
        behind = [bench.ask(*_five_limits()) for _ in range(case.together)]
        bench.now_us = denied.due_us
        assert not bench.ask(*_five_limits(), caller=Caller.GUEST).allowed
        assert bench.ask(*_five_limits(), back=denied).allowed
        others = [limit for limit in _five_limits() if limit != case.limit]
        assert [bench.left(limit) for limit in others] == [limit.capacity - 1 for limit in others]
        for again in behind:
            while not again.allowed:
                bench.now_us = max(bench.now_us, again.due_us)
                again = bench.ask(*_five_limits(), back=again)

    def test_early_return_charges_nothing(self) -> None:
        """A job that comes back early takes nothing from any limit, whichever line its place is in."""
        for number, case in enumerate(FIVE_CASES):
            with self.bench() as bench:
                bench.now_us = _START_US
                bench.drain(case.limit)
                denied = bench.ask(*_five_limits())
                for _ in range(2):
                    early = bench.ask(*_five_limits(), back=denied)
                    assert (early.reason, early.due_us, early.claim) == (Reason.EARLY, denied.due_us, number), early
                    given = [place is not None for place in early.places]
                    in_order = [each is case or each.limit.max_queue is None for each in FIVE_CASES]
                    assert given == in_order or (self.spread and given[number]), early
                assert bench.untouched(*(limit for limit in _five_limits() if limit != case.limit))
                bench.reset(case.limit)

    def test_place_of_one_line_is_not_valid_in_another(self) -> None:
        """A place that its own line does not know is ignored, though another limit's line gave it."""
        known, other = FIVE_CASES[0].limit, FIVE_CASES[-1]
        with self.bench() as bench:
            bench.now_us = other.start_us
            bench.drain(other.limit)
            first, *_ = (bench.ask(other.limit) for _ in range(3))
            verdict = bench.ask(known, other.limit, back=first._replace(places=(first.places[0], None)))
            assert (verdict.reason, verdict.claim, verdict.due_us) == (Reason.EXHAUSTED, 1, other.due_us(3)), verdict
            assert bench.untouched(known)

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
            passed = sum(verdict.allowed for verdict in _by_threads(bench, limits))
            assert 1 <= passed <= 5, passed
            assert [bench.left(limit) for limit in limits] == [5 - passed] * len(limits)


class AtomicConformance(ConformanceSuite):
    """What a store promises besides if it decides all claims of a request at one instant."""

    def test_binding_limit_opens_last(self) -> None:
        """Of several limits that deny a job, the one that opens last binds, in any order."""
        with self.bench() as bench:
            bench.drain(ONE, SLOW)
            for binding, limits in ((1, (ONE, SLOW)), (0, (SLOW, ONE))):
                for caller in (Caller.PEEK, Caller.GUEST):
                    verdict = bench.ask(*limits, caller=caller, max_wait_us=0)
                    assert (verdict.claim, verdict.due_us) == (binding, NOW_US + SECOND_US), verdict

    def test_waits_in_every_line_that_denies_and_in_no_other(self) -> None:
        """A job waits in the line of each limit that denies it, and is due when all of them let it pass."""
        free = LeakyBucket(NAME, "10/s")
        with self.bench() as bench:
            bench.drain(TEN, SLOW)
            denied = bench.ask(free, TEN, SLOW)
            given = [place is not None for place in denied.places]
            assert given == [free.max_queue is None, True, True] or (self.spread and given[1:] == [True, True]), denied
            assert denied.due_us == NOW_US + SECOND_US
            assert bench.look(TEN).due_us == NOW_US + 2 * STEP_US
            assert bench.look(SLOW).due_us == NOW_US + 2 * SECOND_US + _SLACK_US
            assert bench.untouched(free)
            bench.now_us = denied.due_us
            assert bench.ask(free, TEN, SLOW, back=denied).allowed
            assert bench.look(TEN).allowed
            assert bench.look(SLOW).due_us == NOW_US + 2 * SECOND_US

    def test_job_leaves_the_line_of_a_limit_that_would_pass(self) -> None:
        """Its place there is kept for it, and holds no other job back."""
        with self.bench() as bench:
            bench.drain(TEN, SLOW)
            denied = bench.ask(TEN, SLOW)
            behind = bench.ask(TEN)
            bench.now_us += STEP_US
            assert bench.look(TEN, back=behind).retry_us == NOW_US + 2 * STEP_US
            early = bench.ask(TEN, SLOW, back=denied)
            assert (early.reason, early.claim, early.due_us) == (Reason.EARLY, 1, denied.due_us), early
            kept = early.places[0]
            assert kept is not None
            assert kept[:3] == denied.places[0][:3]  # type: ignore[index]
            assert bench.ask(TEN, back=behind).allowed
            bench.now_us += STEP_US
            waiting = bench.ask(TEN, cost=2)
            assert not waiting.allowed
            bench.now_us = denied.due_us
            assert bench.ask(TEN, SLOW, back=early).allowed

    def test_right_of_way_in_one_line_does_not_count_in_another(self) -> None:
        """A job that is first in the line of one limit is the last in the line of another that it meets anew."""
        with self.bench() as bench:
            bench.drain(TEN, SLOW)
            denied = bench.ask(SLOW)
            for _ in range(20):
                bench.ask(TEN)
            bench.now_us = denied.due_us
            again = bench.ask(TEN, SLOW, back=denied._replace(places=(None, *denied.places)))
            assert (again.reason, again.claim, again.retry_us) == (Reason.IN_LINE, 0, bench.now_us + 16 * STEP_US), (
                again
            )
            assert bench.look(SLOW).allowed

    def test_leaves_every_line(self) -> None:
        """A job that waits no longer leaves all the lines in which it stands, and no other job's place."""
        with self.bench() as bench:
            bench.drain(TEN, SLOW)
            gone, stays = (bench.ask(TEN, SLOW) for _ in range(2))
            bench.leave(TEN, SLOW, denied=gone)
            assert bench.look(TEN, SLOW, back=stays).due_us == NOW_US + SECOND_US
            assert bench.look(TEN).due_us == NOW_US + 2 * STEP_US

    def test_verdict_has_the_use_of_every_limit(self) -> None:
        """A verdict has the use of every limit of the request, also of those after the one that denies."""
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
        """With any number of threads, exactly the smallest limit's capacity passes."""
        limits = [case.limit for case in FIVE_CASES if case.limit.capacity == 5]
        with self.bench() as bench:
            bench.now_us = _START_US
            verdicts = _by_threads(bench, limits)
        due = [verdict.due_us for verdict in verdicts if not verdict.allowed]
        assert len(verdicts) - len(due) == 5
        assert len(set(due)) == len(due), "no two jobs are due at one instant"


def _seen(bench: Bench, limit: Limit) -> list[tuple[object, ...]]:
    """All that is visible of *limit* now: its use, and when each cost would pass."""
    looks = [bench.look(limit, cost=cost) for cost in range(limit.capacity + 1)]
    return [(look.reason, look.retry_us, look.due_us, look.uses) for look in looks]


def _by_threads(bench: Bench, limits: Sequence[Limit]) -> list[Verdict]:
    """Make 40 requests in 4 threads."""
    verdicts: list[Verdict] = []

    def work(_: int) -> None:
        verdicts.extend(bench.ask(*limits) for _ in range(10))

    run_in_threads(4, work)
    return verdicts
