"""
The token bucket as integer arithmetic: the specification that the Lua is held to.

Rule 1: time is an argument, in whole microseconds, and never read here.
Rule 2: the whole state of a bucket is one integer, its TAT: the instant at which it is full again.
Rule 3: every rounding makes the limit stricter, never looser.
Rule 4: a denial charges nothing.

The algorithm is the generic cell rate algorithm of ITU-T I.371, in its virtual scheduling form.
With emission interval I = period / amount, a request of cost k moves the TAT on by k × I, and
passes if that leaves it at most burst × I ahead of now. So in any window of length w at most
burst + w / I units pass.

lua/throttlekit_lua/acquire.lua mirrors this file. Change both, or the parity tests fail.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["STALE_US", "Bucket", "Charge", "admit", "believed_us", "held_us", "ready_us"]

STALE_US = 60_000_000
"""A debt so much larger than the bucket was left by a clock that was wrong."""

_WORTH_ROUNDING = 200  # at most 1/200 of the rate is given up to make the interval whole


@dataclass(frozen=True, slots=True)
class Charge:
    """What one request means to one bucket. Four integers: all that a store needs to know of a limit."""

    charge_us: int
    """How far the request moves the TAT on. 0: it only looks."""
    headroom_us: int
    """How far ahead of now the TAT may stand for the request to pass."""
    capacity_us: int
    """Time from empty to full: how far ahead the TAT of an empty bucket stands."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """
    A rate and a burst as exact integers.

    The emission interval is `numerator / denominator` µs. Where rounding it up to a whole number
    of µs costs less than half a percent of the rate, it is rounded up here once, and everything
    after is exact. Elsewhere (thousands of units a second) each request's charge is rounded up.
    """

    burst: int
    numerator: int
    denominator: int

    @classmethod
    def of(cls, amount: int, period_us: int, burst: int) -> Bucket:
        whole = -(-period_us // amount)
        if (whole * amount - period_us) * _WORTH_ROUNDING <= period_us:
            return cls(burst, whole, 1)
        return cls(burst, period_us, amount)

    @property
    def interval_us(self) -> float:
        return self.numerator / self.denominator

    def charge(self, cost: int) -> Charge:
        """Work out what a request of *cost* units, 0 to burst, means to this bucket."""
        charge_us = -(-cost * self.numerator // self.denominator)
        room_us = self.burst * self.numerator // self.denominator
        capacity_us = -(-self.burst * self.numerator // self.denominator)
        return Charge(charge_us, max(0, room_us - charge_us), capacity_us)

    def remaining(self, tat_us: int | None, now_us: int) -> int:
        """Whole units that would pass at *now_us*, from 0 to burst."""
        left = self.burst * self.numerator - held_us(tat_us, now_us) * self.denominator
        return max(0, left // self.numerator)


def held_us(tat_us: int | None, now_us: int) -> int:
    """Time until a bucket is full again; 0 when it is, or has never been used."""
    return 0 if tat_us is None else max(0, tat_us - now_us)


def believed_us(tat_us: int | None, now_us: int, request: Charge) -> int | None:
    """
    The stored TAT as far as it can be believed: that of an empty bucket in place of one that is stale.

    A TAT further ahead than the bucket's capacity was written when the clock was ahead. A little further,
    it is honoured: a clock that steps back then only delays. More than `STALE_US` further, it would block
    for as long as the clock was off.
    """
    if tat_us is None or tat_us - now_us <= request.capacity_us + STALE_US:
        return tat_us
    return now_us + request.capacity_us


def ready_us(tat_us: int | None, now_us: int, request: Charge) -> int:
    """
    The earliest instant at which the bucket would admit *request*, if nobody else asks; *now_us* if at once.

    A clock that jumps backwards by up to `STALE_US` can only delay, never admit extra units. After a greater
    jump the bucket counts as empty (`believed_us`), and fills at its own rate.
    """
    if tat_us is None or request.charge_us == 0:
        return now_us
    return max(now_us, tat_us - request.headroom_us)


def admit(tat_us: int | None, now_us: int, request: Charge) -> int | None:
    """The state after *request* has passed at *now_us*. The caller has made sure that `ready_us` is *now_us*."""
    if request.charge_us == 0:
        return tat_us
    return now_us + held_us(tat_us, now_us) + request.charge_us
