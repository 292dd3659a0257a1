"""The shared store: one EVALSHA a decision, by the server's clock."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

try:
    import redis
    from redis import exceptions
    from redis.backoff import NoBackoff
    from redis.retry import Retry
except ImportError as error:  # pragma: no cover - exercised by the wheel test, in an environment of its own
    raise ImportError("a redis:// limiter needs the redis client: pip install 'throttlekit-jobs[redis]'") from error

from throttlekit._core.acquire import Verdict
from throttlekit._core.claim import StoreClaim
from throttlekit._util.fork_safety import renew_lock_after_fork
from throttlekit.errors import ConfigurationError, StoreUnavailable
from throttlekit.stores.base import Correction, Lease, Request
from throttlekit.stores.errors import UNREADABLE, answered, lost_touch
from throttlekit.stores.pool import Connections
from throttlekit.stores.wire import Script, arguments_of, command, frame_of, script_for, script_of, verdict_of

__all__ = ["RedisStore", "begin_anew_after_fork", "check_url", "own_options", "readable"]

_DATABASE = re.compile(r"/?[0-9]*", re.ASCII)
_CLIENT_NAME = re.compile(r"[!-~]+")
_LONGEST = 60
_OPTIONS = (
    "db", "username", "password", "client_name", "protocol", "socket_timeout", "socket_connect_timeout",
    "socket_keepalive", "ssl_ca_certs", "ssl_ca_data", "ssl_ca_path", "ssl_certfile", "ssl_keyfile", "ssl_password",
    "ssl_cert_reqs", "ssl_check_hostname", "ssl_ciphers", "ssl_min_version", "ssl_include_verify_flags",
    "ssl_exclude_verify_flags",
)  # fmt: skip
_BATCH = 1000
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
            check_url(url)
            client: Any = redis.Redis
            self._use(client.from_url(f"{scheme}{colon}{rest}", **self._options))

    def _use(self, client: Any) -> None:
        self._client = client
        pool = client.connection_pool
        begin_anew_after_fork(pool)
        options = pool.connection_kwargs
        with suppress(TypeError):  # older clients, and classes of users' own, do not know it
            # Or each connection looks up redis-py's version to tell the server: 3 ms of CPU, and two round trips.
            pool.connection_class(**options, driver_info=None)
            options["driver_info"] = None
        pool.connection_class(**options)  # not connected: an unknown ?option= shows here, not later
        self._connections = Connections(lambda: pool.connection_class(**options))

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
            arguments += (each.algorithm.code, *each.algorithm.params, each.granted_us, each.by)
        script = script_for("settle", frozenset(each.algorithm.code for each in corrections))
        self._asked(corrections[0].bucket, lambda: self._run(script, arguments))

    def release(self, leases: Sequence[Lease], now_us: int | None = None) -> None:
        self._leased("release", leases, now_us)

    def renew(self, leases: Sequence[Lease], now_us: int | None = None) -> Sequence[bool]:
        return self._leased("renew", leases, now_us)

    def pause(self, claims: Sequence[StoreClaim], for_us: int | None, now_us: int | None = None) -> None:
        arguments: list[Any] = [2 * len(claims)]
        for claim in claims:
            arguments += (claim.bucket, claim.line)
        arguments += ("" if now_us is None else now_us, "" if for_us is None else for_us)
        for claim in claims:
            arguments += (claim.algorithm.code, *claim.algorithm.params)
        script = script_for("pause", frozenset(claim.algorithm.code for claim in claims))
        self._asked(claims[0].bucket, lambda: self._run(script, arguments))

    def reset(self, names: Sequence[str]) -> None:
        self._asked(names[0], lambda: self._delete(names))

    def commands(self, commands: Sequence[Sequence[str | int]]) -> list[Any]:
        name = str(commands[0][3 if commands[0][0] == "EVAL" else 1])
        try:
            return self._asked(name, lambda: self._run_all(commands))
        except StoreUnavailable as error:
            if not lost_touch(error):
                error.part = None  # it answers: that it may not do this says nothing about decisions
            raise

    def forget(self, pattern: str) -> int:
        return self._asked(pattern, lambda: self._forget(pattern))

    def part_of(self, name: str) -> str:
        """The server is one: it answers, or it does not."""
        return ""

    def servers(self) -> list[Any]:
        """For the doctor: a client of each server that takes writes."""
        return [self._client]

    def close(self) -> None:
        self._connections.drop()
        self._client.close()

    def _leased(self, verb: str, leases: Sequence[Lease], now_us: int | None) -> list[bool]:
        arguments: list[Any] = [len(leases), *(each.bucket for each in leases)]
        arguments += ("" if now_us is None else now_us, verb)
        for each in leases:
            arguments += (each.algorithm.code, *each.algorithm.params, each.granted_us)
        script = script_for("lease", frozenset(each.algorithm.code for each in leases))

        def question() -> list[bool]:
            return [answer == 1 for answer in self._run(script, arguments)]

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

    def _run_all(self, commands: Sequence[Sequence[str | int]]) -> list[Any]:
        replies = self._connections.ask_all([command(*each) for each in commands])
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    def _forget(self, pattern: str) -> int:
        found = 0
        names = (name.decode("utf-8", "replace") for name in self._found(pattern))
        while batch := list(islice(names, _BATCH)):
            self._delete(batch)
            found += len(batch)
        return found

    def _found(self, pattern: str) -> Iterable[Any]:
        found: Iterable[Any] = self._client.scan_iter(match=pattern, count=_BATCH)
        return found

    def _delete(self, names: Sequence[str]) -> None:
        self._command("DEL", *names)


def own_options(timeout: float) -> dict[str, Any]:
    """
    What our connections are made with, whoever describes the server: short time-outs, bytes, and none of redis-py's
    own retries, so that no question is put twice. As many as ask at once: redis-py 8 would fail the 101st.
    """
    return {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "retry": Retry(NoBackoff(), 0),
        "decode_responses": False,
        "health_check_interval": 0,
        "max_connections": 2**31,
    }


def check_url(url: str, *, also: Collection[str] = ()) -> None:
    """
    Refuse what redis-py would take for something else, or would stumble over with each question.

    Args:
        also: Options besides those of every server.

    Raises:
        ConfigurationError: It has an option that is none, or one with a value that can never work.
        ValueError: Anything else. Whatever its text, it may be a part of a password.
    """
    parts = urlsplit(url)
    if parts.fragment or (parts.scheme == "unix" and (parts.hostname or len(parts.path) < 2)):
        raise ValueError("a part that such a URL does not have")
    if "sentinel" not in parts.scheme and parts.scheme != "unix" and not _DATABASE.fullmatch(parts.path):
        raise ValueError("the path is not the number of a database")
    for name, value in parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)):
        if name not in _OPTIONS and name not in also:
            known = ", ".join((*_OPTIONS, *also))
            raise ConfigurationError(f"the store's URL may have the options {known}, and no other")
        if name.endswith("_timeout") and not 0 < float(value) <= _LONGEST:
            raise ConfigurationError(f"{name} in the store's URL must be more than 0 s, and at most {_LONGEST} s")
        if name == "client_name" and not _CLIENT_NAME.fullmatch(value):
            raise ConfigurationError("client_name in the store's URL must be letters, digits and signs, no spaces")


@contextmanager
def readable() -> Generator[None, None, None]:
    """What redis-py says of a URL that it cannot read becomes a `ConfigurationError` that does not repeat it."""
    try:
        yield
    except ConfigurationError:  # our own: a ValueError as well
        raise
    except UNREADABLE as error:
        raise ConfigurationError(
            f"the store's URL cannot be read ({type(error).__name__}): write it as redis://host:port/0, rediss://…, "
            "unix:///path?db=0 or redis+sentinel://host:port,host:port/service/0, with the number of a database, and "
            'with "/" in a password as %2F'
        ) from None


def begin_anew_after_fork(pool: object) -> None:
    """Redis-py's *pool* begins anew in a child under its lock, which another thread may have held at the fork."""
    renew_lock_after_fork(pool, "_lock", threading.RLock)
