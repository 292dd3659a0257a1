"""Calendar windows: at most the amount in each, in every time zone and across clock changes."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta, timezone
from itertools import product
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from throttlekit import ConfigurationError, FixedWindow, Job
from throttlekit._core.algorithm import STALE_US, Use
from throttlekit._core.algorithms.fixed_window import Count, FixedWindowAlgorithm
from throttlekit._core.limit.change import change_rate
from throttlekit._core.limit.rate import parse_rate
from throttlekit._core.serialize import dump, load
from throttlekit._core.time_zone import UTC, Zone, zone_around

SECOND, MINUTE, HOUR, DAY = 1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000
NOW = 1_800_000_000_000_000  # the start of a minute, and of an hour: 2027-01-15 08:00 UTC
AUTUMN = datetime(2026, 10, 25, 1, tzinfo=timezone.utc)  # Berlin: 03:00 becomes 02:00
SPRING = datetime(2027, 3, 28, 1, tzinfo=timezone.utc)  # Berlin: 02:00 becomes 03:00
ZONES = [
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",  # clocks change by half an hour
    "Asia/Kolkata",  # half an hour off, and no changes
    "America/Havana",  # clocks fall back over midnight
    "Asia/Beirut",  # clocks skip midnight
    "Pacific/Apia",
    "Antarctica/Troll",  # clocks change by two hours
]


def micros(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(microseconds=1)


def at(at_us: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=at_us)


def window_of(zone: ZoneInfo, period_us: int, now_us: int) -> int:
    """Return the number of the calendar's window, by the local time of the standard library."""
    local = at(now_us).astimezone(zone).replace(tzinfo=timezone.utc)
    return micros(local) // period_us


# The window


