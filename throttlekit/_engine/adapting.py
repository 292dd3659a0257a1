"""What a refusal of downstream means to the limits of a job: those with `adapt=` fall."""

from __future__ import annotations

import time

from throttlekit._core.claim import StoreClaim
from throttlekit._core.decision import Decision
from throttlekit._core.limit.base import Limit
from throttlekit.errors import ConfigurationError
from throttlekit.stores.base import Slowing

__all__ = ["falling", "falling_of"]


def falling(limit: Limit, claim: StoreClaim, granted_us: int | None = None) -> tuple[Limit, Slowing]:
    """
    The fall of *limit*, for the key of *claim*.

    Args:
        granted_us: When the refused job was admitted; None: not known, and the fall counts in any case.

    Raises:
        ConfigurationError: It has no `adapt=`.
    """
    if limit.adapt is None:
        raise ConfigurationError(f"limit {limit.name!r} has no adapt=, so its rate never falls")
    return limit, Slowing(claim, limit.adapt.fall(limit.amount, limit.period_us, granted_us))


def falling_of(decision: Decision, limit: Limit | str | None) -> list[tuple[Limit, Slowing]]:
    """
    The falls that a job means which *decision* let run.

    Args:
        limit: The one that is meant, or its name. None: each of its limits that has `adapt=`.

    Raises:
        ConfigurationError: *limit* is not one that the decision charged, or has no `adapt=`.
    """
    name = limit.name if isinstance(limit, Limit) else limit
    charged = [each for each in decision.charged if each.bucket and name in (None, each.limit.name)]
    if name is not None and not charged and decision.charged:
        names = ", ".join(repr(each.limit.name) for each in decision.charged)
        raise ConfigurationError(f"limit {name!r} is not one that the decision charged; it charged {names}")
    now_us = time.time_ns() // 1000
    return [
        falling(each.limit, StoreClaim(each.bucket, each.limit.bind(0, now_us)), each.at_us)
        for each in charged
        if name is not None or each.limit.adapt is not None
    ]
