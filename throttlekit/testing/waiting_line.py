"""A store's tests for waiting lines: a place in an order, and an instant that follows from it."""

# ruff: noqa: S101 - these are tests, shipped

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta

from throttlekit._core.algorithms.token_bucket import TokenBucket
from throttlekit._core.limit.base import Limit
from throttlekit._core.line import AT_DOOR, GRACE_US, GUESTS_US, LOOK_US
from throttlekit._core.verdict import Caller, Reason, Verdict
from throttlekit.stores.base import Request
from throttlekit.testing.bench import NAME, NOW_US, ONE, SECOND_US, STEP_US, TEN, Bench, ConformanceSuite
from throttlekit.testing.cases import CASES, Case, for_each

__all__ = ["WaitingLineConformance"]


class WaitingLineConformance(ConformanceSuite):
    @for_each(CASES)
    def test_jobs_are_told_by_rank_and_rate(self, bench: Bench, case: Case) -> None:
        """The due instant of a waiting job follows from the units that wait before it, and from the rate."""
        due = [denied.due_us for denied in _line_up(bench, case, 12)]
        assert due == [case.due_us(ahead) for ahead in range(12)], due

    def test_job_of_more_units_takes_as_much_of_the_line(self) -> None:
        """A job is due when the units of all before it, and its own, have come back."""
        with self.bench() as bench:
            bench.drain(TEN)
            due = [bench.ask(TEN, cost=cost).due_us - NOW_US for cost in (1, 1, 2, 1)]
        assert due == [1 * STEP_US, 2 * STEP_US, 4 * STEP_US, 5 * STEP_US], due

    @for_each(CASES)
    def test_every_job_passes_when_due(self, bench: Bench, case: Case) -> None:
        """Jobs that come back when they are due pass in the order in which they came, with a denial or two each."""
        waiting = [(denied.due_us, number, denied) for number, denied in enumerate(_line_up(bench, case, 12))]
        passed: list[int] = []
        denials = 0
        while waiting:
            due_us, number, denied = min(waiting)
            waiting.remove((due_us, number, denied))
            bench.now_us = max(bench.now_us, due_us)
            again = bench.ask(case.limit, back=denied)
            if again.allowed:
                passed.append(number)
            else:
                denials += 1
                waiting.append((again.due_us, number, again))
        assert passed == list(range(12))
        assert denials <= 12

    @for_each(CASES)
    def test_job_passes_with_units_for_all_before_it(self, bench: Bench, case: Case) -> None:
        """When some units are back, in whatever order the jobs come, those pass that stand first, and no other."""
        waiting = _line_up(bench, case, 7)
        bench.now_us = case.start_us + case.first_us
        passed = [bench.ask(case.limit, back=denied).allowed for denied in waiting[::-1]][::-1]
        assert passed == [ahead < case.together for ahead in range(7)], passed

    @for_each(CASES)
    def test_newcomer_joins_the_end_of_the_line(self, bench: Bench, case: Case) -> None:
        """
        While jobs wait for all the units that are there, a newcomer is denied, and passes after them. It is to come
        back sooner if units lie there: their jobs may not come.
        """
        _line_up(bench, case, 5)
        bench.now_us = case.start_us + case.first_us
        newcomer = bench.ask(case.limit)
        assert (newcomer.reason, newcomer.retry_us) == (Reason.IN_LINE, case.due_us(5)), newcomer
        assert newcomer.due_us == bench.now_us + GRACE_US, newcomer

    @for_each(CASES)
    def test_early_return_keeps_its_place(self, bench: Bench, case: Case) -> None:
        """A job that comes back early is due at the same instant, takes nothing, and leaves the line as it is."""
        *_, denied = _line_up(bench, case, 7)
        before = bench.use(case.limit)
        for now_us in (case.start_us, case.start_us + case.first_us - 1):
            bench.now_us = now_us
            again = bench.ask(case.limit, back=denied)
            assert (again.reason, again.due_us, again.retry_us) == (Reason.EARLY, case.due_us(6), case.due_us(6))
            assert again.places == denied.places, again
            denied = again
        assert bench.use(case.limit) == before
        assert bench.look(case.limit).due_us == case.due_us(7)

    @for_each(CASES)
    def test_late_return_keeps_its_place(self, bench: Bench, case: Case) -> None:
        """A job that comes back late, while no other asked, is first all the same."""
        first, *_ = _line_up(bench, case, 30)
        bench.now_us = case.start_us + case.full_us + 3 * SECOND_US
        assert not bench.ask(case.limit).allowed
        assert bench.ask(case.limit, back=first).allowed

    @for_each(CASES)
    def test_place_is_not_a_unit(self, bench: Bench, case: Case) -> None:
        """A job that comes back when it is due, and finds no unit, is denied; it keeps its place before the others."""
        first, _ = _line_up(bench, case, 2)
        bench.now_us = first.due_us
        bench.settle(case.limit, was=0, actual=case.limit.capacity)
        again = bench.ask(case.limit, back=first)
        assert again.reason is Reason.EXHAUSTED, again
        assert again.due_us == again.retry_us > bench.now_us, again
        assert again.places[0] == again.places[0]._replace(number=1), again  # type: ignore[union-attr]
        assert again.due_us <= bench.look(case.limit).due_us

    @for_each(CASES)
    def test_place_that_the_line_did_not_give_gains_nothing(self, bench: Bench, case: Case) -> None:
        """A place with any number changed, of another key, or of a line that was reset is no better than none."""
        lost = _line_up(bench, case, 1)[0]
        bench.reset(case.limit)
        bench.now_us += 1
        own = _line_up(bench, case, 3)[1]
        bench.drain(case.limit, key="other")
        foreign = bench.ask(case.limit, key="other")
        place = own.places[0]
        assert place is not None
        forged = [
            place._replace(epoch=place.epoch + 1),
            place._replace(start=place.start - 1),
            place._replace(number=place.number - 1),
            place._replace(due_us=bench.now_us),
            place._replace(seal="0123456789"),
        ]
        newcomer = bench.look(case.limit)
        for given in (*forged, lost.places[0], foreign.places[0]):
            assert bench.look(case.limit, back=own._replace(places=(given,))) == newcomer, given
            bench.leave(case.limit, denied=own._replace(places=(given,)))
        assert bench.look(case.limit) == newcomer
        assert bench.look(case.limit, back=own).reason is Reason.EARLY

    def test_reason_says_exhausted_or_in_line(self) -> None:
        """A denial says whether no unit is left or whether other jobs stand before this one."""
        with self.bench() as bench:
            bench.drain(TEN)
            assert bench.ask(TEN).reason is Reason.EXHAUSTED
            bench.now_us += STEP_US
            assert bench.ask(TEN).reason is Reason.IN_LINE

    @for_each(CASES)
    def test_job_that_will_not_wait_as_long_takes_no_place(self, bench: Bench, case: Case) -> None:
        """A job that would be due after its max_wait gets no place; one that has a place leaves it."""
        bench.drain(case.limit)
        hasty = bench.ask(case.limit, max_wait_us=case.first_us - 1)
        assert (hasty.due_us, hasty.places) == (case.due_us(0), ())
        patient = bench.ask(case.limit, max_wait_us=case.first_us)
        assert patient.due_us == case.due_us(0)
        assert bench.look(case.limit).due_us == case.due_us(1)
        assert bench.ask(case.limit, back=patient, max_wait_us=case.first_us - 1).places == ()
        assert bench.look(case.limit).due_us == case.due_us(0)

    @for_each(CASES)
    def test_job_that_leaves_holds_no_other_back(self, bench: Bench, case: Case) -> None:
        """Those behind it move up at once; to leave a line a second time changes nothing."""
        first, second, third = _line_up(bench, case, 3)
        for _ in range(2):
            bench.leave(case.limit, denied=first)
            assert bench.look(case.limit).due_us == case.due_us(2)
        assert bench.look(case.limit, back=third).due_us == case.due_us(1)
        bench.now_us = case.start_us + case.first_us
        assert bench.ask(case.limit, back=second).allowed
        bench.leave(case.limit, denied=second)
        bench.leave(case.limit, denied=third)
        bench.now_us = case.start_us + case.full_us + case.first_us
        assert bench.ask(case.limit).allowed

    @for_each(CASES)
    def test_job_that_ran_goes_before_those_that_did_not(self, bench: Bench, case: Case) -> None:
        """A job that has to wait once more is due first, and passes before all that wait."""
        first, *_ = _line_up(bench, case, 7)
        again = bench.ask(case.limit, caller=Caller.AGAIN)
        assert again.due_us == case.due_us(0)
        assert bench.ask(case.limit, back=first).due_us == case.due_us(1)
        bench.now_us = again.due_us
        assert bench.ask(case.limit, back=again).allowed

    @for_each(CASES)
    def test_guests_take_no_place(self, bench: Bench, case: Case) -> None:
        """Guests get instants one interval apart, up to a bound; and the next job is due when it would have been."""
        bench.drain(case.limit)
        verdicts = [bench.ask(case.limit, caller=Caller.GUEST) for _ in range(12)]
        waits = [verdict.due_us - case.due_us(0) for verdict in verdicts]
        interval_us = case.limit.period_us // case.limit.amount
        assert waits == [min(number * interval_us, GUESTS_US) for number in range(12)], waits
        assert {verdict.places for verdict in verdicts} == {()}
        assert bench.ask(case.limit).due_us == case.due_us(0)

    @for_each(CASES)
    def test_guest_waits_behind_jobs(self, bench: Bench, case: Case) -> None:
        """A guest does not pass while jobs wait for all the units that are there."""
        _line_up(bench, case, 5)
        bench.now_us = case.start_us + case.first_us
        verdict = bench.ask(case.limit, caller=Caller.GUEST)
        assert (verdict.reason, verdict.retry_us) == (Reason.IN_LINE, case.due_us(5)), verdict

    @for_each(CASES)
    def test_peek_answers_as_an_acquire_would(self, bench: Bench, case: Case) -> None:
        """At each instant a peek has the answer that the job then gets, and changes nothing, however often."""
        first, *_ = _line_up(bench, case, 30)
        for after_us in (0, case.first_us, GRACE_US, GRACE_US, case.full_us, GRACE_US, GRACE_US, 10 * SECOND_US):
            bench.now_us += after_us
            for back in (None, first):
                seen = {bench.look(case.limit, back=back)._replace(uses=()) for _ in range(2)}
                verdict = bench.ask(case.limit, back=back)._replace(uses=(), places=())
                assert seen == {verdict}, after_us

    @for_each(CASES)
    def test_jobs_that_do_not_come_hold_none_back(self, bench: Bench, case: Case) -> None:
        """A job behind forty that never come passes soon after the first unit is back."""
        _line_up(bench, case, 40)
        bench.now_us = case.start_us + case.first_us
        asked = _patient(bench, case.limit)
        assert bench.now_us <= case.start_us + case.first_us + 5 * SECOND_US
        assert asked <= 60

    def test_purged_queue_holds_no_day_back(self) -> None:
        """After a purge of a hundred jobs, new jobs pass at the rate of the limit, and not after a hundred others."""
        limit = TokenBucket(NAME, "1000/d", burst=1000)
        interval_us = limit.period_us // limit.amount
        with self.bench() as bench:
            bench.drain(limit)
            for _ in range(100):
                assert not bench.ask(limit).allowed
            for number in range(1, 4):
                bench.now_us = max(bench.now_us, NOW_US + number * interval_us)
                _patient(bench, limit)
                assert bench.now_us <= NOW_US + number * interval_us + 30 * SECOND_US, number

    def test_units_are_spent_once_in_each_grace_time(self) -> None:
        """
        However many ask: of the jobs that do not come, as many are set aside in a grace time as units lie there; more
        once none of those that were set aside has come back.
        """
        with self.bench() as bench:
            _abandon(bench, 40)
            for ahead in (40, 35, 25):
                bench.now_us += GRACE_US - 1
                for _ in range(3):
                    bench.ask(TEN, max_wait_us=0)
                    assert _ahead(bench) == ahead
                bench.now_us += 1
                bench.ask(TEN, max_wait_us=0)

    def test_job_that_was_set_aside_loses_nothing(self) -> None:
        """A job that comes back after it was set aside passes before those that came later."""
        with self.bench() as bench:
            first, *_ = _abandon(bench, 40)
            bench.now_us += GRACE_US
            bench.ask(TEN, max_wait_us=0)
            assert _ahead(bench) == 35
            assert bench.ask(TEN, back=first).allowed

    def test_no_job_is_set_aside_when_the_rate_changes(self) -> None:
        """The instants that the jobs know are those of the old rate: each process asks once before any is set aside."""
        with self.bench() as bench:
            bench.drain(TEN)
            for _ in range(40):
                bench.ask(TEN)
            claim = replace(bench.claim(TEN), algorithm=TokenBucket(NAME, "20/s", burst=5).bind(1, NOW_US))
            bench.now_us += 5 * STEP_US

            def ahead() -> int:
                bench.store.acquire(Request([claim], Caller.JOB, (), 0), now_us=bench.now_us)
                verdict = bench.store.acquire(Request([claim], Caller.PEEK), now_us=bench.now_us)
                return (verdict.retry_us - bench.now_us) // (STEP_US // 2) + 4

            assert ahead() == 40
            bench.now_us += LOOK_US + GRACE_US - 1
            assert ahead() == 40
            bench.now_us += 1
            assert ahead() == 35

    def test_rates_asked_in_turn_set_jobs_aside_too(self) -> None:
        """Where jobs of two rates share a key, jobs that do not come hold others back no longer than at one rate."""
        varying = TokenBucket(NAME, lambda _: "10/s", burst=timedelta(seconds=1))
        with self.bench() as bench:
            bench.drain(varying.at("10/s"))
            for _ in range(20):
                bench.ask(varying.at("10/s"))
            waiting = {rate: bench.ask(varying.at(rate)) for rate in ("10/s", "20/s")}
            for _ in range(12):
                bench.now_us += SECOND_US // 4
                waiting = {rate: bench.ask(varying.at(rate), back=denied) for rate, denied in waiting.items()}
                waiting = {rate: verdict for rate, verdict in waiting.items() if not verdict.allowed}
            assert not waiting

    def test_no_job_is_set_aside_when_a_pause_ends(self) -> None:
        """Each process asks once after the pause before any job is set aside."""
        with self.bench() as bench:
            bench.drain(TEN)
            for _ in range(40):
                bench.ask(TEN)
            bench.store.pause([bench.claim(TEN)], 10 * SECOND_US, now_us=bench.now_us)
            bench.now_us += 10 * SECOND_US + LOOK_US + GRACE_US - 1
            for wait_us in (1, GRACE_US - 1, 1):
                bench.ask(TEN, max_wait_us=0)
                assert _ahead(bench) == 40
                bench.now_us += wait_us
            bench.ask(TEN, max_wait_us=0)
            assert _ahead(bench) == 35

    def test_no_unit_of_a_tight_limit_waits_for_the_first_job(self) -> None:
        """Where a unit that is not taken is lost, a job that is due passes though those before it have not come."""
        with self.bench() as bench:
            bench.drain(ONE)
            first, second, third = (bench.ask(ONE) for _ in range(3))
            bench.now_us = second.due_us
            assert not bench.ask(ONE, back=third).allowed
            assert bench.ask(ONE, back=second).allowed
            bench.now_us += STEP_US
            assert bench.ask(ONE, back=first).allowed

    def test_jobs_that_are_due_and_find_no_unit_come_back_one_after_the_other(self) -> None:
        """After an outage of the workers all jobs are due at once: a few are due for the next unit, and not all."""
        with self.bench() as bench:
            bench.drain(ONE)
            waiting = [bench.ask(ONE) for _ in range(50)]
            bench.now_us = waiting[-1].due_us
            again = [bench.ask(ONE, back=denied) for denied in waiting]
            assert [verdict.allowed for verdict in again] == [True] + [False] * 49
            due = Counter(verdict.due_us for verdict in again[1:])
            assert max(due.values()) == AT_DOOR + 1, due

    def test_two_tenants_divide_the_limit_by_their_weights(self) -> None:
        """While both wait, three jobs of the one pass for each of the other, though the other came first."""
        with self.bench() as bench:
            bench.drain(TEN)
            waiting = [(bench.ask(TEN, tenant="a"), "a", 1) for _ in range(20)]
            waiting += [(bench.ask(TEN, tenant="b", weight=3), "b", 3) for _ in range(20)]
            passed = {"a": 0, "b": 0}
            while passed["b"] < 20:
                denied, tenant, weight = min(waiting, key=lambda each: (each[0].due_us, each[0].places[0]))
                waiting.remove((denied, tenant, weight))
                bench.now_us = max(bench.now_us, denied.due_us)
                again = bench.ask(TEN, back=denied, tenant=tenant, weight=weight)
                if again.allowed:
                    passed[tenant] += 1
                    assert abs(3 * passed["a"] - passed["b"]) <= 4, passed
                else:
                    waiting.append((again, tenant, weight))

    def test_tenant_with_nothing_waiting_is_next(self) -> None:
        """However many jobs of one tenant wait, the first job of another is due after one of them."""
        with self.bench() as bench:
            bench.drain(TEN)
            for _ in range(50):
                bench.ask(TEN, tenant="heavy")
            assert bench.ask(TEN, tenant="light").due_us == NOW_US + 2 * STEP_US
            assert bench.ask(TEN, tenant="light").due_us == NOW_US + 4 * STEP_US
            assert bench.ask(TEN, tenant="heavy").due_us == NOW_US + 53 * STEP_US


