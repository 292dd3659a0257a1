"""The shared store: one EVALSHA a decision, by the server's clock."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

try:
    import redis
    from redis import exceptions
    from redis.backoff import NoBackoff
    from redis.retry import Retry
except ImportError as error:  # pragma: no cover - exercised by the wheel test, in an environment of its own
    raise ImportError("a redis:// limiter needs the redis client: pip install 'throttlekit-jobs[redis]'") from error

from throttlekit._core.acquire import Verdict
from throttlekit._forks import renew_lock_after_fork
from throttlekit.errors import ConfigurationError, StoreUnavailable
from throttlekit.stores._base import Claim, Correction, Lease, Request
from throttlekit.stores._connections import Connections
from throttlekit.stores._faults import UNREADABLE, answered, lost_touch
from throttlekit.stores._frames import Script, arguments_of, command, frame_of, script_for, script_of, verdict_of

__all__ = ["RedisStore", "begin_anew_after_fork", "own_options", "readable", "refuse_our_own"]

_DATABASE = re.compile(r"/?[0-9]*", re.ASCII)
_T = TypeVar("_T")


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
        self._options = own_options(timeout)
        with readable():
            if scheme != "unix" and not _DATABASE.fullmatch(urlsplit(url).path):
                # redis-py would take any other path for database 0.
                raise ValueError("the path is not the number of a database")
            refuse_our_own(urlsplit(url).query)
            client: Any = redis.Redis
            self._use(client.from_url(f"{scheme}{colon}{rest}", **self._options))

    def _use(self, client: Any) -> None:
        self._client = client
        pool = client.connection_pool
        begin_anew_after_fork(pool)
        self._connections = Connections(lambda: pool.connection_class(**pool.connection_kwargs))
        pool.connection_class(**pool.connection_kwargs)  # not connected: an unknown ?option= shows here, not later

    def acquire(self, request: Request, now_us: int | None = None) -> Verdict:
        return self._asked(request.claims[0].bucket, lambda: verdict_of(self._decide(request, now_us)))

    def acquire_all(self, requests: Sequence[Request]) -> Sequence[Verdict | Exception]:
        frames = [frame_of(request, None) for request in requests]
        replies = self._asked(requests[0].claims[0].bucket, lambda: self._connections.ask_all(frames))
        return [self._verdict(request, reply) for request, reply in zip(requests, replies, strict=True)]

    def settle(self, corrections: Sequence[Correction], now_us: int | None = None) -> None:
        arguments: list[Any] = [len(corrections), *(each.bucket for each in corrections)]
        arguments.append("" if now_us is None else now_us)
        for each in corrections:
            arguments += (each.charge.letter, *each.charge.numbers, each.granted_us, each.by)
        script = script_for("settle", frozenset(each.charge.letter for each in corrections))
        self._asked(corrections[0].bucket, lambda: self._run(script, arguments))

    def release(self, leases: Sequence[Lease], now_us: int | None = None) -> None:
        self._leased("release", leases, now_us)

    def renew(self, leases: Sequence[Lease], now_us: int | None = None) -> Sequence[bool]:
        return self._leased("renew", leases, now_us)

    def pause(self, claims: Sequence[Claim], for_us: int | None, now_us: int | None = None) -> None:
        arguments: list[Any] = [2 * len(claims)]
        for claim in claims:
            arguments += (claim.bucket, claim.line)
        arguments += ("" if now_us is None else now_us, "" if for_us is None else for_us)
        for claim in claims:
            arguments += (claim.ask.charge.letter, *claim.ask.charge.numbers)
        script = script_for("pause", frozenset(claim.ask.charge.letter for claim in claims))
        self._asked(claims[0].bucket, lambda: self._run(script, arguments))

    def reset(self, names: Sequence[str]) -> None:
        self._asked(names[0], lambda: self._delete(names))

    def part_of(self, name: str) -> str:
        """The server is one: it answers, or it does not."""
        return ""

    def close(self) -> None:
        self._connections.drop()
        self._client.close()

    def _leased(self, verb: str, leases: Sequence[Lease], now_us: int | None) -> list[bool]:
        arguments: list[Any] = [len(leases), *(each.bucket for each in leases)]
        arguments += ("" if now_us is None else now_us, verb)
        for each in leases:
            arguments += (each.charge.letter, *each.charge.numbers, each.granted_us)
        script = script_for("lease", frozenset(each.charge.letter for each in leases))
        question: Callable[[], list[bool]] = lambda: [answer == 1 for answer in self._run(script, arguments)]  # noqa: E731
        return self._asked(leases[0].bucket, question)

    def _asked(self, name: str, question: Callable[[], _T]) -> _T:
        try:
            return answered(question)
        except StoreUnavailable as error:
            if error.part is not None:
                error.part = self.part_of(name)
            if lost_touch(error):
                self._drop_idle()
            raise

    def _drop_idle(self) -> None:
        """Close connections that lie idle: they may be as dead, and each would cost a time-out of its own."""
        self._connections.drop()

    def _decide(self, request: Request, now_us: int | None) -> Any:
        try:
            return self._connections.ask(frame_of(request, now_us))
        except exceptions.NoScriptError:
            return self._evaluated(request, now_us)

    def _verdict(self, request: Request, reply: Any) -> Verdict | Exception:
        def verdict() -> Verdict:
            if isinstance(reply, exceptions.NoScriptError):
                return verdict_of(self._evaluated(request, None))
            if isinstance(reply, Exception):
                raise reply
            return verdict_of(reply)

        try:
            return self._asked(request.claims[0].bucket, verdict)
        except (StoreUnavailable, ConfigurationError) as error:
            return error

    def _evaluated(self, request: Request, now_us: int | None) -> Any:
        # The server said that it ran nothing, so asking again cannot charge twice.
        return self._command("EVAL", script_of(request).text, *arguments_of(request, now_us))

    def _run(self, script: Script, arguments: list[Any]) -> Any:
        try:
            return self._command("EVALSHA", script.sha, *arguments)
        except exceptions.NoScriptError:
            return self._command("EVAL", script.text, *arguments)

    def _command(self, *arguments: Any) -> Any:
        return self._connections.ask(command(*arguments))

    def _delete(self, names: Sequence[str]) -> None:
        self._command("DEL", *names)


def own_options(timeout: float) -> dict[str, Any]:
    """
    What our connections are made with, whoever describes the server: short time-outs, bytes, and none of redis-py's
    own retries, so that no question is put twice.
    """
    return {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "retry": Retry(NoBackoff(), 0),
        "decode_responses": False,
        "health_check_interval": 0,
    }


def refuse_our_own(query: str) -> None:
    """
    Redis-py would take these from a URL as the text that they are, and fail with each question.

    Raises:
        ValueError: *query* names one.
    """
    if not {"retry", "cache", "cache_config"}.isdisjoint(parse_qs(query)):
        raise ValueError("an option that a URL cannot tell")


@contextmanager
def readable() -> Generator[None, None, None]:
    """What redis-py says of a URL that it cannot read becomes a `ConfigurationError` that does not repeat it."""
    try:
        yield
    except UNREADABLE as error:
        raise ConfigurationError(
            f"the store's URL cannot be read ({type(error).__name__}): write it as redis://host:port/0, rediss://…, "
            "unix:///path?db=0 or redis+sentinel://host:port,host:port/service/0, with the number of a database, and "
            'with "/" in a password as %2F'
        ) from None


def begin_anew_after_fork(pool: object) -> None:
    """Redis-py's *pool* begins anew in a child under its lock, which another thread may have held at the fork."""
    renew_lock_after_fork(pool, "_lock", threading.RLock)
