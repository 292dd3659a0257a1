"""The plugins that come with throttlekit: the stores by URL, and the quiet log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from throttlekit._core.job import Job
from throttlekit._core.limit.base import Limit
from throttlekit._core.storage_keys import digest_of_key
from throttlekit._util.log_limiter import CountedEvery, Every, is_first_in_fleet
from throttlekit.hookspecs import (
    Deferred,
    RateLimitHeard,
    ShadowDenied,
    SlotLost,
    StoreFailed,
    hookimpl,
)
from throttlekit.stores.base import Store
from throttlekit.stores.memory import MemoryStore

__all__ = ["DeferralLog", "RateLimitLog", "ShadowLog", "SlotLostLog", "Stores", "UnchargedLog"]

_SERVERS = ("redis", "rediss", "valkey", "valkeys")


class Stores:
    """memory:// and redis:// (rediss://, unix://, valkey://, redis+cluster://, redis+sentinel://)."""

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


class DeferralLog:
    """
    Logs at DEBUG that a job was deferred, and at INFO, once per limit per *every* seconds, one of them and how many
    there were.

    The first deferral of a limit is logged at once, so that a waiting queue explains itself.

    Args:
        wall: The time that people read, in seconds since 1970.
    """

    def __init__(
        self,
        every: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._log = logging.getLogger("throttlekit")
        self._held_back = CountedEvery(every, clock)
        self._wall = wall

    @hookimpl
    def throttlekit_deferred(self, event: Deferred) -> None:
        decision = event.decision
        limit, delay, reason = decision.limit.name, decision.delay, decision.reason
        if self._log.isEnabledFor(logging.DEBUG):
            self._log.debug(
                "Job %s (%s) deferred for %.3f s by limit %r: %s, deferral %d.",
                event.job.id, event.job.name, delay, limit, reason, event.deferrals,
            )  # fmt: skip
        if reason == "store unavailable":
            return  # not the limit's doing: the breaker logs the outage
        if (count := self._held_back.one_more(limit)) and _logs_summary(self._log, limit):
            until = time.strftime("%H:%M:%S", time.localtime(self._wall() + delay))
            more = f" {count} were deferred since the last such line." if count > 1 else ""
            self._log.info(
                "Limit %r is holding jobs back: job %s%s waits for %.1f s, until %s: %s.%s",
                limit, event.job.id, _of_key(event.job, decision.limit, decision.key), delay, until, reason, more,
            )  # fmt: skip


class UnchargedLog:
    """Logs a warning, once per limit per *every* seconds, that jobs run uncharged while the store does not answer."""

    def __init__(self, every: float = 30.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = logging.getLogger("throttlekit")
        self._every = every
        self._clock = clock
        self._every_limit: dict[str, Every] = {}

    @hookimpl
    def throttlekit_store_failed(self, event: StoreFailed) -> None:
        if not event.decision.allowed:
            return
        for limit in event.limits:
            if limit.on_store_failure == "open":
                every = self._every_limit.setdefault(limit.name, Every(self._every, self._clock))
                if every.due():
                    self._log.warning(
                        "Limit %r lets jobs run uncharged: the store gives no answer (%s), and its on_store_failure "
                        'is "open".', limit.name, event.error,
                    )  # fmt: skip


class SlotLostLog:
    """Logs a warning for each slot that a job lost while it ran: one job more than the limit says may run."""

    @hookimpl
    def throttlekit_slot_lost(self, event: SlotLost) -> None:
        logging.getLogger("throttlekit").warning(
            "A job lost its slot of limit %r while it runs: its lease could not be renewed in time.",
            event.limit.name,
        )


class ShadowLog:
    """Logs at INFO, once per limit per *every* seconds, how many jobs a limit in shadow mode would have denied."""

    def __init__(self, every: float = 30.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = logging.getLogger("throttlekit")
        self._held_back = CountedEvery(every, clock)

    @hookimpl
    def throttlekit_shadow_denied(self, event: ShadowDenied) -> None:
        limit = event.decision.limit.name
        if (count := self._held_back.one_more(limit)) and _logs_summary(self._log, limit):
            self._log.info(
                "Limit %r, in shadow mode, would have held back %d jobs since the last such line.", limit, count
            )


class RateLimitLog:
    """
    Logs a warning for each 429 that pauses a limit; of one limit at most one in *every* seconds, which counts the
    others: a partner may answer 429 without asking for a pause.
    """

    def __init__(self, every: float = 1.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = logging.getLogger("throttlekit")
        self._heard = CountedEvery(every, clock)

    @hookimpl
    def throttlekit_rate_limited(self, event: RateLimitHeard) -> None:
        limit = event.limit
        if count := self._heard.one_more(limit.name):
            where = "this process" if limit.scope == "process" else "the whole fleet"
            self._log.warning(
                "Limit %r: downstream said 429: paused for %s s in %s (job %s%s).%s",
                limit.name, f"{event.retry_after:.1f}".removesuffix(".0"), where, event.job.id,
                _of_key(event.job, limit, event.key),
                f" {count - 1} more since the last such line." if count > 1 else "",
            )  # fmt: skip


def _of_key(job: Job, limit: Limit, key: str) -> str:
    """The key as a digest, like `throttlekit top` shows it: it may contain arguments of the job."""
    part = limit.part_of(job)
    own = key if part is None else key.removeprefix(part).removeprefix(":")
    return f" of key {digest_of_key(own)}" if own else ""


def _logs_summary(log: logging.Logger, limit: str) -> bool:
    return log.isEnabledFor(logging.INFO) and is_first_in_fleet(limit)
