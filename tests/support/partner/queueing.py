"""
A simulated partner that gets slower beyond a hidden number of concurrent calls, without a clock or processes.

    found = happen(Ours(2, 40), Partner(capacity=constant(20), work=even), seconds=60)

All its jobs get the same share of its capacity (processor sharing), or, if it refuses, jobs beyond its capacity are
refused. There are always more jobs than slots, unless *load* is set. All times are seconds.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from throttlekit._core.latency import Gauge, apply_drop, measure_hold, slots_of

__all__ = ["Found", "Ours", "Partner", "Rule", "constant", "even", "happen", "spread", "stepped", "two_kinds"]

_BEGIN_US = 10**15
_HOLD = 0.1


class Rule(Protocol):
    """A rule that determines how many slots there are."""

    @property
    def slots(self) -> int: ...

    def ended(self, now: float, held: float, used: int) -> None:
        """Apply the end of a hold, while *used* slots were in use, including its own."""
        ...

    def refused(self, now: float, granted: float) -> None: ...


class Ours:
    """throttlekit's rule, from `throttlekit._core.latency`."""

    def __init__(self, floor: int, most: int) -> None:
        self.floor, self.most = floor, most
        self.gauge: Gauge | None = None

    @property
    def slots(self) -> int:
        return slots_of(self.gauge, self.floor, self.most)

    def ended(self, now: float, held: float, used: int) -> None:
        held_us = max(1, round(held * 1e6))
        self.gauge = measure_hold(self.gauge, held_us, used, self.floor, self.most, _us(now))

    def refused(self, now: float, granted: float) -> None:
        self.gauge = apply_drop(self.gauge, _us(granted), self.floor, self.most, _us(now))


@dataclass(frozen=True)
class Partner:
    """
    Attributes:
        capacity: How many concurrent calls are as fast as one, at that part of the run.
        work: How long a call takes alone, at that part of the run.
        refuses: Whether it refuses calls beyond its capacity, and is never slow.
        load: Random jobs per second. None: there are always more jobs than slots.
    """

    capacity: Callable[[float], int]
    work: Callable[[random.Random, float], float]
    refuses: bool = False
    load: float | None = None


class Found(NamedTuple):
    """
    The result of a run.

    Attributes:
        use: The used share of the partner's capacity.
        longer: How many times as long as alone calls took, on average.
        slots: How many slots there were, on average.
        refused: How many of 1 000 calls were refused.
    """

    use: float
    longer: float
    slots: float
    refused: float


def constant(slots: int) -> Callable[[float], int]:
    return lambda at: slots


def stepped(*slots: int) -> Callable[[float], int]:
    """Return a capacity that has each of *slots* for an equal part of the run."""
    return lambda at: slots[min(len(slots) - 1, int(at * len(slots)))]


def even(rnd: random.Random, at: float) -> float:
    return _HOLD


def spread(deviation: float) -> Callable[[random.Random, float], float]:
    """Return log-normal work whose standard deviation is *deviation* × the mean."""
    sigma = math.sqrt(math.log(1 + deviation**2))
    return lambda rnd, at: rnd.lognormvariate(math.log(_HOLD) - sigma**2 / 2, sigma)


def two_kinds(rnd: random.Random, at: float) -> float:
    """Return the work of a job. One job in ten takes twenty times as long."""
    return 1.0 if rnd.random() < 0.1 else 0.05


def happen(rule: Rule, partner: Partner, seconds: float, seed: int = 1) -> Found:
    """Run the simulation for *seconds*."""
    rnd = random.Random(seed)
    now = share = done = could = longer = slot_seconds = 0.0
    inside: list[tuple[float, int, float, float]] = []
    calls = refused = ended = 0
    waiting, next_job_at = (math.inf, math.inf) if partner.load is None else (0.0, 0.0)
    while now < seconds:
        capacity = partner.capacity(now / seconds)
        while len(inside) < rule.slots and waiting >= 1:
            calls, waiting = calls + 1, waiting - 1
            if partner.refuses and len(inside) >= capacity:
                refused += 1
                rule.refused(now, now)
                now += 0.002
                break
            work = partner.work(rnd, now / seconds)
            heapq.heappush(inside, (share + work, calls, work, now))
        speed = min(1.0, capacity / len(inside)) if inside else 0.0
        ends = now + (inside[0][0] - share) / speed if inside else math.inf
        next_at = min(ends, next_job_at, now + 0.5, seconds + 1e-6)
        done += min(len(inside), capacity) * (next_at - now)
        could += capacity * (next_at - now)
        slot_seconds += rule.slots * (next_at - now)
        share, now = share + (next_at - now) * speed, next_at
        if next_at == next_job_at and partner.load is not None:
            waiting, next_job_at = waiting + 1, now + rnd.expovariate(partner.load)
        elif next_at == ends:
            _, _, work, granted = heapq.heappop(inside)
            ended, longer = ended + 1, longer + (now - granted) / work
            rule.ended(now, now - granted, len(inside) + 1)
    return Found(done / could, longer / max(1, ended), slot_seconds / now, 1000 * refused / max(1, calls))


def _us(seconds: float) -> int:
    return _BEGIN_US + round(seconds * 1e6)
