"""Open the store of a fleet for an operator, and name it."""

from __future__ import annotations

from throttlekit import ConfigurationError, Limiter
from throttlekit._engine.plugins import plugin_manager, store_from
from throttlekit._wiring import wiring_of
from throttlekit.stores.access import StoreAccess
from throttlekit.stores.base import Store
from throttlekit_cli.formatting import printable

__all__ = ["name_store", "open_store"]

_TIMEOUT_S = 5.0
_UNNAMED = "a store without a readable name"
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


def name_store(store: StoreAccess, title: str = "") -> str:
    """
    Return the name of an opened *store* for operators: *title*, hosts and database, such as
    `production (limits:6379/1)`. It contains no user or password.
    """
    title, name = title.strip()[:_LONGEST_TITLE], store.address or _UNNAMED
    return printable(f"{title} ({name})" if title else name)


def _patient(url: str) -> str:
    options = url.partition("?")[2]
    names = [name for name in ("socket_timeout", "socket_connect_timeout") if f"{name}=" not in options]
    if "://" not in url or url.startswith("memory:") or not names:
        return url
    return url + ("&" if options else "?") + "&".join(f"{name}={_TIMEOUT_S:g}" for name in names)
