"""A store on the bench: what the conformance tests have in common."""

# ruff: noqa: S101 - these are tests, shipped

from __future__ import annotations

import contextlib
from collections.abc import Generator

from throttlekit._core.acquire import Ask, Caller, Place, Verdict
from throttlekit._core.keys import bucket_name, line_name
from throttlekit._core.limits import TokenBucket
from throttlekit.stores._base import Claim, Request, Store

__all__ = ["NOW_US", "ONE", "SECOND_US", "SLOW", "STEP_US", "TEN", "Bench", "OnTheBench"]

NOW_US = 1_800_000_000_000_000
SECOND_US = 1_000_000

TEN = TokenBucket("conformance", "10/s", burst=5)
ONE = TokenBucket("conformance-one", "10/s", burst=1)
SLOW = TokenBucket("conformance-slow", "1/s", burst=1)
STEP_US = 100_000
"""One unit of `TEN` and of `ONE`."""


class Bench:
    """A store under test, and the time it is told."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.now_us = NOW_US

    def ask(
        self,
        *limits: TokenBucket,
        key: str = "",
        cost: int | None = None,
        caller: Caller = Caller.JOB,
        slot_us: int | None = None,
        of: int = 0,
        patience_us: int | None = None,
    ) -> Verdict:
        """One request for *limits*; with *slot_us*, by a holder of that slot in the line of claim *of*."""
        claims = [self.claim(limit, key, cost) for limit in limits]
        place = None if slot_us is None else Place(of, slot_us)
        return self.store.acquire(Request(claims, caller, place, patience_us), now_us=self.now_us)

    def drain(self, limit: TokenBucket) -> None:
        """Take everything that *limit* has."""
        assert self.ask(limit, cost=limit.burst).allowed, "a bucket that nobody has used is full"

    def tat(self, limit: TokenBucket) -> int | None:
        return self.ask(limit, caller=Caller.PEEK).tats_us[0]

    def reset(self, limit: TokenBucket) -> None:
        claim = self.claim(limit, "", 1)
        self.store.reset([claim.bucket, claim.line])

    @staticmethod
    def claim(limit: TokenBucket, key: str, cost: int | None) -> Claim:
        charge = limit.bucket.charge(limit.cost_of(None) if cost is None else cost)
        return Claim(
            bucket_name(limit.name, key, limit.fingerprint),
            line_name(limit.name, key, limit.fingerprint),
            Ask(charge, charge.charge_us),
        )


class OnTheBench:
    """The part of a conformance suite that its user gives."""

    def make_store(self) -> Store:
        """Return a store that knows nothing yet. Called once in each test, and closed at its end."""
        raise NotImplementedError

    @contextlib.contextmanager
    def bench(self) -> Generator[Bench, None, None]:
        store = self.make_store()
        try:
            yield Bench(store)
        finally:
            store.close()
