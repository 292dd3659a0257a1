"""The figures of a flood's record: bounds, use of the limit, deliveries, order. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from support.flood.run import Flood, FloodRecord, Grant
from throttlekit import TokenBucket
from throttlekit._core.algorithms.gcra import Bucket, GcraAlgorithm, Measure, Tat

__all__ = [
    "Figures",
    "bursts_beyond_us",
    "charges_by_bucket",
    "figures",
    "full_from",
    "inversions",
    "lateness",
    "most_within",
    "unexplained_charges",
]


@dataclass(frozen=True, kw_only=True)
class Figures:
    """
    One row of a table. Times are in seconds unless the name has another unit.

    Attributes:
        ideal: The shortest time that the limits allow for the jobs that are done.
        took: The time from the first start to the last one.
        use: The share of the limits that was used, by the grants if they are known.
        grants_beyond_us: By how much time the worst window of grants exceeds the bound; <= 0: it is kept,
            exactly, by the store's clock. None: grants were not recorded.
        starts_beyond_ms: The same for the bodies' starts: the jitter between a grant and a start that would explain the
            worst window.
        most_in_1s, allowed_in_1s: The most starts within one second, and the limit's bound.
        unexplained_charges: Grants whose bucket had another state than all earlier grants imply, because of another
            charge. None: grants were not recorded.
        lost: Jobs whose body has not ended; of those, `left` messages are still in the broker.
        deliveries: Deliveries to workers per done job; operations: enqueue, ack and nack.
        commands: Commands of the broker's Redis per done job, including polling. None: the broker is no Redis.
        inverted: The share of pairs of jobs with the same limits that started in the wrong order; of several accounts,
            the worst. Jobs of one account pass those of another whose own limit has no unit.
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
        """
        Whether the bound is kept: by the store's clock if grants are known, otherwise by the starts within a second.
        """
        if self.grants_beyond_us is None:
            return self.most_in_1s <= self.allowed_in_1s
        return self.grants_beyond_us <= 0


def figures(result: FloodRecord) -> Figures:
    flood = result.flood
    starts = sorted(result.starts, key=lambda start: start.at_us)
    times = [start.at_us for start in starts]
    begun = list(dict.fromkeys(start.job for start in starts))
    done, jobs = len(set(result.ends)), max(1, len(set(result.ends)))
    ideal, took = _ideal(flood, begun), (times[-1] - times[0]) / 1e6 if times else 0.0
    span = (result.grants[-1].at_us - result.grants[0].at_us) / 1e6 if result.grants else took
    limit = _buckets(flood)[0]
    return Figures(
        done=done,
        lost=flood.jobs - done,
        duplicates=result.begun_twice,
        left=result.left,
        took=took,
        ideal=ideal,
        use=ideal / span if span else 0.0,
        grants_beyond_us=_grants_beyond_us(flood, result.grants) if result.grants else None,
        starts_beyond_ms=_starts_beyond_us(result) / 1000,
        most_in_1s=most_within(times, 1_000_000),
        allowed_in_1s=int(1e6 / _interval_us(limit.bucket)) + (0 if flood.mode == "native" else limit.burst),
        deliveries=result.counts.get("deliveries", 0) / jobs,
        operations=result.counts.get("operations", 0) / jobs,
        commands=None if result.broker_commands is None else result.broker_commands / jobs,
        cpu_ms=1000 * result.counts.get("cpu", 0) / jobs,
        inverted=_inverted(flood, begun),
        unexplained_charges=unexplained_charges(result.grants) if result.grants else None,
    )


def bursts_beyond_us(times_us: Sequence[int], burst: int, interval_us: float) -> float:
    """
    Return by how much time the worst window exceeds "at most burst + window / interval"; <= 0 if none does.

    From one time to another, n units need (n - burst) intervals. *times_us* ascend.
    """
    worst, most_ahead = float("-inf"), float("-inf")
    for n, time_us in enumerate(times_us):
        most_ahead = max(most_ahead, time_us - n * interval_us)
        worst = max(worst, most_ahead + (n + 1 - burst) * interval_us - time_us)
    return worst


def most_within(times_us: Sequence[int], window_us: int) -> int:
    """Return the largest number of *times_us*, which ascend, in any window."""
    most, first = 0, 0
    for last, time_us in enumerate(times_us):
        while time_us - times_us[first] >= window_us:
            first += 1
        most = max(most, last - first + 1)
    return most


def inversions(order: Sequence[int]) -> float:
    """Return the share of pairs in the wrong order: 0 is first in, first out; 0.5 is random."""

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


def _inverted(flood: Flood, begun: Sequence[str]) -> float:
    of_account: defaultdict[str, list[int]] = defaultdict(list)
    for job in map(int, filter(str.isdigit, begun)):
        of_account[flood.account_of(job)].append(job)
    return max(map(inversions, of_account.values()), default=0.0)


def lateness(order: Sequence[int]) -> tuple[float, int]:
    """Return the share of jobs that began after a job with a higher number, and the largest displacement of a job."""
    highest, overtaken = -1, 0
    for job in order:
        overtaken += job < highest
        highest = max(highest, job)
    displacement = max((abs(job - place) for place, job in enumerate(order)), default=0)
    return overtaken / max(1, len(order)), displacement


def full_from(times: Sequence[float], since: float, *, units: float, seconds: float) -> float | None:
    """Return the first time, *since* or a later one of *times*, that is followed by *units* of them in *seconds*."""
    later = [at for at in times if at >= since]
    for begin in (since, *later):
        last = bisect_left(later, begin) + math.ceil(units) - 1
        if last >= len(later):
            return None
        if later[last] <= begin + seconds:
            return begin
    return None


def charges_by_bucket(grants: Iterable[Grant]) -> dict[str, list[tuple[int, int, int]]]:
    """
    Return, by bucket, the time, the charge and the new state of each grant, in the order in which the store charged it.

    This is the order of the states. A job that was granted early may begin after one that was charged later.
    """
    found: defaultdict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for grant in grants:
        for name, charge_us, tat_us in grant.buckets:
            found[name].append((grant.at_us, charge_us, tat_us))
    return {name: sorted(charges, key=lambda charge: charge[2]) for name, charges in found.items()}


def unexplained_charges(grants: Sequence[Grant]) -> int:
    """
    Replay *grants*, and count those whose bucket had another state than after the previous grants.

    0 proves that no denial charged any limit.
    """
    wrong = 0
    for charges in charges_by_bucket(grants).values():
        before: Tat | None = None
        for at_us, charge_us, tat_us in charges:
            measure = Measure(2**52, charge_us, 1)
            after = GcraAlgorithm(charge_us, 0, measure, measure).admit(before, at_us)
            wrong += after != Tat(tat_us)
            before = Tat(tat_us)
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


def _starts_beyond_us(result: FloodRecord) -> float:
    flood = result.flood
    worst = float("-inf")
    for limit in _buckets(flood):
        of_key: defaultdict[str, list[int]] = defaultdict(list)
        for start in sorted(result.starts, key=lambda one: one.at_us):
            if start.job.isdigit():
                of_key[flood.account_of(int(start.job)) if limit.key else ""].append(start.at_us)
        for times in of_key.values():
            worst = max(worst, bursts_beyond_us(times, _burst(flood, limit), _interval_us(limit.bucket)))
    return worst


def _burst(flood: Flood, limit: TokenBucket) -> int:
    """Return the burst. Dramatiq's limiter has none: the units of a whole window may start at once."""
    return limit.amount if flood.mode == "native" else limit.burst
