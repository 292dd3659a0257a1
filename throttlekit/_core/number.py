"""Checks of numbers, and the range of whole numbers that Python, Lua and Redis all represent exactly."""

from __future__ import annotations

from math import inf
from typing import TypeGuard

__all__ = ["LARGEST_EXACT", "is_number", "is_whole"]

LARGEST_EXACT = 2**53 - 1
"""The scripts count in doubles, which are exact up to here. No number that is stored or sent may be larger."""


def is_whole(value: object, least: int, most: float = inf) -> TypeGuard[int]:
    """Whether *value* is a whole number from *least* to *most*. A bool is not a number."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_number(value: object, least: float, most: float = inf) -> TypeGuard[float]:
    """Whether *value* is a number from *least* to *most*, whole or not. A bool is not a number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most
