"""Attributes that follow from one rate."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, cast

__all__ = ["PerTier"]

_T = TypeVar("_T")


class PerTier(Generic[_T]):
    """
    An attribute that a limit with tiers has once for each tier, and not itself: there it raises an `AttributeError`
    that says so. Likewise with a limit whose rate is a callable.

    The value lies in the slot of the same name with an underscore in front.
    """

    __slots__ = ("_name", "_slot")

    def __set_name__(self, owner: type, name: str) -> None:
        self._name, self._slot = name, f"_{name}"

    def __get__(self, limit: Any, owner: type | None = None) -> _T:
        try:
            return cast("_T", getattr(limit, self._slot))
        except AttributeError:
            fault = f"limit {limit.name!r} has tiers, and a {self._name!r} for each: read it from one of its .tiers"
            if limit.tiers is None:
                fault = f"limit {limit.name!r} has a {self._name!r} for each rate: read it from limit.at(rate)"
        raise AttributeError(fault)
