"""The settings of a process: its limiter, the limits of whole queues, and the rules for waiting jobs."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from throttlekit import ConfigurationError, Limit, Limiter
from throttlekit.adapter import (
    OnWaitedTooLong,
    WaitRules,
    boolean_in,
    check_limiter,
    checks_spelling,
    read_limits,
    seconds_in,
)
from throttlekit_rq._waiting import is_first_to_log

__all__ = ["Settings", "configure", "limiter_for", "settings"]

_URL = "THROTTLEKIT_URL"
_LOG_EVERY = 600
_log = logging.getLogger("throttlekit.rq")


@dataclass(frozen=True, slots=True)
class Settings:
    """The arguments of `configure`, read and checked."""

    limiter: Limiter | None = None
    queues: Mapping[str, tuple[Limit, ...]] = field(default_factory=dict[str, tuple[Limit, ...]])
    rules: WaitRules = field(default_factory=WaitRules)
    max_inline_wait: float = math.inf
    own_limits: bool = True


class _Process:
    """
    The settings of this process, and the limiters that it has created: by URL, or by the pool and the server of a
    connection. Connections to one server have one limiter.
    """

    settings = Settings()
    made: dict[Any, Limiter] = {}  # noqa: RUF012  one a process is meant


@checks_spelling
def configure(
    limiter: Limiter | None = None,
    *,
    queues: Mapping[str, Limit | Iterable[Limit]] | None = None,
    max_wait: float | timedelta | None = None,
    max_deferrals: int | None = None,
    on_waited_too_long: OnWaitedTooLong = "fail",
    max_inline_wait: float | timedelta | None = None,
    own_limits: bool = True,
) -> None:
    """
    Configure the workers of this process. Call it in the settings module that `rq worker -c` imports:

        configure(Limiter("redis://localhost/1"), queues={"crm": TokenBucket("crm", "10/s")}, max_wait=3600)

    A later call replaces all arguments of an earlier call.

    Args:
        limiter: The limiter for jobs whose function names none. Default: the Redis of $THROTTLEKIT_URL, otherwise the
            Redis of the job's queue.
        queues: The limits for every job of a queue, by the queue's name, in addition to the jobs' own limits.
            Only throttlekit's worker classes apply them: a stock worker starts jobs without checking them.
        max_wait: The longest total wait of a job, in seconds from its first denial. The `throttle_max_wait` of an
            enqueue call replaces this value for its job. Default: no limit.
        max_deferrals: The maximum number of denials of a job. Default: no limit.
        on_waited_too_long: The action for a job that exceeds *max_wait* or *max_deferrals*. "fail" fails the job with
            `WaitedTooLong`, even if it has a `Retry`. "drop" cancels it. "run" runs it uncharged, **beyond the limit**.
        max_inline_wait: The maximum number of seconds for which a stock worker sleeps instead of putting a denied job
            back. With 0 it never sleeps. If RQ's scheduler can enqueue the job again, the worker sleeps for at most
            0.05 s, or 1.25 s for a job that the scheduler has already enqueued again, because the scheduler checks
            only once a second.
        own_limits: Whether jobs may carry limits, a `throttle_max_wait` or a `throttle_on_429` of their own, from an
            enqueue call or a `ThrottledQueue(throttle=…)`. If False, a job that carries any of them fails with
            `ConfigurationError`.

    Raises:
        ConfigurationError: An argument can never work.
    """
    if limiter is not None:
        check_limiter(limiter, 'configure takes a limiter: configure(Limiter("redis://…"))')
    of_queues: dict[str, tuple[Limit, ...]] = {}
    for name, spec in (queues or {}).items():
        try:
            of_queues[name] = read_limits(spec)
        except ConfigurationError as error:
            raise ConfigurationError(f"queue {name!r}: {error}") from None
        if limiter is not None:
            limiter.declare(*of_queues[name])
    wait = seconds_in("max_inline_wait", max_inline_wait)
    rules = WaitRules.read(max_wait, max_deferrals, on_waited_too_long)
    _Process.settings = Settings(limiter, of_queues, rules, wait, boolean_in("own_limits", own_limits))


def settings() -> Settings:
    """Return the arguments of the last call of `configure`."""
    return _Process.settings


def limiter_for(connection: Any) -> Limiter:
    """
    Return the limiter of this process for jobs whose function names no limiter.

    Raises:
        ConfigurationError: $THROTTLEKIT_URL is not a valid URL, or no limiter can be created from *connection*.
    """
    if _Process.settings.limiter is not None:
        return _Process.settings.limiter
    url = os.environ.get(_URL)
    named: Any = url or connection.connection_pool
    if named not in _Process.made:
        made = Limiter(url) if url else Limiter(client=connection)
        if not url and not hasattr(named, "sentinel_manager"):  # the address of a Sentinel's service is not unique
            server = made.store_address, named.connection_kwargs.get("username")
            made = _Process.made.setdefault(server, made)
        _Process.made[named] = made
        # `is_first_to_log` costs a request in each work-horse of a stock worker: send none if nothing is logged.
        if not url and _log.isEnabledFor(logging.INFO) and is_first_to_log(connection, "own-store", _LOG_EVERY):
            _log.info(
                "Limits are counted in RQ's own Redis, because neither configure(limiter) nor %s names a store. A "
                "flush of RQ's database forgets all limits.",
                _URL,
            )
    return _Process.made[named]
