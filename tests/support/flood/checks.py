"""What must hold of a flood's record, whatever the framework."""

from __future__ import annotations

from collections import Counter
from math import ceil

from support.flood.run import Told

__all__ = ["assert_bound", "assert_calm", "in_order", "starts_of"]


def assert_bound(told: Told, name: str, interval_us: int, burst: int, *, unheard: int = 0) -> int:
    """
    Hold the grants of the limit called *name* to its bound, exactly; return how many there were.

    A bucket that follows the grants by their instants alone never holds more than burst × interval:
    that is, in no window of any length w are there more than burst + w / interval of them. And the
    state that the store kept is that same bucket's: nothing else was charged.

    Args:
        unheard: How many units may have been charged besides, to workers that were killed before they had written
            the grant down. They count in the bound.
    """
    tats: dict[str, int] = {}
    count = 0
    for grant in told.grants:
        for bucket, charge_us, tat_us in grant.buckets:
            if not bucket.startswith(f"tk1:{{{name}:"):
                continue
            assert charge_us == interval_us
            tats[bucket] = max(tats.get(bucket, 0), grant.at_us) + charge_us
            if tat_us > tats[bucket] and unheard:
                unheard -= ceil((tat_us - tats[bucket]) / interval_us)
                tats[bucket] = tat_us
            assert unheard >= 0, f"{bucket} was charged too much that was not granted"
            assert tats[bucket] - grant.at_us <= burst * interval_us, f"over the bound at grant {count} of {bucket}"
            assert tats[bucket] == tat_us, f"{bucket} was charged by something that was not granted"
            count += 1
    return count


def in_order(told: Told) -> Told:
    # Two grants of one microsecond: the earlier is the one that left the bucket less charged.
    told.grants.sort(key=lambda grant: (grant.at_us, [tat for _, _, tat in grant.buckets]))
    return told


def starts_of(told: Told) -> Counter[str]:
    return Counter(start.job for start in told.starts)


def assert_calm(log: str) -> None:
    """
    No traceback is in *log*; if there is one, it is what is told, and not some log's beginning.

    But for RQ's own: its handler of SIGTERM raises StopRequested wherever the worker is, and in a destructor Python
    prints it and goes on. Within a Redis command of the worker it leaves a reply unread, which the worker's teardown
    meets. And but for Celery's own: a cold shutdown may stop py-amqp within a frame, whose rest the clean-up meets.
    """
    lines = log.splitlines()
    cold = "worker: Cold shutdown" in log
    for at, line in enumerate(lines):
        if "Traceback" in line:
            end = next((n for n, line in enumerate(lines[at + 1 :], at + 1) if line.strip() and line[0] != " "), at)
            in_teardown = any("rq/worker" in each and "in teardown" in each for each in lines[at:end])
            unread = in_teardown and "Wrong number of response items" in lines[end]
            record = next((each for each in reversed(lines[:at]) if each.startswith("[")), "")
            in_frame = cold and "cleaning up after event loop: UnexpectedFrame" in record
            if "exceptions.StopRequested" not in lines[end] and not unread and not in_frame:
                raise AssertionError("\n".join(lines[max(0, at - 5) : at + 60]))
