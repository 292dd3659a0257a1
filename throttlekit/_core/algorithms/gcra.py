"""
The token bucket as integer arithmetic: the specification of the script.

Rule 1: time is an argument, in whole microseconds. No function here reads a clock.
Rule 2: the whole state of a bucket is one integer, its TAT: the time at which it is full again.
Rule 3: every rounding makes the limit stricter, never looser.
Rule 4: a denial charges nothing.

The algorithm is the generic cell rate algorithm of ITU-T I.371, in its virtual scheduling form.
The emission interval is I = period / amount. A request of cost k adds k × I to the TAT, and passes
if the TAT is then at most burst × I ahead of now. So in any window of length w at most burst + w / I
units pass.

Example: 100/minute with a burst of 2, so I = 0.6 s. The bucket is full, and now = 10.0 s. A first request moves the TAT
to 10.6, and a second one to 11.2, which is 2 × I ahead: both pass. A third one would move it to 11.8: it is denied, and
passes at 10.6 s.

A rate that live control sets is counted in the same bucket. A TAT has a meaning only together with its measure: an
interval and a burst. So if the measure is not that of the limit's definition, it is stored too. When the measure of a
bucket changes, the bucket keeps its units, but at most its new burst. No change adds a unit. So in any window with such
changes, the units that pass are at most the greatest burst plus the units that the rates in force add (plus at most the
units of one microsecond for each change, if the numbers are too large for a double).

lua/throttlekit_lua/token_bucket.lua mirrors this file. Change both, or the parity tests fail.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil, floor
from typing import ClassVar, NamedTuple

from throttlekit._core.algorithm import STALE_US, Algorithm, Use

__all__ = ["Bucket", "GcraAlgorithm", "Measure", "Tat"]

_ROUNDING_PART = 200  # rounding the interval up to a whole number costs at most 1/200 of the rate
_LARGEST_DEBT_CAPACITIES = 60  # a greater debt is reduced to this, so that one wrong cost cannot stop a key for years
_SMALLEST_CUT_US = 3_600_000_000  # a debt of an hour or less is not reduced, even with a small burst
_LARGEST_DEBT_US = 3660 * 86_400_000_000  # no debt is more than ten years, so that all numbers are exact
_LARGEST_CORRECTION_US = 2**53


class Measure(NamedTuple):
    """The interval and the burst with which a TAT was written: a unit takes numerator / denominator µs."""

    capacity_us: int
    """The time from empty to full: the TAT of an empty bucket is this far in the future."""
    numerator: int
    denominator: int

    def time_of(self, units: int) -> int:
        """Return the time of *units*, rounded up."""
        return -(-units * self.numerator // self.denominator)


class Tat(NamedTuple):
    """The state of a bucket: the time at which it is full again, and how much of that is debt beyond empty."""

    at_us: int
    debt_us: int = 0
    """How far below empty a settled cost left the bucket. Such a late TAT was not written by a wrong clock."""
    measure: Measure | None = None
    """The measure of the TAT, or None for that of the definition under which the bucket is stored."""


@dataclass(frozen=True, slots=True)
class GcraAlgorithm(Algorithm):
    """One request to one bucket, as the integers that a store needs."""

    size: int
    """The time that the request adds to the TAT, in µs; 0 if it only peeks."""
    headroom_us: int
    """The request is admitted if the TAT is at most this far in the future."""
    measure: Measure
    """The measure of the rate in force."""
    home: Measure
    """The measure of the definition under which the bucket is stored."""

    code: ClassVar[str] = "t"
    overflows: ClassVar[bool] = True

    def of_one(self) -> GcraAlgorithm:
        size = -(-self.measure.numerator // self.measure.denominator)
        return replace(self, size=size, headroom_us=max(0, self.headroom_us + self.size - size))

    @property
    def params(self) -> tuple[int | str, int | str, int | str]:
        capacity_us, numerator, denominator = self.measure
        interval = str(numerator) if denominator == 1 else f"{numerator}/{denominator}"
        home = "" if self.home == self.measure else " {} {} {}".format(*self.home)
        return self.headroom_us, capacity_us, interval + home

    @property
    def mark(self) -> int:
        return self.measure.numerator * 1000 // self.measure.denominator

    @property
    def keeps_us(self) -> float:
        return self.headroom_us

    def sanitize(self, state: Tat | None, now_us: int) -> Tat | None:
        if state is None:
            return None
        capacity_us = (state.measure or self.home).capacity_us
        if state.at_us - now_us <= capacity_us + state.debt_us + STALE_US:
            return state
        return Tat(now_us + capacity_us, 0, state.measure)

    def adopt_rate(self, state: Tat | None, now_us: int) -> Tat | None:
        """
        Keep the units of the bucket, at most its burst, or its debt. If the bucket seems to be below empty only because
        a clock stepped back, it counts as empty.
        """
        if state is None:
            return None
        own, of = self.measure, state.measure or self.home
        if of == own:
            return state
        left_us = max(-state.debt_us, of.capacity_us - max(0, state.at_us - now_us))
        in_own = float(left_us) * own.numerator / of.numerator * of.denominator / own.denominator
        left_us = max(min(floor(in_own), own.capacity_us), -_most_debt_us(own.capacity_us))
        return self._tat(now_us + own.capacity_us - left_us, max(0, -left_us))

    def exhaust(self, state: Tat | None, at_us: int) -> Tat:
        empty_us = at_us + self.measure.capacity_us
        return self._tat(empty_us) if state is None or state.at_us < empty_us else state

    def there(self, state: Tat | None, now_us: int) -> int:
        left_us = max(0, self.measure.capacity_us - (_from_us(state, now_us) - now_us))
        return left_us * self.measure.denominator // self.measure.numerator

    def ready_us(self, state: Tat | None, now_us: int, ahead: int = 0) -> int:
        """
        Return the time at which the TAT is at most the headroom ahead. A clock that jumps backwards by up to `STALE_US`
        can only delay jobs; it never admits extra units. After a greater jump, the bucket counts as empty (see
        `sanitize`), and fills at its own rate.
        """
        if self.size == 0 or (state is None and ahead == 0):
            return now_us
        return max(now_us, _from_us(state, now_us) + self.measure.time_of(ahead) - self.headroom_us)

    def admit(self, state: Tat | None, now_us: int, begins_us: int | None = None) -> Tat | None:
        """
        Charge the bucket. If the grant is earlier than *begins_us*, the bucket may be a little below empty until then,
        which counts as a debt.
        """
        if self.size == 0:
            return state
        if begins_us is None:
            return self._tat(_from_us(state, now_us) + self.size)
        full_us = _from_us(state, begins_us) + self.size
        return self._tat(full_us, max(0, full_us - now_us - self.measure.capacity_us))

    def settle(self, state: Tat | None, now_us: int, granted_us: int, by: int) -> Tat | None:
        """Use the measure of *state*, because the measure of the request may no longer be in force."""
        if state is None and by <= 0:
            return None
        state, own = state or self._tat(now_us), self.measure
        of = state.measure or self.home
        if of != own:
            by = min(by, _LARGEST_CORRECTION_US)
            by = ceil(float(by) * of.numerator / own.numerator * own.denominator / of.denominator)
        empty_us = now_us + of.capacity_us
        at_us = max(now_us, min(_from_us(state, now_us) + by, empty_us + _most_debt_us(of.capacity_us)))
        return Tat(at_us, max(0, at_us - empty_us), state.measure)

    def _tat(self, at_us: int, debt_us: int = 0) -> Tat:
        return Tat(at_us, debt_us, None if self.home == self.measure else self.measure)

    def use(self, state: Tat | None, now_us: int) -> Use:
        return Use(0, now_us if state is None else state.at_us)

    def pace_us(self, state: Tat | None, now_us: int) -> int:
        return self.size


@dataclass(frozen=True, slots=True)
class Bucket:
    """
    A rate and a burst as exact integers.

    The emission interval is `numerator / denominator` µs. If rounding it up to a whole number of µs
    costs less than half a percent of the rate, it is rounded up once, and all later numbers are
    exact. Otherwise (thousands of units a second) each request's charge is rounded up.

    If a bucket fills in a fixed time T at every rate, a TAT has the same meaning at every rate, and one bound holds for
    all rates. Let W be the time from now to the TAT, at most T. A unit at interval I adds I to W, or T if I is longer:
    such a unit passes only if W is 0. W is never more than T, and falls as time passes. If `GcraAlgorithm.sanitize`
    reduces a TAT, W is T or more afterwards. So in any window of length w, at most (T + w) / I units pass, where I is
    the shortest of the intervals. (If I is longer than T, it replaces T.)
    """

    burst: int
    numerator: int
    denominator: int
    home: Measure | None = field(default=None, kw_only=True)
    """The measure of the definition under which the bucket is stored, or None if it is `measure`."""
    fills_us: int | None = field(default=None, kw_only=True)
    """The time in which the bucket fills at every rate, or None if that is the time of its burst."""

    @classmethod
    def filling_in(cls, fills_us: int, amount: int, period_us: int) -> Bucket:
        """Return the bucket that fills in *fills_us*, or in the time of one unit if that is longer."""
        rate = cls.of(amount, period_us, 1)
        fills_us = max(fills_us, rate.measure.time_of(1))
        return replace(rate, burst=fills_us * rate.denominator // rate.numerator, fills_us=fills_us)

    @classmethod
    def of(cls, amount: int, period_us: int, burst: int) -> Bucket:
        whole = -(-period_us // amount)
        if (whole * amount - period_us) * _ROUNDING_PART <= period_us:
            return cls(burst, whole, 1)
        return cls(burst, period_us, amount)

    def bind(self, cost: int) -> GcraAlgorithm:
        """Return a request of *cost* units to this bucket. A cost of more than the burst never passes."""
        measure = self.measure
        charge_us = measure.time_of(cost)
        burst_us = self.fills_us or self.burst * self.numerator // self.denominator
        return GcraAlgorithm(charge_us, max(0, burst_us - charge_us), measure, self.home or measure)

    @property
    def measure(self) -> Measure:
        capacity_us = self.fills_us or -(-self.burst * self.numerator // self.denominator)
        return Measure(capacity_us, self.numerator, self.denominator)

    def remaining(self, tat_us: int, now_us: int) -> int:
        """Return the number of whole units that would pass at *now_us*, from 0 to the burst."""
        whole = self.burst * self.numerator if self.fills_us is None else self.fills_us * self.denominator
        left = whole - max(0, tat_us - now_us) * self.denominator
        return max(0, left // self.numerator)


def _most_debt_us(capacity_us: int) -> int:
    return min(max(_LARGEST_DEBT_CAPACITIES * capacity_us, _SMALLEST_CUT_US), _LARGEST_DEBT_US)


def _from_us(state: Tat | None, now_us: int) -> int:
    """Return the time to which the next charge is added: the TAT, or now if that is later."""
    return now_us if state is None else max(now_us, state.at_us)
