"""The store on a Redis or Valkey server: one EVALSHA per decision, by the server's clock."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, islice
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

try:
    import redis
    from redis import exceptions
    from redis.backoff import NoBackoff
    from redis.retry import Retry
except ImportError as error:  # pragma: no cover - exercised by the wheel test, in an environment of its own
    raise ImportError("a redis:// limiter needs the redis client: pip install 'throttlekit-jobs[redis]'") from error

from throttlekit._core.claim import StoreClaim
from throttlekit._core.storage_keys import is_line, jobs_name_of
from throttlekit._core.verdict import Verdict
from throttlekit._util.fork_safety import renew_lock_after_fork
from throttlekit.errors import ConfigurationError, StoreUnavailable
from throttlekit.stores.base import Correction, Lease, Request, Slowing, Wait
from throttlekit.stores.errors import STORE_ERRORS, URL_ERRORS, is_connection_error, is_connection_failure, mapped
from throttlekit.stores.pool import ConnectionPool
from throttlekit.stores.wire import (
    Script,
    arguments_of,
    command,
    frame_of,
    place_text,
    rest_of,
    script_for,
    script_of,
    slowing_row,
    verdict_of,
)

__all__ = ["RedisStore", "address_of", "check_url", "connection_options", "renew_pool_lock_after_fork", "url_errors"]

_DATABASE = re.compile(r"/?[0-9]*", re.ASCII)
_CLIENT_NAME = re.compile(r"[!-~]+")
_MAX_TIMEOUT_S = 60
_URL_OPTIONS = (
    "db", "username", "password", "client_name", "protocol", "socket_timeout", "socket_connect_timeout",
    "socket_keepalive", "ssl_ca_certs", "ssl_ca_data", "ssl_ca_path", "ssl_certfile", "ssl_keyfile", "ssl_password",
    "ssl_cert_reqs", "ssl_check_hostname", "ssl_ciphers", "ssl_min_version", "ssl_include_verify_flags",
    "ssl_exclude_verify_flags",
)  # fmt: skip
_SCAN_COUNT = 1000
_T = TypeVar("_T")
_N = TypeVar("_N", StoreClaim, Correction, Lease, Slowing, Wait)


class RedisStore:
    """
    Keeps limits in a Redis or Valkey server, shared by every process that uses the same one.

    Args:
        url: redis://, rediss:// or unix://, as redis-py reads them.
        timeout: Seconds to wait for a connection, and for a reply. A reply that does not come is never
            taken for a grant, and a command is never sent twice.

    Raises:
        ConfigurationError: The URL is not valid. The message does not repeat it: it may hold a password.
    """

    def __init__(self, url: str, *, timeout: float = 0.25) -> None:
        scheme, colon, rest = url.partition("://")
        scheme = scheme.replace("valkey", "redis")
        self._options = connection_options(timeout)
        with url_errors():
            check_url(url)
            client: Any = redis.Redis
            self._connect_with(client.from_url(f"{scheme}{colon}{rest}", **self._options))

    def _connect_with(self, client: Any) -> None:
        """Make connections like those of *client*."""
        self._client = client
        pool = client.connection_pool
        self.address = address_of(pool)
        renew_pool_lock_after_fork(pool)
        options = pool.connection_kwargs
        with suppress(TypeError):  # older clients, and connection classes of users, do not have this option
            # Without it each connection looks up redis-py's version for the server: 3 ms of CPU, and two round trips.
            pool.connection_class(**options, driver_info=None)
            options["driver_info"] = None
        pool.connection_class(**options)  # not connected: an unknown ?option= fails here, and not with the first job
        self._pool = ConnectionPool(lambda: pool.connection_class(**options))

    def acquire(self, request: Request, now_us: int | None = None) -> Verdict:
        try:
            return verdict_of(self._decide(request, now_us))
        except STORE_ERRORS as error:
            raise self._failed(request.claims[0].bucket, error) from error

    def acquire_all(self, requests: Sequence[Request]) -> Sequence[Verdict | Exception]:
        answers: list[Any] = [self._frame(request) for request in requests]  # or the error of a request
        sent = [number for number, frame in enumerate(answers) if isinstance(frame, bytes)]
        frames = [answers[number] for number in sent]
        name = requests[0].claims[0].bucket
        replies = self._call(name, lambda: self._pool.execute_all(frames)) if frames else ()
        for number, reply in zip(sent, replies, strict=True):
            answers[number] = self._verdict(requests[number], reply)
        return answers

    def settle(self, corrections: Sequence[Correction], now_us: int | None = None) -> None:
        rows = [(each.algorithm.code, *each.algorithm.params, each.granted_us, each.by) for each in corrections]
        self._run_script("settle", [each.bucket for each in corrections], [_or_empty(now_us)], rows)

    def release(self, leases: Sequence[Lease], now_us: int | None = None) -> None:
        self._run_lease_script("release", leases, now_us)

    def renew(self, leases: Sequence[Lease], now_us: int | None = None) -> Sequence[bool]:
        return self._run_lease_script("renew", leases, now_us)

    def leave(self, waits: Sequence[Wait], now_us: int | None = None) -> None:
        rows = [
            (each.claim.algorithm.code, *each.claim.algorithm.params, rest_of(each.claim), place_text(each.place))
            for each in waits
        ]
        keys = [name for each in waits for name in each.claim.names]
        self._run_script("leave", keys, [_or_empty(now_us)], rows)

    def pause(
        self, claims: Sequence[StoreClaim], for_us: int | None, now_us: int | None = None, *, emptied: bool = False
    ) -> None:
        keys = [name for claim in claims for name in claim.names]
        rows = [(claim.algorithm.code, *claim.algorithm.params) for claim in claims]
        self._run_script("pause", keys, [_or_empty(now_us), _or_empty(for_us), "1" if emptied else ""], rows)

    def slow(self, slowings: Sequence[Slowing], now_us: int | None = None) -> None:
        keys = [name for each in slowings for name in each.claim.names]
        self._run_script("slow", keys, [_or_empty(now_us)], [slowing_row(each) for each in slowings])

    def reset(self, names: Sequence[str]) -> None:
        self._call(names[0], lambda: self._delete(names))

    def clear_lines(self, names: Sequence[str]) -> None:
        self._call(names[0], lambda: self._clear(names))

    def commands(self, commands: Sequence[Sequence[str | int]]) -> list[Any]:
        name = str(commands[0][3 if commands[0][0] == "EVAL" else 1])
        try:
            return self._call(name, lambda: self._run_all(commands))
        except StoreUnavailable as error:
            if not is_connection_error(error):
                error.part = None  # the server is up: that it rejected these commands says nothing about decisions
            raise

    def delete_matching(self, pattern: str, *, lines_only: bool = False) -> int:
        return self._call(pattern, lambda: self._delete_matching(pattern, lines_only))

    def part_of(self, name: str) -> str:
        """A single server has no parts."""
        return ""

    def servers(self) -> list[Any]:
        """For the doctor: a client of each server that takes writes."""
        return [self._client]

    def close(self) -> None:
        self._pool.close_idle()
        self._client.close()

    def _run_lease_script(self, verb: str, leases: Sequence[Lease], now_us: int | None) -> list[bool]:
        rows = [(each.algorithm.code, *each.algorithm.params, each.granted_us) for each in leases]
        replies = self._run_script("lease", [each.bucket for each in leases], [_or_empty(now_us), verb], rows)
        return [reply == 1 for reply in replies]

    def _run_script(self, verb: str, keys: Sequence[str], head: Sequence[Any], rows: Sequence[tuple[Any, ...]]) -> Any:
        """Run the script for *verb*: its keys, its own arguments, then a row for each algorithm, code first."""
        script = script_for(verb, frozenset(row[0] for row in rows))
        arguments = [len(keys), *keys, *head, *chain.from_iterable(rows)]
        return self._call(keys[0], lambda: self._run(script, arguments))

    def _for_each_hash_slot(self, items: Sequence[_N], call: Callable[[Sequence[_N]], None]) -> None:
        """Run *call* for those of *items* that one script may change together: here for all."""
        call(items)

    def _call(self, name: str, call: Callable[[], _T]) -> _T:
        """Run *call*, with its errors mapped; *name* says which part of the store it goes to."""
        try:
            return call()
        except STORE_ERRORS as error:
            raise self._failed(name, error) from error

    def _failed(self, name: str, error: Exception) -> Exception:
        """*error* as it is raised, of the part of the store that keeps *name*."""
        raised = mapped(error)
        if isinstance(raised, StoreUnavailable):
            if raised.part is not None:
                raised.part = self.part_of(name)
            raised.server = raised.part or self.address
            if is_connection_failure(error):
                self._close_idle()
        return raised

    def _close_idle(self) -> None:
        """Close the idle connections: they may be dead as well, and each would cost a time-out."""
        self._pool.close_idle()

    def _decide(self, request: Request, now_us: int | None) -> Any:
        try:
            return self._pool.execute(frame_of(request, now_us))
        except exceptions.NoScriptError:
            return self._eval(request, now_us)

    def _frame(self, request: Request) -> bytes | Exception:
        try:
            return frame_of(request, None)
        except UnicodeError as error:
            return mapped(error)

    def _verdict(self, request: Request, reply: Any) -> Verdict | Exception:
        def verdict() -> Verdict:
            if isinstance(reply, exceptions.NoScriptError):
                return verdict_of(self._eval(request, None))
            if isinstance(reply, Exception):
                raise reply
            return verdict_of(reply)

        try:
            return self._call(request.claims[0].bucket, verdict)
        except (StoreUnavailable, ConfigurationError) as error:
            return error

    def _eval(self, request: Request, now_us: int | None) -> Any:
        # NOSCRIPT means that the server ran nothing, so this cannot charge twice.
        return self._command("EVAL", script_of(request).text, *arguments_of(request, now_us))

    def _or_evaluated(self, reply: Any, script: Script, arguments: list[Any]) -> Any:
        """The reply to an EVALSHA of *script*, which is run now if the server did not know it."""
        if isinstance(reply, exceptions.NoScriptError):
            return self._command("EVAL", script.text, *arguments)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def _run(self, script: Script, arguments: list[Any]) -> Any:
        try:
            return self._command("EVALSHA", script.sha, *arguments)
        except exceptions.NoScriptError:
            return self._command("EVAL", script.text, *arguments)

    def _command(self, *arguments: Any) -> Any:
        return self._pool.execute(command(*arguments))

    def _run_all(self, commands: Sequence[Sequence[str | int]]) -> list[Any]:
        replies = self._send_all(commands)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    def _send_all(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Send commands in one round trip. An error that the server answers stands in the place of its reply."""
        return self._pool.execute_all([command(*each) for each in commands])

    def _delete_matching(self, pattern: str, lines_only: bool) -> int:
        forgotten = 0
        keys: Iterable[Any] = self._redis_py().scan_iter(match=pattern, count=_SCAN_COUNT)
        names = (key.decode("utf-8", "replace") for key in keys)
        while batch := list(islice(names, _SCAN_COUNT)):
            if not lines_only:
                self._delete(batch)
                forgotten += len(batch)
            elif lines := self._lines_among(batch):
                forgotten += self._clear(lines)
        return forgotten

    def _lines_among(self, names: Sequence[str]) -> list[str]:
        """Those of *names* that `_clear` takes."""
        return [name for name in names if is_line(name)]

    def _clear(self, names: Sequence[str]) -> int:
        keys = [each for name in names for each in (name, jobs_name_of(name))]
        cleared: int = self._run(script_for("clear_line", frozenset[str]()), [len(keys), *keys, ""])
        return cleared

    def _redis_py(self) -> Any:
        """The client of redis-py for what is not a decision."""
        return self._client

    def _delete(self, names: Sequence[str]) -> None:
        self._command("UNLINK", *names)


