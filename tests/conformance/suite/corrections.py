"""A store's tests for `settle`: costs that are known only afterwards."""

from __future__ import annotations

from conformance.suite.bench import SECOND_US, Bench, ConformanceSuite
from conformance.suite.cases import BURST_CASES, CASES, Case, for_each
from throttlekit._core.answer import Caller, Reason

__all__ = ["CorrectionConformance"]


class CorrectionConformance(ConformanceSuite):
    @for_each(BURST_CASES)
    def test_dearer_job_takes_the_difference(self, bench: Bench, case: Case) -> None:
        """A job that was charged 1 and took 5 leaves as much as a job that was charged 5."""
        limit = case.limit
        assert bench.ask(limit).allowed
        bench.settle(limit, was=1, actual=limit.capacity)
        assert bench.left(limit) == 0
        denied = bench.look(limit)
        assert denied.retry_us == case.start_us + case.first_us, denied

    @for_each(CASES)
    def test_debt_is_paid_first(self, bench: Bench, case: Case) -> None:
        """A job may turn out to cost more than the capacity: then nothing passes until the debt is paid."""
        limit = case.limit
        bench.drain(limit)
        bench.settle(limit, was=limit.capacity, actual=limit.capacity + 2)
        assert bench.left(limit) == 0
        denied = bench.look(limit)
        assert denied.retry_us == case.start_us + case.owed_us, denied
        bench.now_us = denied.retry_us - 1
        assert not bench.look(limit).allowed
        bench.now_us = denied.retry_us
        assert bench.ask(limit).allowed

    @for_each([case for case in CASES if case.label != "sliding_log"])
    def test_debt_can_be_given_back(self, bench: Bench, case: Case) -> None:
        """A correction that left a debt can be corrected again, while nothing else has passed."""
        limit = case.limit
        bench.drain(limit)
        bench.settle(limit, was=limit.capacity, actual=limit.capacity + 2)
        bench.settle(limit, was=limit.capacity + 2, actual=0)
        assert bench.passing(limit) == limit.capacity

    @for_each([case for case in CASES if case.label == "sliding_log"])
    def test_log_with_a_debt_gives_nothing_back(self, bench: Bench, case: Case) -> None:
        """A debt that pushed units out of the log gives nothing back while it counts; then it does, to the unit."""
        limit = case.limit
        assert bench.ask(limit, cost=3).allowed
        bench.now_us += 10 * SECOND_US
        granted_us = bench.now_us
        assert bench.ask(limit, cost=2).allowed
        bench.settle(limit, was=2, actual=4)
        bench.now_us = case.start_us + case.full_us - 1
        bench.settle(limit, was=4, actual=0, granted_us=granted_us)
        denied = bench.look(limit)
        assert (bench.left(limit), denied.retry_us) == (0, case.start_us + case.full_us), denied
        bench.now_us = denied.retry_us
        assert bench.left(limit) == 1
        bench.settle(limit, was=4, actual=2, granted_us=granted_us)
        assert bench.left(limit) == 3
        assert bench.passing(limit) == 3

    @for_each([case for case in CASES if case.label == "sliding_log"])
    def test_debt_does_not_push_other_jobs_out_of_the_log(self, bench: Bench, case: Case) -> None:
        """A correction up and down again makes no room for more than the other jobs left."""
        limit = case.limit
        assert bench.ask(limit, cost=4).allowed
        bench.now_us += SECOND_US
        granted_us = bench.now_us
        assert bench.ask(limit).allowed
        bench.settle(limit, was=1, actual=5)
        bench.settle(limit, was=5, actual=1, granted_us=granted_us)
        assert bench.passing(limit) == 0
        bench.now_us = case.start_us + case.full_us - 1
        assert bench.passing(limit) == 0

    @for_each(CASES)
    def test_cheaper_job_gives_the_difference_back(self, bench: Bench, case: Case) -> None:
        """What a job did not use passes at once, and no more."""
        limit = case.limit
        bench.drain(limit)
        bench.settle(limit, was=limit.capacity, actual=limit.capacity - 1)
        assert bench.left(limit) == 1
        assert bench.passing(limit) == 1

    @for_each(BURST_CASES)
    def test_job_gives_back_its_own_units_only(self, bench: Bench, case: Case) -> None:
        """Of two jobs, one that used nothing gives back only its own units."""
        limit = case.limit
        assert bench.ask(limit, cost=2).allowed
        assert bench.ask(limit, cost=3).allowed
        bench.settle(limit, was=3, actual=0)
        assert bench.left(limit) == 3
        assert bench.passing(limit) == 3

    @for_each(CASES)
    def test_limit_is_never_fuller_than_full(self, bench: Bench, case: Case) -> None:
        """However much is given back, no more than the capacity passes at once."""
        limit = case.limit
        assert bench.ask(limit).allowed
        bench.settle(limit, was=1000, actual=0)
        bench.settle(limit, was=1000, actual=0)
        assert bench.left(limit) == limit.capacity
        assert bench.passing(limit) == limit.capacity

    @for_each(CASES)
    def test_nothing_is_given_back_twice(self, bench: Bench, case: Case) -> None:
        """Units that have expired already are not given back again."""
        limit = case.limit
        bench.drain(limit)
        granted_us = bench.now_us
        bench.now_us += case.full_us
        bench.settle(limit, was=limit.capacity, actual=0, granted_us=granted_us)
        assert bench.left(limit) == limit.capacity
        assert bench.passing(limit) == limit.capacity
        bench.settle(limit, was=limit.capacity, actual=limit.capacity, granted_us=granted_us)
        assert bench.passing(limit) == 0

    @for_each(CASES)
    def test_limit_is_never_fuller_than_full_in_the_next_window(self, bench: Bench, case: Case) -> None:
        """No more than the capacity passes when units are given back in the next window."""
        limit = case.limit
        granted_us = bench.now_us
        assert bench.ask(limit).allowed
        bench.now_us += 50 * SECOND_US
        bench.settle(limit, was=1000, actual=0, granted_us=granted_us)
        assert bench.passing(limit) == limit.capacity

    @for_each([case for case in CASES if case.label == "sliding_window"])
    def test_last_window_makes_no_room_in_the_current_one(self, bench: Bench, case: Case) -> None:
        """Units given back by a job of the last window make no room in the current window."""
        limit = case.limit
        granted_us = bench.now_us
        assert bench.ask(limit).allowed
        bench.now_us += 50 * SECOND_US
        assert bench.ask(limit, cost=2).allowed
        bench.settle(limit, was=1000, actual=0, granted_us=granted_us)
        assert bench.passing(limit) == 3

    @for_each([case for case in BURST_CASES if case.label != "token_bucket"])
    def test_ended_window_gives_nothing_back(self, bench: Bench, case: Case) -> None:
        """A job that ran in a window that has ended gives nothing back to the current one."""
        limit = case.limit
        granted_us = bench.now_us
        bench.drain(limit)
        bench.now_us += case.full_us
        assert bench.ask(limit, cost=2).allowed
        bench.settle(limit, was=5, actual=0, granted_us=granted_us)
        assert bench.left(limit) == 3
        assert bench.passing(limit) == 3

    @for_each([case for case in CASES if case.label.endswith("bucket")])
    def test_large_debt_is_not_taken_for_a_wrong_clock(self, bench: Bench, case: Case) -> None:
        """A debt may take minutes to pay, and is not cancelled as a clock that was far ahead is."""
        limit = case.limit
        bench.drain(limit)
        bench.settle(limit, was=limit.capacity, actual=limit.capacity + 3000)
        promised_us = case.start_us + case.first_us + 3000 * case.next_us
        assert bench.look(limit).retry_us == promised_us
        bench.now_us = promised_us - 1
        assert not bench.ask(limit, caller=Caller.WITHOUT_JOB).allowed
        bench.now_us = promised_us
        assert bench.ask(limit, caller=Caller.WITHOUT_JOB).allowed

    @for_each(CASES)
    def test_nothing_is_given_back_to_an_unknown_key(self, bench: Bench, case: Case) -> None:
        """A correction downwards of a key that is not stored leaves it unused."""
        bench.settle(case.limit, was=case.limit.capacity, actual=0)
        assert bench.untouched(case.limit)

    @for_each(CASES)
    def test_dearer_job_is_charged_to_an_unknown_key(self, bench: Bench, case: Case) -> None:
        """A correction upwards of a key that is not stored is charged all the same, from now on."""
        limit = case.limit
        bench.settle(limit, was=0, actual=limit.capacity, granted_us=bench.now_us - SECOND_US)
        assert bench.look(limit).retry_us == case.start_us + case.first_us
        assert bench.passing(limit) == 0

    @for_each(CASES)
    def test_units_given_back_wake_the_first(self, bench: Bench, case: Case) -> None:
        """Units given back are for the jobs that wait: a newcomer waits behind them, and the first passes."""
        limit = case.limit
        bench.drain(limit)
        for number in range(3):
            bench.ask(limit, job=str(number))
        bench.settle(limit, was=limit.capacity, actual=limit.capacity - 1)
        assert bench.woken(limit) == ["0"]
        assert bench.ask(limit, job="new").reason is Reason.IN_LINE
        assert bench.ask(limit, job="0").allowed

    @for_each(CASES)
    def test_other_keys_are_not_settled(self, bench: Bench, case: Case) -> None:
        """A correction concerns one key of one limit."""
        bench.drain(case.limit, key="other")
        bench.drain(case.limit)
        bench.settle(case.limit, was=case.limit.capacity, actual=0)
        assert bench.left(case.limit, key="other") == 0

    @for_each(CASES)
    def test_correction_after_a_clock_that_was_far_ahead(self, bench: Bench, case: Case) -> None:
        """A correction of a state that was written when the clock was far ahead does not block the limit for long."""
        limit = case.limit
        bench.now_us += 40 * 86_400 * SECOND_US
        bench.drain(limit)
        bench.now_us = case.start_us
        bench.settle(limit, was=0, actual=1)
        assert bench.passing(limit) == 0
        bench.now_us = case.start_us + 2 * case.full_us
        assert 1 <= bench.passing(limit) <= limit.capacity
