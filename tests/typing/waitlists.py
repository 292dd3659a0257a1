"""Every store with waitlists has every verb. Never run: type checkers read it, in strict mode."""

from __future__ import annotations

from throttlekit.stores.client import ClientStore
from throttlekit.stores.grouped import WaitlistGroupedStore, group_waitlists
from throttlekit.stores.memory import MemoryStore
from throttlekit.stores.redis import (
    RedisClusterStore,
    RedisSentinelStore,
    RedisStore,
)
from throttlekit.stores.waitlists import Store


def check(
    memory: MemoryStore,
    redis: RedisStore,
    sentinel: RedisSentinelStore,
    client: ClientStore,
    cluster: RedisClusterStore,
    grouped: WaitlistGroupedStore,
) -> list[Store]:
    return [memory, redis, sentinel, client, cluster, grouped, group_waitlists(redis, [("*", memory)])]
