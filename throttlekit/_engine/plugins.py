"""Check the plugins and the store of a new limiter. This module also has the plugins that throttlekit includes."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence

import pluggy

from throttlekit import hookspecs
from throttlekit._core.job import Job
from throttlekit._core.limit.base import Limit
from throttlekit._core.storage_keys import digest_of_key
from throttlekit._util.log_limiter import CountedEvery, is_first_in_fleet
from throttlekit.errors import ConfigurationError
from throttlekit.hookspecs import (
    Deferred,
    RateLimitReceived,
    ShadowDenied,
    SlotLost,
    StoreFailed,
    hookimpl,
)
from throttlekit.stores.base import Store
from throttlekit.stores.memory import MemoryStore

__all__ = [
    "DEFAULT_STORE",
    "BuiltInStores",
    "EventLog",
    "plugin_manager",
    "store_from",
    "with_groups",
]

_log = logging.getLogger("throttlekit")
_MEMORY, _URL = "memory://", "THROTTLEKIT_URL"
DEFAULT_STORE = f"${_URL}, else {_MEMORY}"
"""The placeholder for the store of a limiter that is created without one."""
_ADDRESS = re.compile(r"(localhost|\d+(\.\d+){3})(:\d{1,5})?(/\d+)?|[\w.-]+:6379(/\d+)?", re.ASCII)
"""The address of a server. An error may show such a text, because it is not a password."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,19}", re.ASCII)
_SERVERS = ("redis", "rediss", "valkey", "valkeys")
_STORE_METHODS = [name for name, each in vars(Store).items() if callable(each) and not name.startswith("_")]
_GIVE_A_LIST = "give a list of objects with hooks: Limiter(…, plugins=[MyPlugin()])"


def plugin_manager(plugins: Sequence[object]) -> pluggy.PluginManager:
    """
    Return a manager with the built-in plugins, the installed ones, and *plugins*.

    Raises:
        ConfigurationError: An object is not a plugin, is given twice, or cannot be loaded.
    """
    if isinstance(plugins, str) or not isinstance(plugins, Sequence):
        raise ConfigurationError(f"plugins= takes a list, not {type(plugins).__name__}: {_GIVE_A_LIST}")
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(BuiltInStores())
    manager.register(EventLog())
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
            raise ConfigurationError(f"a hook of {hook.name} cannot be a wrapper: each is called separately")
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
    Return *store*, or the store that a plugin makes from a URL. `DEFAULT_STORE` means the URL of the environment.

    Raises:
        ConfigurationError: *store* is not a store. Of a URL, the message shows only the scheme, because the rest may
            contain a password.
    """
    if store is DEFAULT_STORE:
        store = os.environ.get(_URL) or _MEMORY
    if not isinstance(store, str):
        return _check_store(store, 'give a URL like "redis://host:6379/0", or an object')
    made: Store | None = hooks.hook.throttlekit_make_store(url=store)
    if made is not None:
        return _check_store(made, "throttlekit_make_store must return an object")
    if _ADDRESS.fullmatch(store):
        raise ConfigurationError(f"a store is named by a URL: did you mean 'redis://{store}'?")
    scheme, colon, _ = store.partition("://")
    begins = f" that begin with {scheme!r}" if colon and _SCHEME.fullmatch(scheme) else " like the one given"
    raise ConfigurationError(
        f"no store is known for URLs{begins}: write memory://, redis://, rediss://, unix://, valkey://, "
        "redis+cluster:// or redis+sentinel://"
    )


def with_groups(store: Store, stores: Mapping[str, str | Store] | None, hooks: pluggy.PluginManager) -> Store:
    """
    Return *store*, combined with a separate store for each group of limits in *stores*.

    Raises:
        ConfigurationError: As for `store_from`; or *stores* is not a mapping of patterns to stores.
    """
    if stores is None:
        return store
    if not isinstance(stores, Mapping) or not all(isinstance(each, str) and each for each in stores):
        raise ConfigurationError('stores= takes a store for each name or group of limits: {"llm-*": "redis://…"}')
    from throttlekit.stores.grouped import GroupedStore  # few limiters need it, and its imports are slow

    groups: list[tuple[str, Store]] = []
    for pattern, each in stores.items():
        try:
            groups.append((pattern, store_from(each, hooks)))
        except ConfigurationError as error:
            raise ConfigurationError(f"stores[{pattern!r}]: {error}") from error.__cause__
    return GroupedStore(store, groups) if groups else store


def _check_store(store: Store, remedy: str) -> Store:
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


class BuiltInStores:
    """Makes stores for memory:// and redis:// (rediss://, unix://, valkey://, redis+cluster://, redis+sentinel://)."""

    @hookimpl
    def throttlekit_make_store(self, url: str) -> Store | None:
        scheme, colon, _ = url.partition("://")
        if not colon:
            return None
        if scheme == "memory":
            return MemoryStore()
        server, _, shape = scheme.partition("+")
        if shape == "sentinel" and server in _SERVERS:
            from throttlekit.stores.sentinel import RedisSentinelStore

            return RedisSentinelStore(url)
        if shape == "cluster" and server in _SERVERS:
            from throttlekit.stores.cluster import RedisClusterStore

            return RedisClusterStore(url)
        if scheme in (*_SERVERS, "unix"):
            from throttlekit.stores.redis import RedisStore

            return RedisStore(url)
        return None


