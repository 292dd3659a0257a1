"""For adapters whose waiting jobs lie in the framework's own Redis: how often their workers look there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["LANES_EVERY_S", "POLL_EVERY_S", "SERVER_IS_LATE_S", "look_at_lanes"]

LANES_EVERY_S = 0.5
_MOST_LANES = 20

POLL_EVERY_S = 0.02
"""How often a worker looks that alone keeps the time for all."""

SERVER_IS_LATE_S = 0.11
"""A server that is idle notices only every 100 ms that a blocking call has timed out."""


def look_at_lanes(
    connection: Any, lanes: str, late: str, wake: Callable[[str], bool | None], *, every: float, second: int = 1
) -> int:
    """
    Let the first job of each line ask, once in a while in the whole fleet: the line may have moved faster.

    Args:
        connection: Redis, as redis-py has it.
        lanes: The sorted set of the lines by the instant of the last look, in the adapter's own unit.
        late: The hash of how late each line is.
        wake: Lets the first job of the lane of that name ask, and returns whether it does; None: no job stands there
            any more, and the line is forgotten.
        every: Seconds between two looks at one line.
        second: How much of the unit is a second.

    Returns:
        How many jobs ask.
    """
    seconds, micros = connection.time()
    now, woken = seconds * second + micros * second / 1_000_000, 0
    for name in connection.zrangebyscore(lanes, "-inf", now - every * second, start=0, num=_MOST_LANES):
        connection.zadd(lanes, {name: now}, xx=True)
        asks = wake(name.decode())
        woken += bool(asks)
        if asks is None:
            connection.zrem(lanes, name)
            connection.hdel(late, name)
    return woken
