"""What a store must do with any one limit, whatever its algorithm."""

# ruff: noqa: S101 - these are tests, shipped

from __future__ import annotations

import threading

from throttlekit._core.acquire import Caller, Reason, Verdict
from throttlekit.testing.bench import SECOND_US, Bench, OnTheBench
from throttlekit.testing.rules import RULES, SEVERAL, Rule, each

__all__ = ["AlgorithmConformance"]

_FAR_US = 40 * 86_400 * SECOND_US


class AlgorithmConformance(OnTheBench):
    @each(RULES)
    def test_whole_capacity_passes_one_by_one(self, bench: Bench, rule: Rule) -> None:
        """A limit that nobody has used passes as many units as it can hold at once, and not one more."""
        capacity = rule.limit.capacity
        passed = [bench.ask(rule.limit).allowed for _ in range(capacity + 2)]
        assert passed == [True] * capacity + [False] * 2, passed

    @each(RULES)
    def test_whole_capacity_passes_in_one(self, bench: Bench, rule: Rule) -> None:
        """One request may take everything; then nothing is left."""
        bench.drain(rule.limit)
        assert (bench.left(rule.limit), bench.passing(rule.limit)) == (0, 0)

    @each(SEVERAL)
    def test_request_takes_as_many_units_as_it_costs(self, bench: Bench, rule: Rule) -> None:
        """A cost counts in full: of 5, after 3, another 3 do not pass, and 2 do."""
        assert bench.ask(rule.limit, cost=3).allowed
        assert not bench.ask(rule.limit, cost=3, caller=Caller.GUEST, max_wait_us=0).allowed
        assert bench.left(rule.limit) == 2
        assert bench.ask(rule.limit, cost=2).allowed
        assert bench.left(rule.limit) == 0

    @each(RULES)
    def test_one_unit_passes_when_it_was_promised(self, bench: Bench, rule: Rule) -> None:
        """A request is denied one microsecond before the instant that its denial named, and passes then."""
        bench.drain(rule.limit)
        denied = bench.ask(rule.limit, caller=Caller.GUEST)
        assert (denied.reason, denied.retry_us) == (Reason.EXHAUSTED, rule.start_us + rule.first_us), denied
        bench.now_us = denied.retry_us - 1
        assert not bench.ask(rule.limit, caller=Caller.GUEST).allowed
        bench.now_us = denied.retry_us
        assert bench.ask(rule.limit, caller=Caller.GUEST).allowed

    @each(RULES)
    def test_everything_passes_when_it_was_promised(self, bench: Bench, rule: Rule) -> None:
        """The same holds for a request that costs all there is."""
        limit = rule.limit
        bench.drain(limit)
        denied = bench.ask(limit, cost=limit.capacity, caller=Caller.GUEST)
        assert denied.retry_us == rule.start_us + rule.whole_us, denied
        bench.now_us = denied.retry_us - 1
        assert not bench.ask(limit, cost=limit.capacity, caller=Caller.GUEST).allowed
        bench.now_us = denied.retry_us
        assert bench.ask(limit, cost=limit.capacity, caller=Caller.GUEST).allowed

    @each(RULES)
    def test_grant_tells_what_is_used_with_it(self, bench: Bench, rule: Rule) -> None:
        """A grant tells how much is left, itself taken off, and when nothing will count any more."""
        limit = rule.limit
        use = bench.ask(limit, cost=limit.capacity).uses[0]
        assert use is not None
        assert use.full_us == rule.start_us + rule.full_us, use
        assert limit.remaining(use, bench.now_us) == 0, use

    @each(RULES)
    def test_nothing_counts_once_it_is_full(self, bench: Bench, rule: Rule) -> None:
        """At the instant that was told, all units are back, and not more than all."""
        bench.drain(rule.limit)
        bench.now_us += rule.full_us
        assert bench.left(rule.limit) == rule.limit.capacity
        assert bench.passing(rule.limit) == rule.limit.capacity

    @each(RULES)
    def test_nothing_counts_long_after(self, bench: Bench, rule: Rule) -> None:
        """What was kept of a limit that has lain idle for long does no harm: all of it is there, and not more."""
        bench.drain(rule.limit)
        bench.now_us += _FAR_US
        assert bench.passing(rule.limit) == rule.limit.capacity

    @each(RULES)
    def test_cost_zero_only_looks(self, bench: Bench, rule: Rule) -> None:
        """A cost of 0 passes when nothing is left, and takes nothing."""
        bench.drain(rule.limit)
        before = bench.use(rule.limit)
        assert bench.ask(rule.limit, cost=0).allowed
        assert bench.use(rule.limit) == before

    @each(RULES)
    def test_cost_zero_leaves_no_trace_of_a_fresh_key(self, bench: Bench, rule: Rule) -> None:
        """A look at a key that has never been used leaves it unused."""
        assert bench.ask(rule.limit, cost=0).uses == ((0, bench.now_us),)
        assert bench.untouched(rule.limit)

    @each(RULES)
    def test_peek_takes_nothing(self, bench: Bench, rule: Rule) -> None:
        """A peek that would pass leaves the limit as it was."""
        for _ in range(9):
            assert bench.look(rule.limit).allowed
        assert bench.untouched(rule.limit)

    @each(RULES)
    def test_peek_books_nothing(self, bench: Bench, rule: Rule) -> None:
        """A peek that would be denied leaves the line as it was."""
        bench.drain(rule.limit)
        first_us = rule.start_us + rule.first_us
        for _ in range(9):
            verdict = bench.look(rule.limit)
            assert (verdict.reason, verdict.due_us) == (Reason.EXHAUSTED, first_us), verdict
        assert bench.ask(rule.limit).due_us == first_us

    @each(RULES)
    def test_denial_takes_nothing(self, bench: Bench, rule: Rule) -> None:
        """However often a request is denied, it moves neither what is used nor when it would pass."""
        bench.drain(rule.limit)
        before = bench.use(rule.limit)
        retries = {bench.ask(rule.limit, caller=Caller.GUEST).retry_us for _ in range(9)}
        assert (retries, bench.use(rule.limit)) == ({rule.start_us + rule.first_us}, before)

    @each(RULES)
    def test_keys_are_counted_apart(self, bench: Bench, rule: Rule) -> None:
        """Two keys of one limit have nothing in common, neither units nor lines."""
        bench.drain(rule.limit, key="a")
        bench.ask(rule.limit, key="a")
        assert bench.left(rule.limit, key="b") == rule.limit.capacity
        assert bench.passing(rule.limit, key="b") == rule.limit.capacity

    @each(RULES)
    def test_definitions_of_one_name_are_counted_apart(self, bench: Bench, rule: Rule) -> None:
        """Limits of one name and key that differ in their algorithm or their numbers never meet each other's state."""
        for other in RULES:
            if other is not rule:
                bench.drain(other.limit)
                bench.ask(other.limit)
        assert bench.untouched(rule.limit)
        assert bench.passing(rule.limit) == rule.limit.capacity

    @each(RULES)
    def test_limit_defined_anew_begins_anew(self, bench: Bench, rule: Rule) -> None:
        """Another rate of one algorithm counts by itself, at once; the old one still holds for those who have it."""
        limit = rule.limit
        raised = type(limit)(limit.name, "700/h")
        bench.drain(limit)
        assert bench.untouched(raised)
        bench.drain(raised)
        assert (bench.passing(limit), bench.passing(raised)) == (0, 0)

    @each(RULES)
    def test_reset_gives_everything_back(self, bench: Bench, rule: Rule) -> None:
        """After a reset the limit is as if nobody had ever used it."""
        bench.drain(rule.limit)
        bench.reset(rule.limit)
        assert bench.untouched(rule.limit)
        assert bench.passing(rule.limit) == rule.limit.capacity

    @each(RULES)
    def test_reset_empties_the_line(self, bench: Bench, rule: Rule) -> None:
        """After a reset nobody waits: the first to be denied gets the first slot."""
        bench.drain(rule.limit)
        for _ in range(9):
            bench.ask(rule.limit)
        bench.reset(rule.limit)
        bench.drain(rule.limit)
        assert bench.ask(rule.limit).due_us == rule.start_us + rule.first_us

    @each(RULES)
    def test_reset_of_what_is_not_there_is_quiet(self, bench: Bench, rule: Rule) -> None:
        """Forgetting what was never known is no error."""
        bench.reset(rule.limit)
        assert bench.untouched(rule.limit)

    @each(RULES)
    def test_clock_that_steps_back_admits_nothing_extra(self, bench: Bench, rule: Rule) -> None:
        """After the clock has stepped back, nothing passes that would not have passed before."""
        bench.drain(rule.limit)
        for back_us in (1, 100_000, 30 * SECOND_US, 60 * SECOND_US):
            bench.now_us = rule.start_us - back_us
            assert bench.passing(rule.limit) == 0, back_us
        bench.now_us = rule.start_us + rule.first_us - 1
        assert bench.passing(rule.limit) == 0

    @each(SEVERAL)
    def test_units_taken_on_a_clock_that_stepped_back_count(self, bench: Bench, rule: Rule) -> None:
        """What passes after the clock has stepped back is counted with the rest, whichever window it would fall in."""
        assert bench.ask(rule.limit, cost=2).allowed
        bench.now_us -= 30 * SECOND_US
        passed = bench.passing(rule.limit)
        assert passed <= 3, passed
        bench.now_us = rule.start_us
        assert passed + bench.passing(rule.limit) == 3
        assert bench.look(rule.limit, cost=5).retry_us == rule.start_us + rule.whole_us

    @each(RULES)
    def test_clock_that_was_far_ahead_does_not_block_for_long(self, bench: Bench, rule: Rule) -> None:
        """After the clock has been far ahead, the limit counts as just used up: no longer, and no shorter."""
        bench.now_us += _FAR_US
        bench.drain(rule.limit)
        bench.now_us = rule.start_us
        denied = bench.ask(rule.limit, caller=Caller.GUEST)
        assert (denied.reason, denied.retry_us) == (Reason.EXHAUSTED, rule.start_us + rule.first_us), denied
        bench.now_us = denied.retry_us
        assert bench.passing(rule.limit) >= 1
        bench.now_us = rule.start_us + 2 * rule.full_us
        assert bench.passing(rule.limit) <= rule.limit.capacity

    @each(RULES)
    def test_looking_at_a_clock_that_was_far_ahead_changes_nothing(self, bench: Bench, rule: Rule) -> None:
        """A peek, and a cost of 0, leave what was written when the clock was far ahead."""
        bench.now_us += _FAR_US
        bench.drain(rule.limit)
        before = bench.use(rule.limit)
        bench.now_us = rule.start_us
        bench.look(rule.limit)
        bench.ask(rule.limit, cost=0)
        bench.now_us += _FAR_US
        assert bench.use(rule.limit) == before

    @each(RULES)
    def test_threads_share_one_budget(self, bench: Bench, rule: Rule) -> None:
        """However many threads ask at once, exactly the capacity passes, and no two waiters share a slot."""
        limit = rule.limit
        verdicts: list[Verdict] = []

        def ask_often() -> None:
            for _ in range(10):
                verdicts.append(bench.ask(limit))

        threads = [threading.Thread(target=ask_often) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        slots = [verdict.due_us for verdict in verdicts if not verdict.allowed]
        assert len(verdicts) == 80
        assert len(slots) == 80 - limit.capacity
        assert len(set(slots)) == len(slots)
