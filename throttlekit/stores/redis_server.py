"""A Redis or Valkey server: how a store connects to it, and sends it commands."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

try:
    import redis
    from redis import exceptions
    from redis.backoff import NoBackoff
    from redis.retry import Retry
except ImportError as error:  # pragma: no cover - exercised by the wheel test, in an environment of its own
    raise ImportError("a redis:// limiter needs the redis client: pip install 'throttlekit-jobs[redis]'") from error

from throttlekit._util.fork_safety import renew_lock_after_fork
from throttlekit.errors import ConfigurationError, StoreUnavailable
from throttlekit.stores.base import OF_SENTINELS, key_of
from throttlekit.stores.errors import STORE_ERRORS, URL_ERRORS, is_connection_failure, is_replica, map_error
from throttlekit.stores.pool import ConnectionPool
from throttlekit.stores.wire import Script, command

__all__ = ["RedisServer", "address_of", "check_url", "connection_options", "renew_pool_lock_after_fork", "url_errors"]

_DATABASE = re.compile(r"/?[0-9]*", re.ASCII)
_CLIENT_NAME = re.compile(r"[!-~]+")
_MAX_TIMEOUT_S = 60
_URL_OPTIONS = (
    "db",
    "username",
    "password",
    "client_name",
    "protocol",
    "socket_timeout",
    "socket_connect_timeout",
    "socket_keepalive",
    "ssl_ca_certs",
    "ssl_ca_data",
    "ssl_ca_path",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_password",
    "ssl_cert_reqs",
    "ssl_check_hostname",
    "ssl_ciphers",
    "ssl_min_version",
    "ssl_include_verify_flags",
    "ssl_exclude_verify_flags",
)
_T = TypeVar("_T")


class RedisServer:
    """
    Connections to a Redis or Valkey server, and commands on it.

    Args:
        url: redis://, rediss:// or unix://, in the format of redis-py.
        timeout: Seconds to wait for a connection, and for a reply. A missing reply never counts as a grant, and a
            command is never sent twice.

    Raises:
        ConfigurationError: The URL is not valid. The message does not repeat it, because it may contain a password.
    """

    _demoted_at = -math.inf
    """When the server last rejected a call because it is a replica, by the monotonic clock."""

    def __init__(self, url: str, *, timeout: float = 0.25) -> None:
        scheme, colon, rest = url.partition("://")
        scheme = scheme.replace("valkey", "redis")
        self._options = connection_options(timeout)
        with url_errors():
            check_url(url)
            client: Any = redis.Redis
            self._connect_with(client.from_url(f"{scheme}{colon}{rest}", **self._options))

    def _connect_with(self, client: Any) -> None:
        """Create connections with the options of *client*."""
        self._client = client
        pool = client.connection_pool
        self.address = address_of(pool)
        renew_pool_lock_after_fork(pool)
        options = pool.connection_kwargs
        with suppress(TypeError):  # older clients, and connection classes of users, do not have this option
            # Without it, each connection reports redis-py's version to the server: 3 ms of CPU, and two round trips.
            pool.connection_class(**options, driver_info=None)
            options["driver_info"] = None
        pool.connection_class(**options)  # not connected: an unknown ?option= fails here, not with the first job
        self._pool = ConnectionPool(lambda: pool.connection_class(**options))

    def commands(self, commands: Sequence[Sequence[str | int]]) -> list[Any]:
        try:
            return self._call(key_of(commands[0]), lambda: self._run_all(commands))
        except StoreUnavailable as error:
            if not is_connection_failure(error.__cause__):
                error.part = None  # the server is up; although it rejects these commands, decisions may work
            raise

    def part_of(self, name: str) -> str:
        """Return "", because a single server has no parts."""
        return ""

    def servers(self) -> list[Any]:
        """Return a client for each server that accepts writes, for `throttlekit doctor`."""
        return [self._client]

    def close(self) -> None:
        self._pool.close_idle()
        self._client.close()

    def _call(self, name: str, call: Callable[[], _T]) -> _T:
        """Run *call* on the part of the store that keeps *name*, and map its errors."""
        try:
            return call()
        except STORE_ERRORS as error:
            raise self._failed(name, error) from error

    def _failed(self, name: str, error: Exception) -> Exception:
        """Return the error to raise for *error* from the part of the store that keeps *name*."""
        raised = map_error(error)
        if isinstance(raised, StoreUnavailable):
            if raised.part is not None:
                raised.part = self.part_of(name)
                if is_replica(error):
                    self._demoted_at = time.monotonic()
                if is_replica(error) or is_connection_failure(error):
                    self._close_idle()
            raised.server = raised.part or self.address
        return raised

    def _close_idle(self) -> None:
        """
        Close the idle connections. Each may be dead as well, and would cost a time-out, or may lead to a server that is
        no longer the master.
        """
        self._pool.close_idle()

    def _run_if_unknown(self, reply: Any, script: Script, arguments: list[Any]) -> Any:
        """Return the reply to an EVALSHA of *script*. If the server did not know the script, run it now."""
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
        """Send commands in one round trip. An error that the server returns replaces the reply."""
        return self._pool.execute_all([command(*each) for each in commands])


def address_of(pool: Any) -> str:
    """Return the server to which redis-py's *pool* connects: host:port/database, without a user or a password."""
    options = pool.connection_kwargs
    database = options.get("db") or 0
    if hasattr(pool, "sentinel_manager"):
        hosts = [address_of(each.connection_pool).partition("/")[0] for each in pool.sentinel_manager.sentinels]
        return f"service {pool.service_name}/{database}{OF_SENTINELS}{','.join(hosts)}"
    if "path" in options:
        return f"{options['path']}?db={database}"
    host = str(options.get("host", "localhost"))
    return f"{f'[{host}]' if ':' in host else host}:{options.get('port', 6379)}/{database}"


def connection_options(timeout: float) -> dict[str, Any]:
    """
    Return the options of every connection of the store, which replace those of the user's client: short time-outs,
    replies as bytes, and no retries by redis-py, so that no command is sent twice. The number of connections is not
    limited: by default, redis-py 8 raises an error for the 101st concurrent call.
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
    Check *url* for mistakes that redis-py would ignore, or would report only at the first call.

    Args:
        also: Options that are allowed in addition to those of every server.

    Raises:
        ConfigurationError: The URL has an unknown option, or one with a value that can never work.
        ValueError: Any other mistake. Its text may contain a part of a password: do not show it.
    """
    parts = urlsplit(url)
    if parts.fragment or (parts.scheme == "unix" and (parts.hostname or len(parts.path) < 2)):
        raise ValueError("a URL of this scheme does not have such a part")
    if "sentinel" not in parts.scheme and parts.scheme != "unix" and not _DATABASE.fullmatch(parts.path):
        raise ValueError("the path is not the number of a database")
    for name, value in parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)):
        if name not in _URL_OPTIONS and name not in also:
            known = ", ".join((*_URL_OPTIONS, *also))
            raise ConfigurationError(f"the store's URL may only have the options {known}")
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
    """Replace the lock of redis-py's *pool* in each forked child: another thread may hold the lock at the fork."""
    renew_lock_after_fork(pool, "_lock", threading.RLock)
