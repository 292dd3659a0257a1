"""The shared store behind Redis Sentinel: whichever server is the master, also after a fail-over."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from redis import exceptions
from redis.connection import parse_url  # pyright: ignore[reportUnknownVariableType]
from redis.sentinel import Sentinel

from throttlekit.stores.errors import SentinelRefused, UnknownService
from throttlekit.stores.redis import RedisStore, begin_anew_after_fork, check_url, own_options, readable

__all__ = ["RedisSentinelStore", "following"]

_PORT = 26379
_parse_url: Any = parse_url  # pyright: ignore[reportUnknownVariableType]
_OWN = ("sentinel_username", "sentinel_password")


class RedisSentinelStore(RedisStore):
    """
    Keeps limits on the master that the Sentinels name. Each new connection asks them; a fail-over ends those to the
    old master, so it is followed with the next question.

    What the old master granted and the new one has not heard of may be granted again: at most
    `burst + rate × replication lag`, once for each key.

    Args:
        url: redis+sentinel://user:password@host:port,host:port/service/0, or rediss+sentinel://: with TLS to the
            Sentinels as well. The user is the master's; that of the Sentinels is given as ?sentinel_username=… and
            sentinel_password=….
        timeout: Seconds to wait for a connection, and for an answer, of the master and of each Sentinel.

    Raises:
        ConfigurationError: The URL cannot be read.
    """

    def __init__(self, url: str, *, timeout: float = 0.25) -> None:
        self._options = own_options(timeout)
        with readable():
            check_url(url, also=_OWN)
            scheme, _, rest = url.partition("://")
            tls = scheme.startswith(("rediss", "valkeys"))
            parts = urlsplit(f"//{rest}")
            user, at, hosts = parts.netloc.rpartition("@")
            service, _, database = parts.path.removeprefix("/").partition("/")
            if not service or not (database or "0").isdecimal():
                raise ValueError("the path is not a service, and the number of a database")
            query = dict(parse_qsl(parts.query))
            own = {name.removeprefix("sentinel_"): query.pop(name) for name in _OWN if name in query}
            kind = "rediss" if tls else "redis"
            # An option of the URL may only add to ours: it goes for the Sentinels, too.
            told: dict[str, Any] = _parse_url(f"{kind}://{user}{at}master/{database or 0}?{urlencode(query)}")
            options = {name: value for name, value in told.items() if name not in ("host", "port", "connection_class")}
            options = {**self._options, **options}
            for_sentinels = {
                name: value for name, value in options.items() if name not in ("db", "username", "password")
            }
            sentinels: Any = _Sentinels
            manager = sentinels(
                [_address(host) for host in hosts.split(",")],
                sentinel_kwargs={**for_sentinels, **own, "ssl": tls},
                **options,
                ssl=tls,
            )
            self._use(following(manager, unquote(service)))


class _Sentinels(Sentinel):
    """Tells a name that no Sentinel knows, and a password that they do not take, from a master that is down."""

    def discover_master(self, service_name: str) -> Any:
        try:
            return super().discover_master(service_name)  # type: ignore[no-untyped-call]
        except exceptions.ConnectionError as error:
            fault = error
            for sentinel in self.sentinels:
                try:
                    known = sentinel.sentinel_masters()
                except exceptions.AuthenticationError:
                    fault = SentinelRefused("the Sentinels' password is another")
                    continue
                except (exceptions.ConnectionError, exceptions.TimeoutError):
                    continue
                if service_name not in known:
                    raise UnknownService(f"{service_name} is no service") from error
                break
            raise fault from error.__cause__


def following(manager: Any, service: str) -> Any:
    """A client of the master of *service*, that is found through *manager* and its Sentinels."""
    client = manager.master_for(service)
    for sentinel in manager.sentinels:
        begin_anew_after_fork(sentinel.connection_pool)
    return client


def _address(host: str) -> tuple[str, int]:
    parts = urlsplit(f"//{host}")
    if not parts.hostname:
        raise ValueError("a Sentinel without a host")
    return parts.hostname, parts.port or _PORT
