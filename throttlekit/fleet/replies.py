"""Read Redis replies, which clients return in different shapes."""

from __future__ import annotations

from typing import Any

from throttlekit._core.storage_keys import fleet_name
from throttlekit.stores.base import SupportsCommands

__all__ = ["TIME", "pairs", "seconds_of", "text_of", "time_of"]

TIME = ("EVAL", "return redis.call('TIME')", 1, fleet_name("keys"))
"""The command whose reply `seconds_of` reads. It has a key, because a cluster client cannot route a plain TIME."""


def pairs(reply: Any) -> list[tuple[Any, Any]]:
    """Return fields with values, or members with scores, from a mapping, from pairs, or from a pipeline's flat list."""
    if hasattr(reply, "items"):
        return list(reply.items())
    if reply and isinstance(reply[0], (tuple, list)):
        return [(first, second) for first, second in reply]
    return list(zip(reply[::2], reply[1::2], strict=True))


def seconds_of(clock: Any) -> float:
    """Return the reply to `TIME` as seconds since 1970."""
    return int(clock[0]) + int(clock[1]) / 1e6


def text_of(name: bytes) -> str:
    return name.decode("utf-8", "replace")


def time_of(store: SupportsCommands) -> float:
    """
    Return the store's clock, in seconds since 1970.

    Raises:
        StoreUnavailable: The store did not answer.
    """
    (clock,) = store.commands([TIME])
    return seconds_of(clock)
