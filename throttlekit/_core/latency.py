"""
Adapt the number of slots of a limit to how long jobs hold them: fewer slots while the partner is slow or refuses calls.

Rule 1: the number is always between the floor and the declared amount. So every bound of the limit holds.
Rule 2: the mean of a round of holds is compared with the base, the mean of holds while fewer slots were in use. Jobs
differ in length, so a difference that the spread of their lengths explains is ignored.
Rule 3: the number does not grow while some of the slots are free.
Rule 4: one overload reduces the number once. If a job that was granted before the last reduction fails, nothing
changes.

The number begins at the floor and doubles, until a round is slower or a job fails. After that it grows by a sixteenth,
or by one slot. A round with a mean above `_SLOWER` per cent of the base is congested, and the number becomes
slots × 0.9 × base / mean, as in a gradient, but at least half of what it was.

Example: 20 slots, a base of 100 ms, and a round with a mean of 150 ms: 20 × 0.9 × 100 / 150 = 12 slots.

Four kinds of rounds measure the base again: one round in `EVERY`, which uses 0.7 of the slots; the round after
a congested one, because the jobs themselves may have become longer; every round at the floor; and a round that is
faster than the base. A refusal, a time-out or a lease that ended takes a tenth of the slots.

The gradient with a base that is measured at a lower concurrency is that of Envoy's adaptive concurrency filter; the
margin for the deviation, and no growth before the limit is reached, are Vector's ("Adaptive Request Concurrency",
2020). docs/results/adapt.md compares their rules, and Gradient2 of Netflix's concurrency-limits, by simulation. In
Vector and Gradient2 the base follows every measurement, so it also contains the time in the partner's queue, and the
number grows to the declared amount.

lua/throttlekit_lua/latency.lua mirrors this file. Change both, or the parity tests fail. If a number is a float in this
file, it is the same double in the script.
"""

from __future__ import annotations

import math
from typing import NamedTuple

__all__ = [
    "EVERY",
    "LONGEST_HOLD_US",
    "REMEMBERED_US",
    "Drop",
    "Gauge",
    "apply_drop",
    "measure_hold",
    "round_of",
    "slots_of",
]

EVERY = 16
"""One round in this many measures the base."""

LONGEST_HOLD_US = 86_400_000_000
"""A longer hold counts as one of a day."""

REMEMBERED_US = 3_600_000_000
"""The time after the last hold at which the number of slots is forgotten."""

_FIRST_ROUND, _SHORTEST_ROUND, _LONGEST_ROUND = 16, 32, 4096
_FASTER, _SLOWER = 115, 130  # per cent of the base


class Drop(NamedTuple):
    """
    The failure of a job that was granted at *granted_us*, or None if that is not known: the partner refused it, or did
    not respond in time.
    """

    granted_us: int | None


class Gauge(NamedTuple):
    """
    The measurements of one key.

    Attributes:
        slots: The number of slots that may be in use, except in a round that measures the base.
        base_us: The mean hold while fewer slots were in use; 0 if it is not known.
        sum_us, spread_us, holds: For the holds of this round, the sum of their lengths, the sum of their distances from
            the mean so far, and their number.
        skip: The number of the next holds to ignore, because they began while another number of slots was in use.
        peak: The most units that were in use when one of the holds ended.
        rounds: The number of rounds since the base was last measured. If it is `EVERY`, this round measures the base
            with fewer slots. If it is `EVERY` + 1, this round measures the base with all slots.
        fell_us: The time at which the number of slots was last reduced, or stopped doubling; 0 while it doubles.
    """

    slots: int
    base_us: int = 0
    sum_us: int = 0
    spread_us: int = 0
    holds: int = 0
    skip: int = 0
    peak: int = 0
    rounds: int = 0
    fell_us: int = 0


