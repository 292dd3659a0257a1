"""Open the store of a fleet for an operator, and name it."""

from __future__ import annotations

import contextlib
import re
from urllib.parse import parse_qs, unquote, urlsplit

from throttlekit import ConfigurationError, Limiter
from throttlekit._engine.plugins import plugin_manager, store_from
from throttlekit._wiring import wiring_of
from throttlekit.stores.access import StoreAccess
from throttlekit.stores.base import Store
from throttlekit_cli.formatting import printable

__all__ = ["address_of_url", "name_store", "open_store"]

_TIMEOUT_S = 5.0
_UNNAMED = "a store without a readable name"
_HOST = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\s:@/\[\],]+)(:[0-9]{1,5})?")
_REDIS = re.compile(r"(rediss?|valkeys?)(\+\w+)?")
_NUMBER = re.compile("[0-9]{0,6}")
_SERVICE = re.compile(r"/[\w.-]{1,64}(/[0-9]{0,6})?")
_PATH = re.compile(r"/[\w.-]{1,64}")
_LONGEST_TITLE = 60


def open_store(store: str | Store | Limiter) -> StoreAccess:
    """
    Open the store of a fleet, with longer time-outs than those of workers, because an operator may be far away.

    Args:
        store: The store's URL, the store, or a limiter that uses it. The time-outs are only changed for a URL.

    Raises:
        ConfigurationError: The URL is not valid, or the store is in the memory of one process.
    """
    if isinstance(store, Limiter):
        opened: StoreAccess = wiring_of(store).stores.shared
    else:
        opened = StoreAccess(store_from(_patient(store) if isinstance(store, str) else store, plugin_manager([])))
    if not opened.shared:
        raise ConfigurationError("this store is not shared by a fleet: name the Redis that the workers use")
    return opened


def name_store(store: str | Store | Limiter | None, title: str = "") -> str:
    """
    Return the store's name for operators: *title*, hosts and database, such as `production (limits:6379/1)`.

    The name contains no user, password or option of the URL. If the URL cannot be read, the name says so.
    """
    if isinstance(store, str):
        name = _name_in(store)
    elif isinstance(store, Limiter):
        name = store.store_address
    else:
        name = str(getattr(store, "address", ""))
    title, name = title.strip()[:_LONGEST_TITLE], name or _UNNAMED
    return printable(f"{title} ({name})" if title else name)


def address_of_url(url: str) -> str:
    """Return the host:port/database of *url*, or "" if it does not name a single server."""
    import redis

    from throttlekit.stores.redis_server import address_of

    with contextlib.suppress(redis.RedisError, ValueError, TypeError):
        return address_of(redis.ConnectionPool.from_url(url.replace("valkey", "redis", 1)))
    return ""


def _name_in(url: str) -> str:
    """Return the hosts and the database of *url*, or "" if they cannot be read reliably."""
    try:
        parts = urlsplit(url)
        query = parse_qs(parts.query)
    except ValueError:
        return ""
    scheme, path, hosts = parts.scheme, unquote(parts.path), parts.netloc.rpartition("@")[2]
    database = query.get("db", [""])[0]
    if (parts.netloc and "@" in f"{parts.path}{parts.query}{parts.fragment}") or not _NUMBER.fullmatch(database):
        return ""  # with an "@" there, `hosts` may be the first part of a password with an unescaped "/", "?" or "#"
    if scheme == "memory":
        return "the memory of one process"
    if scheme == "unix":
        return address_of_url(url)
    is_redis = _REDIS.fullmatch(scheme)
    hosts = hosts or ("localhost" if is_redis else "")
    if not all(_HOST.fullmatch(host) for host in hosts.split(",")):
        return ""
    if scheme.endswith("+sentinel"):
        return f"service {path[1:]} of the Sentinels {hosts}" if _SERVICE.fullmatch(path) else ""
    if not is_redis:
        return hosts + (path if _PATH.fullmatch(path) else "")
    if not _NUMBER.fullmatch(path.strip("/")):
        return ""
    if scheme.endswith("+cluster"):
        return f"{hosts}, cluster" if re.search(":[0-9]+$", hosts) else f"{hosts}:6379, cluster"
    return address_of_url(url)


def _patient(url: str) -> str:
    options = url.partition("?")[2]
    names = [name for name in ("socket_timeout", "socket_connect_timeout") if f"{name}=" not in options]
    if "://" not in url or url.startswith("memory:") or not names:
        return url
    return url + ("&" if options else "?") + "&".join(f"{name}={_TIMEOUT_S:g}" for name in names)
