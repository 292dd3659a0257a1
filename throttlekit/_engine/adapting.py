"""What a refusal of downstream means to the limits of a job: those with `adapt=` fall."""

from __future__ import annotations

from throttlekit._core.decision import Decision
from throttlekit._core.latency import Drop
from throttlekit._core.limit.adapt import SlotAdapt
from throttlekit._core.limit.base import Limit
from throttlekit._engine.claims import Claim, under
from throttlekit.errors import ConfigurationError
from throttlekit.stores.base import Slowing

__all__ = ["falling", "falling_of"]


def falling(claim: Claim, granted_us: int | None = None) -> tuple[Limit, Slowing]:
    """
    The fall of a limit, for the key of *claim*.

    Args:
        granted_us: When the refused job was admitted; None: not known, and the fall counts in any case.

    Raises:
        ConfigurationError: It has no `adapt=`.
    """
    limit = claim.limit
    if limit.adapt is None:
        raise ConfigurationError(f"limit {limit.name!r} has no adapt=, so it never falls")
    if isinstance(limit.adapt, SlotAdapt):
        return limit, Slowing(claim.claim, Drop(granted_us))
    return limit, Slowing(claim.claim, limit.adapt.fall(limit.amount, limit.period_us, granted_us))


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
    return [falling(under(each), each.at_us) for each in charged if name is not None or each.limit.adapt is not None]
