"""What the stores have in common in how they keep waitlists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from throttlekit._core.claim import StoreClaim
from throttlekit._core.wait_control import Where
from throttlekit._core.waitlist import State
from throttlekit.stores.base import Correction, Lease

__all__ = ["MOST_LISTED", "batches", "binding_where", "unit_of"]

MOST_LISTED = 20
"""So many jobs `list_waiting` names at most: for that the script reads 210."""


class _OfBucket(Protocol):
    @property
    def bucket(self) -> str: ...


_T = TypeVar("_T", bound=_OfBucket)


def unit_of(what: StoreClaim | Correction | Lease) -> StoreClaim:
    """A claim of one unit of the same limit and key."""
    return StoreClaim(what.bucket, what.algorithm.of_one())


def batches(items: Sequence[_T], most: int) -> list[list[_T]]:
    """*items* in batches of at most *most*, none of which has one bucket twice. Those of a bucket stay in order."""
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
    """Of a job's entries the one that holds it back: where it waits or was woken, or else the last to pass."""
    return max(found, key=lambda each: (each.state is not State.KEPT, each.in_us, -each.claim), default=None)
