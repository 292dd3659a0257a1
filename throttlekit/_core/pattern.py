"""Match names of limits with a pattern, in which each `*` matches any text."""

from __future__ import annotations

__all__ = ["matches"]


def matches(pattern: str, name: str) -> bool:
    """Whether *name* matches *pattern*. The time is that of one search for each part of the pattern between its `*`."""
    if "*" not in pattern:
        return name == pattern
    first, *middle, last = pattern.split("*")
    if len(name) < len(first) + len(last) or not name.startswith(first) or not name.endswith(last):
        return False
    at, end = len(first), len(name) - len(last)
    for part in middle:
        at = name.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return True