def _or_empty(number: int | None) -> int | str:
    return "" if number is None else number


def address_of(pool: Any) -> str:
    """The server that redis-py's *pool* connects to: host:port/database, without a user or a password."""
    options = pool.connection_kwargs
    database = options.get("db") or 0
    if hasattr(pool, "sentinel_manager"):
        return f"service {pool.service_name}/{database} of the Sentinels"
    if "path" in options:
        return f"{options['path']}?db={database}"
    host = str(options.get("host", "localhost"))
    return f"{f'[{host}]' if ':' in host else host}:{options.get('port', 6379)}/{database}"


def connection_options(timeout: float) -> dict[str, Any]:
    """
    The options of every connection of the store, whatever the user's client has: short time-outs, bytes, and none of
    redis-py's own retries, so that no command is sent twice. The number of connections has no bound: by default
    redis-py 8 fails the 101st call at the same moment.
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
    Check *url* for mistakes that redis-py would misread, or would find only with the first call.

    Args:
        also: Options that are allowed besides those of every server.

    Raises:
        ConfigurationError: It has an unknown option, or one with a value that can never work.
        ValueError: Any other mistake. Its text may hold a part of a password: do not repeat it.
    """
    parts = urlsplit(url)
    if parts.fragment or (parts.scheme == "unix" and (parts.hostname or len(parts.path) < 2)):
        raise ValueError("a URL of this scheme does not have such a part")
    if "sentinel" not in parts.scheme and parts.scheme != "unix" and not _DATABASE.fullmatch(parts.path):
        raise ValueError("the path is not the number of a database")
    for name, value in parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)):
        if name not in _URL_OPTIONS and name not in also:
            known = ", ".join((*_URL_OPTIONS, *also))
            raise ConfigurationError(f"the store's URL may have the options {known}, and no other")
        if name.endswith("_timeout") and not 0 < float(value) <= _MAX_TIMEOUT_S:
            raise ConfigurationError(f"{name} in the store's URL must be more than 0 s, and at most {_MAX_TIMEOUT_S} s")
        if name == "client_name" and not _CLIENT_NAME.fullmatch(value):
            raise ConfigurationError("client_name in the store's URL must be letters, digits and signs, no spaces")


@contextmanager
def url_errors() -> Generator[None, None, None]:
    """Map redis-py's errors about a URL to a `ConfigurationError` that does not repeat the URL."""
    try:
        yield
    except ConfigurationError:  # from `check_url`; it is a ValueError as well
        raise
    except URL_ERRORS as error:
        raise ConfigurationError(
            f"the store's URL cannot be read ({type(error).__name__}): write it as redis://host:port/0, rediss://…, "
            "unix:///path?db=0 or redis+sentinel://host:port,host:port/service/0, with the number of a database, and "
            'with "/" in a password as %2F'
        ) from None


def renew_pool_lock_after_fork(pool: object) -> None:
    """Give redis-py's *pool* a fresh lock in each forked child: another thread may hold the lock at the fork."""
    renew_lock_after_fork(pool, "_lock", threading.RLock)
