"""What a rate and an algorithm's own options come to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["Shape"]


class Shape(NamedTuple):
    """An algorithm works it out when a limit is made."""

    capacity: int
    """The most units that can ever pass at once."""
    most: int
    """The greatest cost of one job."""
    definition: str
    """Two limits that count in the same way have the same text, and no others."""
    own: Mapping[str, Any] = {}
    """The algorithm's own attributes."""
