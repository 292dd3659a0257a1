"""Limits that decide and count, and deny nobody: to try one on live traffic."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from throttlekit._core.algorithms.concurrency import Concurrency
from throttlekit._core.decision import Charged, Decision
from throttlekit._engine.claims import Claim
from throttlekit.errors import StoreUnavailable

__all__ = ["observe"]


def observe(
    observed: Sequence[Claim],
    found: Decision | None,
    ask: Callable[[Claim], Decision],
    told: Callable[[Decision], None],
) -> Decision:
    """
    Ask each of those that are *observed*, by itself, about a job that all others let pass; it passes.

    Args:
        found: What the others decided; None if there are none.
        ask: Asks the store about one, for somebody who keeps no place.
        told: Called with each denial that there would have been.

    Returns:
        The decision. It holds, and has charged, what they gave as well; a store that is away gave nothing.
    """
    for each in observed:
        try:
            one = ask(each)
        except StoreUnavailable:
            one = Decision(
                allowed=True, limit=each.limit, key=each.key, cost=each.cost, remaining=0, retry_after=0.0, delay=0.0,
                reset_after=0.0, reason="store unavailable",
            )  # fmt: skip
        if not one.allowed:
            told(one)
            one = replace(one, allowed=True, retry_after=0.0, delay=0.0, reason="allowed")
        one = one if one.charged else replace(one, charged=_nothing(each))
        found = one if found is None else replace(found, charged=(*found.charged, *one.charged))
    if found is None:
        raise ValueError("a decision needs at least one limit")
    return found


def _nothing(asked: Claim) -> tuple[Charged, ...]:
    """What it took, so that to settle it is no mistake. A slot that it did not get is not settled."""
    if isinstance(asked.limit, Concurrency):
        return ()
    return (Charged(asked.limit, "", asked.cost, time.time_ns() // 1000, callable(asked.limit.cost)),)
