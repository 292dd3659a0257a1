"""A store that sends commands through the user's own client, for programs that hook into that client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis

from throttlekit._core.answer import Requester
from throttlekit._core.claim import StoreClaim
from throttlekit.errors import ConfigurationError
from throttlekit.stores.redis import RedisStore
from throttlekit.stores.redis_server import address_of, renew_pool_lock_after_fork

__all__ = ["ClientStore"]


class ClientStore(RedisStore):
    """
    Sends every command with `execute_command` or a pipeline of *client* itself, for tracing and metrics that hook into
    these: `Limiter(ClientStore(client))`.

    `Limiter(client=…)` is faster, because it uses its own connections.

    Args:
        client: A client with a time-out for replies, because jobs wait for these, and without retries, because a retry
            after a late reply charges twice. The store does not close it.

    Raises:
        ConfigurationError: *client* is not such a `redis.Redis`.
    """

    def __init__(self, client: Any) -> None:
        pool = client.connection_pool if isinstance(client, redis.Redis) else None
        if pool is None:
            raise ConfigurationError(f"a ClientStore takes a redis.Redis, not a {type(client).__name__}")
        connection = pool.connection_class(**pool.connection_kwargs)  # it never connects
        if getattr(connection.retry, "_retries", 0):
            raise ConfigurationError(
                "the client sends commands again, so a job could be charged twice: make it with "
                "retry=Retry(NoBackoff(), 0)"
            )
        if connection.socket_timeout is None:
            raise ConfigurationError(
                "the client waits for replies without a time-out: make it with socket_timeout=0.25"
            )
        if connection.encoder.decode_responses:
            raise ConfigurationError("the client decodes replies: make it with decode_responses=False")
        renew_pool_lock_after_fork(pool)
        self._client: Any = client
        self.address = address_of(pool)

    def close(self) -> None:
        """Do nothing: the client stays open."""

    def _close_idle(self) -> None:
        self._client.connection_pool.disconnect(inuse_connections=False)

    def _decide(self, claims: Sequence[StoreClaim], requester: Requester, now_us: int | None, attempt: str) -> Any:
        return self._run(*self._question(claims, requester, now_us, attempt))

    def _command(self, *arguments: Any) -> Any:
        return self._client.execute_command(*arguments)

    def _send_all(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        pipeline = self._client.pipeline(transaction=False)
        for each in commands:
            pipeline.execute_command(*each)
        replies: list[Any] = pipeline.execute(raise_on_error=False)
        return replies
