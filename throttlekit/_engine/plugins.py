"""The plugins and the store of a limiter, checked when it is made: a mistake shows at once."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence

import pluggy

from throttlekit import hookspecs
from throttlekit._engine.builtin_plugins import (
    DeferralLog,
    RateLimitLog,
    ShadowLog,
    SlotLostLog,
    Stores,
    UnchargedLog,
)
from throttlekit.errors import ConfigurationError
from throttlekit.stores.base import Store

__all__ = ["DEFAULT_STORE", "plugin_manager", "store_from", "store_of", "with_groups"]

_log = logging.getLogger("throttlekit")
_MEMORY, _URL = "memory://", "THROTTLEKIT_URL"
DEFAULT_STORE = f"${_URL}, else {_MEMORY}"
"""Stands for what its text says, where a limiter is made without a store."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,19}", re.ASCII)
_STORE_METHODS = [name for name, each in vars(Store).items() if callable(each) and not name.startswith("_")]
_GIVE_A_LIST = "give a list of objects with hooks: Limiter(…, plugins=[MyPlugin()])"


def plugin_manager(plugins: Sequence[object]) -> pluggy.PluginManager:
    """
    The shipped plugins, the installed ones, and *plugins*.

    Raises:
        ConfigurationError: One is not a plugin, is given twice, or cannot be loaded.
    """
    if isinstance(plugins, str) or not isinstance(plugins, Sequence):
        raise ConfigurationError(f"plugins= takes a list, not {type(plugins).__name__}: {_GIVE_A_LIST}")
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(Stores())
    manager.register(DeferralLog())
    manager.register(UnchargedLog())
    manager.register(SlotLostLog())
    manager.register(ShadowLog())
    manager.register(RateLimitLog())
    try:
        manager.load_setuptools_entrypoints(hookspecs.PROJECT)
        for plugin in plugins:
            _register(manager, plugin)
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        raise ConfigurationError(f"a plugin has a hook that does not exist, or other arguments: {error}") from None
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(f"a plugin cannot be loaded: {error!r}. Fix or uninstall it") from error
    for hook in vars(manager.hook).values():
        alone = isinstance(hook, pluggy.HookCaller) and hook.name != "throttlekit_make_store"
        if alone and any(impl.hookwrapper or impl.wrapper for impl in hook.get_hookimpls()):
            raise ConfigurationError(f"a hook of {hook.name} cannot be a wrapper: each is called on its own")
    return manager


def _register(manager: pluggy.PluginManager, plugin: object) -> None:
    shown = plugin.__name__ if isinstance(plugin, type) else f"an object of type {type(plugin).__name__}"
    if isinstance(plugin, type):
        raise ConfigurationError(f"{shown} is a class, not a plugin: give an object of it, {shown}()")
    if manager.is_registered(plugin):
        raise ConfigurationError(f"{shown} is given twice as a plugin, or is installed as one already: name it once")
    manager.register(plugin)
    if not manager.get_hookcallers(plugin):
        raise ConfigurationError(
            f"{shown} is not a plugin: it has no method that is marked with @throttlekit.hookimpl. {_GIVE_A_LIST}"
        )


def store_from(store: str | Store, hooks: pluggy.PluginManager) -> Store:
    """
    The store that *store* is, or that a plugin makes from the URL; of `DEFAULT_STORE`, that of the environment.

    Raises:
        ConfigurationError: It is not a store. The message repeats no text but a URL's scheme: it may hold a password.
    """
    if store is DEFAULT_STORE:
        store = os.environ.get(_URL) or _MEMORY
    if not isinstance(store, str):
        return _checked(store, 'give a URL like "redis://host:6379/0", or an object')
    made: Store | None = hooks.hook.throttlekit_make_store(url=store)
    if made is not None:
        return _checked(made, "throttlekit_make_store must return an object")
    scheme, colon, _ = store.partition("://")
    begins = f" that begin with {scheme!r}" if colon and _SCHEME.fullmatch(scheme) else " like the one given"
    raise ConfigurationError(
        f"no store is known for URLs{begins}: write memory://, redis://, rediss://, unix://, valkey://, "
        "redis+cluster:// or redis+sentinel://"
    )


def store_of(client: object, *, also: bool) -> Store:
    """
    The store on the server of a *client* of redis-py.

    Raises:
        ConfigurationError: A store was given *also*, or *client* is not a client.
    """
    if also:
        raise ConfigurationError("a limiter asks one store: give a URL or client=, not both")
    from throttlekit.stores.from_client import store_of_client

    return store_of_client(client)


def with_groups(store: Store, stores: Mapping[str, str | Store] | None, hooks: pluggy.PluginManager) -> Store:
    """
    *store*, with a store of its own for each group of limits in *stores*.

    Raises:
        ConfigurationError: As `store_from`; or *stores* is not a mapping of patterns to stores.
    """
    if stores is None:
        return store
    if not isinstance(stores, Mapping) or not all(isinstance(each, str) and each for each in stores):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError('stores= takes a store for each name or group of limits: {"llm-*": "redis://…"}')
    from throttlekit.stores.grouped import grouped  # of use to few limiters, and its imports are costly

    groups: list[tuple[str, Store]] = []
    for pattern, each in stores.items():
        try:
            groups.append((pattern, store_from(each, hooks)))
        except ConfigurationError as error:
            raise ConfigurationError(f"stores[{pattern!r}]: {error}") from error.__cause__
    return grouped(store, groups)


def _checked(store: Store, remedy: str) -> Store:
    missing = [name for name in _STORE_METHODS if not callable(getattr(store, name, None))]
    if isinstance(store, type) or missing:
        shown = f"the class {store.__name__}" if isinstance(store, type) else type(store).__name__
        if type(store).__module__.partition(".")[0] in ("redis", "valkey"):
            raise ConfigurationError(f"{shown} is not a store, but a client: write Limiter(client=…), or give its URL")
        lacks_some = 0 < len(missing) < len(_STORE_METHODS)
        having = "that also has" if lacks_some else "with"
        names = ", ".join(missing if lacks_some else _STORE_METHODS)
        raise ConfigurationError(f"{shown} is not a store: {remedy} {having} the methods {names}")
    return store
