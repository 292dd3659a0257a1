"""Code for waitlists that all stores share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from throttlekit._core.claim import StoreClaim
from throttlekit._core.wait_control import Where
from throttlekit._core.waitlist import State
from throttlekit.stores.base import Correction, Lease

__all__ = ["MOST_LISTED", "batches", "binding_where", "unit_of"]

MOST_LISTED = 20
"""The most jobs that `list_waiting` returns. For 20 jobs, the script reads up to 210 entries."""


class _OfBucket(Protocol):
    @property
    def bucket(self) -> str: ...


_T = TypeVar("_T", bound=_OfBucket)


def unit_of(what: StoreClaim | Correction | Lease) -> StoreClaim:
    """Return a claim of one unit of the same limit and key."""
    return StoreClaim(what.bucket, what.algorithm.of_one())


def batches(items: Sequence[_T], most: int) -> list[list[_T]]:
    """Split *items* into batches of at most *most*, each with different buckets. Items of a bucket stay in order."""
    found: list[list[_T]] = []
    after: dict[str, int] = {}
    for each in items:
        number = after.get(each.bucket, 0)
        while number < len(found) and len(found[number]) >= most:
            number += 1
        if number == len(found):
            found.append([])
        found[number].append(each)
        after[each.bucket] = number + 1
    return found


def binding_where(found: Sequence[Where]) -> Where | None:
    """Return the entry of a job where it waits or was woken; otherwise the entry that will admit it last."""
    return max(found, key=lambda each: (each.state is not State.KEPT, each.in_us, -each.claim), default=None)
