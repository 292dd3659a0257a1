"""Decide without the store, as the limits' `on_store_failure` says."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace

from throttlekit._core.acquire import Caller
from throttlekit._core.claim import StoreClaim
from throttlekit._core.decision import Decision
from throttlekit._core.limit.local_share import OnStoreFailure
from throttlekit._core.storage_keys import line_name
from throttlekit._engine.claims import Claim, decision_from
from throttlekit.errors import StoreUnavailable
from throttlekit.stores.base import Request
from throttlekit.stores.memory import MemoryStore

__all__ = ["decide_without_store"]

_SPREAD = 0.25


def decide_without_store(
    error: StoreUnavailable, asked: Sequence[Claim], in_process: MemoryStore
) -> tuple[OnStoreFailure, Decision]:
    """
    What becomes of a call whose store gave no answer: the policy that decided, the strictest of its limits', and the
    decision. Whatever was asked *in_process* before has been given back.
    """
    shared = [each for each in asked if not each.in_process]
    policies = [each.limit.on_store_failure for each in shared]
    delay = error.retry_after + random.uniform(0, _SPREAD)
    first = shared[0]
    unknown = Decision(
        allowed=False, limit=first.limit, key=first.key, cost=first.cost, remaining=0, retry_after=delay, delay=delay,
        reset_after=0.0, reason="store unavailable",
    )  # fmt: skip
    if "closed" in policies:
        return "closed", unknown
    outcome: OnStoreFailure = "local" if "local" in policies else "open"
    here = [own for each in asked if (own := each if each.in_process else _share(each)) is not None]
    if any(each.cost > each.limit.capacity for each in here):
        return outcome, unknown
    if here:
        # Nobody waits in line here: the job keeps the place that it has in the store's.
        found = decision_from(in_process.acquire(Request([each.claim for each in here], Caller.GUEST)), here)
        if not found.allowed:
            delay = min(delay, found.delay) if found.delay else delay
            return outcome, replace(unknown, limit=found.limit, key=found.key, cost=found.cost, delay=delay)
        decision = replace(found, reason="store unavailable")
    else:
        decision = replace(unknown, allowed=True, retry_after=0.0, delay=0.0)
    for each, policy in zip(shared, policies, strict=True):
        if policy == "open":
            # It names one that charged nothing, if there is any: `settled_of` knows by that.
            return outcome, replace(decision, limit=each.limit, key=each.key, cost=each.cost, remaining=0)
    return outcome, decision


def _share(asked: Claim) -> Claim | None:
    """The same, asked of this process's share; None if the limit has none."""
    share = asked.limit.share
    if share is None:
        return None
    holder = getattr(asked.claim.algorithm, "holder", "")
    algorithm = share.bind(asked.cost, time.time_ns() // 1000, holder)
    bucket = asked.claim.bucket.removesuffix(asked.limit.fingerprint) + share.fingerprint
    return Claim(
        share, asked.key, asked.cost, StoreClaim(bucket, line_name(bucket), algorithm, algorithm.spacing_us(0))
    )
