"""
Ready-made plugins. Four configure jobs from mappings: `Limiter(plugins=[LimitsFor(queue={"reports": [partner]})])`.
`RunLog` logs at DEBUG how jobs run.

For anything that a mapping cannot express, write your own plugin: see docs/hooks.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias, get_args

from throttlekit._core.job import Job
from throttlekit._core.limit.base import Limit
from throttlekit._core.limit.template import check_source, from_job, safe_repr
from throttlekit._engine.events import limits_in
from throttlekit.errors import ConfigurationError
from throttlekit.hookspecs import Finished, OnStoreFailure, Settled, Started, StoreFailing, hookimpl

__all__ = ["CostFor", "FailureFor", "KeyFor", "LimitsFor", "RunLog"]

_Limits: TypeAlias = "Limit | Iterable[Limit]"


class LimitsFor:
    """
    Adds limits to jobs by their queue or their name, in addition to the limits that the jobs declare.

    Args:
        queue: Limits by the name of the queue.
        name: Limits by the name of the actor, function or task.

    Raises:
        ConfigurationError: A value is neither a limit nor several limits.
    """

    def __init__(
        self, *, queue: Mapping[str, _Limits] | None = None, name: Mapping[str, _Limits] | None = None
    ) -> None:
        self._queue = {key: _limits(limits) for key, limits in (queue or {}).items()}
        self._name = {key: _limits(limits) for key, limits in (name or {}).items()}

    @hookimpl
    def throttlekit_limits(self, job: Job) -> tuple[Limit, ...]:
        return (*self._queue.get(job.queue, ()), *self._name.get(job.name, ()))


class CostFor:
    """
    Sets the cost of jobs under a limit, in place of the declared one.

    Args:
        costs: The costs by the limit's name: a number of units, or a callable that takes the job.
    """

    def __init__(self, costs: Mapping[str, int | Callable[[Job], int | None]]) -> None:
        self._costs = dict(costs)

    @hookimpl
    def throttlekit_cost(self, job: Job, limit: Limit) -> int | None:
        cost = self._costs.get(limit.name)
        return cost(job) if callable(cost) else cost


class KeyFor:
    """
    Sets the key of jobs under a limit, in place of the declared one.

    Args:
        keys: The keys by the limit's name: a template with the job's arguments, like "{account_id}", or a callable
            that takes the job.

    Raises:
        ConfigurationError: A template is not valid.
    """

    def __init__(self, keys: Mapping[str, str | Callable[[Job], str | int | None]]) -> None:
        self._keys = dict(keys)
        for key in self._keys.values():
            check_source("key", key)

    @hookimpl
    def throttlekit_key(self, job: Job, limit: Limit) -> str | int | None:
        key = self._keys.get(limit.name)
        return None if key is None else from_job("key", key, job)  # type: ignore[return-value]


class FailureFor:
    """
    Selects the policy for calls while the store does not answer, in place of the limits' `on_store_failure`.

    If a call has several limits, the strictest policy decides: "closed", then "local", then "open".

    Args:
        policies: The policies by the limit's name. Limits that are not named keep their own policy.

    Raises:
        ConfigurationError: A policy is none of these three.
    """

    def __init__(self, policies: Mapping[str, OnStoreFailure]) -> None:
        self._policies = dict(policies)
        for policy in self._policies.values():
            if policy not in get_args(OnStoreFailure):
                raise ConfigurationError(f'a policy is "closed", "open" or "local", not {safe_repr(policy)}')

    @hookimpl
    def throttlekit_on_store_failure(self, event: StoreFailing) -> OnStoreFailure | None:
        if all(limit.name not in self._policies for limit in event.limits):
            return None
        policies: list[OnStoreFailure] = [
            self._policies.get(limit.name, limit.on_store_failure) for limit in event.limits
        ]
        strictest: tuple[OnStoreFailure, ...] = ("closed", "local", "open")
        return min(policies, key=strictest.index)


class RunLog:
    """Logs at DEBUG that a throttled job started, how it ended, and its corrected cost."""

    def __init__(self) -> None:
        self._log = logging.getLogger("throttlekit")

    @hookimpl
    def throttlekit_started(self, event: Started) -> None:
        self._log.debug("Job %s (%s) starts.", event.job.id, event.job.name)

    @hookimpl
    def throttlekit_finished(self, event: Finished) -> None:
        self._log.debug("Job %s (%s) %s after %.3f s.", event.job.id, event.job.name, event.outcome, event.seconds)

    @hookimpl
    def throttlekit_settled(self, event: Settled) -> None:
        self._log.debug(
            "Limit %r: a job took %d units, and was charged %d.", event.limit.name, event.actual, event.charged
        )


def _limits(limits: _Limits) -> tuple[Limit, ...]:
    return (limits,) if isinstance(limits, Limit) else limits_in(limits)
