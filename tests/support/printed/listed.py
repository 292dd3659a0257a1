"""A Redis store whose decisions go the way of every other command: a script, and a list of arguments."""

from __future__ import annotations

from typing import Any

from throttlekit.stores import Request
from throttlekit.stores.redis import RedisStore
from throttlekit.stores.wire import arguments_of, script_of

__all__ = ["Listed"]


class Listed(RedisStore):
    """For tests that look at what is sent, or change it: everything goes through `_run`."""

    def _decide(self, request: Request, now_us: int | None) -> Any:
        return self._run(script_of(request), arguments_of(request, now_us))
