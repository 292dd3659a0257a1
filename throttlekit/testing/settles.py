"""What a store must do with costs that are known only afterwards."""

# ruff: noqa: S101 - these are tests, shipped

from __future__ import annotations

from throttlekit._core.acquire import Caller, Reason
from throttlekit.testing.bench import SECOND_US, Bench, OnTheBench
from throttlekit.testing.rules import RULES, SEVERAL, Rule, each

__all__ = ["SettleConformance"]


class SettleConformance(OnTheBench):
    @each(SEVERAL)
    def test_dearer_job_takes_the_difference(self, bench: Bench, rule: Rule) -> None:
        """A job that was charged 1 and took 5 leaves what a job that was charged 5 leaves."""
        limit = rule.limit
        assert bench.ask(limit).allowed
        bench.settle(limit, was=1, actual=limit.capacity)
        assert bench.left(limit) == 0
        denied = bench.look(limit)
        assert denied.retry_us == rule.start_us + rule.first_us, denied

    @each(RULES)
    def test_what_is_owed_is_made_up_for_first(self, bench: Bench, rule: Rule) -> None:
        """A job may turn out dearer than the limit is large: then nothing passes until that has been made up for."""
        limit = rule.limit
        bench.drain(limit)
        bench.settle(limit, was=limit.capacity, actual=limit.capacity + 2)
        assert bench.left(limit) == 0
        denied = bench.look(limit)
        assert denied.retry_us == rule.start_us + rule.owed_us, denied
        bench.now_us = denied.retry_us - 1
        assert not bench.look(limit).allowed
        bench.now_us = denied.retry_us
        assert bench.ask(limit).allowed

    @each([rule for rule in RULES if rule.label != "sliding_log"])
    def test_what_is_owed_can_be_given_back(self, bench: Bench, rule: Rule) -> None:
        """A correction that drove the limit below empty can be corrected again, while nothing else has passed."""
        limit = rule.limit
        bench.drain(limit)
        bench.settle(limit, was=limit.capacity, actual=limit.capacity + 2)
        bench.settle(limit, was=limit.capacity + 2, actual=0)
        assert bench.passing(limit) == limit.capacity

    @each([rule for rule in RULES if rule.label == "sliding_log"])
    def test_log_that_is_owed_more_than_it_holds_gives_nothing_back(self, bench: Bench, rule: Rule) -> None:
        """A debt that pushed units out of the log is not given back while these count; then it is, to the unit."""
        limit = rule.limit
        assert bench.ask(limit, cost=3).allowed
        bench.now_us += 10 * SECOND_US
        granted_us = bench.now_us
        assert bench.ask(limit, cost=2).allowed
        bench.settle(limit, was=2, actual=4)
        bench.now_us = rule.start_us + rule.full_us - 1
        bench.settle(limit, was=4, actual=0, granted_us=granted_us)
        denied = bench.look(limit)
        assert (bench.left(limit), denied.retry_us) == (0, rule.start_us + rule.full_us), denied
        bench.now_us = denied.retry_us
        assert bench.left(limit) == 1
        bench.settle(limit, was=4, actual=2, granted_us=granted_us)
        assert bench.left(limit) == 3
        assert bench.passing(limit) == 3

    @each([rule for rule in RULES if rule.label == "sliding_log"])
    def test_log_forgets_nobody_for_a_debt(self, bench: Bench, rule: Rule) -> None:
        """A job that turned out dearer, and then cheaper, makes no room for more than the others left."""
        limit = rule.limit
        assert bench.ask(limit, cost=4).allowed
        bench.now_us += SECOND_US
        granted_us = bench.now_us
        assert bench.ask(limit).allowed
        bench.settle(limit, was=1, actual=5)
        bench.settle(limit, was=5, actual=1, granted_us=granted_us)
        assert bench.passing(limit) == 0
        bench.now_us = rule.start_us + rule.full_us - 1
        assert bench.passing(limit) == 0

    @each(RULES)
    def test_cheaper_job_gives_the_difference_back(self, bench: Bench, rule: Rule) -> None:
        """What a job did not take passes at once, and not more."""
        limit = rule.limit
        bench.drain(limit)
        bench.settle(limit, was=limit.capacity, actual=limit.capacity - 1)
        assert bench.left(limit) == 1
        assert bench.passing(limit) == 1

    @each(SEVERAL)
    def test_what_is_given_back_is_that_jobs_own(self, bench: Bench, rule: Rule) -> None:
        """Of two jobs, one that took nothing gives back its units only: the other's still count."""
        limit = rule.limit
        assert bench.ask(limit, cost=2).allowed
        assert bench.ask(limit, cost=3).allowed
        bench.settle(limit, was=3, actual=0)
        assert bench.left(limit) == 3
        assert bench.passing(limit) == 3

    @each(RULES)
    def test_limit_is_never_fuller_than_full(self, bench: Bench, rule: Rule) -> None:
        """However much is given back, no more than the capacity passes at once."""
        limit = rule.limit
        assert bench.ask(limit).allowed
        bench.settle(limit, was=1000, actual=0)
        bench.settle(limit, was=1000, actual=0)
        assert bench.left(limit) == limit.capacity
        assert bench.passing(limit) == limit.capacity

    @each(RULES)
    def test_nothing_is_given_back_twice(self, bench: Bench, rule: Rule) -> None:
        """What was taken and has run out by itself is not given back on top."""
        limit = rule.limit
        bench.drain(limit)
        granted_us = bench.now_us
        bench.now_us += rule.full_us
        bench.settle(limit, was=limit.capacity, actual=0, granted_us=granted_us)
        assert bench.left(limit) == limit.capacity
        assert bench.passing(limit) == limit.capacity
        bench.settle(limit, was=limit.capacity, actual=limit.capacity, granted_us=granted_us)
        assert bench.passing(limit) == 0

    @each(RULES)
    def test_limit_is_never_fuller_than_full_later_either(self, bench: Bench, rule: Rule) -> None:
        """Nor does more than the capacity pass when it is given back in the window after."""
        limit = rule.limit
        granted_us = bench.now_us
        assert bench.ask(limit).allowed
        bench.now_us += 50 * SECOND_US
        bench.settle(limit, was=1000, actual=0, granted_us=granted_us)
        assert bench.passing(limit) == limit.capacity

    @each([rule for rule in RULES if rule.label == "sliding_window"])
    def test_window_before_gives_back_its_own(self, bench: Bench, rule: Rule) -> None:
        """What a job of the window before gives back never makes room for more in the one that runs."""
        limit = rule.limit
        granted_us = bench.now_us
        assert bench.ask(limit).allowed
        bench.now_us += 50 * SECOND_US
        assert bench.ask(limit, cost=2).allowed
        bench.settle(limit, was=1000, actual=0, granted_us=granted_us)
        assert bench.passing(limit) == 3

    @each([rule for rule in SEVERAL if rule.label != "token_bucket"])
    def test_what_a_window_that_is_over_took_stays_taken(self, bench: Bench, rule: Rule) -> None:
        """A job that ran in a window that is over gives nothing back to those that run now."""
        limit = rule.limit
        granted_us = bench.now_us
        bench.drain(limit)
        bench.now_us += rule.full_us
        assert bench.ask(limit, cost=2).allowed
        bench.settle(limit, was=5, actual=0, granted_us=granted_us)
        assert bench.left(limit) == 3
        assert bench.passing(limit) == 3

    @each([rule for rule in RULES if rule.label.endswith("bucket")])
    def test_large_debt_is_not_taken_for_a_wrong_clock(self, bench: Bench, rule: Rule) -> None:
        """What is owed may take minutes to make up for, and is not forgiven as a clock that was far ahead is."""
        limit = rule.limit
        bench.drain(limit)
        bench.settle(limit, was=limit.capacity, actual=limit.capacity + 3000)
        promised_us = rule.start_us + rule.first_us + 3000 * rule.interval_us
        assert bench.look(limit).retry_us == promised_us
        bench.now_us = promised_us - 1
        assert not bench.ask(limit, caller=Caller.GUEST).allowed
        bench.now_us = promised_us
        assert bench.ask(limit, caller=Caller.GUEST).allowed

    @each(RULES)
    def test_nothing_is_given_back_to_a_key_that_is_not_known(self, bench: Bench, rule: Rule) -> None:
        """A correction downwards of what has been forgotten leaves the key as it is: unused."""
        bench.settle(rule.limit, was=rule.limit.capacity, actual=0)
        assert bench.untouched(rule.limit)

    @each(RULES)
    def test_dearer_job_is_charged_to_a_key_that_is_not_known(self, bench: Bench, rule: Rule) -> None:
        """A correction upwards of what has been forgotten is charged all the same, from now on."""
        limit = rule.limit
        bench.settle(limit, was=0, actual=limit.capacity, granted_us=bench.now_us - SECOND_US)
        assert bench.look(limit).retry_us == rule.start_us + rule.first_us
        assert bench.passing(limit) == 0

    @each(RULES)
    def test_settling_leaves_the_line_alone(self, bench: Bench, rule: Rule) -> None:
        """What is given back is for those who wait: a newcomer still joins the end of their line."""
        limit = rule.limit
        bench.drain(limit)
        slots = [bench.ask(limit).due_us for _ in range(3)]
        bench.settle(limit, was=limit.capacity, actual=limit.capacity - 1)
        newcomer = bench.ask(limit)
        assert (newcomer.reason, newcomer.due_us) == (Reason.IN_LINE, slots[-1] + rule.interval_us), newcomer

    @each(RULES)
    def test_other_keys_are_not_settled(self, bench: Bench, rule: Rule) -> None:
        """A correction is of one key of one limit."""
        bench.drain(rule.limit, key="other")
        bench.drain(rule.limit)
        bench.settle(rule.limit, was=rule.limit.capacity, actual=0)
        assert bench.left(rule.limit, key="other") == 0

    @each(RULES)
    def test_clock_that_was_far_ahead_is_not_settled_into(self, bench: Bench, rule: Rule) -> None:
        """A correction of what was written when the clock was far ahead leaves a limit that is not blocked for long."""
        limit = rule.limit
        bench.now_us += 40 * 86_400 * SECOND_US
        bench.drain(limit)
        bench.now_us = rule.start_us
        bench.settle(limit, was=0, actual=1)
        assert bench.passing(limit) == 0
        bench.now_us = rule.start_us + 2 * rule.full_us
        assert 1 <= bench.passing(limit) <= limit.capacity
