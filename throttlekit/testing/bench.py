"""A store on the bench: what the conformance tests have in common."""

# ruff: noqa: S101 - these are tests, shipped

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from typing import ClassVar

from throttlekit._core.acquire import Caller, Place, Verdict
from throttlekit._core.algorithm import Use
from throttlekit._core.algorithms.token_bucket import TokenBucket
from throttlekit._core.claim import StoreClaim
from throttlekit._core.limit.base import Limit
from throttlekit._core.storage_keys import bucket_name, line_name
from throttlekit.stores.base import Correction, Request, Store

__all__ = ["NAME", "NOW_US", "ONE", "SECOND_US", "SLOW", "STEP_US", "TEN", "Bench", "OnTheBench"]

NOW_US = 1_800_000_000_000_000
"""The top of an hour, in UTC: 08:00 on 15 January 2027."""
SECOND_US = 1_000_000

NAME = "conformance"
"""
The name of every limit of the suite. They differ in their definitions, so none may meet what another took; and a
store that spreads names over servers has all claims of a request in one place.
"""
TEN = TokenBucket(NAME, "10/s", burst=5)
ONE = TokenBucket(NAME, "10/s", burst=1)
SLOW = TokenBucket(NAME, "1/s", burst=1)
STEP_US = 100_000
"""One unit of `TEN` and of `ONE`."""


class Bench:
    """
    A store under test, and the time it is told.

    Args:
        spread: Give each limit a name of its own, as a fleet's limits have.
    """

    def __init__(self, store: Store, *, spread: bool = False) -> None:
        self.store = store
        self.now_us = NOW_US
        self.spread = spread

    def ask(
        self,
        *limits: Limit,
        key: str = "",
        cost: int | Sequence[int] | None = None,
        caller: Caller = Caller.JOB,
        due_us: int | None = None,
        of: int = 0,
        max_wait_us: int | None = None,
    ) -> Verdict:
        """
        One request for *limits*; with *slot_us*, by a holder of that slot in the line of claim *of*.

        Args:
            cost: For all of them, or for each.
        """
        costs = cost if isinstance(cost, Sequence) else [cost] * len(limits)
        claims = [self.claim(limit, key, units) for limit, units in zip(limits, costs, strict=True)]
        place = None if due_us is None else Place(of, due_us)
        return self.store.acquire(Request(claims, caller, place, max_wait_us), now_us=self.now_us)

    def look(self, *limits: Limit, cost: int | None = None, key: str = "") -> Verdict:
        """What `ask` would answer."""
        return self.ask(*limits, key=key, cost=cost, caller=Caller.PEEK)

    def drain(self, *limits: Limit, key: str = "") -> None:
        """Take everything that *limits* have."""
        for limit in limits:
            assert self.ask(limit, key=key, cost=limit.capacity).allowed, f"{limit} is full if nobody has used it"

    def settle(self, *limits: Limit, was: int, actual: int, granted_us: int | None = None) -> None:
        """What was charged to *limits* as *was* units, now or at *granted_us*, turns out to be *actual*."""
        corrections: list[Correction] = []
        for limit in limits:
            algorithm = limit.bind(was, self.now_us)
            by = limit.bind(actual, self.now_us).size - algorithm.size
            granted_us = self.now_us if granted_us is None else granted_us
            corrections.append(Correction(self.claim(limit).bucket, algorithm, granted_us, by))
        self.store.settle(corrections, now_us=self.now_us)

    def use(self, limit: Limit, key: str = "") -> Use:
        """What is used of *limit* now."""
        use = self.look(limit, key=key).uses[0]
        assert use is not None, "a claim that was asked has a use"
        return use

    def left(self, limit: Limit, key: str = "") -> int:
        """How many units of *limit* are left now."""
        return limit.remaining(self.use(limit, key), self.now_us)

    def untouched(self, *limits: Limit) -> bool:
        """Whether nothing is used of any of *limits*, and nobody waits for it."""
        return all(
            self.use(limit) == (0, self.now_us) and self.look(limit, cost=limit.capacity).allowed for limit in limits
        )

    def passing(self, limit: Limit, *, key: str = "") -> int:
        """How many units pass now, one by one, until the first is denied. Books nothing."""
        passed = 0
        while self.ask(limit, key=key, cost=1, caller=Caller.GUEST, max_wait_us=0).allowed:
            passed += 1
        return passed

    def reset(self, limit: Limit) -> None:
        claim = self.claim(limit)
        self.store.reset([claim.bucket, claim.line])

    def claim(self, limit: Limit, key: str = "", cost: int | None = None) -> StoreClaim:
        algorithm = limit.bind(1 if cost is None else cost, self.now_us)
        name = f"{limit.name}-{limit.fingerprint}" if self.spread else limit.name
        bucket = bucket_name(name, key, limit.fingerprint)
        return StoreClaim(bucket, line_name(bucket), algorithm, algorithm.spacing_us(0), limit.max_queue_us(algorithm))


class OnTheBench:
    """The part of a conformance suite that its user gives."""

    spread: ClassVar[bool] = False
    """Whether each limit has a name of its own, where one request has several."""

    def make_store(self) -> Store:
        """Return a store that knows nothing yet. Called once in each test, and closed at its end."""
        raise NotImplementedError

    @contextlib.contextmanager
    def bench(self) -> Generator[Bench, None, None]:
        store = self.make_store()
        try:
            yield Bench(store, spread=self.spread)
        finally:
            store.close()
