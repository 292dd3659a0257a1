"""
The hooks of throttlekit: what a plugin may configure and observe. None can overturn a denial.

A plugin is any object with methods of these names, marked with `throttlekit.hookimpl`. Give it to
`Limiter(plugins=[…])`, or let an installed package name it under the entry point group "throttlekit".
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
"""What becomes of a call while the store does not answer: "closed", "open" or "local"."""
Use: TypeAlias = _Use
"""What is used of a limit: `units`, and `full_us`, the instant from which nothing is used, by the store's clock."""
Outcome: TypeAlias = Literal["succeeded", "failed", "rate limited", "interrupted"]
"""How a body ended. "interrupted": by its framework, like a time limit or a shutdown."""


@dataclass(frozen=True, slots=True)
class StoreFailing:
    """
    The store gave no usable answer, and the call is not decided yet.

    Attributes:
        error: What went wrong, by the name of the error's class.
        limits: Those of the call that are kept in the store.
        job: The job, if the call was for one.
    """

    error: str
    limits: tuple[Limit, ...]
    job: Job | None


class Decided(NamedTuple):  # one is made for each decision, where a plugin listens
    """
    A call of `acquire` was decided.

    Attributes:
        job: The job, if the call was for one.
        decision: The decision, as its caller gets it.
        limits: All limits of the call, of the job's tier.
        uses: What is used of each limit after the decision: `use.units`, of a concurrency limit the slots that are
            held; of a bucket for how many µs it had been full, and lost what came, before a job that waited took of
            it, else 0. None for a limit that was not decided. Empty if no request was sent to the store, or it
            gave no answer.
        due: Seconds until the job's turn: `decision.delay` is that, as far as the framework carries it.
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
        decision: The decision that let it run.
    """

    job: Job
    decision: Decision


class Finished(NamedTuple):
    """
    A job's body has ended.

    Attributes:
        job: The job.
        decision: The decision that let it run.
        outcome: How it ended: "succeeded", "failed", "rate limited" (it raised `RateLimited`) or "interrupted".
        seconds: How long it ran.
    """

    job: Job
    decision: Decision
    outcome: Outcome
    seconds: float


class Settled(NamedTuple):
    """
    A cost was corrected: `settle` charged or gave back the difference.

    Attributes:
        decision: The decision that was settled, as it was before.
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
    A job's body said that downstream answered 429, and the limit is paused for it.

    Attributes:
        job: The job.
        limit: The limit that is paused; an event for each of them.
        retry_after: Seconds of the pause.
        key: The key that is paused; "": the limit counts all jobs together.
    """

    job: Job
    limit: Limit
    retry_after: float
    key: str = ""


@dataclass(frozen=True, slots=True)
class SlotLost:
    """
    A job runs on without its slot of a concurrency limit: one more is at work than the limit says, or may be.

    Attributes:
        decision: The decision that let the job run.
        limit: The limit.
    """

    decision: Decision
    limit: Limit


@dataclass(frozen=True, slots=True)
class StoreFailed:
    """
    A call was decided without the store.

    Attributes:
        error: What went wrong, by the name of the error's class: its text may hold a host or a user.
        limits: Those of the call that are kept in the store.
        outcome: The policy that decided, the strictest of those limits': "closed", "open" or "local".
        decision: What was decided. Of limits that are open nothing is charged.
        job: The job, if the call was for one.
    """

    error: str
    limits: tuple[Limit, ...]
    outcome: OnStoreFailure
    decision: Decision
    job: Job | None


@dataclass(frozen=True, slots=True)
class ShadowDenied:
    """
    A limit in shadow mode would have denied; the job runs.

    Attributes:
        decision: The denial that it would have been.
        job: The job, if the call was for one.
    """

    decision: Decision
    job: Job | None


@hookspec(firstresult=True)
def throttlekit_make_store(url: str) -> Store | None:
    """
    Called once when a limiter is made from a URL, before anything else.

    Return a store for the URLs whose scheme is yours, None for all others. The first store wins; the hooks of plugins
    that were registered later are called first. Anything that is not a store is a `ConfigurationError`.
    """