def test_whole_amount_is_admitted_at_once_and_no_more_until_the_next_window() -> None:
    """A window admits its amount, then nothing before its end, then the amount again."""
    charge = FixedWindowAlgorithm(1, 3, MINUTE)
    state = Count(NOW // MINUTE, 3)
    assert charge.ready_us(Count(NOW // MINUTE, 2), NOW + 59 * SECOND) == NOW + 59 * SECOND
    assert charge.ready_us(state, NOW) == NOW + MINUTE
    assert charge.ready_us(state, NOW + MINUTE - 1) == NOW + MINUTE
    assert charge.ready_us(state, NOW + MINUTE) == NOW + MINUTE
    assert charge.admit(state, NOW + MINUTE) == Count(NOW // MINUTE + 1, 1)


def test_first_request_opens_the_window_of_the_calendar() -> None:
    """A window does not begin with its first request, but with the calendar."""
    assert FixedWindowAlgorithm(2, 3, MINUTE).admit(None, NOW + 59 * SECOND) == Count(NOW // MINUTE, 2)


@pytest.mark.parametrize(("ahead_us", "trusted"), [(STALE_US, True), (STALE_US + 1, False)])
def test_window_far_in_the_future_counts_as_used_up_now(ahead_us: int, trusted: bool) -> None:
    """A window more than a minute ahead was begun by a wrong clock: only the current one counts as used up."""
    charge, state = FixedWindowAlgorithm(1, 3, MINUTE), Count(NOW // MINUTE, 1)
    assert charge.sanitize(state, NOW - ahead_us) == (state if trusted else Count((NOW - ahead_us) // MINUTE, 3))


@pytest.mark.parametrize(
    ("state", "use"),
    [
        (None, Use(0, NOW)),
        (Count(NOW // MINUTE, 2), Use(2, NOW + MINUTE)),
        (Count(NOW // MINUTE, 0), Use(0, NOW)),
        (Count(NOW // MINUTE - 1, 2), Use(0, NOW)),
        (Count(NOW // MINUTE + 1, 2), Use(2, NOW + 2 * MINUTE)),
        (Count(NOW // MINUTE, 9), Use(9, NOW + MINUTE)),
    ],
)
def test_use_is_that_of_the_current_window(state: Count | None, use: Use) -> None:
    """Used units count until their window ends; afterwards none of them does."""
    assert FixedWindowAlgorithm(1, 3, MINUTE).use(state, NOW) == use


# Settling


@pytest.mark.parametrize(("by", "units"), [(178, 180), (179, 180), (10**30, 180), (-9, 0)])
def test_debt_is_sixty_amounts_at_most_and_use_never_below_zero(by: int, units: int) -> None:
    """
    A charge beyond sixty times the amount is forgiven: no number exceeds what a double holds. No more is returned than
    was taken.
    """
    after = FixedWindowAlgorithm(1, 3, MINUTE).settle(Count(NOW // MINUTE, 2), NOW, NOW, by)
    assert after == Count(NOW // MINUTE, units)


def test_units_of_a_past_window_are_not_returned() -> None:
    """Units of a window that is over do not count in the current one."""
    charge, state = FixedWindowAlgorithm(1, 3, MINUTE), Count(NOW // MINUTE, 3)
    assert charge.settle(state, NOW, NOW - 1, -1) is state
    assert charge.settle(None, NOW, NOW, -1) is None


def test_units_settled_higher_are_charged_to_the_current_window() -> None:
    """The additional units of a settled cost count in the current window, whenever the cost was granted."""
    charge = FixedWindowAlgorithm(1, 3, MINUTE)
    for state in (None, Count(NOW // MINUTE - 5, 3)):
        after = charge.settle(state, NOW, NOW - 5 * MINUTE, 7)
        assert after == Count(NOW // MINUTE, 7)
        assert charge.ready_us(after, NOW) == NOW + MINUTE
        assert charge.ready_us(after, NOW + MINUTE) == NOW + MINUTE


# Time zones


@pytest.mark.parametrize("name", ZONES)
@given(days=st.floats(-200, 199))
def test_zone_has_the_offset_of_every_time_nearby(name: str, days: float) -> None:
    """Within 200 days in both directions, the zone's offset from UTC is that of the standard library."""
    now_us = NOW + round(days * DAY)
    local = at(now_us).astimezone(ZoneInfo(name)).replace(tzinfo=timezone.utc)
    assert zone_around(ZoneInfo(name), NOW).at(now_us) == micros(local) - now_us


def test_clocks_change_at_the_exact_microsecond() -> None:
    """A clock change is found to the microsecond, before and after."""
    zone = zone_around(ZoneInfo("Europe/Berlin"), NOW)
    assert zone == Zone(2 * HOUR, ((micros(AUTUMN), HOUR), (micros(SPRING), 2 * HOUR)))
    assert [zone.at(micros(AUTUMN) + off) for off in (-1, 0)] == [2 * HOUR, HOUR]
    assert [zone.at(micros(SPRING) + off) for off in (-1, 0)] == [HOUR, 2 * HOUR]


@pytest.mark.parametrize("name", ZONES)
@pytest.mark.parametrize("period_us", [6 * HOUR, DAY])
@given(hours=st.floats(-150 * 24, 150 * 24))
def test_next_window_begins_with_the_zones_calendar(name: str, period_us: int, hours: float) -> None:
    """The ready time is the start of the zone's next day, or of the next quarter of it, however long this one is."""
    now_us, zone = NOW + round(hours * HOUR), ZoneInfo(name)
    charge = FixedWindowAlgorithm(1, 1, period_us, zone_around(zone, NOW))
    ready = charge.ready_us(charge.admit(None, now_us), now_us)
    window = window_of(zone, period_us, now_us)
    assert window_of(zone, period_us, ready - 1) <= window < window_of(zone, period_us, ready)


@pytest.mark.parametrize(("change", "hours"), [(AUTUMN, 25), (SPRING, 23)])
def test_day_on_which_clocks_change_is_one_window(change: datetime, hours: int) -> None:
    """A day of 23 or 25 hours admits the amount once."""
    limit = FixedWindow("partner", "2/day", tz="Europe/Berlin")
    midnight_us = micros(change.astimezone(ZoneInfo("Europe/Berlin")).replace(hour=0))
    charge = limit.bind(1, midnight_us)
    admitted, state = [], None
    for hour in range(hours + 1):
        now_us = midnight_us + hour * HOUR
        if charge.ready_us(state, now_us) == now_us:
            state = charge.admit(state, now_us)
            admitted.append(hour)
    assert admitted == [0, 1, hours]


@pytest.mark.parametrize(
    ("eve", "begin"),
    [((2027, 3, 27, 20), "2027-03-28T01:00:00+03:00"), ((2026, 10, 24, 12), "2026-10-25T00:00:00+02:00")],
    ids=["skipped", "repeated"],
)
def test_day_begins_once_if_clocks_change_at_midnight(eve: tuple[int, int, int, int], begin: str) -> None:
    """If clocks jump over midnight, the day begins at the jump. If they fall back, it begins at the second midnight."""
    zone, now_us = ZoneInfo("Asia/Beirut"), micros(datetime(*eve, tzinfo=timezone.utc))
    charge = FixedWindowAlgorithm(1, 1, DAY, zone_around(zone, now_us))
    assert at(charge.ready_us(charge.admit(None, now_us), now_us)).astimezone(zone).isoformat() == begin


@pytest.mark.parametrize("rate", ["2/40m", "2/45m", "2/72m", "2/80m"])
def test_window_continues_when_clocks_fall_back_to_before_it(rate: str) -> None:
    """A window that began in the repeated hour admits its amount once; no request waits as for a wrong clock."""
    limit, zone = FixedWindow("partner", rate, tz="Europe/Berlin"), ZoneInfo("Europe/Berlin")
    admitted: Counter[int] = Counter()
    state = None
    for minute in range(-120, 180):
        now_us = micros(AUTUMN) + minute * MINUTE
        charge = limit.bind(1, now_us)
        state = charge.sanitize(state, now_us)
        ready_us = charge.ready_us(state, now_us)
        if ready_us == now_us:
            admitted[max(window_of(zone, limit.period_us, now_us), state.window if state else 0)] += 1
            state = charge.admit(state, now_us)
    assert set(admitted.values()) == {2}


@pytest.mark.parametrize(("second", "begin"), [(30, 55), (40, 55), (41, 40), (50, 40)])
def test_ready_time_may_be_after_two_clock_changes(second: int, begin: int) -> None:
    """A start after several clock changes uses the offset that applies then: the ready time is the first such time."""
    zone = Zone(0, ((NOW + 10 * SECOND, 20 * SECOND), (NOW + second * SECOND, 5 * SECOND)))
    charge, state = FixedWindowAlgorithm(1, 1, MINUTE, zone), Count(NOW // MINUTE, 1)
    ready = charge.ready_us(state, NOW)
    assert ready == NOW + begin * SECOND
    assert charge.ready_us(state, ready) == ready
    assert charge.ready_us(state, ready - 1) == ready


@given(
    first=st.integers(-100, 100),
    changes=st.lists(
        st.tuples(st.integers(0, 300), st.integers(-100, 100)), max_size=3, unique_by=lambda change: change[0]
    ),
    now=st.integers(0, 200),
    period=st.integers(1, 70),
)
def test_ready_time_is_the_start_of_a_later_window(
    first: int, changes: list[tuple[int, int]], now: int, period: int
) -> None:
    """Whatever the clock changes and their steps, the ready time is the very first moment of a later window."""
    zone = Zone(first, tuple((NOW + from_us, offset_us) for from_us, offset_us in sorted(changes)))
    charge, now_us = FixedWindowAlgorithm(1, 1, period, zone), NOW + now
    state = charge.admit(None, now_us)
    assert state is not None
    later = (t for t in range(now_us, now_us + 1000) if (t + zone.at(t)) // period > state.window)
    assert charge.ready_us(state, now_us) == next(later)


@given(first=st.integers(0, 199), second=st.integers(0, 199))
def test_processes_agree_on_the_window_whatever_their_clocks(first: int, second: int) -> None:
    """The clock of a process determines which changes are sent, never which window is current."""
    limit = FixedWindow("partner", "1/day", tz="America/New_York")
    one, other = limit.bind(1, NOW - first * DAY), limit.bind(1, NOW + second * DAY)
    state = one.admit(None, NOW)
    assert other.admit(None, NOW) == state
    assert one.ready_us(state, NOW) == other.ready_us(state, NOW)


@pytest.mark.parametrize(
    ("name", "minutes"),
    [case for case in product(ZONES, (1, 15, 30, 60)) if case != ("Australia/Lord_Howe", 60)],
)
@given(days=st.floats(-199, 199))
def test_window_of_an_hour_or_less_keeps_its_length(name: str, minutes: int, days: float) -> None:
    """If clocks change by whole windows, each window ends with the zone's minutes, quarters and hours."""
    period_us, now_us = minutes * MINUTE, NOW + round(days * DAY)
    charge = FixedWindow("partner", (1, minutes * 60.0), tz=name).bind(1, NOW)
    assert charge.zone.changes == ()
    into_us = micros(at(now_us).astimezone(ZoneInfo(name)).replace(tzinfo=timezone.utc)) % period_us
    assert charge.ready_us(charge.admit(None, now_us), now_us) == now_us - into_us + period_us


@pytest.mark.parametrize(
    ("rate", "name", "zone"),
    [
        ("1/day", None, UTC),
        ("1/day", "UTC", UTC),
        ("1/hour", "Europe/Berlin", Zone(0)),
        ("1/minute", "America/New_York", Zone(0)),
        ("1/hour", "Asia/Kolkata", Zone(30 * MINUTE)),
        ("1/15m", "Asia/Kolkata", Zone(0)),
        ("1/30m", "Australia/Lord_Howe", Zone(0)),
        ("1/hour", "Antarctica/Troll", Zone(0)),
        ("1/day", "America/Mexico_City", Zone(-6 * HOUR)),
        ("1/hour", "America/Mexico_City", Zone(0)),
        ("1/day", "Asia/Kolkata", Zone(5 * HOUR + 30 * MINUTE)),
        ("1/2h", "Europe/Berlin", Zone(2 * HOUR, ((micros(AUTUMN), HOUR), (micros(SPRING), 2 * HOUR)))),
        ("1/day", "Europe/Berlin", Zone(2 * HOUR, ((micros(AUTUMN), HOUR), (micros(SPRING), 2 * HOUR)))),
    ],
)
def test_zone_is_one_offset_if_changes_are_whole_windows(rate: str, name: str | None, zone: Zone) -> None:
    """
    The offset within a window is sent to the store, and none without a zone or for UTC; clock changes only if they
    shorten or lengthen a window.
    """
    assert FixedWindow("partner", rate, tz=name).bind(1, NOW) == FixedWindowAlgorithm(1, 1, parse_rate(rate)[1], zone)


def test_hours_of_a_zone_that_changes_by_half_of_one_follow_its_clocks() -> None:
    """Lord Howe's clocks fall back from two to half past one: that hour lasts 90 minutes, the next one 60."""
    limit = FixedWindow("partner", "1/hour", tz="Australia/Lord_Howe")
    now_us = micros(datetime(2027, 4, 3, 14, tzinfo=timezone.utc))  # 01:00 by its summer time of UTC+11
    charge = limit.bind(1, now_us)
    ends = []
    for _ in range(3):
        now_us = charge.ready_us(charge.admit(None, now_us), now_us)
        ends.append(at(now_us).isoformat()[11:16])
    assert ends == ["15:30", "16:30", "17:30"]


@pytest.mark.parametrize(
    ("name", "last"),
    [("America/Mexico_City", datetime(2022, 10, 30, 7)), ("Asia/Almaty", datetime(2024, 2, 29, 19))],
)
@pytest.mark.parametrize("rate", ["5/day", "5/6h", "5/hour", "5/minute"])
def test_windows_continue_when_the_last_clock_change_is_out_of_range(name: str, last: datetime, rate: str) -> None:
    """Processes that know the change and processes that do not, by date or zone release, agree on the window."""
    limit = FixedWindow("partner", rate, tz=name)
    now_us = micros(last.replace(tzinfo=timezone.utc)) + 200 * DAY
    charges = [limit.bind(1, now_us + day * DAY) for day in range(-30, 30)]
    assert charges[0].zone.changes != () or limit.period_us <= HOUR
    assert charges[-1].zone.changes == ()
    assert len({charge.admit(None, now_us) for charge in charges}) == 1


# Weeks, months and years


@given(
    instant_us=st.integers(micros(datetime(2000, 1, 1, tzinfo=timezone.utc)), 2 * NOW),
    tz=st.sampled_from([*ZONES, None]),
    starts=st.integers(1, 28),
    off_us=st.integers(-DAY, DAY),
)
def test_months_and_years_are_those_of_the_standard_library(
    instant_us: int, tz: str | None, starts: int, off_us: int
) -> None:
    """
    Months and years are those of local time. With `starts=`, a month begins on that day. Each ends when the next
    begins. The time must be right within a day.
    """
    zone = ZoneInfo(tz or "UTC")
    local = at(instant_us).astimezone(zone)
    years = local.year - 1970
    months = 12 * years + local.month - 1
    for rate, day, number in (
        ("5/month", None, months),
        ("5/month", starts, months - (local.day < starts)),
        ("5/year", None, years),
    ):
        charge = FixedWindow("quota", rate, tz=tz, starts=day).bind(1, instant_us + off_us)
        state = charge.admit(None, instant_us)
        assert state == Count(number, 1)
        end_us = charge.use(state, instant_us).full_us
        assert end_us > instant_us
        assert at(end_us).astimezone(zone).day == (day or 1)
        assert charge.admit(state, end_us - 1) == Count(number, 2)
        assert charge.admit(state, end_us) == Count(number + 1, 1)
        assert charge.sanitize(state, end_us - 1) is state


def test_months_of_another_day_are_another_limit() -> None:
    """
    Months from different days are counted separately; months from the first are calendar months, with or without the
    option.
    """
    plain, first, other = (FixedWindow("quota", "5/month", starts=starts) for starts in (None, 1, 15))
    assert (plain, plain.fingerprint) == (first, first.fingerprint)
    assert other.fingerprint != plain.fingerprint
    assert repr(plain) == "FixedWindow('quota', '5/month', tz=None)"
    assert repr(other) == "FixedWindow('quota', '5/month', tz=None, starts=15)"


def test_starts_is_kept_in_derived_limits() -> None:
    """The option `starts` is kept at another rate in months, in a process's own part, in a tier, and in a message."""
    limit = FixedWindow("quota", "100/month", starts=15, on_store_failure="local", processes=4)
    assert limit.local_part is not None
    tiered = FixedWindow("quota", {"a": "9/month", "b": "9/month"}, starts=15, tier="{plan}")
    assert tiered.tiers is not None
    changed = change_rate(limit, "50/month")
    assert changed.declared is limit
    copies = (changed, limit.local_part, tiered.tiers["a"], load(dump(limit, Job())))
    assert [each.starts for each in copies] == [15] * 4  # type: ignore[attr-defined]
    assert load(dump(limit, Job())).fingerprint == limit.fingerprint


@pytest.mark.parametrize(
    ("rate", "starts", "message"),
    [
        *(
            ("5/month", day, f"starts must be a day of every month, from 1 to 28, not {day!r}")
            for day in (0, 29, -1, True, 1.0, "15")
        ),
        ("5/day", 15, "starts= is the day on which a month begins, and '5/day' has no month"),
        ("5/year", 1, "starts= is the day on which a month begins, and '5/year' has no month"),
        (lambda job: "5/month", 15, "starts= needs a fixed rate, but rate= is a callable: leave it out"),
    ],
)
def test_invalid_starts_is_refused(rate: Any, starts: Any, message: str) -> None:
    """`starts` raises if not every month has that day, or if the rate is not in months."""
    with pytest.raises(ConfigurationError) as error:
        FixedWindow("quota", rate, starts=starts)
    assert str(error.value) == f"limit 'quota': {message}"


@pytest.mark.parametrize("at_us", [micros(datetime(2027, 10, day, 21, tzinfo=timezone.utc)) for day in (1, 2, 3, 31)])
def test_month_in_which_clocks_go_back_has_its_last_hour(at_us: int) -> None:
    """October in Berlin has 31 days and an hour: units in its last hour count in it, whenever the limit is bound."""
    begin, end = (
        micros(datetime(2027, month, day, 22 + month - 9, tzinfo=timezone.utc)) for month, day in ((9, 30), (10, 31))
    )
    charge = FixedWindow("quota", "5/month", tz="Europe/Berlin").bind(1, at_us)
    october = (2027 - 1970) * 12 + 9
    state = Count(october, 5)
    for now_us in (begin, begin + HOUR, begin + DAY, begin + 2 * DAY, at_us, end - HOUR, end - 1):
        assert charge.admit(None, now_us) == Count(october, 1)
        assert charge.ready_us(state, now_us) == charge.use(state, now_us).full_us == end
        assert charge.sanitize(state, now_us) is state
    assert charge.sanitize(state, begin - STALE_US) is state
    assert charge.sanitize(state, begin - STALE_US - 1) == Count(october - 1, 5)
    assert charge.admit(None, begin - 1) == Count(october - 1, 1)
    assert charge.admit(state, end) == Count(october + 1, 1)
    assert charge.sanitize(Count(october + 1, 1), end - STALE_US) == Count(october + 1, 1)
    assert charge.sanitize(Count(october + 1, 1), end - STALE_US - 1) == Count(october, 5)


@given(instant_us=st.integers(NOW // 2, 2 * NOW), tz=st.sampled_from([*ZONES, None]))
def test_weeks_begin_on_monday(instant_us: int, tz: str | None) -> None:
    """Two times are in one week if and only if their dates have the same ISO week."""
    zone, charge = ZoneInfo(tz or "UTC"), FixedWindow("quota", "5/week", tz=tz).bind(1, instant_us)
    for later_us in (instant_us + by * DAY for by in range(9)):
        weeks = [at(each).astimezone(zone).isocalendar()[:2] for each in (instant_us, later_us)]
        same = charge.admit(Count(0, 0), later_us).window == charge.admit(None, instant_us).window  # type: ignore[union-attr]
        assert same is (weeks[0] == weeks[1])
