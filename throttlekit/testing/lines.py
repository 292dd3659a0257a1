"""What a store must do with waiting lines, whatever the algorithm behind them."""

# ruff: noqa: S101 - these are tests, shipped

from __future__ import annotations

from throttlekit._core.acquire import Caller, Reason
from throttlekit._core.line import GRACE_US, GUESTS_US
from throttlekit.testing.bench import NOW_US, ONE, STEP_US, TEN, Bench, OnTheBench
from throttlekit.testing.rules import RULES, Rule, each

__all__ = ["LineConformance"]


class LineConformance(OnTheBench):
    @each(RULES)
    def test_waiters_get_slots_one_interval_apart(self, bench: Bench, rule: Rule) -> None:
        """No two waiters are told the same instant: their slots begin at the first that opens, one interval apart."""
        slots = _line_up(bench, rule, 12)
        expected = [rule.start_us + rule.first_us + number * rule.interval_us for number in range(12)]
        assert slots == expected, slots

    def test_waiter_of_more_units_takes_as_much_of_the_line(self) -> None:
        """The next slot is as far off as the units that are waited for."""
        with self.bench() as bench:
            bench.drain(TEN)
            slots = [bench.ask(TEN, cost=cost).due_us - NOW_US for cost in (1, 1, 2, 1)]
        assert slots == [1 * STEP_US, 2 * STEP_US, 3 * STEP_US, 5 * STEP_US], slots

    @each(RULES)
    def test_everybody_passes_at_their_slot(self, bench: Bench, rule: Rule) -> None:
        """Whoever comes at the slot that was told passes: one denial each, however long the line. No herd, no waste."""
        for due_us in _line_up(bench, rule, 12):
            bench.now_us = due_us
            verdict = bench.ask(rule.limit, due_us=due_us)
            assert verdict.allowed, (due_us - rule.start_us, verdict)

    @each(RULES)
    def test_whole_line_passes(self, bench: Bench, rule: Rule) -> None:
        """Jobs that come whenever they were told to all pass, and none is sent away again and again."""
        waiting = [(due_us, 1) for due_us in _line_up(bench, rule, 12)]
        while waiting:
            waiting.sort()
            due_us, denials = waiting.pop(0)
            bench.now_us = due_us
            verdict = bench.ask(rule.limit, due_us=due_us)
            if not verdict.allowed:
                assert denials < 4, (due_us - rule.start_us, verdict)
                waiting.append((verdict.due_us, denials + 1))

    @each(RULES)
    def test_holder_passes_while_later_slots_wait(self, bench: Bench, rule: Rule) -> None:
        """A job that comes back at its slot passes; the next one, come with it, is told its own slot again."""
        first_us, second_us = _line_up(bench, rule, 2)
        bench.now_us = first_us
        assert bench.ask(rule.limit, due_us=first_us).allowed
        early = bench.ask(rule.limit, due_us=second_us)
        assert (early.reason, early.due_us) == (Reason.EARLY, second_us), early

    @each(RULES)
    def test_newcomer_waits_behind_those_who_wait(self, bench: Bench, rule: Rule) -> None:
        """While somebody waits, a newcomer is denied though a unit is free, and joins the end."""
        slots = _line_up(bench, rule, 4)
        bench.now_us = slots[0]
        newcomer = bench.ask(rule.limit)
        assert (newcomer.reason, newcomer.due_us) == (Reason.IN_LINE, slots[-1] + rule.interval_us), newcomer

    @each(RULES)
    def test_early_return_keeps_its_slot(self, bench: Bench, rule: Rule) -> None:
        """A job that comes back before its slot is told the same slot again, and moves nobody behind it."""
        slots = _line_up(bench, rule, 3)
        for now_us in (rule.start_us, slots[0] - 1, slots[0]):
            bench.now_us = now_us
            verdict = bench.ask(rule.limit, due_us=slots[1])
            assert (verdict.reason, verdict.due_us, verdict.retry_us) == (Reason.EARLY, slots[1], slots[1]), verdict
        bench.now_us = rule.start_us
        assert bench.ask(rule.limit).due_us == slots[-1] + rule.interval_us

    @each(RULES)
    def test_early_return_takes_nothing(self, bench: Bench, rule: Rule) -> None:
        """A job that comes back before its slot leaves what is used as it was, a free unit too."""
        first_us, second_us = _line_up(bench, rule, 2)
        bench.now_us = first_us
        before = bench.use(rule.limit)
        bench.ask(rule.limit, due_us=second_us)
        assert bench.use(rule.limit) == before

    @each(RULES)
    def test_slot_beyond_the_line_is_ignored(self, bench: Bench, rule: Rule) -> None:
        """A slot further ahead than its line reaches was never given: the job books like a newcomer."""
        (due_us,) = _line_up(bench, rule, 1)
        end_us = due_us + rule.interval_us
        verdict = bench.ask(rule.limit, due_us=end_us)
        assert (verdict.reason, verdict.due_us) == (Reason.EXHAUSTED, end_us), verdict
        assert bench.ask(rule.limit).due_us == end_us + rule.interval_us

    @each(RULES)
    def test_slot_in_the_past_does_not_fire_by_itself(self, bench: Bench, rule: Rule) -> None:
        """A slot is right of way only: a holder is denied while there is no unit."""
        bench.drain(rule.limit)
        verdict = bench.ask(rule.limit, due_us=rule.start_us - 1)
        assert (verdict.reason, verdict.due_us) == (Reason.EXHAUSTED, rule.start_us + rule.first_us), verdict

    @each(RULES)
    def test_displaced_holders_line_up_before_newcomers(self, bench: Bench, rule: Rule) -> None:
        """Holders that find no unit get the next instants in turn, and a newcomer stands behind them."""
        bench.drain(rule.limit)
        first_us = rule.start_us + rule.first_us
        displaced = [bench.ask(rule.limit, due_us=rule.start_us - back).due_us for back in (3, 2, 1)]
        assert displaced == [first_us + number * rule.interval_us for number in range(3)], displaced
        assert bench.ask(rule.limit).due_us == displaced[-1] + rule.interval_us

    def test_displaced_holders_overtake_the_rest_of_the_line(self) -> None:
        """Holders that come late in a bunch get the next instants in turn, before those whose slots are to come."""
        with self.bench() as bench:
            bench.drain(ONE)
            slots = [bench.ask(ONE).due_us for _ in range(9)]
            bench.now_us = slots[2]
            outcomes = [bench.ask(ONE, due_us=due_us) for due_us in slots[:3]]
        assert outcomes[0].allowed
        assert [o.due_us - slots[2] for o in outcomes[1:]] == [STEP_US, 2 * STEP_US], outcomes

    def test_displaced_holders_go_before_newcomers(self) -> None:
        """A newcomer stands behind the displaced, even when nobody else is left in line."""
        with self.bench() as bench:
            bench.drain(ONE)
            slots = [bench.ask(ONE).due_us for _ in range(2)]
            bench.now_us = slots[1] + STEP_US // 2
            assert bench.ask(ONE, due_us=slots[0]).allowed
            displaced = bench.ask(ONE, due_us=slots[1])
            assert bench.ask(ONE).due_us == displaced.due_us + STEP_US

    def test_exhausted_limit_is_told_from_a_line(self) -> None:
        """A denial says whether the units are gone or whether others have waited longer."""
        with self.bench() as bench:
            bench.drain(TEN)
            assert bench.ask(TEN).reason is Reason.EXHAUSTED
            bench.now_us += STEP_US
            assert bench.ask(TEN).reason is Reason.IN_LINE

    @each(RULES)
    def test_slot_that_nobody_will_wait_for_is_not_booked(self, bench: Bench, rule: Rule) -> None:
        """A job whose patience ends before its slot is told the slot, and leaves it to the next."""
        bench.drain(rule.limit)
        hasty = bench.ask(rule.limit, max_wait_us=rule.first_us - 1)
        patient = bench.ask(rule.limit, max_wait_us=rule.first_us)
        assert hasty.due_us == patient.due_us == rule.start_us + rule.first_us
        assert bench.ask(rule.limit).due_us == patient.due_us + rule.interval_us

    @each(RULES)
    def test_guests_never_push_jobs_back(self, bench: Bench, rule: Rule) -> None:
        """A caller that cannot come back takes no place: the next job gets the slot it would have got."""
        bench.drain(rule.limit)
        for _ in range(20):
            bench.ask(rule.limit, caller=Caller.GUEST)
        assert bench.ask(rule.limit).due_us == rule.start_us + rule.first_us

    @each(RULES)
    def test_guests_are_spread_out_but_not_for_long(self, bench: Bench, rule: Rule) -> None:
        """Guests are told instants one interval apart, up to the spread, however many have asked."""
        bench.drain(rule.limit)
        verdicts = [bench.ask(rule.limit, caller=Caller.GUEST) for _ in range(12)]
        waits = [verdict.due_us - (rule.start_us + rule.first_us) for verdict in verdicts]
        assert waits == [min(number * rule.interval_us, GUESTS_US) for number in range(12)], waits

    @each(RULES)
    def test_guest_waits_behind_jobs(self, bench: Bench, rule: Rule) -> None:
        """A guest is a newcomer: it does not pass while jobs wait."""
        slots = _line_up(bench, rule, 4)
        bench.now_us = slots[0]
        verdict = bench.ask(rule.limit, caller=Caller.GUEST)
        assert (verdict.reason, verdict.due_us) == (Reason.IN_LINE, slots[-1] + rule.interval_us), verdict

    @each(RULES)
    def test_line_is_honoured_up_to_the_grace_time(self, bench: Bench, rule: Rule) -> None:
        """Just before units have lain idle for the grace time, a newcomer still waits."""
        _line_up(bench, rule, 100)
        bench.now_us += rule.idle_us + GRACE_US - 1
        assert bench.ask(rule.limit).reason is Reason.IN_LINE

    @each(RULES)
    def test_line_that_was_given_up_is_over_once_a_newcomer_has_passed(self, bench: Bench, rule: Rule) -> None:
        """Once units have lain idle for the grace time, newcomers take them all, and wait for no one else."""
        _abandon(bench, rule)
        free = bench.left(rule.limit)
        passed = [bench.ask(rule.limit) for _ in range(free + 1)]
        assert [verdict.allowed for verdict in passed] == [True] * free + [False], passed
        last = passed[-1]
        assert (last.reason, last.due_us) == (Reason.EXHAUSTED, last.retry_us), last
        assert bench.ask(rule.limit).due_us == last.due_us + rule.interval_us

    @each(RULES)
    def test_line_goes_on_when_a_holder_comes_after_the_grace_time(self, bench: Bench, rule: Rule) -> None:
        """A holder that passes after the grace time was in line after all, and so are those behind it."""
        last_us = _abandon(bench, rule)
        assert bench.ask(rule.limit, due_us=bench.now_us).allowed
        assert bench.ask(rule.limit).due_us == last_us + rule.interval_us

    @each(RULES)
    def test_holder_passes_after_the_grace_time(self, bench: Bench, rule: Rule) -> None:
        """A holder that comes after all passes at its slot like any other."""
        last_us = _abandon(bench, rule)
        bench.now_us = last_us
        assert bench.ask(rule.limit, due_us=last_us).allowed


def _line_up(bench: Bench, rule: Rule, waiters: int) -> list[int]:
    """Take everything, and let so many jobs wait; return their slots."""
    bench.drain(rule.limit)
    return [bench.ask(rule.limit).due_us for _ in range(waiters)]


def _abandon(bench: Bench, rule: Rule) -> int:
    """Line up more jobs than come back, go to the end of the grace time, and return the last slot."""
    slots = _line_up(bench, rule, 100)
    bench.now_us = rule.start_us + rule.idle_us + GRACE_US
    return slots[-1]
