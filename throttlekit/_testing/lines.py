"""What a store must do with waiting lines."""

# ruff: noqa: S101 - these are tests, shipped

from __future__ import annotations

from throttlekit._core.acquire import Caller, Reason
from throttlekit._core.line import GRACE_US, GUESTS_US
from throttlekit._testing.bench import NOW_US, ONE, SLOW, STEP_US, TEN, Bench, OnTheBench

__all__ = ["LineConformance"]


class LineConformance(OnTheBench):
    def test_slot_that_nobody_will_wait_for_is_not_booked(self) -> None:
        """A job whose patience ends before its slot is told the slot, and leaves it to the next."""
        with self.bench() as bench:
            bench.drain(TEN)
            hasty = bench.ask(TEN, patience_us=STEP_US - 1)
            patient = bench.ask(TEN, patience_us=STEP_US)
            assert hasty.slot_us == patient.slot_us == NOW_US + STEP_US
            assert bench.ask(TEN).slot_us == NOW_US + 2 * STEP_US

    def test_denial_books_in_the_binding_line_only(self) -> None:
        """A job that two buckets deny joins one line; the other line stays as it was."""
        with self.bench() as bench:
            bench.drain(ONE)
            bench.drain(SLOW)
            bench.ask(ONE, SLOW)
            assert bench.ask(ONE).slot_us == NOW_US + STEP_US

    def test_waiters_get_slots_one_charge_apart(self) -> None:
        """No two waiters are told the same instant: their slots stand one charge apart."""
        with self.bench() as bench:
            bench.drain(TEN)
            slots = [bench.ask(TEN, cost=cost).slot_us - NOW_US for cost in (1, 1, 2, 1)]
        assert slots == [1 * STEP_US, 2 * STEP_US, 3 * STEP_US, 5 * STEP_US], slots

    def test_holder_passes_at_its_slot(self) -> None:
        """A job that comes back at its slot passes while later slots still wait."""
        with self.bench() as bench:
            bench.drain(TEN)
            first, second = bench.ask(TEN), bench.ask(TEN)
            bench.now_us = first.slot_us
            assert bench.ask(TEN, slot_us=first.slot_us).allowed
            assert bench.ask(TEN, slot_us=second.slot_us).reason is Reason.EARLY

    def test_newcomer_waits_behind_those_who_wait(self) -> None:
        """While somebody waits, a newcomer is denied though a unit is free, and joins the end."""
        with self.bench() as bench:
            bench.drain(TEN)
            slots = [bench.ask(TEN).slot_us for _ in range(4)]
            bench.now_us = slots[1]
            newcomer = bench.ask(TEN)
            assert newcomer.reason is Reason.IN_LINE, newcomer
            assert newcomer.slot_us == slots[-1] + STEP_US, newcomer

    def test_exhausted_bucket_is_told_from_a_line(self) -> None:
        """A denial says whether the units are gone or whether others have waited longer."""
        with self.bench() as bench:
            bench.drain(TEN)
            assert bench.ask(TEN).reason is Reason.EXHAUSTED
            bench.now_us += STEP_US
            assert bench.ask(TEN).reason is Reason.IN_LINE

    def test_early_return_keeps_its_slot(self) -> None:
        """A job that comes back before its slot is told the same slot again."""
        with self.bench() as bench:
            bench.drain(TEN)
            slots = [bench.ask(TEN).slot_us for _ in range(3)]
            bench.now_us = slots[1] - 1
            verdict = bench.ask(TEN, slot_us=slots[1])
        assert (verdict.reason, verdict.slot_us, verdict.retry_us) == (Reason.EARLY, slots[1], slots[1]), verdict

    def test_early_return_books_nothing(self) -> None:
        """A job that comes back before its slot moves nobody behind it."""
        with self.bench() as bench:
            bench.drain(TEN)
            slot_us = bench.ask(TEN).slot_us
            for _ in range(3):
                bench.ask(TEN, slot_us=slot_us)
            assert bench.ask(TEN).slot_us == slot_us + STEP_US

    def test_slot_beyond_the_line_is_ignored(self) -> None:
        """A slot further ahead than its line reaches was never given: the job books like a newcomer."""
        with self.bench() as bench:
            bench.drain(TEN)
            end_us = bench.ask(TEN).slot_us + STEP_US
            verdict = bench.ask(TEN, slot_us=end_us)
        assert (verdict.reason, verdict.slot_us) == (Reason.EXHAUSTED, end_us), verdict

    def test_slot_in_the_past_does_not_fire_by_itself(self) -> None:
        """A slot is right of way only: a holder is denied while the bucket has no unit."""
        with self.bench() as bench:
            bench.drain(TEN)
            verdict = bench.ask(TEN, slot_us=NOW_US - 1)
        assert (verdict.reason, verdict.slot_us) == (Reason.EXHAUSTED, NOW_US + STEP_US), verdict

    def test_displaced_holders_line_up_before_newcomers(self) -> None:
        """Holders that come late in a bunch get the next instants in turn, before the rest of the line."""
        with self.bench() as bench:
            bench.drain(ONE)
            slots = [bench.ask(ONE).slot_us for _ in range(9)]
            bench.now_us = slots[2]
            outcomes = [bench.ask(ONE, slot_us=slot_us) for slot_us in slots[:3]]
        assert outcomes[0].allowed
        assert [o.slot_us - slots[2] for o in outcomes[1:]] == [STEP_US, 2 * STEP_US], outcomes

    def test_displaced_holders_go_before_newcomers(self) -> None:
        """A newcomer stands behind the displaced, even when nobody else is left in line."""
        with self.bench() as bench:
            bench.drain(ONE)
            slots = [bench.ask(ONE).slot_us for _ in range(2)]
            bench.now_us = slots[1] + STEP_US // 2
            assert bench.ask(ONE, slot_us=slots[0]).allowed
            displaced = bench.ask(ONE, slot_us=slots[1])
            assert bench.ask(ONE).slot_us == displaced.slot_us + STEP_US

    def test_guests_never_push_jobs_back(self) -> None:
        """A caller that cannot come back takes no place: the next job gets the slot it would have got."""
        with self.bench() as bench:
            bench.drain(TEN)
            for _ in range(20):
                bench.ask(TEN, caller=Caller.GUEST)
            assert bench.ask(TEN).slot_us == NOW_US + STEP_US

    def test_guests_are_spread_out(self) -> None:
        """Guests are told different instants, one charge apart."""
        with self.bench() as bench:
            bench.drain(TEN)
            slots = [bench.ask(TEN, caller=Caller.GUEST).slot_us - NOW_US for _ in range(3)]
        assert slots == [STEP_US, 2 * STEP_US, 3 * STEP_US], slots

    def test_guests_are_not_sent_away_for_long(self) -> None:
        """However many guests have asked, the next one is told an instant within the spread."""
        with self.bench() as bench:
            bench.drain(SLOW)
            verdict = [bench.ask(SLOW, caller=Caller.GUEST) for _ in range(100)][-1]
        assert verdict.slot_us == verdict.retry_us + GUESTS_US, verdict

    def test_guest_waits_behind_jobs(self) -> None:
        """A guest is a newcomer: it does not pass while jobs wait."""
        with self.bench() as bench:
            bench.drain(TEN)
            slots = [bench.ask(TEN).slot_us for _ in range(4)]
            bench.now_us = slots[1]
            verdict = bench.ask(TEN, caller=Caller.GUEST)
        assert (verdict.reason, verdict.slot_us) == (Reason.IN_LINE, slots[-1] + STEP_US), verdict

    def test_line_is_honoured_up_to_the_grace_time(self) -> None:
        """Just before the bucket has stood full for the grace time, a newcomer still waits."""
        with self.bench() as bench:
            self._abandoned(bench)
            bench.now_us -= 1
            assert bench.ask(TEN).reason is Reason.IN_LINE

    def test_abandoned_line_lets_a_newcomer_pass(self) -> None:
        """Once the bucket has stood full for the grace time, those in line are not coming: a newcomer passes."""
        with self.bench() as bench:
            self._abandoned(bench)
            assert bench.ask(TEN).allowed

    def test_abandoned_line_is_over_once_a_newcomer_has_passed(self) -> None:
        """After a newcomer has passed an abandoned line, the others pass as well: nothing is wasted."""
        with self.bench() as bench:
            self._abandoned(bench)
            passed = [bench.ask(TEN).allowed for _ in range(6)]
            assert passed == [True] * 5 + [False], passed
            assert bench.ask(TEN).slot_us == bench.now_us + 2 * STEP_US

    def test_line_goes_on_when_a_holder_comes_after_the_grace_time(self) -> None:
        """A holder that passes after the grace time was in line after all, and so are those behind it."""
        with self.bench() as bench:
            last_us = self._abandoned(bench)
            assert bench.ask(TEN, slot_us=bench.now_us).allowed
            assert bench.ask(TEN).slot_us == last_us + STEP_US

    def test_holder_passes_after_the_grace_time(self) -> None:
        """A holder that comes after all passes at its slot like any other."""
        with self.bench() as bench:
            last_us = self._abandoned(bench)
            bench.now_us = last_us
            assert bench.ask(TEN, slot_us=last_us).allowed

    @staticmethod
    def _abandoned(bench: Bench) -> int:
        """Line up more jobs than come back, go to the end of the grace time, and return the last slot."""
        bench.drain(TEN)
        last_us = [bench.ask(TEN).slot_us for _ in range(100)][-1]
        full_us = bench.tat(TEN)
        assert full_us is not None
        bench.now_us = full_us + GRACE_US
        return last_us