class EventLog:
    """
    Logs why jobs wait, and what else an operator should know: for each limit, at most one line of each kind in a while.

    Args:
        clock: Returns the time in seconds, from any beginning.
        wall: Returns the time for log lines, in seconds since 1970.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time) -> None:
        self._deferrals, self._uncharged, self._shadowed = (CountedEvery(30.0, clock) for _ in range(3))
        self._received_429s = CountedEvery(1.0, clock)  # a partner may respond 429 continuously
        self._wall = wall

    @hookimpl
    def throttlekit_deferred(self, event: Deferred) -> None:
        """
        Log each deferred job at DEBUG. At INFO, log one deferred job and the number of the others, once per limit per
        30 seconds. The first deferral of a limit is logged at once, so that the log shows why a queue waits.
        """
        decision = event.decision
        limit, delay, reason = decision.limit.name, decision.delay, decision.reason
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug(
                "Job %s (%s) deferred for %.3f s by limit %r: %s, deferral %d.",
                event.job.id,
                event.job.name,
                delay,
                limit,
                reason,
                decision.deferrals,
                extra=_fields(event),
            )
        if reason == "store unavailable":
            return  # the limit is not the cause, and the breaker logs the outage
        if (count := self._deferrals.one_more(limit)) and _logs_summary(limit):
            until = time.strftime("%H:%M:%S UTC", time.gmtime(self._wall() + delay))
            more = f" {count} were deferred since the last such line." if count > 1 else ""
            _log.info(
                "Limit %r is holding jobs back: job %s%s waits for %.1f s, until %s: %s.%s",
                limit,
                event.job.id,
                _of_key(event.job, decision.limit, decision.key),
                delay,
                until,
                reason,
                more,
                extra=_fields(event),
            )

    @hookimpl
    def throttlekit_store_failed(self, event: StoreFailed) -> None:
        """Log a warning, once per limit per 30 seconds, that jobs run uncharged while the store does not answer."""
        if not event.decision.allowed:
            return
        for limit in event.limits:
            if limit.on_store_failure == "open" and self._uncharged.one_more(limit.name):
                _log.warning(
                    "Limit %r lets jobs run uncharged: the store gives no answer (%s), and its on_store_failure "
                    'is "open".',
                    limit.name,
                    event.error,
                )

    @hookimpl
    def throttlekit_slot_lost(self, event: SlotLost) -> None:
        """Log a warning for each slot that a job lost while it ran: one job more than the limit allows may run."""
        _log.warning(
            "A job lost its slot of limit %r while it runs: its lease could not be renewed in time.",
            event.limit.name,
        )

    @hookimpl
    def throttlekit_shadow_denied(self, event: ShadowDenied) -> None:
        """Log at INFO, once per limit per 30 seconds, how many jobs a limit in shadow mode would have denied."""
        limit = event.decision.limit.name
        if (count := self._shadowed.one_more(limit)) and _logs_summary(limit):
            _log.info("Limit %r, in shadow mode, would have held back %d jobs since the last such line.", limit, count)

    @hookimpl
    def throttlekit_rate_limited(self, event: RateLimitReceived) -> None:
        """Log a warning for a 429 that pauses a limit, once per limit per second, with the number of other 429s."""
        limit = event.limit
        if count := self._received_429s.one_more(limit.name):
            where = "this process" if limit.scope == "process" else "the whole fleet"
            _log.warning(
                "Limit %r: downstream said 429: paused for %s s in %s (job %s%s).%s",
                limit.name,
                f"{event.retry_after:.1f}".removesuffix(".0"),
                where,
                event.job.id,
                _of_key(event.job, limit, event.key),
                f" {count - 1} more since the last such line." if count > 1 else "",
                extra={
                    "throttlekit_limit": limit.name,
                    "throttlekit_job": event.job.id,
                    "throttlekit_wait": event.retry_after,
                    "throttlekit_reason": "429",
                },
            )


def _fields(event: Deferred) -> dict[str, object]:
    """Return the values of a log line as attributes of its record, for structured logs."""
    decision = event.decision
    return {
        "throttlekit_limit": decision.limit.name,
        "throttlekit_job": event.job.id,
        "throttlekit_wait": decision.delay,
        "throttlekit_reason": decision.reason,
        "throttlekit_deferrals": decision.deferrals,
        "throttlekit_waited": decision.waited,
    }


def _of_key(job: Job, limit: Limit, key: str) -> str:
    """Return the key as `throttlekit top` shows it: a digest, because it may contain arguments of the job."""
    part = limit.part_of(job)
    own = key if part is None else key.removeprefix(part).removeprefix(":")
    return f" of key {repr(own) if limit.show_key else digest_of_key(own)}" if own else ""


def _logs_summary(limit: str) -> bool:
    return _log.isEnabledFor(logging.INFO) and is_first_in_fleet(limit)
