"""
Pauses and slow-downs of a limit, because the partner refuses calls or reports how many units are left.

Rule 1: a slow-down only denies. A unit passes only if both the limit and the slower pace admit it. So every bound of
the limit holds, whatever responses contain.
Rule 2: a slow-down has an end, after which it has no effect.
Rule 3: a refusal writes to the store, and a success does not: the pace is a function of the time since the last
reduction of the rate.
Rule 4: one overload reduces the rate once. A refused job that was admitted before the last reduction changes nothing.

Example: a limit of 100/s gets a 429. Its rate falls to 76/s, rises to 95/s in one span (6 s by default, the time of
600 units), and later to 100/s. The rise needs no write.

The pace is a second bucket (generic cell rate algorithm), with a burst of `TOLERANCE_US`. After a reduction its rate
follows the cubic function of CUBIC (Ha, Rhee, Xu: "CUBIC: a new TCP-friendly high-speed TCP variant", 2008; RFC 9438),
with the time counted in spans. The function reaches its top after one span. The top is below the rate at which the
partner refused a job, because a partner's limit rarely changes: when the rate reaches that value again, the partner may
refuse every running job:

    part = top × (1 + (1 - β) × (t / span - 1)³), between the floor and 1, with β = 0.8

lua/throttlekit_lua/slowdown.lua and wait_slow.lua mirror this file. Change all, or the parity tests fail. If a number
is a float in this file, it is the same double in the scripts.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from throttlekit._core.algorithm import Algorithm

__all__ = [
    "FURTHEST_US",
    "LONGEST_SPAN_US",
    "ONE",
    "TOLERANCE_US",
    "Pace",
    "Pause",
    "Refusal",
    "Remaining",
    "Slowdown",
    "apply_refusal",
    "apply_remaining",
    "charge_pace",
    "pace_of",
    "ready_after",
]

ONE = 1_000_000
"""The whole rate. A part of a rate is a number of millionths."""

TOLERANCE_US = 250_000
"""The burst of the pace, as time at its rate: a job that is a little late then loses no unit."""

LONGEST_SPAN_US = 86_400_000_000
FURTHEST_US = 3_155_760_000_000_000

_BETA_PART = 5  # 1 / (1 - β)
_TOP, _TOP_BELOW, _TOP_PARTS = 19, 18, 20
_SAME_US = 2_000_000  # if the resets of two responses differ by at most this, both are about one window


class Refusal(NamedTuple):
    """
    The refusal of a job by the partner.

    Attributes:
        granted_us: The time at which the job was admitted, or None if it is not known.
        span_us: The time from the reduction until the rate is at its top: at most `LONGEST_SPAN_US`.
        floor: The least part of its rate that the limit keeps, in millionths: at least 1000.
    """

    granted_us: int | None
    span_us: int
    floor: int


class Remaining(NamedTuple):
    """A report of the partner: *remaining* units are left until the reset in *reset_us* from now."""

    remaining: int
    reset_us: int


class Slowdown(NamedTuple):
    """
    The slow-down of a limit, as its waitlist stores it. Times are in microseconds; 0 means never.

    Attributes:
        fell_us: The time at which a refusal last reduced the rate.
        top: The part of the declared rate that is reached after one span. Later the rate rises beyond it.
        span_us, floor: The values of the last `Refusal`.
        back_us: The time from which the rate is the declared rate again.
        reported_at_us, reported_until_us: The beginning and the end of the validity of the last report of remaining
            units.
        each_ns: The time of one unit, by that report.
        tat_us: The theoretical arrival time of the pace's bucket: the time at which the bucket is full again.
        moved_us: The time of the last change of `tat_us`.
        from_us: The time at which the rate begins to rise again. If there was a pause, this is its end.
    """

    fell_us: int = 0
    top: int = ONE
    span_us: int = 1
    floor: int = ONE
    back_us: int = 0
    reported_at_us: int = 0
    reported_until_us: int = 0
    each_ns: int = 0
    tat_us: int = 0
    moved_us: int = 0
    from_us: int = 0

    @property
    def last_us(self) -> int:
        """The time at which the slow-down ends."""
        return max(self.back_us, self.reported_until_us)

    def at(self, now_us: int) -> Slowdown:
        """
        Return the slow-down for a clock that shows *now_us*. If a clock that was ahead wrote the slow-down, the rest of
        it begins now.
        """
        slow = self
        if slow.fell_us > now_us:
            by_us = slow.fell_us - now_us
            slow = slow._replace(fell_us=now_us, back_us=slow.back_us - by_us, from_us=slow.from_us - by_us)
        if slow.reported_at_us > now_us:
            slow = slow._replace(
                reported_at_us=now_us, reported_until_us=now_us + slow.reported_until_us - slow.reported_at_us
            )
        if slow.moved_us > now_us:
            slow = slow._replace(moved_us=now_us, tat_us=max(0, slow.tat_us - (slow.moved_us - now_us)))
        return slow

    def part(self, now_us: int) -> int:
        """Return the part of its declared rate that the limit has now because of refusals, in millionths."""
        if now_us >= self.back_us:
            return ONE
        return min(ONE, max(self.floor, _cubic(self.top, max(0, now_us - self.from_us), self.span_us)))


class Pause(NamedTuple):
    """
    A pause of a limit.

    Attributes:
        until_us: The end of the pause, which may be over; 0 if no pause was set since the last admitted job.
        from_us: The beginning of the pause. So a clock that steps back does not make the pause longer.
        emptied_us: After a 429, the units up to this time count as used; 0 if no 429 came since the last admitted job.
    """

    until_us: int = 0
    from_us: int = 0
    emptied_us: int = 0

    def at(self, now_us: int) -> Pause:
        """
        Return the pause for a clock that shows *now_us*. If a clock that was ahead wrote it, the rest begins now.
        """
        by_us = self.from_us - now_us
        if by_us <= 0:
            return self
        return Pause(self.until_us - by_us, now_us, max(0, self.emptied_us - by_us))

    def change(self, now_us: int, for_us: int | None, *, emptied: bool) -> Pause:
        """
        Return a pause that lasts for *for_us* from now, or longer if the current pause does. If *for_us* is None, the
        pause ends now.

        Args:
            emptied: Whether the partner sent a 429. If so, the units of one period count as used evenly up to the end
                of *for_us*. A pause and a 429 have separate ends: neither shortens the other.

        Returns:
            The same object if nothing changes.
        """
        if for_us is None:
            until_us, emptied_us = min(self.until_us, now_us), min(self.emptied_us, now_us)
        else:
            end_us = now_us + for_us
            until_us, emptied_us = max(self.until_us, end_us), max(self.emptied_us, end_us if emptied else 0)
        if (until_us, emptied_us) == (self.until_us, self.emptied_us):
            return self
        return Pause(until_us, now_us, emptied_us)


class Pace(NamedTuple):
    """
    The effect of a slow-down on one request: until `last_us`, a unit takes `each` ns, and the request `charge_us`.
    """

    each: float
    charge_us: int
    tat_us: int
    last_us: int


def pace_of(slow: Slowdown | None, mark: int, cost: int, now_us: int) -> Pace | None:
    """
    Return the pace of a request of *cost*, or None if no slow-down affects the request.

    Args:
        mark: The nanoseconds of one unit, at the limit's own rate.
    """
    if slow is None:
        return None
    each = float(slow.each_ns) if now_us < slow.reported_until_us else 0.0
    part = slow.part(now_us)
    if part < ONE:
        each = max(each, max(1, mark) * float(ONE) / part)
    if each == 0.0:
        return None
    charge_us = min(math.ceil(cost * each / 1000), FURTHEST_US)
    return Pace(each, charge_us, slow.tat_us, slow.last_us)


def ready_after(algorithm: Algorithm, taken: Any, pace: Pace | None, ahead: int, at_us: int) -> int:
    """
    Return the earliest time, from *at_us* on, at which both the limit and the pace admit the request, if *ahead* other
    units are admitted before it. The pace delays the request at most until the slow-down ends. From then on, those of
    the other units that have not been admitted are ahead of it only in the limit itself.
    """
    ready_us = algorithm.ready_us(taken, at_us, ahead)
    if pace is None:
        return ready_us
    first_us = pace.tat_us - max(0, TOLERANCE_US - pace.charge_us)
    slow_us = first_us + math.ceil(ahead * pace.each / 1000)
    if slow_us <= pace.last_us:
        return max(ready_us, slow_us)
    left = max(0, ahead - math.floor(max(0, pace.last_us - first_us) * 1000 / pace.each))
    ends_us = at_us if algorithm.estimates else max(at_us, pace.last_us)
    return max(ready_us, pace.last_us, algorithm.ready_us(taken, ends_us, left) if left else 0)


def charge_pace(slow: Slowdown, pace: Pace | None, now_us: int) -> Slowdown | None:
    """Return the slow-down after the request was admitted, or None if the slow-down is over."""
    if pace is not None:
        return slow._replace(tat_us=max(pace.tat_us, now_us) + pace.charge_us, moved_us=now_us)
    return None if now_us >= slow.last_us else slow


def apply_refusal(slow: Slowdown | None, refusal: Refusal, paused_us: int, now_us: int) -> Slowdown:
    """
    Return the slow-down after the partner has refused a job.

    The new top is 0.95 of the rate at which the partner refused the job. If that rate was below the last top, the new
    top is 0.9 of it, so that the partner's other clients get more room.

    Args:
        paused_us: The end of the pause, if there is one. After the pause, the limit starts without units.
    """
    slow = slow or Slowdown()
    if refusal.granted_us is not None and slow.back_us > now_us and refusal.granted_us < slow.fell_us:
        return slow
    part = max(slow.part(now_us), refusal.floor)
    below = slow.back_us > now_us and part < slow.top
    top = max(refusal.floor, part * (_TOP_BELOW if below else _TOP) // _TOP_PARTS)
    spans = 1
    while _cubic(top, spans * refusal.span_us, refusal.span_us) < ONE:
        spans += 1
    from_us = max(paused_us, now_us)
    return slow._replace(
        fell_us=now_us,
        top=top,
        span_us=refusal.span_us,
        floor=refusal.floor,
        from_us=from_us,
        back_us=from_us + spans * refusal.span_us,
        moved_us=now_us,
        tat_us=max(slow.tat_us if slow.last_us > now_us else 0, from_us + TOLERANCE_US),
    )


def apply_remaining(slow: Slowdown | None, answer: Remaining, ours: int, now_us: int) -> Slowdown | None:
    """
    Return the slow-down after the partner has reported its remaining units; the same object if nothing changes.

    A report never makes the limit faster than its own rate. Responses may arrive out of order. So if several reports
    are about the same window, the lowest one is used. A report about an earlier window is ignored unless it gives a
    lower rate. A report about a later window replaces the current report.

    Args:
        ours: The most units that the limit itself would admit until the reset.
    """
    until_us = now_us + answer.reset_us
    known = slow if slow is not None and slow.reported_until_us > now_us else None
    if answer.reset_us <= 0 or answer.remaining >= ours:
        return slow
    each_ns = math.ceil(answer.reset_us * 1000 / max(1, answer.remaining))
    if known is not None and until_us <= known.reported_until_us + _SAME_US:
        if each_ns <= known.each_ns:
            return slow
        if until_us >= known.reported_until_us - _SAME_US:
            until_us = max(until_us, known.reported_until_us)
    before = slow or Slowdown()
    tat_us = before.tat_us if before.last_us > now_us else 0
    first_us = now_us + max(TOLERANCE_US, -(-each_ns // 1000))
    if known is None or answer.remaining == 0:
        tat_us = max(tat_us, first_us)
    elif until_us > known.reported_until_us + _SAME_US:
        tat_us = min(tat_us, first_us)
    return before._replace(
        reported_at_us=now_us, reported_until_us=until_us, each_ns=each_ns, moved_us=now_us, tat_us=tat_us
    )


def _cubic(top: int, since_us: int, span_us: int) -> int:
    beyond = since_us * 1000 // span_us - 1000
    return top * (1000 * _BETA_PART + beyond**3 // 1_000_000) // (1000 * _BETA_PART)
