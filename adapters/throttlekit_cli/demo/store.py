"""The demo's store: one that tells the fleet nothing."""

from __future__ import annotations

from typing import Any

from throttlekit.stores.redis import RedisStore

__all__ = ["QuietStore"]


class QuietStore(RedisStore):
    """Without a place that the whole fleet sees: nothing of the demo stays on a user's server."""

    commands: Any = None
