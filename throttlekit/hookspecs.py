"""
The hooks of throttlekit, with which a plugin configures and observes limits. No hook can turn a denial into a grant.

A plugin is any object with methods of these names, marked with `throttlekit.hookimpl`. Pass it to
`Limiter(plugins=[…])`, or name it in an installed package under the entry point group "throttlekit".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import pluggy

from throttlekit._core.algorithm import Use as _Use
from throttlekit._core.decision import Decision
from throttlekit._core.job import Job
from throttlekit._core.limit.base import Limit
from throttlekit._core.limit.options import OnStoreFailure as _OnStoreFailure
from throttlekit.stores.base import Store

__all__ = [
    "PROJECT",
    "Decided",
    "Deferred",
    "Finished",
    "OnStoreFailure",
    "Outcome",
    "RateLimitReceived",
    "Settled",
    "ShadowDenied",
    "SlotLost",
    "Started",
    "StoreFailed",
    "StoreFailing",
    "Use",
    "hookimpl",
    "hookspec",
    "throttlekit_cost",
    "throttlekit_decided",
    "throttlekit_deferred",
    "throttlekit_finished",
    "throttlekit_key",
    "throttlekit_limits",
    "throttlekit_make_store",
    "throttlekit_on_store_failure",
    "throttlekit_rate_limited",
    "throttlekit_settled",
    "throttlekit_shadow_denied",
    "throttlekit_slot_lost",
    "throttlekit_started",
    "throttlekit_store_failed",
]

PROJECT = "throttlekit"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

OnStoreFailure: TypeAlias = _OnStoreFailure
"""The policy for calls while the store does not answer: "closed", "open" or "local"."""
Use: TypeAlias = _Use
"""The use of a limit: the `units` in use, and `full_us`, the store's time from which no unit is in use."""
Outcome: TypeAlias = Literal["succeeded", "failed", "rate limited", "interrupted"]
"""How a body ended. "interrupted" means that its framework ended it, for example by a time limit or a shutdown."""


@dataclass(frozen=True, slots=True)
class StoreFailing:
    """
    The store gave no usable answer, and the call is not decided yet.

    Attributes:
        error: The name of the error's class.
        limits: The limits of the call that are kept in the store.
        job: The job; None if the call was not for a job.
    """

    error: str
    limits: tuple[Limit, ...]
    job: Job | None


class Decided(NamedTuple):  # created for each decision, if a plugin listens
    """
    A call of `acquire` was decided.

    Attributes:
        job: The job; None if the call was not for a job.
        decision: The decision, as its caller gets it.
        limits: All limits of the call, of the job's tier.
        uses: The use of each limit after the decision; None for a limit that was not decided. `use.units` is, for a
            concurrency limit, the number of held slots, and for a bucket 0. The list is empty if no request was sent to
            the store, or the store gave no answer.
        due: Seconds until the job's turn. `decision.delay` is shorter if the framework does not support such a delay.
        took: Seconds until the store answered or the request failed. None if no request was sent.
    """

    job: Job | None
    decision: Decision
    limits: tuple[Limit, ...]
    uses: tuple[Use | None, ...]
    due: float
    took: float | None


class Deferred(NamedTuple):
    """
    A job was denied, and waits.

    Attributes:
        job: The job.
        decision: The denial, with the job's position, its deferrals, and the time that it has waited.
    """

    job: Job
    decision: Decision


class Started(NamedTuple):
    """
    A job's body starts.

    Attributes:
        job: The job.
        decision: The decision that admitted the job.
    """

    job: Job
    decision: Decision


class Finished(NamedTuple):
    """
    A job's body has ended.

    Attributes:
        job: The job.
        decision: The decision that admitted the job.
        outcome: How the body ended: "succeeded", "failed", "rate limited" (it raised `RateLimited`) or "interrupted".
        seconds: The run time of the body in seconds.
    """

    job: Job
    decision: Decision
    outcome: Outcome
    seconds: float


class Settled(NamedTuple):
    """
    A cost was corrected: `settle` charged or refunded the difference.

    Attributes:
        decision: The decision before the correction.
        limit: The limit.
        charged: The units that were charged before.
        actual: The units that are charged now.
    """

    decision: Decision
    limit: Limit
    charged: int
    actual: int


class RateLimitReceived(NamedTuple):
    """
    A job's body raised `RateLimited` after a 429 of the partner, and a limit is paused.

    Attributes:
        job: The job.
        limit: The limit that is paused. Each paused limit has its own event.
        retry_after: The length of the pause in seconds.
        key: The key that is paused; "" if the limit counts all jobs together.
    """

    job: Job
    limit: Limit
    retry_after: float
    key: str = ""


@dataclass(frozen=True, slots=True)
class SlotLost:
    """
    A job still runs without its slot of a concurrency limit, so one job more than the limit allows may run.

    Attributes:
        decision: The decision that admitted the job.
        limit: The limit.
    """

    decision: Decision
    limit: Limit


@dataclass(frozen=True, slots=True)
class StoreFailed:
    """
    A call was decided without the store.

    Attributes:
        error: The name of the error's class. The error's text is omitted, because it may contain a host or a user.
        limits: The limits of the call that are kept in the store.
        outcome: The policy that decided, which is the strictest of these limits: "closed", "open" or "local".
        decision: The decision. Limits with the policy "open" are not charged.
        job: The job; None if the call was not for a job.
    """

    error: str
    limits: tuple[Limit, ...]
    outcome: OnStoreFailure
    decision: Decision
    job: Job | None


