"""Open the store of a fleet, for an operator."""

from __future__ import annotations

from typing import Any

from throttlekit import ConfigurationError, Limiter
from throttlekit._engine.plugins import plugin_manager, store_from
from throttlekit._wiring import wiring_of
from throttlekit.stores.base import Store, SupportsCommands

__all__ = ["open_store"]

_TIMEOUT_S = 5.0


def open_store(store: str | Store | Limiter) -> Any:
    """
    The store that a fleet shares, with longer time-outs than a worker has: an operator may be far away.

    Args:
        store: Its URL, itself, or a limiter that uses it; of the latter two the time-outs stay as they are.

    Raises:
        ConfigurationError: The URL is not valid, or the store is not one that a fleet shares.
    """
    if isinstance(store, Limiter):
        shared = wiring_of(store).stores.shared
        opened: Any = shared if shared.shared else None
    else:
        opened = store_from(_patient(store) if isinstance(store, str) else store, plugin_manager([]))
    if not isinstance(opened, SupportsCommands):
        raise ConfigurationError("this store is not shared by a fleet: name the Redis that the workers use")
    return opened


def _patient(url: str) -> str:
    options = url.partition("?")[2]
    names = [name for name in ("socket_timeout", "socket_connect_timeout") if f"{name}=" not in options]
    if "://" not in url or url.startswith("memory:") or not names:
        return url
    return url + ("&" if options else "?") + "&".join(f"{name}={_TIMEOUT_S:g}" for name in names)
