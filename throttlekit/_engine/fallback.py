"""Decide without the store, by the limits' `on_store_failure`."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from throttlekit._core.answer import WITHOUT_JOB
from throttlekit._core.claim import StoreClaim
from throttlekit._core.decision import Decision
from throttlekit._core.limit.options import OnStoreFailure
from throttlekit._engine.claims import Claim, decision_from
from throttlekit._util.fork_safety import renew_lock_after_fork
from throttlekit.errors import StoreUnavailable
from throttlekit.stores.base import Store

__all__ = ["OutageDelays", "decide_without_store"]

_SPREAD = 0.25
"""The seconds over which the retries of denied jobs are spread."""
_SOON_MOST = 100
"""The number of jobs, of those that a process denies within one second, that return after about a second."""
_LATER_S = (2.5, 2.9)
"""The shortest and longest delay of the other jobs, in seconds: long enough that an adapter holds them."""


class OutageDelays:
    """
    The delays of a process's waiting jobs during an outage. On RabbitMQ each return of a job is a publish, a confirm
    and an acknowledgement.

    The first 100 jobs that are denied in a second return after about a second, so that one of them notices when the
    store answers again. The others return after 2.5 to 2.9 s. So of 1 500 jobs, about 600 return each second.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        renew_lock_after_fork(self, "_lock")
        self._ends_at, self._count = 0.0, 0

    def choose_delay(self, soon: float) -> float:
        """Return the delay of a job that is denied now, in seconds: *soon* or longer."""
        now = self._clock()
        with self._lock:
            if now >= self._ends_at:
                self._ends_at, self._count = now + 1.0, 0
            self._count += 1
            count = self._count
        return soon if count <= _SOON_MOST else max(soon, random.uniform(*_LATER_S))


def decide_without_store(
    error: StoreUnavailable,
    claims: Sequence[Claim],
    in_process: Store,
    chosen: OnStoreFailure | None = None,
) -> tuple[OnStoreFailure, Decision]:
    """
    Decide a call that got no answer from the store. The units of its limits of scope "process" were returned before.

    Args:
        chosen: The policy that a plugin chose for this call. Default: the policy of each limit.

    Returns:
        The policy that decided, which is the strictest of the limits' policies, and the decision.
    """
    shared = [each for each in claims if not each.in_process]
    policies: list[OnStoreFailure] = [chosen or each.limit.on_store_failure for each in shared]
    delay = error.retry_after + random.uniform(0, _SPREAD)
    first = shared[0]
    unknown = Decision(
        allowed=False,
        limit=first.limit,
        key=first.key,
        cost=first.cost,
        retry_after=delay,
        delay=delay,
        reason="store unavailable",
    )
    if "closed" in policies:
        return "closed", unknown
    outcome: OnStoreFailure = "local" if "local" in policies else "open"
    shares = iter([_share(each) if policy == "local" else None for each, policy in zip(shared, policies, strict=True)])
    here = [own for each in claims if (own := each if each.in_process else next(shares)) is not None]
    if any(each.cost > each.limit.capacity for each in here):
        return outcome, unknown
    if here:
        # No job waits in this process, because a job keeps its position in the store.
        found = decision_from(in_process.decide([each.claim for each in here], WITHOUT_JOB), here)
        if not found.allowed:
            delay = min(delay, found.delay) if found.delay else delay
            return outcome, replace(unknown, limit=found.limit, key=found.key, cost=found.cost, delay=delay)
        decision = replace(found, reason="store unavailable")
    else:
        decision = replace(unknown, allowed=True, retry_after=0.0, delay=0.0)
    for each, policy in zip(shared, policies, strict=True):
        if policy == "open":
            # The decision names a limit that charged nothing, if there is one: `charges_to_settle` needs that.
            return outcome, replace(decision, limit=each.limit, key=each.key, cost=each.cost, remaining=0)
    return outcome, decision


def _share(claim: Claim) -> Claim | None:
    """Return the same claim on this process's share of the limit, or None if it has no share."""
    share = claim.limit.local_part
    if share is None:
        return None
    algorithm = share.bind(claim.cost, time.time_ns() // 1000, claim.claim.algorithm.holder)
    bucket = claim.claim.bucket.removesuffix(claim.limit.fingerprint) + share.fingerprint
    return Claim(share, claim.key, claim.cost, StoreClaim(bucket, algorithm, claim.cost))