@dataclass(frozen=True, slots=True)
class ShadowDenied:
    """
    A limit in shadow mode would have denied a job, which runs.

    Attributes:
        decision: The denial that the limit would have caused.
        job: The job; None if the call was not for a job.
    """

    decision: Decision
    job: Job | None


@hookspec(firstresult=True)
def throttlekit_make_store(url: str) -> Store | None:
    """
    Called once for each URL of a new limiter, before anything else.

    Return a store for URLs with a scheme of the plugin, and None for all others. The first store is used. Plugins that
    were registered later are called first. A result that is not a store raises `ConfigurationError`.
    """


@hookspec
def throttlekit_limits(job: Job) -> Iterable[Limit] | None:
    """
    Called for each job of a framework before it is admitted, to add limits to those that it names.

    Return the limits to add, or None. A limit whose name the job already has is skipped. An exception, or a result that
    is not limits, is logged and skipped. A plugin cannot remove limits.
    """


@hookspec
def throttlekit_cost(job: Job, limit: Limit) -> int | None:
    """
    Called when the cost of a job under a limit is computed, unless the call has one.

    Return a whole number of units from 0 to what the limit can admit at once, or None for the limit's own cost. Of a
    concurrency limit, the units are slots; with *adapt* or *held_by*, a job holds at most one, and a higher number is a
    `ConfigurationError` for the caller. The first number is used. Plugins that were registered later are called first.
    After an exception or another result, which is logged, the limit's own cost is used.
    """


@hookspec
def throttlekit_key(job: Job, limit: Limit) -> str | int | None:
    """
    Called when the key of a job under a limit with a key is computed, unless the call has one.

    Return the key, or None for the limit's own key. The first key is used. Plugins that were registered later are
    called first. After an exception or another result, which is logged, the limit's own key is used. The hook is not
    called for a limit without a key, which counts all jobs together.
    """


@hookspec
def throttlekit_on_store_failure(event: StoreFailing) -> OnStoreFailure | None:
    """
    Called when the store sent no usable reply, before the call is decided without it.

    Return "closed", "open" or "local" for this call, in place of the `on_store_failure` of its limits, or None to use
    that. "local" is valid only if every limit of the event was declared with "local", and so has a share. The first
    policy is used. After an exception or another result, which is logged, the limits' own policies are used.
    """


@hookspec
def throttlekit_decided(event: Decided) -> None:
    """
    Called after each decision of `acquire`, allowed or denied, once for each call.

    It is called in the caller's thread, and every job waits for it. An exception is logged, at most every 30 seconds,
    and the other plugins are still called. The hook cannot be a wrapper. It is not called for `peek`.
    """


@hookspec
def throttlekit_deferred(event: Deferred) -> None:
    """
    Called after each denial of a job, before the job returns to its framework.

    It is called in the worker's thread. An exception is logged, at most every 30 seconds, and the other plugins are
    still called. The hook cannot be a wrapper.
    """


@hookspec
def throttlekit_started(event: Started) -> None:
    """
    Called when the body of a job starts, after the decision that lets it run.

    It is called in the thread of the body, or of its worker. An exception is logged, at most every 30 seconds, and the
    other plugins are still called. The hook cannot be a wrapper.
    """


@hookspec
def throttlekit_finished(event: Finished) -> None:
    """
    Called when the body of a job has ended, however it ended.

    It is called in the thread of the body, or of its worker, but not if the process is killed. An exception is logged,
    at most every 30 seconds, and the other plugins are still called. The hook cannot be a wrapper.
    """


@hookspec
def throttlekit_settled(event: Settled) -> None:
    """
    Called after each `settle` that the store has recorded, once for each limit that it corrects.

    It is called in the caller's thread. An exception is logged, at most every 30 seconds, and the other plugins are
    still called. The hook cannot be a wrapper.
    """


@hookspec
def throttlekit_rate_limited(event: RateLimitReceived) -> None:
    """
    Called when a job's body has raised `RateLimited`, once for each limit that is paused for it.

    It is called in the worker's thread, before the job is deferred. An exception is logged, at most every 30 seconds,
    and the other plugins are still called. The hook cannot be a wrapper.
    """


@hookspec
def throttlekit_slot_lost(event: SlotLost) -> None:
    """
    Called once when the slot of a job that runs is lost: other jobs have all slots, or its lease was not renewed.

    It is called in the thread that renews leases. An exception is logged, at most every 30 seconds, and the other
    plugins are still called. The hook cannot be a wrapper.
    """


@hookspec
def throttlekit_store_failed(event: StoreFailed) -> None:
    """
    Called after each decision that was made without the store, because it sent no usable reply.

    It is called in the caller's thread, and cannot change the decision: use `throttlekit_on_store_failure` for that. An
    exception is logged, at most every 30 seconds, and the other plugins are still called. The hook cannot be a wrapper.
    """


@hookspec
def throttlekit_shadow_denied(event: ShadowDenied) -> None:
    """
    Called after each decision in which a limit in shadow mode would have denied.

    It is called in the caller's thread, before the job runs. An exception is logged, at most every 30 seconds, and the
    other plugins are still called. The hook cannot be a wrapper.
    """