def _line_up(bench: Bench, case: Case, waiters: int) -> list[Verdict]:
    """Take the whole capacity, and let so many jobs wait; return their denials."""
    bench.drain(case.limit)
    return [bench.ask(case.limit) for _ in range(waiters)]


def _abandon(bench: Bench, waiters: int) -> list[Verdict]:
    """Let so many jobs wait for `TEN`, and go to the instant at which its units have lain there for the grace time."""
    bench.drain(TEN)
    denials = [bench.ask(TEN) for _ in range(waiters)]
    bench.now_us += 5 * STEP_US
    bench.ask(TEN, max_wait_us=0)
    assert _ahead(bench) == waiters, "nothing is set aside before a process has seen that the units lie there"
    return denials


def _ahead(bench: Bench) -> int:
    """How many units of `TEN`, five of which are there, wait before a newcomer."""
    return (bench.look(TEN).retry_us - max(bench.now_us, bench.use(TEN).full_us)) // STEP_US + 4


def _patient(bench: Bench, limit: Limit) -> int:
    """Let a job wait until it passes, in a process that asks when the job is due, and at least every `LOOK_US`."""
    asked, verdict = 1, bench.ask(limit)
    while not verdict.allowed:
        bench.now_us += min(verdict.due_us - bench.now_us, LOOK_US)
        verdict = bench.ask(limit, back=verdict)
        asked += 1
    return asked
