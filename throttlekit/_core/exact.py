"""The range of whole numbers that Python, Lua and Redis all represent exactly."""

from __future__ import annotations

__all__ = ["LARGEST_EXACT"]

LARGEST_EXACT = 2**53 - 1
"""The scripts count in doubles, which are exact up to here. No number that is stored or sent may be larger."""
