"""Shadow mode: a limit decides and counts, but denies no job. Use it to test a limit on live traffic."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from throttlekit._core.algorithms.concurrency import Concurrency
from throttlekit._core.decision import Charged, Decision
from throttlekit._engine.claims import Claim
from throttlekit.errors import StoreUnavailable

__all__ = ["shadow"]


def shadow(
    claims: Sequence[Claim],
    found: Decision | None,
    decide: Callable[[Claim], Decision],
    report: Callable[[Decision], None],
) -> Decision:
    """
    Decide each of *claims*, whose limits are in shadow mode, for a job that all enforced limits admit.

    Args:
        found: The decision of the enforced limits; None if there are none.
        decide: Decides one claim, for a caller that keeps no position.
        report: Called with each denial that a limit in shadow mode would have caused.

    Returns:
        A grant, which includes the charges of *claims*. While the store is unavailable they charge nothing.
    """
    for each in claims:
        try:
            one = decide(each)
        except StoreUnavailable:
            one = Decision(
                allowed=True, limit=each.limit, key=each.key, cost=each.cost, remaining=0, retry_after=0.0, delay=0.0,
                reset_after=0.0, reason="store unavailable",
            )  # fmt: skip
        if not one.allowed:
            report(one)
            one = replace(one, allowed=True, retry_after=0.0, delay=0.0, reason="allowed")
        one = one if one.charged else replace(one, charged=_nothing(each))
        found = one if found is None else replace(found, charged=(*found.charged, *one.charged))
    if found is None:
        raise ValueError("a decision needs at least one limit")
    return found


def _nothing(claim: Claim) -> tuple[Charged, ...]:
    """Return an empty charge, so that `settle` finds the limit. Slots cannot be settled, so they need none."""
    if isinstance(claim.limit, Concurrency):
        return ()
    return (Charged(claim.limit, "", claim.cost, time.time_ns() // 1000, callable(claim.limit.cost)),)
