"""What a job took in the end: what was charged is corrected, in each store by itself."""

from __future__ import annotations

import time
from dataclasses import replace

from throttlekit._core.decision import Decision, settled_of
from throttlekit._core.limit.base import Limit
from throttlekit.stores.base import Correction, Store

__all__ = ["settle"]


def settle(decision: Decision, actual: int, limit: Limit | None, *, shared: Store, in_process: Store) -> Decision:
    """See `Limiter.settle`."""
    meant = settled_of(decision, limit)
    charged = tuple(
        each._replace(cost=each.limit.check_units(actual)) if each in meant else each for each in decision.charged
    )
    around_us = time.time_ns() // 1000
    for own, store in ((False, shared), (True, in_process)):
        corrections: list[Correction] = []
        for before, after in zip(decision.charged, charged, strict=True):
            if before.bucket and (before.limit.scope == "process") is own and before.cost != after.cost:
                # The difference, rounded up: that also holds for a cost that was charged together with others.
                algorithm = before.limit.bind(after.cost - before.cost, around_us)
                corrections.append(Correction(before.bucket, algorithm, before.at_us, algorithm.size))
        if corrections:
            store.settle(corrections)
    cost = next((each.cost for each in charged if each.limit is decision.limit), decision.cost)
    return replace(decision, charged=charged, cost=cost)
