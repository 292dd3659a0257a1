"""Every store with waitlists has every verb. Never run: type checkers read it, in strict mode."""

from __future__ import annotations

from throttlekit.stores.client import ClientStore
from throttlekit.stores.grouped_waitlists import WaitlistGroupedStore, group_waitlists
from throttlekit.stores.memory_waitlists import WaitlistMemoryStore
from throttlekit.stores.redis_waitlists import (
    WaitlistClusterStore,
    WaitlistRedisStore,
    WaitlistSentinelStore,
)
from throttlekit.stores.waitlists import SupportsWaitlists


def check(
    memory: WaitlistMemoryStore,
    redis: WaitlistRedisStore,
    sentinel: WaitlistSentinelStore,
    client: ClientStore,
    cluster: WaitlistClusterStore,
    grouped: WaitlistGroupedStore,
) -> list[SupportsWaitlists]:
    return [memory, redis, sentinel, client, cluster, grouped, group_waitlists(redis, [("*", memory)])]
