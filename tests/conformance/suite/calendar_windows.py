"""A store's tests for fixed windows: the calendar, time zones and changes of clocks."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from conformance.suite.bench import NAME, NOW_US, Bench, ConformanceSuite
from throttlekit._core.algorithms.fixed_window import FixedWindow

__all__ = ["CalendarConformance"]

_BERLIN = "Europe/Berlin"


class CalendarConformance(ConformanceSuite):
    def test_window_begins_with_the_calendars(self) -> None:
        """A window ends with the calendar's, whenever it was first used, and the next one is full."""
        ends = {"5/s": "15:09:27", "5/10s": "15:09:30", "5/m": "15:10:00", "5/h": "16:00:00", "5/6h": "18:00:00"}
        with self.bench() as bench:
            for rate, end in ends.items():
                bench.now_us = _utc("2027-03-14 15:09:26") + 500_000
                self._ends(bench, FixedWindow(NAME, rate), _utc(f"2027-03-14 {end}"))
            bench.now_us = _utc("2027-03-14 15:09:26")
            self._ends(bench, FixedWindow(NAME, "5/d"), _utc("2027-03-15 00:00:00"))

    def test_both_sides_of_an_edge_are_whole(self) -> None:
        """At an edge twice the amount passes within a microsecond, and no more, as the guarantee says."""
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
        """The days before and after a change have 24 hours."""
        self._a_day("2027-03-26 23:00:00", "2027-03-27 23:00:00")
        self._a_day("2027-10-31 23:00:00", "2027-11-01 23:00:00")

    def test_skipped_hour(self) -> None:
        """When clocks jump from two to three, the next window is the hour from three."""
        with self.bench() as bench:
            bench.now_us = _utc("2027-03-28 00:59:59")
            self._ends(bench, FixedWindow(NAME, "5/h", tz=_BERLIN), _utc("2027-03-28 01:00:00"))
            self._ends(bench, FixedWindow(NAME, "5/h", tz=_BERLIN), _utc("2027-03-28 02:00:00"))

    def test_hour_that_runs_twice_is_two_windows(self) -> None:
        """When clocks go back from three to two, minutes and hours go on: each is a window, and none is longer."""
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

    def test_week_begins_on_monday(self) -> None:
        """A week ends at midnight before Monday, in the zone; the week in which clocks change is one window."""
        with self.bench() as bench:
            bench.now_us = _utc("2027-03-10 12:00:00")
            self._ends(bench, FixedWindow(NAME, "5/week"), _utc("2027-03-15 00:00:00"))
            bench.now_us = _utc("2027-03-22 12:00:00")
            limit = FixedWindow(NAME, "5/week", tz=_BERLIN)
            self._ends(bench, limit, _utc("2027-03-28 22:00:00"))
            self._ends(bench, limit, _utc("2027-04-04 22:00:00"))

    def test_months_are_the_calendars(self) -> None:
        """A month ends with the calendar's, in the zone, however long it is."""
        with self.bench() as bench:
            bench.now_us = _utc("2027-12-31 23:59:59")
            limit = FixedWindow(NAME, "5/month")
            for end in ("2028-01-01", "2028-02-01", "2028-03-01", "2028-04-01", "2028-05-01"):
                self._ends(bench, limit, _utc(f"{end} 00:00:00"))
            bench.now_us = _utc("2027-03-01 00:00:00")
            limit = FixedWindow(NAME, "5/month", tz=_BERLIN)
            for end in ("2027-03-31 22:00:00", "2027-04-30 22:00:00"):
                self._ends(bench, limit, _utc(end))

    def test_month_in_which_clocks_go_back_has_its_last_hour(self) -> None:
        """October of Berlin has 31 days and an hour, seen from its first day and from its last hour."""
        with self.bench() as bench:
            for rate, day in (("5/month", "01 12:00:00"), ("6/month", "31 22:30:00")):
                bench.now_us = _utc(f"2027-10-{day}")
                self._ends(bench, FixedWindow(NAME, rate, tz=_BERLIN), _utc("2027-10-31 23:00:00"))

    def test_months_begin_on_the_day_that_is_named(self) -> None:
        """A month that begins on its 15th ends on the next month's, in the zone, however long it is."""
        with self.bench() as bench:
            bench.now_us = _utc("2027-12-14 23:59:59")
            limit = FixedWindow(NAME, "5/month", starts=15)
            for end in ("2027-12-15", "2028-01-15", "2028-02-15", "2028-03-15", "2028-04-15"):
                self._ends(bench, limit, _utc(f"{end} 00:00:00"))
            bench.now_us = _utc("2027-02-27 23:00:00")
            limit = FixedWindow(NAME, "5/month", tz=_BERLIN, starts=28)
            for end in ("2027-03-27 23:00:00", "2027-04-27 22:00:00"):
                self._ends(bench, limit, _utc(end))

    def test_years_are_the_calendars(self) -> None:
        """A year ends with the calendar's, leap years too."""
        with self.bench() as bench:
            bench.now_us = _utc("2027-07-01 00:00:00")
            limit = FixedWindow(NAME, "5/year", tz=_BERLIN)
            for end in ("2027-12-31", "2028-12-31", "2029-12-31"):
                self._ends(bench, limit, _utc(f"{end} 23:00:00"))

    def test_month_counts_as_one(self) -> None:
        """What is used on the first day of a month counts on its last."""
        limit = FixedWindow(NAME, "5/month")
        with self.bench() as bench:
            for day in (1, 10, 15, 28, 31):
                bench.now_us = _utc(f"2027-01-{day:02d} 12:00:00")
                assert bench.ask(limit).allowed
            assert not bench.ask(limit).allowed

    def test_jobs_wait_over_a_change_of_clocks(self) -> None:
        """On a day of 25 hours the first five that wait pass at the next midnight, and the others a day later."""
        limit = FixedWindow(NAME, "5/d", tz=_BERLIN)
        with self.bench() as bench:
            bench.now_us = _utc("2027-10-31 12:00:00")
            bench.drain(limit)
            retries = [bench.ask(limit, job=str(number)).retry_us for number in range(7)]
            assert retries == [_utc("2027-10-31 23:00:00")] * 5 + [_utc("2027-11-01 23:00:00")] * 2
            for number, retry_us in enumerate(retries):
                bench.now_us = retry_us
                assert bench.woken(limit)[:1] == [str(number)]
                assert bench.ask(limit, job=str(number)).allowed

    def _a_day(self, begin: str, end: str) -> None:
        limit = FixedWindow(NAME, "5/d", tz=_BERLIN)
        with self.bench() as bench:
            bench.now_us = _utc(begin) - 1
            bench.drain(limit)
            bench.now_us += 1
            self._ends(bench, limit, _utc(end))

    @staticmethod
    def _ends(bench: Bench, limit: FixedWindow, end_us: int) -> None:
        """The current window is full, ends at *end_us*, and allows nothing more before that."""
        bench.drain(limit)
        use, denied = bench.use(limit), bench.look(limit)
        assert (use.full_us, denied.retry_us) == (end_us, end_us), (limit, use, denied)
        bench.now_us = end_us - 1
        assert not bench.look(limit).allowed
        bench.now_us = end_us
        assert bench.left(limit) == limit.capacity


def _utc(text: str) -> int:
    at = datetime.strptime(text, "%Y-%m-%d %H:%M:%S").replace(tzinfo=timezone.utc)
    return (at - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(microseconds=1)
