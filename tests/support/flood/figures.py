"""What a flood's record amounts to: bounds, use of the limit, deliveries, order. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from support.flood.run import Flood, Grant, Told
from throttlekit import TokenBucket
from throttlekit._core.algorithms.gcra import Bucket, GcraAlgorithm, Tat

__all__ = [
    "Figures", "bursts_beyond_us", "figures", "full_from", "inversions", "lateness", "most_within",
    "unexplained_charges",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Figures:
    """
    One row of a table. Times in seconds unless the name says otherwise.

    Attributes:
        ideal: The shortest time that the limits allow for the jobs done.
        took: From the first start to the last.
        use: The share of the limits that was used: by the grants where they are known.
        grants_beyond_us: How far the worst window of grants breaks the bound, as time; <= 0: it holds,
            exactly, by the store's clock. None: nobody recorded grants.
        starts_beyond_ms: The same over the bodies' starts: the jitter between a grant and a start
            that would explain the worst window.
        most_in_1s, allowed_in_1s: Starts within one second, and what the limit's own bound says.
        unexplained_charges: Grants whose bucket stood elsewhere than all grants before it say:
            somebody else was charged. None: nobody recorded grants.
        lost: Jobs that no body has finished; of those, `left` messages are still in the broker.
        deliveries: To workers, per job done, the first included; operations: enqueue, ack and nack.
        commands: Of the broker's Redis, per job done, polling included. None: it is no Redis.
        inverted: Share of pairs of jobs that started in the wrong order.
    """

    done: int
    lost: int
    duplicates: int
    left: int
    took: float
    ideal: float
    use: float
    grants_beyond_us: int | None
    starts_beyond_ms: float
    most_in_1s: int
    allowed_in_1s: int
    deliveries: float
    operations: float
    commands: float | None
    cpu_ms: float
    inverted: float
    unexplained_charges: int | None

    @property
    def bound_holds(self) -> bool:
        """By the store's clock where grants are known, else by what was started within a second."""
        if self.grants_beyond_us is None:
            return self.most_in_1s <= self.allowed_in_1s
        return self.grants_beyond_us <= 0


def figures(told: Told) -> Figures:
    flood = told.flood
    starts = sorted(told.starts, key=lambda start: start.at_us)
    times = [start.at_us for start in starts]
    first_of: dict[str, int] = {}
    for start in starts:
        first_of.setdefault(start.job, start.at_us)
    done, jobs = len(set(told.ends)), max(1, len(set(told.ends)))
    ideal, took = _ideal(flood, list(first_of)), (times[-1] - times[0]) / 1e6 if times else 0.0
    span = (told.grants[-1].at_us - told.grants[0].at_us) / 1e6 if told.grants else took
    limit = _buckets(flood)[0]
    return Figures(
        done=done,
        lost=flood.jobs - done,
        duplicates=len(told.starts) - len(first_of),
        left=told.left,
        took=took,
        ideal=ideal,
        use=ideal / span if span else 0.0,
        grants_beyond_us=_grants_beyond_us(flood, told.grants) if told.grants else None,
        starts_beyond_ms=_starts_beyond_us(told) / 1000,
        most_in_1s=most_within(times, 1_000_000),
        allowed_in_1s=int(1e6 / _interval_us(limit.bucket)) + (0 if flood.mode == "native" else limit.burst),
        deliveries=told.counts.get("deliveries", 0) / jobs,
        operations=told.counts.get("operations", 0) / jobs,
        commands=None if told.broker_commands is None else told.broker_commands / jobs,
        cpu_ms=1000 * told.counts.get("cpu", 0) / jobs,
        inverted=inversions([int(job) for job in first_of if job.isdigit()]),
        unexplained_charges=unexplained_charges(told.grants) if told.grants else None,
    )


def bursts_beyond_us(times_us: Sequence[int], burst: int, interval_us: float) -> float:
    """
    How far the worst window breaks "at most burst + window / interval", as time; <= 0: none does.

    From one instant to another n units need (n - burst) intervals. *times_us* ascend.
    """
    worst, most_ahead = float("-inf"), float("-inf")
    for n, time_us in enumerate(times_us):
        most_ahead = max(most_ahead, time_us - n * interval_us)
        worst = max(worst, most_ahead + (n + 1 - burst) * interval_us - time_us)
    return worst


def most_within(times_us: Sequence[int], window_us: int) -> int:
    """The most of *times_us*, ascending, in any window."""
    most, first = 0, 0
    for last, time_us in enumerate(times_us):
        while time_us - times_us[first] >= window_us:
            first += 1
        most = max(most, last - first + 1)
    return most


