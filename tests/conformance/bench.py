"""A store under test, a time that the tests set, and shorthands for calls."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from redis.crc import key_slot

from throttlekit._core.algorithm import Use
from throttlekit._core.algorithms.token_bucket import TokenBucket
from throttlekit._core.answer import Answer, Caller, Requester
from throttlekit._core.claim import StoreClaim
from throttlekit._core.limit.base import Limit
from throttlekit._core.storage_keys import bucket_name
from throttlekit.stores.base import Correction, Lease, Store

__all__ = [
    "EMPTY_REPORT",
    "NAME",
    "NOW_US",
    "SECOND_US",
    "TEN",
    "Bench",
    "on_node",
]

NOW_US = 1_800_000_000_000_000
"""The top of an hour, in UTC: 08:00 on 15 January 2027."""
SECOND_US = 1_000_000

NAME = "conformance"
"""The name of every limit: their definitions differ, so their states stay apart, on one node of a cluster."""
TEN = TokenBucket(NAME, "10/s", burst=5)
EMPTY_REPORT: dict[str, Any] = {
    "process": ["", ""],
    **{part: [] for part in ("limits", "jobs", "keys", "counts", "rates", "waits")},
}
"""A report of a process to the fleet, without data."""


_OWNER, _FREE = "bench", 100
_SLOTS = 16384


class Bench:
    """
    A store under test, and the time at which it decides.

    Args:
        spread: Give each limit a separate name, as the limits of a fleet have.
    """

    def __init__(self, store: Store, *, spread: bool = False) -> None:
        self.store = store
        self.now_us = NOW_US
        self.spread = spread
        self._stop_listening: Callable[[], None] | None = None

    def decide(
        self,
        *limits: Limit,
        cost: int | Sequence[int] | None = None,
        caller: Caller = Caller.WITHOUT_JOB,
        job: str = "",
        max_wait_us: int | None = None,
        holder: str = "",
    ) -> Answer:
        """
        Make one request for *limits*.

        Args:
            cost: For all of them, or for each.
            job: The id of the requesting job, which waits if it is denied. Without it, the caller has no job.
            holder: The holder of the slots of concurrency limits.
        """
        costs = cost if isinstance(cost, Sequence) else [cost] * len(limits)
        claims = [self.claim(limit, units, holder) for limit, units in zip(limits, costs, strict=True)]
        if job and caller is Caller.WITHOUT_JOB:
            caller = Caller.JOB
        if job and caller is not Caller.PEEK:
            self._listen()
        requester = Requester(caller, job, _OWNER if job else "", _FREE if job else 0, max_wait_us)
        return self.store.decide(claims, requester, self.now_us)

    def look(self, *limits: Limit, cost: int | None = None, job: str = "") -> Answer:
        """Return the answer that `decide` would return, and take nothing."""
        return self.decide(*limits, cost=cost, caller=Caller.PEEK, job=job)

    def woken_jobs(self, limit: Limit) -> list[str]:
        """Return the woken jobs, which may request their units again now. The store wakes a few at a time."""
        look = self.store.look(self.claim(limit), _OWNER, _FREE, (), self.now_us)
        return [wake.id for wake in look.wakes if not wake.in_us]

    def admit_woken(self, limit: Limit) -> list[str]:
        """Let each job request its units when it is woken. Return the jobs that are admitted now, in their order."""
        admitted: list[str] = []
        while woken := self.woken_jobs(limit):
            for id in woken:
                assert self.decide(limit, job=id).allowed, f"{id} was woken"
            admitted += woken
        return admitted

    def forget(self, *limits: Limit, job: str) -> None:
        """Remove *job* from the waitlists of *limits*."""
        self.store.forget([self.claim(limit) for limit in limits], [job], now_us=self.now_us)

    def pause(self, limit: Limit, for_us: int | None, *, emptied: bool = False) -> None:
        self.store.pause([self.claim(limit)], for_us, now_us=self.now_us, emptied=emptied)

    def lease(self, limit: Limit, holder: str) -> Lease:
        claim = self.claim(limit, holder=holder)
        return Lease(claim.bucket, claim.algorithm, self.now_us)

    def release(self, *leases: Lease) -> None:
        self.store.release(leases, now_us=self.now_us)

    def renew(self, *leases: Lease) -> list[bool]:
        return list(self.store.renew(leases, now_us=self.now_us))

    def close(self) -> None:
        if self._stop_listening is not None:
            self._stop_listening()
        self.store.close()

    def _listen(self) -> None:
        """Listen as the owner of the jobs: the store wakes only jobs of an owner that listens."""
        if self._stop_listening is None:
            self._stop_listening = self.store.listen(_OWNER, lambda bucket, wakes: None, lambda: None)

    def drain(self, *limits: Limit) -> None:
        """Take the whole capacity of *limits*."""
        for limit in limits:
            assert self.decide(limit, cost=limit.capacity).allowed, f"{limit} must be full before this"

    def settle(self, *limits: Limit, was: int, actual: int) -> None:
        """Correct a charge of *was* units to *limits*, made now, to *actual* units."""
        corrections: list[Correction] = []
        for limit in limits:
            algorithm = limit.bind(was, self.now_us)
            by = limit.bind(actual, self.now_us).size - algorithm.size
            corrections.append(Correction(self.claim(limit).bucket, algorithm, self.now_us, by))
        self.store.settle(corrections, now_us=self.now_us)

    def use(self, limit: Limit) -> Use:
        """Return the use of *limit* now."""
        use = self.look(limit).uses[0]
        assert use is not None, "an answer has the use of each claim"
        return use

    def units_left(self, limit: Limit) -> int:
        """Return how many units of *limit* are left now."""
        return limit.remaining(self.use(limit), self.now_us)

    def is_unused(self, *limits: Limit) -> bool:
        """Whether all of *limits* are unused, and no job waits for them."""
        return all(
            self.use(limit) == (0, self.now_us) and self.look(limit, cost=limit.capacity).allowed for limit in limits
        )

    def count_admitted(self, limit: Limit) -> int:
        """Take units one by one until the first denial, and return how many were admitted. Reserves no position."""
        admitted = 0
        while self.decide(limit, cost=1, caller=Caller.WITHOUT_JOB, max_wait_us=0).allowed:
            admitted += 1
        return admitted

    def claim(self, limit: Limit, cost: int | None = None, holder: str = "") -> StoreClaim:
        algorithm = limit.bind(1 if cost is None else cost, self.now_us, holder)
        name = f"{limit.name}-{limit.fingerprint}" if self.spread else limit.name
        bucket = bucket_name(name, "", limit.fingerprint)
        units = 1 if cost is None else cost
        return StoreClaim(bucket, algorithm, units, limit.queue)


def on_node(number: int, kind: type[Limit], rate: Any, **options: Any) -> Limit:
    """Return a limit whose keys are on node *number* of a Redis Cluster of three."""
    for i in itertools.count():
        limit = kind(f"{kind.algorithm}-{i}", rate, **options)  # type: ignore[call-arg]
        slot = key_slot(bucket_name(limit.name, "", limit.fingerprint).encode())
        if number * _SLOTS // 3 <= slot < (number + 1) * _SLOTS // 3:
            return limit
    raise AssertionError("unreachable")
