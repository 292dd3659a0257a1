"""What a store must do with what only one algorithm has: a queue's end, and clocks that are changed."""

# ruff: noqa: S101 - these are tests, shipped

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from throttlekit._core.acquire import Caller, Reason
from throttlekit._core.algorithms.fixed_window import FixedWindow
from throttlekit._core.algorithms.leaky_bucket import LeakyBucket
from throttlekit._core.algorithms.sliding_log import SlidingLog
from throttlekit._core.algorithms.sliding_window import SlidingWindow
from throttlekit._core.algorithms.token_bucket import TokenBucket
from throttlekit.testing.bench import NAME, NOW_US, SLOW, STEP_US, Bench, OnTheBench

__all__ = ["CalendarConformance", "LongPeriodConformance", "QueueConformance"]

_BERLIN = "Europe/Berlin"


class QueueConformance(OnTheBench):
    def test_full_queue_refuses(self) -> None:
        """As many wait as the queue lets wait; the next is refused, told so, and books nothing."""
        limit = LeakyBucket(NAME, "10/s", queue=3)
        with self.bench() as bench:
            bench.drain(limit)
            slots = [bench.ask(limit).due_us - NOW_US for _ in range(3)]
            refused = [bench.ask(limit, caller=caller) for caller in (*[Caller.JOB] * 5, Caller.GUEST, Caller.PEEK)]
            assert slots == [STEP_US, 2 * STEP_US, 3 * STEP_US], slots
            assert {verdict.reason for verdict in refused} == {Reason.FULL}, refused
            assert bench.ask(LeakyBucket(NAME, "10/s")).due_us == NOW_US + 4 * STEP_US

    def test_those_in_a_full_queue_keep_their_places(self) -> None:
        """Whoever waits in a full queue is no newcomer: early it is told its slot, and then it passes."""
        limit = LeakyBucket(NAME, "10/s", queue=3)
        with self.bench() as bench:
            bench.drain(limit)
            slots = [bench.ask(limit).due_us for _ in range(3)]
            assert bench.ask(limit).reason is Reason.FULL
            assert bench.ask(limit, due_us=slots[2]).reason is Reason.EARLY
            for due_us in slots:
                bench.now_us = due_us
                assert bench.ask(limit, due_us=due_us).allowed

    def test_displaced_holder_is_not_refused(self) -> None:
        """A holder that comes late and finds no unit waits on, however full the queue is."""
        limit = LeakyBucket(NAME, "10/s", queue=0)
        with self.bench() as bench:
            bench.drain(limit)
            assert bench.ask(limit).reason is Reason.FULL
            late = bench.ask(limit, due_us=NOW_US - 1)
            assert (late.reason, late.due_us) == (Reason.EXHAUSTED, NOW_US + STEP_US), late

    def test_queue_has_room_again_when_one_has_gone(self) -> None:
        """Each that passes makes room for one."""
        limit = LeakyBucket(NAME, "10/s", queue=2)
        with self.bench() as bench:
            bench.drain(limit)
            slots = [bench.ask(limit).due_us for _ in range(2)]
            bench.now_us = slots[0]
            assert bench.ask(limit, due_us=slots[0]).allowed
            outcomes = [bench.ask(limit) for _ in range(2)]
            assert [verdict.reason for verdict in outcomes] == [Reason.EXHAUSTED, Reason.FULL], outcomes
            assert outcomes[0].due_us == slots[1] + STEP_US, outcomes

    def test_queue_of_none_lets_nobody_wait(self) -> None:
        """With no queue a job passes or is refused; nothing is ever booked."""
        limit = LeakyBucket(NAME, "10/s", queue=0)
        with self.bench() as bench:
            bench.drain(limit)
            assert [bench.ask(limit).reason for _ in range(3)] == [Reason.FULL] * 3
            bench.now_us += STEP_US
            assert bench.ask(limit).allowed

    def test_full_queue_binds_whatever_else_denies(self) -> None:
        """A request that one limit refuses is refused, though another would only delay it, for longer; in any order."""
        limit = LeakyBucket(NAME, "10/s", queue=0)
        with self.bench() as bench:
            bench.drain(limit)
            bench.drain(SLOW)
            for number, limits in enumerate([(limit, SLOW), (SLOW, limit)]):
                verdict = bench.ask(*limits)
                assert (verdict.reason, verdict.claim) == (Reason.FULL, number), verdict
            assert bench.ask(SLOW).due_us == NOW_US + 10 * STEP_US, "a job that was refused waits in no line"