def inversions(order: Sequence[int]) -> float:
    """The share of pairs in the wrong order: 0 is first in, first out, 0.5 is chance."""

    def count(part: list[int]) -> tuple[list[int], int]:
        if len(part) < 2:
            return part, 0
        middle = len(part) // 2
        (left, wrong_left), (right, wrong_right) = count(part[:middle]), count(part[middle:])
        merged, wrong, i = [], wrong_left + wrong_right, 0
        for value in right:
            while i < len(left) and left[i] < value:
                merged.append(left[i])
                i += 1
            wrong += len(left) - i
            merged.append(value)
        return merged + left[i:], wrong

    pairs = len(order) * (len(order) - 1) / 2
    return count(list(order))[1] / pairs if pairs else 0.0


def lateness(order: Sequence[int]) -> tuple[float, int]:
    """The share of jobs that began after one of a higher number, and by how many places one was off at most."""
    highest, overtaken = -1, 0
    for job in order:
        overtaken += job < highest
        highest = max(highest, job)
    places = max((abs(job - place) for place, job in enumerate(order)), default=0)
    return overtaken / max(1, len(order)), places


def full_from(times: Sequence[float], since: float, *, units: float, seconds: float) -> float | None:
    """The first instant, *since* itself or a later one of *times*, that *units* of them follow within *seconds*."""
    later = [at for at in times if at >= since]
    for begin in (since, *later):
        last = bisect_left(later, begin) + math.ceil(units) - 1
        if last >= len(later):
            return None
        if later[last] <= begin + seconds:
            return begin
    return None


def unexplained_charges(grants: Sequence[Grant]) -> int:
    """
    Replay *grants* and count those that found a bucket elsewhere than the ones before it left it.

    0 proves that whoever was denied was charged nothing, anywhere.
    """
    tats: dict[str, int] = {}
    wrong = 0
    # In one microsecond there may be several: the state after each tells their order.
    for grant in sorted(grants, key=lambda one: (one.at_us, max(tat for _, _, tat in one.buckets))):
        for name, charge_us, tat_us in grant.buckets:
            before = tats.get(name)
            charge, tat = GcraAlgorithm(charge_us, 0, 2**52, charge_us, 1), None if before is None else Tat(before)
            after = charge.admit(tat, grant.at_us)
            if after != Tat(tat_us):
                wrong += 1
            tats[name] = tat_us
    return wrong


def _interval_us(bucket: Bucket) -> float:
    return bucket.numerator / bucket.denominator


def _buckets(flood: Flood) -> list[TokenBucket]:
    return [limit.made() for limit in flood.limits]


def _ideal(flood: Flood, jobs: Sequence[str]) -> float:
    accounts = Counter(flood.account_of(int(job)) for job in jobs if job.isdigit())
    needed = [0.0]
    for limit in _buckets(flood):
        most = max(accounts.values(), default=0) if limit.key else len(jobs)
        needed.append((most - _burst(flood, limit)) * _interval_us(limit.bucket) / 1e6)
    return max(needed)


def _grants_beyond_us(flood: Flood, grants: Sequence[Grant]) -> int:
    of_bucket: defaultdict[str, list[int]] = defaultdict(list)
    for grant in grants:
        for name, _, _ in grant.buckets:
            of_bucket[name].append(grant.at_us)
    worst = float("-inf")
    for limit in _buckets(flood):
        for name, times in of_bucket.items():
            if name.startswith(f"tk1:{{{limit.name}:"):
                worst = max(worst, bursts_beyond_us(times, limit.burst, _interval_us(limit.bucket)))
    return round(worst)


def _starts_beyond_us(told: Told) -> float:
    flood = told.flood
    worst = float("-inf")
    for limit in _buckets(flood):
        of_key: defaultdict[str, list[int]] = defaultdict(list)
        for start in sorted(told.starts, key=lambda one: one.at_us):
            if start.job.isdigit():
                of_key[flood.account_of(int(start.job)) if limit.key else ""].append(start.at_us)
        for times in of_key.values():
            worst = max(worst, bursts_beyond_us(times, _burst(flood, limit), _interval_us(limit.bucket)))
    return worst


def _burst(flood: Flood, limit: TokenBucket) -> int:
    """Dramatiq's limiter has no burst of its own: a whole window's worth may start at once."""
    return limit.amount if flood.mode == "native" else limit.burst
