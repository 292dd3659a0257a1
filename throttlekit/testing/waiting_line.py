"""A store's tests for waiting lines, for each algorithm."""

# ruff: noqa: S101 - these are tests, shipped

from __future__ import annotations

from throttlekit._core.acquire import Caller, Reason
from throttlekit._core.line import GRACE_US, GUESTS_US
from throttlekit.testing.bench import NOW_US, ONE, STEP_US, TEN, Bench, ConformanceSuite
from throttlekit.testing.cases import CASES, Case, for_each

__all__ = ["WaitingLineConformance"]


class WaitingLineConformance(ConformanceSuite):
    @for_each(CASES)
    def test_waiting_jobs_are_due_one_interval_apart(self, bench: Bench, case: Case) -> None:
        """The first waiting job is due when a unit is free, the others one interval apart: no two at one instant."""
        due = _line_up(bench, case, 12)
        expected = [case.start_us + case.first_us + number * case.interval_us for number in range(12)]
        assert due == expected, due

    def test_job_of_more_units_takes_as_much_of_the_line(self) -> None:
        """The next place is as far off as the units that the job before it waits for."""
        with self.bench() as bench:
            bench.drain(TEN)
            due = [bench.ask(TEN, cost=cost).due_us - NOW_US for cost in (1, 1, 2, 1)]
        assert due == [1 * STEP_US, 2 * STEP_US, 3 * STEP_US, 5 * STEP_US], due

    @for_each(CASES)
    def test_every_job_passes_when_due(self, bench: Bench, case: Case) -> None:
        """A job that comes back when it is due passes: one denial each, however long the line."""
        for due_us in _line_up(bench, case, 12):
            bench.now_us = due_us
            verdict = bench.ask(case.limit, due_us=due_us)
            assert verdict.allowed, (due_us - case.start_us, verdict)

    @for_each(CASES)
    def test_whole_line_passes(self, bench: Bench, case: Case) -> None:
        """Jobs that come back when they are due all pass, and none is denied again and again."""
        waiting = [(due_us, 1) for due_us in _line_up(bench, case, 12)]
        while waiting:
            waiting.sort()
            due_us, denials = waiting.pop(0)
            bench.now_us = due_us
            verdict = bench.ask(case.limit, due_us=due_us)
            if not verdict.allowed:
                assert denials < 4, (due_us - case.start_us, verdict)
                waiting.append((verdict.due_us, denials + 1))

    @for_each(CASES)
    def test_cleared_line_leaves_what_was_counted(self, bench: Bench, case: Case) -> None:
        """A new job passes when the next unit is free, and not before; a pause stays."""
        claim = bench.claim(case.limit)
        bench.store.clear_lines([claim.line])
        _line_up(bench, case, 12)
        bench.store.clear_lines([claim.line])
        seen = bench.look(case.limit)
        assert (seen.reason, seen.due_us) == (Reason.EXHAUSTED, case.start_us + case.first_us), seen
        bench.now_us = seen.due_us
        assert bench.ask(case.limit).allowed
        bench.store.pause([claim], 60_000_000, now_us=bench.now_us)
        bench.store.clear_lines([claim.line])
        assert bench.look(case.limit).reason is Reason.PAUSED
        bench.now_us += 60_000_000
        assert bench.look(case.limit).reason is not Reason.PAUSED

    @for_each(CASES)
    def test_due_job_passes_while_later_jobs_wait(self, bench: Bench, case: Case) -> None:
        """A job that comes back when it is due passes; the next one, come too early, keeps its due instant."""
        first_us, second_us = _line_up(bench, case, 2)
        bench.now_us = first_us
        assert bench.ask(case.limit, due_us=first_us).allowed
        early = bench.ask(case.limit, due_us=second_us)
        assert (early.reason, early.due_us) == (Reason.EARLY, second_us), early

    @for_each(CASES)
    def test_newcomer_joins_the_end_of_the_line(self, bench: Bench, case: Case) -> None:
        """While a job waits, a newcomer is denied though a unit is free, and joins the end of the line."""
        due = _line_up(bench, case, 4)
        bench.now_us = due[0]
        newcomer = bench.ask(case.limit)
        assert (newcomer.reason, newcomer.due_us) == (Reason.IN_LINE, due[-1] + case.interval_us), newcomer

    @for_each(CASES)
    def test_early_return_keeps_its_place(self, bench: Bench, case: Case) -> None:
        """A job that comes back early gets the same due instant again, and the line stays as it is."""
        due = _line_up(bench, case, 3)
        for now_us in (case.start_us, due[0] - 1, due[0]):
            bench.now_us = now_us
            verdict = bench.ask(case.limit, due_us=due[1])
            assert (verdict.reason, verdict.due_us, verdict.retry_us) == (Reason.EARLY, due[1], due[1]), verdict
        bench.now_us = case.start_us
        assert bench.ask(case.limit).due_us == due[-1] + case.interval_us

    @for_each(CASES)
    def test_early_return_takes_nothing(self, bench: Bench, case: Case) -> None:
        """A job that comes back early takes nothing, not even a free unit."""
        first_us, second_us = _line_up(bench, case, 2)
        bench.now_us = first_us
        before = bench.use(case.limit)
        bench.ask(case.limit, due_us=second_us)
        assert bench.use(case.limit) == before

    @for_each(CASES)
    def test_ticket_beyond_the_line_is_ignored(self, bench: Bench, case: Case) -> None:
        """A ticket beyond the end of the line is not valid: the job joins the line like a newcomer."""
        (due_us,) = _line_up(bench, case, 1)
        end_us = due_us + case.interval_us
        verdict = bench.ask(case.limit, due_us=end_us)
        assert (verdict.reason, verdict.due_us) == (Reason.EXHAUSTED, end_us), verdict
        assert bench.ask(case.limit).due_us == end_us + case.interval_us

    @for_each(CASES)
    def test_overdue_ticket_is_not_a_unit(self, bench: Bench, case: Case) -> None:
        """A ticket gives right of way, not a unit: its job is denied while no unit is free."""
        bench.drain(case.limit)
        verdict = bench.ask(case.limit, due_us=case.start_us - 1)
        assert (verdict.reason, verdict.due_us) == (Reason.EXHAUSTED, case.start_us + case.first_us), verdict

    @for_each(CASES)
    def test_displaced_jobs_line_up_before_newcomers(self, bench: Bench, case: Case) -> None:
        """Late jobs that find no unit get the next instants in turn, and a newcomer comes after them."""
        bench.drain(case.limit)
        first_us = case.start_us + case.first_us
        displaced = [bench.ask(case.limit, due_us=case.start_us - back).due_us for back in (3, 2, 1)]
        assert displaced == [first_us + number * case.interval_us for number in range(3)], displaced
        assert bench.ask(case.limit).due_us == displaced[-1] + case.interval_us

    def test_displaced_jobs_overtake_the_rest_of_the_line(self) -> None:
        """Late jobs that come in a bunch get the next instants in turn, before those that are not due yet."""
        with self.bench() as bench:
            bench.drain(ONE)
            due = [bench.ask(ONE).due_us for _ in range(9)]
            bench.now_us = due[2]
            outcomes = [bench.ask(ONE, due_us=due_us) for due_us in due[:3]]
        assert outcomes[0].allowed
        assert [o.due_us - due[2] for o in outcomes[1:]] == [STEP_US, 2 * STEP_US], outcomes

    def test_displaced_jobs_go_before_newcomers(self) -> None:
        """A newcomer comes after displaced jobs, even when no other job is left in the line."""
        with self.bench() as bench:
            bench.drain(ONE)
            due = [bench.ask(ONE).due_us for _ in range(2)]
            bench.now_us = due[1] + STEP_US // 2
            assert bench.ask(ONE, due_us=due[0]).allowed
            displaced = bench.ask(ONE, due_us=due[1])
            assert bench.ask(ONE).due_us == displaced.due_us + STEP_US

    def test_reason_says_exhausted_or_in_line(self) -> None:
        """A denial says whether no unit is left or whether other jobs have waited longer."""
        with self.bench() as bench:
            bench.drain(TEN)
            assert bench.ask(TEN).reason is Reason.EXHAUSTED
            bench.now_us += STEP_US
            assert bench.ask(TEN).reason is Reason.IN_LINE

    @for_each(CASES)
    def test_place_beyond_max_wait_is_not_taken(self, bench: Bench, case: Case) -> None:
        """A job that would be due after its max_wait gets no place: the next job gets it."""
        bench.drain(case.limit)
        hasty = bench.ask(case.limit, max_wait_us=case.first_us - 1)
        patient = bench.ask(case.limit, max_wait_us=case.first_us)
        assert hasty.due_us == patient.due_us == case.start_us + case.first_us
        assert bench.ask(case.limit).due_us == patient.due_us + case.interval_us

    @for_each(CASES)
    def test_guests_never_push_jobs_back(self, bench: Bench, case: Case) -> None:
        """A caller that cannot come back takes no place: the next job is due when it would have been."""
        bench.drain(case.limit)
        for _ in range(20):
            bench.ask(case.limit, caller=Caller.GUEST)
        assert bench.ask(case.limit).due_us == case.start_us + case.first_us

    @for_each(CASES)
    def test_guests_are_spread_out_up_to_a_bound(self, bench: Bench, case: Case) -> None:
        """Guests get instants one interval apart, up to a bound, however many have called."""
        bench.drain(case.limit)
        verdicts = [bench.ask(case.limit, caller=Caller.GUEST) for _ in range(12)]
        waits = [verdict.due_us - (case.start_us + case.first_us) for verdict in verdicts]
        assert waits == [min(number * case.interval_us, GUESTS_US) for number in range(12)], waits

    @for_each(CASES)
    def test_guest_waits_behind_jobs(self, bench: Bench, case: Case) -> None:
        """A guest is a newcomer: it does not pass while jobs wait."""
        due = _line_up(bench, case, 4)
        bench.now_us = due[0]
        verdict = bench.ask(case.limit, caller=Caller.GUEST)
        assert (verdict.reason, verdict.due_us) == (Reason.IN_LINE, due[-1] + case.interval_us), verdict

    @for_each(CASES)
    def test_line_is_honoured_up_to_the_grace_time(self, bench: Bench, case: Case) -> None:
        """Just before units have been idle for the grace time, a newcomer still waits."""
        _line_up(bench, case, 100)
        bench.now_us += case.idle_us + GRACE_US - 1
        assert bench.ask(case.limit).reason is Reason.IN_LINE

    @for_each(CASES)
    def test_abandoned_line_ends_when_a_newcomer_passes(self, bench: Bench, case: Case) -> None:
        """Once units have been idle for the grace time, newcomers take them all, and wait for no other job."""
        _abandon(bench, case)
        free = bench.left(case.limit)
        passed = [bench.ask(case.limit) for _ in range(free + 1)]
        assert [verdict.allowed for verdict in passed] == [True] * free + [False], passed
        last = passed[-1]
        assert (last.reason, last.due_us) == (Reason.EXHAUSTED, last.retry_us), last
        assert bench.ask(case.limit).due_us == last.due_us + case.interval_us

    @for_each(CASES)
    def test_line_goes_on_when_a_job_comes_after_the_grace_time(self, bench: Bench, case: Case) -> None:
        """A job that passes after the grace time shows that the line is alive: newcomers join its end."""
        last_us = _abandon(bench, case)
        assert bench.ask(case.limit, due_us=bench.now_us).allowed
        assert bench.ask(case.limit).due_us == last_us + case.interval_us

    @for_each(CASES)
    def test_job_passes_after_the_grace_time(self, bench: Bench, case: Case) -> None:
        """A job that comes after the grace time still passes when it is due."""
        last_us = _abandon(bench, case)
        bench.now_us = last_us
        assert bench.ask(case.limit, due_us=last_us).allowed


def _line_up(bench: Bench, case: Case, waiters: int) -> list[int]:
    """Take the whole capacity, and let so many jobs wait; return when they are due."""
    bench.drain(case.limit)
    return [bench.ask(case.limit).due_us for _ in range(waiters)]


def _abandon(bench: Bench, case: Case) -> int:
    """Let more jobs wait than come back, go to the end of the grace time, and return when the last is due."""
    due = _line_up(bench, case, 100)
    bench.now_us = case.start_us + case.idle_us + GRACE_US
    return due[-1]