@hookspec
def throttlekit_limits(job: Job) -> Iterable[Limit] | None:
    """
    Called for each job of a framework before it is admitted, to add limits to those that it names.

    Return limits, or None for no more. A limit whose name the job has already is left out. A result that is not
    limits is logged and left out; so is an exception. Limits are added, never taken away.
    """


@hookspec
def throttlekit_cost(job: Job, limit: Limit) -> int | None:
    """
    Called when the cost of a job under a limit is computed, unless the call has one.

    Return a whole number of units from 0 to what the limit can admit at once, or None for the limit's own cost. The
    first number wins; the hooks of plugins that were registered later are called first. Any other result is logged,
    and the limit's own cost counts; so is an exception.
    """


@hookspec
def throttlekit_key(job: Job, limit: Limit) -> str | int | None:
    """
    Called when the key of a job under a limit with a key is computed, unless the call has one.

    Return the key or the tenant, or None for the limit's own key. The first one wins; the hooks of plugins that were
    registered later are called first. Any other result is logged, and the limit's own key counts; so is an exception.
    A limit without a key counts all jobs together, whatever a plugin says.
    """


@hookspec
def throttlekit_on_store_failure(event: StoreFailing) -> OnStoreFailure | None:
    """
    Called when the store sent no usable reply, before the call is decided without it.

    Return "closed", "open" or "local" for this call, in place of the `on_store_failure` of its limits, or None to
    leave it to them. "local" works only if every limit of the event has a share: it was declared with "local". The
    first policy wins; any other result is logged, and the limits' own policies count; so is an exception.
    """


@hookspec
def throttlekit_decided(event: Decided) -> None:
    """
    Called after each decision of `acquire`, allowed or denied, once for each call.

    In the caller's own thread, and every job waits for it. An exception is logged, every 30 seconds at most; the
    other plugins are called all the same. It cannot be a wrapper. `peek` decides nothing.
    """


@hookspec
def throttlekit_deferred(event: Deferred) -> None:
    """
    Called after each denial of a job, before the job returns to its framework.

    In the worker's own thread. An exception is logged, every 30 seconds at most; the other plugins are called all
    the same. It cannot be a wrapper.
    """


@hookspec
def throttlekit_started(event: Started) -> None:
    """
    Called when the body of a job starts, after the decision that lets it run.

    In the thread of the body, or of its worker. An exception is logged, every 30 seconds at most; the other plugins
    are called all the same. It cannot be a wrapper.
    """


@hookspec
def throttlekit_finished(event: Finished) -> None:
    """
    Called when the body of a job has ended, however it ended.

    In the thread of the body, or of its worker; not if the process is killed. An exception is logged, every 30
    seconds at most; the other plugins are called all the same. It cannot be a wrapper.
    """


@hookspec
def throttlekit_settled(event: Settled) -> None:
    """
    Called after each `settle` that the store has recorded, once for each limit that it corrects.

    In the caller's own thread. An exception is logged, every 30 seconds at most; the other plugins are called all
    the same. It cannot be a wrapper.
    """


@hookspec
def throttlekit_rate_limited(event: RateLimitReceived) -> None:
    """
    Called when a job's body has raised `RateLimited`, once for each limit that is paused for it.

    In the worker's own thread, before the job is deferred. An exception is logged, every 30 seconds at most; the
    other plugins are called all the same. It cannot be a wrapper.
    """


@hookspec
def throttlekit_slot_lost(event: SlotLost) -> None:
    """
    Called once when the slot of a job that runs is lost: other jobs have all slots, or its lease was not renewed.

    In the thread that renews leases. An exception is logged, every 30 seconds at most; the other plugins are called
    all the same. It cannot be a wrapper.
    """


@hookspec
def throttlekit_store_failed(event: StoreFailed) -> None:
    """
    Called after each decision that was made without the store, because it sent no usable reply.

    In the caller's own thread. It observes; `throttlekit_on_store_failure` chooses. An exception is logged, every 30
    seconds at most; the other plugins are called all the same. It cannot be a wrapper.
    """


@hookspec
def throttlekit_shadow_denied(event: ShadowDenied) -> None:
    """
    Called after each decision in which a limit in shadow mode would have denied.

    In the caller's own thread, and before the job runs. An exception is logged, every 30 seconds at most; the other
    plugins are called all the same. It cannot be a wrapper.
    """
