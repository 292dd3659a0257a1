"""The store with Redis Sentinel, which uses the current master, also after a fail-over."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from redis import exceptions
from redis.connection import parse_url  # pyright: ignore[reportUnknownVariableType]
from redis.sentinel import Sentinel

from throttlekit.stores.errors import SentinelRefused, UnknownService
from throttlekit.stores.redis import RedisStore
from throttlekit.stores.redis_server import check_url, connection_options, renew_pool_lock_after_fork, url_errors

__all__ = ["RedisSentinelStore", "master_client"]

_DEFAULT_PORT = 26379
_parse_url: Any = parse_url  # pyright: ignore[reportUnknownVariableType]
_SENTINEL_OPTIONS = ("sentinel_username", "sentinel_password")


class RedisSentinelStore(RedisStore):
    """
    Keeps limits on the master that the Sentinels report. Each new connection looks up the master. A fail-over closes
    the connections to the old master, so the next call uses the new one.

    Units that the old master granted but did not replicate may be granted again: at most
    `burst + rate × replication lag`, once for each key.

    Args:
        url: redis+sentinel://user:password@host:port,host:port/service/0, or rediss+sentinel://, with TLS to the
            Sentinels as well. The user and password are for the master. For the Sentinels, use the options
            ?sentinel_username=… and sentinel_password=….
        timeout: Seconds to wait for a connection, and for a reply, of the master and of each Sentinel.

    Raises:
        ConfigurationError: The URL is not valid.
    """

    def __init__(self, url: str, *, timeout: float = 0.25) -> None:
        self._options = connection_options(timeout)
        with url_errors():
            check_url(url, also=_SENTINEL_OPTIONS)
            scheme, _, rest = url.partition("://")
            tls = scheme.startswith(("rediss", "valkeys"))
            parts = urlsplit(f"//{rest}")
            user, at, hosts = parts.netloc.rpartition("@")
            service, _, database = parts.path.removeprefix("/").partition("/")
            if not service or not (database or "0").isdecimal():
                raise ValueError("the path is not a service, and the number of a database")
            query = dict(parse_qsl(parts.query))
            credentials = {
                name.removeprefix("sentinel_"): query.pop(name) for name in _SENTINEL_OPTIONS if name in query
            }
            kind = "rediss" if tls else "redis"
            parsed: dict[str, Any] = _parse_url(f"{kind}://{user}{at}master/{database or 0}?{urlencode(query)}")
            options = {**self._options, **_without(parsed, "host", "port", "connection_class")}
            sentinels: Any = _Sentinels
            manager = sentinels(
                [_address(host) for host in hosts.split(",")],
                sentinel_kwargs={**_without(options, "db", "username", "password"), **credentials, "ssl": tls},
                **options,
                ssl=tls,
            )
            self._connect_with(master_client(manager, unquote(service)))


class _Sentinels(Sentinel):
    """Sentinels that raise separate errors for an unknown service and for a rejected password."""

    def discover_master(self, service_name: str) -> Any:
        try:
            return super().discover_master(service_name)  # type: ignore[no-untyped-call]
        except exceptions.ConnectionError as error:
            reason = error
            for sentinel in self.sentinels:
                try:
                    known = sentinel.sentinel_masters()
                except exceptions.AuthenticationError:
                    reason = SentinelRefused("the Sentinels rejected the user or password")
                    continue
                except (exceptions.ConnectionError, exceptions.TimeoutError):
                    continue
                if service_name not in known:
                    raise UnknownService(f"{service_name} is not a service of the Sentinels") from error
                break
            raise reason from error.__cause__


def master_client(manager: Any, service: str) -> Any:
    """Return a client for the master of *service*, which it looks up with the Sentinels of *manager*."""
    client = manager.master_for(service)
    for sentinel in manager.sentinels:
        renew_pool_lock_after_fork(sentinel.connection_pool)
    return client


def _without(options: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in names}


def _address(host: str) -> tuple[str, int]:
    parts = urlsplit(f"//{host}")
    if not parts.hostname:
        raise ValueError("a Sentinel without a host")
    return parts.hostname, parts.port or _DEFAULT_PORT