def slots_of(gauge: Gauge | None, floor: int, most: int) -> int:
    """Return the number of slots that may be in use now, from *floor* to *most*."""
    if gauge is None:
        return floor
    slots = _clamp(gauge.slots, floor, most)
    return max(floor, slots * 7 // 10) if gauge.rounds == EVERY else slots


def _clamp(slots: int, floor: int, most: int) -> int:
    return max(floor, min(most, slots))


def round_of(slots: int, *, doubles: bool) -> int:
    """Return the number of holds in one round. If *doubles* is true, the number of slots has not been reduced yet."""
    return min(max(_FIRST_ROUND if doubles else _SHORTEST_ROUND, 2 * slots), _LONGEST_ROUND)


def measure_hold(gauge: Gauge | None, held_us: int, used: int, floor: int, most: int, now_us: int) -> Gauge:
    """
    Return the gauge after a hold of *held_us* has ended.

    Args:
        used: The number of units in use, including those of the hold.
    """
    gauge = gauge or Gauge(floor)
    gauge = gauge._replace(peak=max(gauge.peak, used))
    if gauge.skip:
        return gauge._replace(skip=gauge.skip - 1)
    held_us = min(held_us, LONGEST_HOLD_US)
    gauge = gauge._replace(
        sum_us=gauge.sum_us + held_us,
        holds=gauge.holds + 1,
        spread_us=gauge.spread_us + abs(held_us - (gauge.sum_us // gauge.holds if gauge.holds else held_us)),
    )
    slots = slots_of(gauge, floor, most)
    is_over = gauge.holds >= round_of(slots, doubles=not gauge.fell_us)
    return _end_round(gauge, slots, floor, most, now_us) if is_over else gauge


def apply_drop(gauge: Gauge | None, granted_us: int | None, floor: int, most: int, now_us: int) -> Gauge | None:
    """Return the gauge after a job has failed, with the time of `Drop`; the same object if nothing changes."""
    if gauge is None:
        return None
    fell_us = gauge.fell_us if gauge.fell_us <= now_us else 0  # otherwise a clock that was ahead wrote it
    if granted_us is not None and granted_us < fell_us:
        return gauge
    after = _clamp(gauge.slots, floor, most) * 9 // 10
    return _next(gauge._replace(fell_us=now_us), slots_of(gauge, floor, most), after, floor, most)


def _end_round(gauge: Gauge, slots: int, floor: int, most: int, now_us: int) -> Gauge:
    """Return the gauge after a round with *slots*."""
    mean_us = gauge.sum_us // gauge.holds
    # The standard error of the mean: the standard deviation is about 1.25 of the mean distance.
    error_us = math.floor(5 * gauge.spread_us // (4 * gauge.holds) / math.sqrt(gauge.holds))
    base_us, rounds, fell_us = gauge.base_us or mean_us, gauge.rounds + 1, gauge.fell_us
    after = _clamp(gauge.slots, floor, most)
    measures = gauge.rounds >= EVERY
    if measures or slots == floor or mean_us + 3 * error_us < base_us:
        base_us = max(1, (base_us + mean_us) // 2)
    if measures:
        rounds = 0
    elif slots > floor and mean_us > base_us * _SLOWER // 100 + 2 * error_us:
        after = max(after // 2, math.floor(after * (0.9 * base_us / mean_us) + 0.5))
        fell_us, rounds = now_us, EVERY + 1
    elif mean_us > base_us * _FASTER // 100 + error_us:
        fell_us = fell_us or now_us
    elif gauge.peak >= slots:
        after += max(1, after // 16) if fell_us else after
    if rounds == EVERY and gauge.peak < slots:
        rounds = EVERY - 1
    return _next(gauge._replace(base_us=base_us, rounds=rounds, fell_us=fell_us), slots, after, floor, most)


def _next(gauge: Gauge, before: int, slots: int, floor: int, most: int) -> Gauge:
    """Return the gauge at the beginning of a round with *slots*. The last round had *before* slots."""
    slots = _clamp(slots, floor, most)
    gauge = Gauge(slots, gauge.base_us, rounds=gauge.rounds, fell_us=0 if slots == floor else gauge.fell_us)
    return gauge if slots_of(gauge, floor, most) == before else gauge._replace(skip=before)
