"""The shared store: one EVALSHA a decision, by the server's clock."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

try:
    import redis
    from redis import exceptions
    from redis.backoff import NoBackoff
    from redis.retry import Retry
except ImportError as error:  # pragma: no cover - exercised by the wheel test, in an environment of its own
    raise ImportError("a redis:// limiter needs the redis client: pip install 'throttlekit-jobs[redis]'") from error

import throttlekit_lua
from throttlekit._core.acquire import Reason, Verdict
from throttlekit.errors import ConfigurationError, StoreUnavailable
from throttlekit.stores._base import Request

__all__ = ["RedisStore"]

_REASONS = (Reason.ALLOWED, Reason.EXHAUSTED, Reason.IN_LINE, Reason.EARLY)
_DATABASE = re.compile(r"/?[0-9]*", re.ASCII)
_T = TypeVar("_T")
# Not every error of redis-py is a RedisError: those of its cluster client are not.
_FAULTS: tuple[type[Exception], ...] = tuple(
    fault for fault in vars(exceptions).values() if isinstance(fault, type) and issubclass(fault, Exception)
)
_UNREADABLE: tuple[type[Exception], ...] = (*_FAULTS, ValueError, TypeError)
_NO_ANSWER: tuple[type[Exception], ...] = (*_FAULTS, OSError, ValueError)


class RedisStore:
    """
    Keeps limits in a Redis or Valkey server, shared by every process that names the same one.

    Args:
        url: redis://, rediss:// or unix://, as redis-py reads them.
        timeout: Seconds to wait for a connection, and for an answer. An answer that does not come
            is never taken for a grant, and the question is never put twice.

    Raises:
        ConfigurationError: The URL cannot be read. The message does not repeat it: it may hold a password.
    """

    def __init__(self, url: str, *, timeout: float = 0.25) -> None:
        scheme, colon, rest = url.partition("://")
        scheme = scheme.replace("valkey", "redis")
        options: dict[str, Any] = {
            "socket_timeout": timeout,
            "socket_connect_timeout": timeout,
            "retry": Retry(NoBackoff(), 0),
            "decode_responses": False,
            "health_check_interval": 0,
        }
        client: Any = redis.Redis
        try:
            if scheme != "unix" and not _DATABASE.fullmatch(urlsplit(url).path):
                # redis-py would take any other path for database 0.
                raise ValueError("the path is not the number of a database")
            self._client: Any = client.from_url(f"{scheme}{colon}{rest}", **options)
            pool = self._client.connection_pool
            pool.connection_class(**pool.connection_kwargs)  # not connected: an unknown ?option= shows here, not later
        except _UNREADABLE as error:
            raise ConfigurationError(
                f"the store's URL cannot be read ({type(error).__name__}): write it as redis://host:port/0, "
                'rediss://… or unix:///path?db=0, with the number of a database, and with "/" in a password as %2F'
            ) from None
        self._script = throttlekit_lua.read("acquire")
        self._sha = hashlib.sha1(self._script.encode(), usedforsecurity=False).hexdigest()

    def acquire(self, request: Request, now_us: int | None = None) -> Verdict:
        claims, place = request.claims, request.place
        arguments: list[Any] = [2 * len(claims)]
        for claim in claims:
            arguments += (claim.bucket, claim.line)
        arguments += ("" if now_us is None else now_us, request.caller.value)
        arguments += (0, 0) if place is None else (place.claim + 1, place.slot_us)
        arguments.append("" if request.patience_us is None else request.patience_us)
        for claim in claims:
            charge = claim.ask.charge
            arguments += (charge.charge_us, charge.headroom_us, charge.capacity_us, claim.ask.spacing_us)
        return _answered(lambda: _verdict(self._run(arguments)))

    def reset(self, names: Sequence[str]) -> None:
        _answered(lambda: self._client.delete(*names))

    def close(self) -> None:
        self._client.close()

    def _run(self, arguments: list[Any]) -> Any:
        try:
            return self._client.execute_command("EVALSHA", self._sha, *arguments)
        except exceptions.NoScriptError:
            # The server said that it ran nothing, so asking again cannot charge twice.
            return self._client.execute_command("EVAL", self._script, *arguments)


def _verdict(reply: Any) -> Verdict:
    try:
        numbers: list[int] = list(reply)
        reason, binding, now, retry, slot, *tats = numbers
        return Verdict(_REASONS[reason], binding - 1, now, retry, slot, tuple(None if tat < 0 else tat for tat in tats))
    except (TypeError, IndexError) as error:
        raise ValueError(f"the script's reply is not one of ours: {reply!r}") from error


def _answered(question: Callable[[], _T]) -> _T:
    """Run *question*; whatever goes wrong with the server becomes `StoreUnavailable`. The one place that maps."""
    try:
        return question()
    except _NO_ANSWER as error:
        # The text of the error may hold a host or a user name, so it stays in the cause.
        raise StoreUnavailable(f"the store gave no usable answer: {type(error).__name__}") from error
