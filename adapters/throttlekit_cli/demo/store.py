"""The demo's store, which writes no activity reports."""

from __future__ import annotations

from typing import Any

from throttlekit.stores.redis_waitlists import WaitlistRedisStore

__all__ = ["QuietStore"]


class QuietStore(WaitlistRedisStore):
    """A store without `commands`, so that it is not shared by a fleet and leaves no reports on a user's server."""

    commands: Any = None
