"""What a store with waitlists can do besides `Store`, and what these stores have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from throttlekit._core.claim import StoreClaim
from throttlekit._core.decide import Answer, Asker, Look
from throttlekit._core.storage_keys import bucket_of, wait_names
from throttlekit._core.verdict import Verdict
from throttlekit._core.wait_control import Charge, Waiting, Where
from throttlekit._core.waitlist import State, Wake
from throttlekit.stores.base import Correction, Lease, Store

__all__ = [
    "MOST_LISTED", "SupportsWaitlists", "answer_of_verdict", "batches", "binding_where", "has_waitlists", "unit_of",
    "verdict_of_answer", "with_waitlists",
]  # fmt: skip

MOST_LISTED = 20
"""So many jobs `list_waiting` names at most: for that the script reads 210."""


class _OfBucket(Protocol):
    @property
    def bucket(self) -> str: ...


_T = TypeVar("_T", bound=_OfBucket)


class SupportsWaitlists(Store, Protocol):
    """
    A `Store` that also keeps the jobs that wait, and wakes them: after a pause, a slowdown, a correction or a release
    too, in the same script.

    A verb raises StoreUnavailable if there was no usable answer: it is unknown whether it was done.
    """

    def ask(
        self, claims: Sequence[StoreClaim], asker: Asker, now_us: int | None = None, *, attempt: str = ""
    ) -> Answer:
        """
        Decide as `throttlekit._core.decide.ask` does.

        Args:
            attempt: Names this question of the job. If it is repeated after an answer that was lost, so is a grant.
        """
        ...

    def return_units(self, charges: Sequence[Charge], asker: Asker, now_us: int | None = None) -> None:
        """Return what `ask` charged, because another store denied it: as `wait_control.return_units` does."""
        ...

    def look(
        self, claim: StoreClaim, owner: str, free: int, ids: Sequence[str] = (), now_us: int | None = None, *,
        near: bool = False,
    ) -> Look:  # fmt: skip
        """Look at one list, as `throttlekit._core.decide.look` does."""
        ...

    def own(self, claim: StoreClaim, owner: str, ids: Sequence[str], now_us: int | None = None) -> Look:
        """Make *owner* the owner of jobs on one list."""
        ...

    def wake(self, claims: Sequence[StoreClaim], now_us: int | None = None) -> None:
        """Wake jobs for which there are units."""
        ...

    def forget(
        self, claims: Sequence[StoreClaim], ids: Sequence[str], owner: str = "", now_us: int | None = None, *,
        keep: bool = False,
    ) -> None:  # fmt: skip
        """
        Remove jobs from the lists of *claims*; then wake others.

        Args:
            owner: Only jobs that it owns; "": whoever owns them.
            keep: They keep their positions, and wait for nothing that the store knows.
        """
        ...

    def where(self, claims: Sequence[StoreClaim], id: str, now_us: int | None = None) -> Where | None:
        """Find where a job waits, given its claims; None: on none of their lists."""
        ...

    def list_waiting(self, claim: StoreClaim, most: int = 0) -> Waiting:
        """Count the jobs on one list, and name at most *most* of the first, and at most `MOST_LISTED`."""
        ...

    def listen(
        self, owner: str, heard: Callable[[str, Sequence[Wake]], None], missed: Callable[[], None]
    ) -> Callable[[], None]:
        """
        Listen for wakes of *owner* that other callers make.

        Args:
            heard: Called with the bucket and the wakes, in any thread.
            missed: Called when wakes may have been missed.

        Returns:
            A function that ends it.
        """
        ...


def has_waitlists(store: Store) -> bool:
    """Whether *store* is a `SupportsWaitlists`. A protocol of many methods takes a hundred times as long to check."""
    return callable(getattr(store, "ask", None)) and callable(getattr(store, "listen", None))


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


def verdict_of_answer(answer: Answer) -> Verdict:
    """*answer* as the verdict on its request."""
    return Verdict(
        answer.reason, answer.claim, answer.now_us, answer.retry_us, answer.retry_us, answer.uses,
        asked_us=answer.asked_us, answer=answer,
    )  # fmt: skip


def answer_of_verdict(verdict: Verdict) -> Answer:
    """The answer that *verdict* is; of a store without waitlists one that keeps no job."""
    if verdict.answer is not None:
        answer: Answer = verdict.answer
        return answer
    return Answer(
        verdict.reason, verdict.claim, verdict.now_us, verdict.due_us, verdict.uses, asked_us=verdict.asked_us
    )


def binding_where(found: Sequence[Where]) -> Where | None:
    """Of a job's entries the one that holds it back: where it waits or was woken, or else the last to pass."""
    return max(found, key=lambda each: (each.state is not State.KEPT, each.in_us, -each.claim), default=None)


def with_waitlists(names: Sequence[str]) -> list[str]:
    """*names*, and those of the waitlists of the same buckets."""
    lists = (name for bucket in dict.fromkeys(map(bucket_of, names)) for name in wait_names(bucket))
    return list(dict.fromkeys((*names, *lists)))
