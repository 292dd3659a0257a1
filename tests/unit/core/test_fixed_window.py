"""The calendar's windows: at most the amount in each, in every time zone and across changes of its clocks."""

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
from throttlekit._core.limit.base import altered
from throttlekit._core.limit.rate import parse_rate
from throttlekit._core.serialize import dump, load
from throttlekit._core.time_zone import UTC, Zone, zone_around

SECOND, MINUTE, HOUR, DAY = 1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000
NOW = 1_800_000_000_000_000  # the begin of a minute, and of an hour: 2027-01-15 08:00 UTC
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
    """The number of the calendar's window, as the standard library tells the local time."""
    local = at(now_us).astimezone(zone).replace(tzinfo=timezone.utc)
    return micros(local) // period_us


charges = st.builds(
    lambda amount, period_us, size: FixedWindowAlgorithm(min(size, amount), amount, period_us),
    st.integers(1, 20),
    st.sampled_from([1, SECOND, 10 * SECOND, MINUTE, HOUR, DAY]),
    st.integers(1, 20),
)


# The window


def test_whole_amount_passes_at_once_and_no_more_until_the_next_window() -> None:
    """A window passes its amount, then nothing before its end, then all of it again."""
    charge = FixedWindowAlgorithm(1, 3, MINUTE)
    state = Count(NOW // MINUTE, 3)
    assert charge.ready_us(Count(NOW // MINUTE, 2), NOW + 59 * SECOND) == NOW + 59 * SECOND
    assert charge.ready_us(state, NOW) == NOW + MINUTE
    assert charge.ready_us(state, NOW + MINUTE - 1) == NOW + MINUTE
    assert charge.ready_us(state, NOW + MINUTE) == NOW + MINUTE
    assert charge.admit(state, NOW + MINUTE) == Count(NOW // MINUTE + 1, 1)


def test_first_request_opens_the_window_of_the_calendar() -> None:
    """A window does not begin with its first request, but with the calendar's."""
    assert FixedWindowAlgorithm(2, 3, MINUTE).admit(None, NOW + 59 * SECOND) == Count(NOW // MINUTE, 2)


@pytest.mark.parametrize("back_us", [1, 59 * SECOND, MINUTE])
def test_clock_that_falls_back_admits_nothing_extra(back_us: int) -> None:
    """Units of a window are counted in it or in a later one: the window that was begun goes on."""
    charge, state = FixedWindowAlgorithm(1, 3, MINUTE), Count(NOW // MINUTE, 3)
    now_us = NOW - back_us
    assert charge.sanitize(state, now_us) is state
    assert charge.ready_us(state, now_us) == NOW + MINUTE
    assert charge.admit(Count(NOW // MINUTE, 1), now_us) == Count(NOW // MINUTE, 2)


@pytest.mark.parametrize(("ahead_us", "believed"), [(STALE_US, True), (STALE_US + 1, False)])
def test_window_that_lies_far_ahead_counts_as_used_up_now(ahead_us: int, believed: bool) -> None:
    """A window more than a minute ahead was begun by a wrong clock: this one counts as used up, and no later one."""
    charge, state = FixedWindowAlgorithm(1, 3, MINUTE), Count(NOW // MINUTE, 1)
    assert charge.sanitize(state, NOW - ahead_us) == (state if believed else Count((NOW - ahead_us) // MINUTE, 3))


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
def test_use_is_that_of_the_window_that_runs(state: Count | None, use: Use) -> None:
    """What is used counts until its window ends; of a window that is over, nothing does."""
    assert FixedWindowAlgorithm(1, 3, MINUTE).use(state, NOW) == use


# Settling


@given(charge=charges, used=st.integers(0, 20), actual=st.integers(0, 40))
def test_settled_in_its_window_is_what_would_have_been_charged(
    charge: FixedWindowAlgorithm, used: int, actual: int
) -> None:
    """A cost that is settled in its own window leaves it as if the actual one had been charged."""
    state = charge.admit(Count(NOW // charge.period_us, used), NOW)
    assert charge.settle(state, NOW, NOW, actual - charge.size) == Count(NOW // charge.period_us, used + actual)


@pytest.mark.parametrize("by", [178, 179, 10**30])
def test_debt_is_sixty_amounts_at_most(by: int) -> None:
    """What a window is charged beyond sixty times its amount is forgiven: no number leaves what a double holds."""
    assert FixedWindowAlgorithm(1, 3, MINUTE).settle(Count(NOW // MINUTE, 2), NOW, NOW, by) == Count(NOW // MINUTE, 180)


def test_units_of_a_window_that_is_over_are_not_given_back() -> None:
    """What a window that is over took stays taken: nothing of it counts in the one that runs."""
    charge, state = FixedWindowAlgorithm(1, 3, MINUTE), Count(NOW // MINUTE, 3)
    assert charge.settle(state, NOW, NOW - 1, -1) is state
    assert charge.settle(None, NOW, NOW, -1) is None


def test_window_is_never_emptier_than_unused() -> None:
    """More than was taken is not given back."""
    assert FixedWindowAlgorithm(1, 3, MINUTE).settle(Count(NOW // MINUTE, 2), NOW, NOW, -9) == Count(NOW // MINUTE, 0)


def test_units_that_turn_out_dearer_are_charged_to_the_window_that_runs() -> None:
    """Whenever it was granted, what a request turns out dearer counts from now on: until this window ends."""
    charge = FixedWindowAlgorithm(1, 3, MINUTE)
    for state in (None, Count(NOW // MINUTE - 5, 3)):
        after = charge.settle(state, NOW, NOW - 5 * MINUTE, 7)
        assert after == Count(NOW // MINUTE, 7)
        assert charge.ready_us(after, NOW) == NOW + MINUTE
        assert charge.ready_us(after, NOW + MINUTE) == NOW + MINUTE


# Time zones


@pytest.mark.parametrize("name", ZONES)
@given(days=st.floats(-200, 199))
def test_zone_knows_the_offset_of_every_instant_around(name: str, days: float) -> None:
    """Within 200 days each way, the zone is as far ahead of UTC as the standard library says."""
    now_us = NOW + round(days * DAY)
    local = at(now_us).astimezone(ZoneInfo(name)).replace(tzinfo=timezone.utc)
    assert zone_around(ZoneInfo(name), NOW).at(now_us) == micros(local) - now_us


def test_clocks_change_at_the_exact_microsecond() -> None:
    """A change of the clocks is found to the microsecond, before and after."""
    zone = zone_around(ZoneInfo("Europe/Berlin"), NOW)
    assert zone == Zone(2 * HOUR, ((micros(AUTUMN), HOUR), (micros(SPRING), 2 * HOUR)))
    assert [zone.at(micros(AUTUMN) + off) for off in (-1, 0)] == [2 * HOUR, HOUR]
    assert [zone.at(micros(SPRING) + off) for off in (-1, 0)] == [HOUR, 2 * HOUR]


@pytest.mark.parametrize("name", ZONES)
@pytest.mark.parametrize("period_us", [6 * HOUR, DAY])
@given(hours=st.floats(-150 * 24, 150 * 24))
def test_next_window_begins_with_the_zones_calendar(name: str, period_us: int, hours: float) -> None:
    """The promised instant is the first of the zone's next day, or quarter of it, however long this one is."""
    now_us, zone = NOW + round(hours * HOUR), ZoneInfo(name)
    charge = FixedWindowAlgorithm(1, 1, period_us, zone_around(zone, NOW))
    ready = charge.ready_us(charge.admit(None, now_us), now_us)
    window = window_of(zone, period_us, now_us)
    assert window_of(zone, period_us, ready - 1) <= window < window_of(zone, period_us, ready)


@pytest.mark.parametrize(("change", "hours"), [(AUTUMN, 25), (SPRING, 23)])
def test_day_on_which_clocks_change_is_one_window(change: datetime, hours: int) -> None:
    """A day of 23 or 25 hours passes the amount once."""
    limit = FixedWindow("partner", "2/day", tz="Europe/Berlin")
    midnight_us = micros(change.astimezone(ZoneInfo("Europe/Berlin")).replace(hour=0))
    charge = limit.bind(1, midnight_us)
    passed, state = [], None
    for hour in range(hours + 1):
        now_us = midnight_us + hour * HOUR
        if charge.ready_us(state, now_us) == now_us:
            state = charge.admit(state, now_us)
            passed.append(hour)
    assert passed == [0, 1, hours]


def test_window_whose_begin_the_clocks_skip_begins_as_they_jump() -> None:
    """Where clocks jump over midnight, the day begins at the jump."""
    zone, eve = ZoneInfo("Asia/Beirut"), datetime(2027, 3, 27, 20, tzinfo=timezone.utc)
    charge = FixedWindowAlgorithm(1, 1, DAY, zone_around(zone, micros(eve)))
    ready = charge.ready_us(charge.admit(None, micros(eve)), micros(eve))
    assert at(ready).astimezone(zone).isoformat() == "2027-03-28T01:00:00+03:00"


def test_window_that_would_begin_as_the_clocks_fall_back_begins_an_hour_later() -> None:
    """Where clocks fall back at midnight, the old day goes on: the new one is promised for the second midnight."""
    zone, eve = ZoneInfo("Asia/Beirut"), datetime(2026, 10, 24, 12, tzinfo=timezone.utc)
    charge = FixedWindowAlgorithm(1, 1, DAY, zone_around(zone, micros(eve)))
    ready = charge.ready_us(charge.admit(None, micros(eve)), micros(eve))
    assert at(ready).astimezone(zone).isoformat() == "2026-10-25T00:00:00+02:00"


@pytest.mark.parametrize("rate", ["2/40m", "2/45m", "2/72m", "2/80m"])
def test_window_goes_on_when_the_clocks_fall_back_out_of_it(rate: str) -> None:
    """One that began in the hour that comes twice passes its amount once, and nobody is held up as by a wrong clock."""
    limit, zone = FixedWindow("partner", rate, tz="Europe/Berlin"), ZoneInfo("Europe/Berlin")
    passed: Counter[int] = Counter()
    state = None
    for minute in range(-120, 180):
        now_us = micros(AUTUMN) + minute * MINUTE
        charge = limit.bind(1, now_us)
        state = charge.sanitize(state, now_us)
        ready_us = charge.ready_us(state, now_us)
        if ready_us == now_us:
            passed[max(window_of(zone, limit.period_us, now_us), state.window if state else 0)] += 1
            state = charge.admit(state, now_us)
    assert set(passed.values()) == {2}


@pytest.mark.parametrize(("second", "begin"), [(30, 55), (40, 55), (41, 40), (50, 40)])
def test_window_may_be_promised_beyond_two_changes_of_the_clocks(second: int, begin: int) -> None:
    """A begin that lies behind several changes is told by the offset that holds then: at the first instant it is so."""
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
def test_promised_instant_is_the_first_of_a_later_window(
    first: int, changes: list[tuple[int, int]], now: int, period: int
) -> None:
    """However clocks change, in whatever steps: the promise is the very first instant at which a later window runs."""
    zone = Zone(first, tuple((NOW + from_us, offset_us) for from_us, offset_us in sorted(changes)))
    charge, now_us = FixedWindowAlgorithm(1, 1, period, zone), NOW + now
    state = charge.admit(None, now_us)
    assert state is not None
    later = (t for t in range(now_us, now_us + 1000) if (t + zone.at(t)) // period > state.window)
    assert charge.ready_us(state, now_us) == next(later)


@pytest.mark.parametrize("name", ["UTC", None])
def test_utc_needs_no_zone(name: str | None) -> None:
    """Without a zone, and in UTC, nothing of a zone is sent along."""
    assert FixedWindow("partner", "9/day", tz=name).bind(1, NOW) == FixedWindowAlgorithm(1, 9, DAY, UTC)


@given(first=st.integers(0, 199), second=st.integers(0, 199))
def test_processes_agree_on_the_window_whatever_day_they_think_it_is(first: int, second: int) -> None:
    """The own clock of a process decides which changes are sent, never which window runs."""
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
def test_window_of_an_hour_or_less_is_as_long_as_ever(name: str, minutes: int, days: float) -> None:
    """Where the clocks change by whole windows, each ends where the zone's minutes, quarters and hours do."""
    period_us, now_us = minutes * MINUTE, NOW + round(days * DAY)
    charge = FixedWindow("partner", (1, minutes * 60.0), tz=name).bind(1, NOW)
    assert charge.zone.changes == ()
    into_us = micros(at(now_us).astimezone(ZoneInfo(name)).replace(tzinfo=timezone.utc)) % period_us
    assert charge.ready_us(charge.admit(None, now_us), now_us) == now_us - into_us + period_us


@pytest.mark.parametrize(
    ("rate", "name", "zone"),
    [
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
def test_zone_is_one_offset_where_changes_are_whole_windows(rate: str, name: str, zone: Zone) -> None:
    """What is sent of a zone is the offset within a window; its changes too, where a window is cut or stretched."""
    assert FixedWindow("partner", rate, tz=name).bind(1, NOW) == FixedWindowAlgorithm(1, 1, parse_rate(rate)[1], zone)


def test_hours_of_a_zone_that_changes_by_half_of_one_follow_its_clocks() -> None:
    """Lord Howe's clocks fall back from two to half past one: that hour lasts for ninety minutes, the next for 60."""
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
def test_windows_go_on_when_a_zones_last_change_of_clocks_passes_out_of_sight(
    name: str, last: datetime, rate: str
) -> None:
    """Who sees the change and who does not, by another day or another release of the zones, agree on the window."""
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
    off_us=st.integers(-DAY, DAY),
)
def test_months_and_years_are_those_of_the_standard_library(instant_us: int, tz: str | None, off_us: int) -> None:
    """A month or a year is that of local time, and ends as the next begins; the time need be known within a day."""
    local = at(instant_us).astimezone(ZoneInfo(tz or "UTC"))
    months = (local.year - 1970) * 12 + local.month - 1
    for rate, number in (("5/month", months), ("5/year", local.year - 1970)):
        charge = FixedWindow("quota", rate, tz=tz).bind(1, instant_us + off_us)
        state = charge.admit(None, instant_us)
        assert state == Count(number, 1)
        end_us = charge.use(state, instant_us).full_us
        assert end_us > instant_us
        assert charge.admit(state, end_us - 1) == Count(number, 2)
        assert charge.admit(state, end_us) == Count(number + 1, 1)
        assert charge.sanitize(state, end_us - 1) is state


@given(
    instant_us=st.integers(micros(datetime(2000, 1, 1, tzinfo=timezone.utc)), 2 * NOW),
    tz=st.sampled_from([*ZONES, None]),
    starts=st.integers(1, 28),
    off_us=st.integers(-DAY, DAY),
)
def test_months_begin_on_the_day_that_is_named(instant_us: int, tz: str | None, starts: int, off_us: int) -> None:
    """A month begins at midnight of local time on that day, and ends on the same day of the next month."""
    zone = ZoneInfo(tz or "UTC")
    local = at(instant_us).astimezone(zone)
    number = (local.year - 1970) * 12 + local.month - 1 - (local.day < starts)
    charge = FixedWindow("quota", "5/month", tz=tz, starts=starts).bind(1, instant_us + off_us)
    state = charge.admit(None, instant_us)
    assert state == Count(number, 1)
    end_us = charge.use(state, instant_us).full_us
    assert end_us > instant_us
    assert at(end_us).astimezone(zone).day == starts
    assert charge.admit(state, end_us - 1) == Count(number, 2)
    assert charge.admit(state, end_us) == Count(number + 1, 1)
    assert charge.sanitize(state, end_us - 1) is state


def test_months_of_another_day_are_another_limit() -> None:
    """They are counted apart; those from the first are the calendar's, whether it is written or not."""
    plain, first, other = (FixedWindow("quota", "5/month", starts=starts) for starts in (None, 1, 15))
    assert (plain, plain.fingerprint) == (first, first.fingerprint)
    assert other.fingerprint != plain.fingerprint
    assert repr(plain) == "FixedWindow('quota', '5/month', tz=None)"
    assert repr(other) == "FixedWindow('quota', '5/month', tz=None, starts=15)"


def test_starts_is_kept() -> None:
    """With another rate in months, in a process's own share, in a tier, and in a message."""
    limit = FixedWindow("quota", "100/month", starts=15, on_store_failure="local", processes=4)
    assert limit.local_part is not None
    tiered = FixedWindow("quota", {"a": "9/month", "b": "9/month"}, starts=15, tier="{plan}")
    assert tiered.tiers is not None
    changed = altered(limit, "50/month")
    assert changed.declared is limit
    copies = (changed, limit.local_part, tiered.tiers["a"], load(dump(limit, Job())))
    assert [each.starts for each in copies] == [15] * 4  # type: ignore[attr-defined]
    assert load(dump(limit, Job())).fingerprint == limit.fingerprint


@pytest.mark.parametrize(
    ("rate", "starts", "told"),
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
def test_day_that_cannot_be_is_refused(rate: Any, starts: Any, told: str) -> None:
    """Not every month has it, or there is no month."""
    with pytest.raises(ConfigurationError) as error:
        FixedWindow("quota", rate, starts=starts)
    assert str(error.value) == f"limit 'quota': {told}"


@pytest.mark.parametrize("at_us", [micros(datetime(2027, 10, day, 21, tzinfo=timezone.utc)) for day in (1, 2, 3, 31)])
def test_month_in_which_clocks_go_back_has_its_last_hour(at_us: int) -> None:
    """October of Berlin has 31 days and an hour: what passes in its last hour counts in it, whenever it is bound."""
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
    """Instants are of one week if and only if their dates have one ISO week."""
    zone, charge = ZoneInfo(tz or "UTC"), FixedWindow("quota", "5/week", tz=tz).bind(1, instant_us)
    for later_us in (instant_us + by * DAY for by in range(9)):
        weeks = [at(each).astimezone(zone).isocalendar()[:2] for each in (instant_us, later_us)]
        same = charge.admit(Count(0, 0), later_us).window == charge.admit(None, instant_us).window  # type: ignore[union-attr]
        assert same is (weeks[0] == weeks[1])