class CalendarConformance(OnTheBench):
    def test_window_begins_with_the_calendars(self) -> None:
        """A window ends when the calendar's does, whenever it was first used, and the next is whole."""
        ends = {"5/s": "15:09:27", "5/10s": "15:09:30", "5/m": "15:10:00", "5/h": "16:00:00", "5/6h": "18:00:00"}
        with self.bench() as bench:
            for rate, end in ends.items():
                bench.now_us = _utc("2027-03-14 15:09:26") + 500_000
                self._ends(bench, FixedWindow(NAME, rate), _utc(f"2027-03-14 {end}"))
            bench.now_us = _utc("2027-03-14 15:09:26")
            self._ends(bench, FixedWindow(NAME, "5/d"), _utc("2027-03-15 00:00:00"))

    def test_both_sides_of_an_edge_are_whole(self) -> None:
        """At the edge twice the amount passes within a microsecond, and no more: as the guarantee says."""
        limit = FixedWindow(NAME, "5/m")
        with self.bench() as bench:
            bench.now_us = NOW_US - 1
            before = bench.passing(limit)
            bench.now_us = NOW_US
            assert (before, bench.passing(limit)) == (5, 5)

    def test_day_of_23_hours_is_one_window(self) -> None:
        """The day on which clocks go forward ends at its own midnight."""
        self._a_day("2027-03-27 23:00:00", "2027-03-28 22:00:00")

    def test_day_of_25_hours_is_one_window(self) -> None:
        """The day on which clocks go back ends at its own midnight, and not after 24 hours."""
        self._a_day("2027-10-30 22:00:00", "2027-10-31 23:00:00")

    def test_day_before_a_change_of_clocks_is_whole(self) -> None:
        """The windows next to a change are as long as ever."""
        self._a_day("2027-03-26 23:00:00", "2027-03-27 23:00:00")
        self._a_day("2027-10-31 23:00:00", "2027-11-01 23:00:00")

    def test_hour_that_is_skipped(self) -> None:
        """Clocks that jump from two to three go from one hour's window to the next but one's."""
        with self.bench() as bench:
            bench.now_us = _utc("2027-03-28 00:59:59")
            self._ends(bench, FixedWindow(NAME, "5/h", tz=_BERLIN), _utc("2027-03-28 01:00:00"))
            self._ends(bench, FixedWindow(NAME, "5/h", tz=_BERLIN), _utc("2027-03-28 02:00:00"))

    def test_hour_that_runs_twice_is_two_windows(self) -> None:
        """Where clocks fall back from three to two, minutes and hours go on: each is a window, and none is longer."""
        with self.bench() as bench:
            for rate, second_end, third_end in (
                ("5/h", "02:00:00", "03:00:00"),
                ("5/15m", "01:15:00", "01:30:00"),
                ("5/m", "01:01:00", "01:02:00"),
            ):
                limit = FixedWindow(NAME, rate, tz=_BERLIN)
                bench.now_us = _utc("2027-10-31 00:59:59")
                for end in ("01:00:00", second_end, third_end):
                    self._ends(bench, limit, _utc(f"2027-10-31 {end}"))

    def test_waiters_over_a_change_of_clocks_pass_at_their_slots(self) -> None:
        """A line that begins on a day of 25 hours begins at the next day's midnight, and nobody is told twice."""
        limit = FixedWindow(NAME, "5/d", tz=_BERLIN)
        with self.bench() as bench:
            bench.now_us = _utc("2027-10-31 12:00:00")
            bench.drain(limit)
            slots = [bench.ask(limit).due_us for _ in range(7)]
            assert slots[0] == _utc("2027-10-31 23:00:00")
            for due_us in slots:
                bench.now_us = due_us
                assert bench.ask(limit, due_us=due_us).allowed

    def _a_day(self, begin: str, end: str) -> None:
        limit = FixedWindow(NAME, "5/d", tz=_BERLIN)
        with self.bench() as bench:
            bench.now_us = _utc(begin) - 1
            bench.drain(limit)
            bench.now_us += 1
            self._ends(bench, limit, _utc(end))

    @staticmethod
    def _ends(bench: Bench, limit: FixedWindow, end_us: int) -> None:
        """The window that runs is whole now, ends at *end_us*, and nothing passes before."""
        bench.drain(limit)
        use, denied = bench.use(limit), bench.look(limit)
        assert (use.full_us, denied.retry_us) == (end_us, end_us), (limit, use, denied)
        bench.now_us = end_us - 1
        assert not bench.look(limit).allowed
        bench.now_us = end_us
        assert bench.left(limit) == limit.capacity


class LongPeriodConformance(OnTheBench):
    def test_long_periods_are_exact_to_the_microsecond(self) -> None:
        """A period of days loses no microsecond on its way through the store, whatever the algorithm."""
        period_us = 100_000_000_003
        rate = (3, timedelta(microseconds=period_us))
        window_us = NOW_US // period_us * period_us
        # When one unit passes, and two; the leaky bucket lets only one out at a time.
        promised = {
            TokenBucket(NAME, rate, burst=3): [NOW_US + 7 + 33_333_333_335, NOW_US + 7 + 66_666_666_670],
            LeakyBucket(NAME, rate): [NOW_US + 7 + 33_333_333_335],
            SlidingWindow(NAME, rate): [window_us + period_us + 1, window_us + period_us + 33_333_333_335],
            SlidingLog(NAME, rate): [NOW_US + 7 + period_us] * 2,
        }
        with self.bench() as bench:
            bench.now_us += 7
            for limit, retries_us in promised.items():
                bench.drain(limit)
                told = [bench.look(limit, cost=1 + more).retry_us for more in range(len(retries_us))]
                assert told == retries_us, limit
                due_us = bench.ask(limit).due_us
                assert bench.ask(limit, due_us=due_us).due_us == due_us == retries_us[0], limit

    def test_large_costs_are_exact(self) -> None:
        """Amounts of millions lose no unit on their way through the store."""
        with self.bench() as bench:
            for limit in (
                TokenBucket(NAME, "99999989/d", burst=99_999_989),
                FixedWindow(NAME, "99999989/d"),
                SlidingWindow(NAME, "99999989/d"),
            ):
                assert bench.ask(limit, cost=99_999_980).allowed
                assert bench.left(limit) == 9, limit
                assert bench.passing(limit) == 9, limit


def _utc(text: str) -> int:
    at = datetime.strptime(text, "%Y-%m-%d %H:%M:%S").replace(tzinfo=timezone.utc)
    return (at - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(microseconds=1)
