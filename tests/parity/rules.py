"""Random limits: periods from a microsecond to a year, time zones whose clocks change, and changed definitions."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from throttlekit import ByLatency, Concurrency, FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket
from throttlekit._core.algorithm import Algorithm
from throttlekit._core.algorithms import fixed_window
from throttlekit._core.limit.base import Limit
from throttlekit._core.limit.rate import MONTH_US, WEEK_US, YEAR_US
from throttlekit._core.storage_keys import bucket_name
from throttlekit._core.time_zone import UTC, Zone
from throttlekit._core.waitlist import KEPT_US

__all__ = ["ALGORITHMS", "Rule", "rule", "rules"]

_SECOND_US = 1_000_000
_HOUR_US = 3600 * _SECOND_US
_DAY_US = 24 * _HOUR_US
_MOST = 10**12 - 1

_BUCKETS = {
    "fast": [
        (300_000, _SECOND_US, 3000),
        (150_000, _SECOND_US, 1500),  # fills in the same time
        (7_000, _SECOND_US, 50),
        (90_000, 60 * _SECOND_US, 9),
        (12_345, 10**6, 1),
    ],
    "ordinary": [
        (10, 10**6, 5),
        (10, 10**6, 1),
        (7, 10**6, 7),
        (100, 60 * 10**6, 20),
        (50, 10**6, 50),
        (1000, 60 * 10**6, 2),
    ],
    "slow": [
        (1, _DAY_US, 1),
        (3, 100_000_000_003, 3),
        (1, _HOUR_US, 4),
        (5, 10 * _DAY_US, 5),
        (90_001, _DAY_US, 90_001),
        (1, 300 * _DAY_US, 1),  # its largest debt is limited by ten years, and not by a multiple of its burst
    ],
}
_FIXED = {
    "fast": [(50, 10_000), (3, 1), (7, 100_000)],
    "ordinary": [(10, 10**6), (1, 10**6), (3, 10**7), (100, 60 * 10**6), (4, 1800 * 10**6)],
    "slow": [
        (3, _HOUR_US),
        (7, _DAY_US),
        (2, 6 * _HOUR_US),
        (_MOST, _DAY_US),
        (5, WEEK_US),
        (3, MONTH_US),
        (2, YEAR_US),
    ],
}
_SLIDING = {
    "fast": [(300, 1_000), (9, 7), (1, 1), (_MOST, 10_000)],
    "ordinary": [(10, 10**6), (1, 10**6), (7, 10**7), (100, 60 * 10**6), (4, 7_777_777), (3, KEPT_US)],
    "slow": [(3, _HOUR_US), (3, 100_000_000_003), (_MOST, _DAY_US), (_MOST, 366 * _DAY_US), (10**6, 7 * _DAY_US)],
}
_LOGGED = {
    # Logs of more than 256 units have another format, and are written in pieces of 1 000.
    "fast": [(9, 10_000), (3, 7), (1, 1), (40, 1_000), (300, 1_000), (2_501, 10_000)],
    "ordinary": [(10, 10**6), (1, 10**6), (7, 10**7), (25, 60 * 10**6), (256, 10**6), (257, 10**6)],
    "slow": [(3, _HOUR_US), (4, 366 * _DAY_US), (2, 100_000_000_003), (258, _DAY_US)],
}
_RATES: dict[str, dict[str, list[Any]]] = {
    "token-bucket": _BUCKETS,
    "leaky-bucket": _BUCKETS,
    "fixed-window": _FIXED,
    "sliding-window": _SLIDING,
    "sliding-log": _LOGGED,
    # The lease in seconds, instead of the period.
    "concurrency": {
        "fast": [(1, 1.0), (3, 1.0), (50, 2.5)],
        "ordinary": [(1, 30.0), (2, 30.0), (4, 10.0), (3, 1.000001)],
        "slow": [(2, 3600.0), (5, 86_400.0), (1, 300.0)],
    },
}
_RATES["adaptive-concurrency"] = _RATES["concurrency"]
ALGORITHMS = tuple(_RATES)


@dataclass(frozen=True)
class Rule:
    """One definition of a limit, and the key of its state."""

    limit: Limit
    zone: Zone
    bucket: str

    @property
    def step_us(self) -> int:
        """The approximate time from one unit to the next."""
        return max(1, self.span_us // self.limit.amount)

    @property
    def span_us(self) -> int:
        """The period, or the lease."""
        return self.limit.lease_us if isinstance(self.limit, Concurrency) else self.limit.period_us

    def bind(self, cost: int, holder: str = "") -> Algorithm:
        charge = self.limit.bind(cost, 0, holder)
        return replace(charge, zone=self.zone) if isinstance(charge, fixed_window.FixedWindowAlgorithm) else charge


def rule(limit: Limit, zone: Zone = UTC, number: int = 0) -> Rule:
    """Return *limit* as a separate rule: the name of its key contains its algorithm and *number*."""
    # "ring" makes the strict script treat the key's value as binary.
    kind = "ring" if isinstance(limit, SlidingLog) else limit.algorithm
    return Rule(limit, zone, bucket_name(limit.name, "", f"{kind}{number}{limit.fingerprint}"))


def rules(rnd: random.Random, algorithms: Sequence[str], now_us: int) -> list[Rule]:
    """Return up to five names, with up to three definitions each; mostly of one speed, so that they interact."""
    speed = rnd.choice(["fast", "ordinary", "slow", "mixed"])
    names = "abcde"[: rnd.randint(2, 5) if len(algorithms) > 1 else rnd.randint(1, 3)]
    found: list[Rule] = []
    for name in names:
        for number in range(rnd.choice([1, 1, 2, 3])):
            chosen, at = rnd.choice(algorithms), rnd.choice(("fast", "ordinary", "slow")) if speed == "mixed" else speed
            found.append(_random_rule(rnd, chosen, at, name, number, now_us))
            first = found[-1]
            for _ in range(rnd.choice([0, 0, 0, 1, 2])):
                # The same key at another rate, as after a change by live control.
                limit = _random_rule(rnd, chosen, at, name, number, now_us).limit
                if isinstance(limit, (FixedWindow, SlidingWindow)):
                    # Within the largest exact debt: the units of a larger debt are an estimate.
                    amount = max(1, min(first.limit.amount * rnd.choice([1, 2, 10]) // rnd.choice([1, 3, 10]), _MOST))
                    limit = type(limit)(name, limit.rate_from(amount, first.limit.period_us))
                if limit.count_with(first.limit) or isinstance(limit, Concurrency):
                    found.append(replace(first, limit=limit))
    return found


def _random_rule(rnd: random.Random, algorithm: str, speed: str, name: str, number: int, now_us: int) -> Rule:
    amount, period_us, *rest = rnd.choice(_RATES[algorithm][speed])
    if algorithm == "concurrency":
        return rule(Concurrency(name, amount, lease=period_us), number=number)
    if algorithm == "adaptive-concurrency":
        adapt = ByLatency(rnd.randint(1, amount), timeout=rnd.choice([None, None, 0.01, min(86_400.0, 2 * period_us)]))
        return rule(Concurrency(name, amount, lease=period_us, adapt=rnd.choice([None, *[adapt] * 4])), number=number)
    rate = (amount, timedelta(microseconds=period_us))
    limit: Limit
    if algorithm == "token-bucket":
        limit = TokenBucket(name, rate, burst=rest[0])
    elif algorithm == "leaky-bucket":
        limit = LeakyBucket(name, rate, queue=rnd.choice([None, 0, 1, 3, 10]))
    elif algorithm == "fixed-window":
        limit = FixedWindow(name, FixedWindow.rate_from(amount, period_us))
        zone = _random_zone(rnd, now_us) if period_us <= _DAY_US else limit.bind(1, now_us).zone
        return rule(limit, zone, number)
    else:
        limit = SlidingWindow(name, rate) if algorithm == "sliding-window" else SlidingLog(name, rate)
    return rule(limit, number=number)


def _random_zone(rnd: random.Random, now_us: int) -> Zone:
    """Return a zone whose clocks change near *now_us*, often so that midnight is skipped or occurs twice."""
    if rnd.random() < 0.3:
        return UTC
    offset_us = rnd.choice([-11 * _HOUR_US, -3 * _HOUR_US, 0, 2 * _HOUR_US, 23 * _HOUR_US // 4, 13 * _HOUR_US])
    if rnd.random() < 0.2:
        return Zone(offset_us)
    before_us = offset_us
    midnight_us = (now_us + before_us) // _DAY_US * _DAY_US + rnd.choice([-_DAY_US, 0, 0, _DAY_US])
    changes: list[tuple[int, int]] = []
    for _ in range(rnd.choice([1, 1, 2])):
        from_us = midnight_us + rnd.choice([0, 0, _HOUR_US // 2, _HOUR_US, 2 * _HOUR_US]) - before_us
        from_us = max(from_us, changes[-1][0] + 1 if changes else 0)
        by_us = rnd.choice([1, 1, -1, -1]) * rnd.choice([_HOUR_US, _HOUR_US, _HOUR_US // 2, _DAY_US])
        before_us += by_us
        changes.append((from_us, before_us))
        midnight_us += rnd.choice([0, 2, 40]) * _DAY_US + rnd.choice([0, _HOUR_US])
    return Zone(offset_us, tuple(changes))
