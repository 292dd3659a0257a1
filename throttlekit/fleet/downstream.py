"""Count the partner's 429s that paused each limit lately. The store keeps them in a hash; see fleet_429.lua."""

from __future__ import annotations

from collections.abc import Iterable

import throttlekit_lua
from throttlekit._core.storage_keys import fleet_name

__all__ = ["COUNT_429S", "DOWNSTREAM_429S", "STEP_S", "counts_429"]

COUNT_429S = throttlekit_lua.script("fleet_429")
DOWNSTREAM_429S = fleet_name("429s")
STEP_S = 20
"""The length of a step. The fleet's scripts use the same value."""
_KEPT_S = 900


def counts_429(stored: Iterable[tuple[bytes, bytes]], now: float) -> dict[str, int]:
    """
    Return the number of 429s that paused each limit in the last 15 minutes, by the limit's id. Fields in another format
    are skipped.
    """
    first = (now - _KEPT_S) // STEP_S
    found: dict[str, int] = {}
    for field, count in stored:
        step, _, id = field.decode("utf-8", "replace").partition(" ")
        if step.isdecimal() and count.isdigit() and int(step) >= first:
            found[id] = found.get(id, 0) + int(count)
    return found
