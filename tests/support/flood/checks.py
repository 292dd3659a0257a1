"""The checks of a flood's record, for every framework."""

from __future__ import annotations

from collections import Counter
from math import ceil

from support.flood.figures import charges_by_bucket
from support.flood.run import FloodRecord

__all__ = ["assert_bound", "assert_calm", "starts_of"]


def assert_bound(result: FloodRecord, name: str, interval_us: int, burst: int, *, unrecorded: int = 0) -> int:
    """
    Check the grants of the limit *name* against its bound, exactly. Return how many there were.

    A bucket that is computed from the times of the grants never exceeds burst × interval, so no window of length w has
    more than burst + w / interval grants. The stored state is that of the computed bucket, so nothing else was charged.

    Args:
        unrecorded: How many further units may have been charged for workers that were killed before they recorded the
        grant.
            They count for the bound.
    """
    count = 0
    for bucket, charges in charges_by_bucket(result.grants).items():
        if not bucket.startswith(f"tk1:{{{name}:"):
            continue
        tat = 0
        for at_us, charge_us, tat_us in charges:
            assert charge_us == interval_us
            tat = max(tat, at_us) + charge_us
            if tat_us > tat and unrecorded:
                unrecorded -= ceil((tat_us - tat) / interval_us)
                tat = tat_us
            assert unrecorded >= 0, f"{bucket} was charged too much that was not granted"
            assert tat - at_us <= burst * interval_us, f"over the bound at grant {count} of {bucket}"
            assert tat == tat_us, f"{bucket} was charged by something that was not granted"
            count += 1
    return count


def starts_of(result: FloodRecord) -> Counter[str]:
    return Counter(start.job for start in result.starts)


def assert_calm(log: str) -> None:
    """
    Check that *log* has no traceback. The error has the part of the log with the traceback.

    Some tracebacks of RQ and Celery are allowed. RQ's handler of SIGTERM raises StopRequested anywhere in the worker:
    Python prints it if it is raised in a destructor, and in a Redis command it leaves a reply unread, which then fails
    the worker's teardown. A cold shutdown of Celery may stop py-amqp inside a frame, and then the clean-up reads the
    rest.
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
