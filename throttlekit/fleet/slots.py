"""Read a concurrency limit for a snapshot of the fleet: how long its slots are held, and how many there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from throttlekit._core.algorithms.by_latency import AdaptiveConcurrencyAlgorithm
from throttlekit._core.algorithms.concurrency import ConcurrencyAlgorithm, Holders
from throttlekit._core.claim import StoreClaim
from throttlekit._core.latency import Gauge
from throttlekit._core.storage_keys import held_since

__all__ = ["MOST_HOLDERS", "SlotsNow", "slot_questions", "slots_from"]

MOST_HOLDERS = 200


class SlotsNow(NamedTuple):
    """The slots of a limit, with durations in seconds as in `Key`. *capacity* is the most slots in use at once now."""

    capacity: int
    mean_hold: float | None
    held: float | None
    oldest_hold: float | None


def slot_questions(claim: StoreClaim, now_us: int) -> list[tuple[str | int, ...]]:
    """Return the commands whose replies `slots_from` reads. For a limit without slots there are none."""
    if not isinstance(claim.algorithm, ConcurrencyAlgorithm):
        return []
    names = [":mean", ":granted", *([":slots", ":rounds"] if _adapts(claim) else [])]
    holders = ("ZRANGEBYSCORE", claim.bucket, f"({now_us}", "+inf", "LIMIT", 0, MOST_HOLDERS)
    return [*(("ZSCORE", claim.bucket, name) for name in names), holders]


def slots_from(claim: StoreClaim, answers: Iterator[Any], now_us: int) -> SlotsNow | None:
    """Read the slots from the next *answers*. Return None for a limit without slots."""
    algorithm = claim.algorithm
    if not isinstance(algorithm, ConcurrencyAlgorithm):
        return None
    mean_us, granted_us = _stored_number(next(answers)), _stored_number(next(answers))
    slots, rounds = (_stored_number(next(answers)), _stored_number(next(answers))) if _adapts(claim) else (0, 0)
    since = min(filter(None, (held_since(data.decode()) for data in next(answers))), default=None)
    return SlotsNow(
        algorithm.slots(Holders(gauge=Gauge(slots, rounds=rounds) if slots else None)),
        mean_us / 1e6 if mean_us else None,
        max(0, now_us - granted_us) / 1e6 if granted_us else None,
        None if since is None else max(0.0, now_us / 1e6 - since),
    )


def _adapts(claim: StoreClaim) -> bool:
    return isinstance(claim.algorithm, AdaptiveConcurrencyAlgorithm)


def _stored_number(score: Any) -> int:
    """Return a number that a concurrency limit stores as a negative score; 0 if there is none."""
    return 0 if score is None else -int(float(score))
