"""
The hooks of throttlekit: what a plugin may observe and configure. None can overturn a denial.

A plugin is any object with methods of these names, marked with `throttlekit.hookimpl`. Give it to
`Limiter(plugins=[…])`, or let an installed package name it under the entry point group "throttlekit".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import pluggy

from throttlekit._core.acquire import Verdict
from throttlekit._core.algorithm import Use
from throttlekit._core.decision import Decision
from throttlekit._core.job import Job
from throttlekit._core.limit.base import Limit
from throttlekit._core.limit.local_share import OnStoreFailure
from throttlekit._engine.ticket import Ticket
from throttlekit.stores.base import Store

__all__ = [
    "PROJECT",
    "Decided",
    "Deferred",
    "ShadowDenied",
    "SlotLost",
    "StoreFailed",
    "hookimpl",
    "hookspec",
    "throttlekit_decided",
    "throttlekit_deferred",
    "throttlekit_make_store",
    "throttlekit_shadow_denied",
    "throttlekit_slot_lost",
    "throttlekit_store_failed",
]

PROJECT = "throttlekit"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class Decided(NamedTuple):  # one is made for each decision: what else is told is worked out for who asks
    """
    A call of `acquire` was decided.

    Attributes:
        job: The job, if the call was for one.
        decision: The decision, as its caller gets it.
        limits: All limits of the call, of the job's tier.
        verdict: For throttlekit itself: the store's answer. None: it gave none.
        history: For throttlekit itself: what the job has waited by now.
        began, ended: By `time.perf_counter`: when the last question was put, and when this was told. No beginning:
            the store was not asked.
    """

    job: Job | None
    decision: Decision
    limits: tuple[Limit, ...]
    verdict: Verdict | None
    history: Ticket
    began: float | None
    ended: float

    @property
    def uses(self) -> tuple[Use | None, ...]:
        """
        What is used of each limit after the decision: `use.units`, of a concurrency limit its holders; of a bucket
        always 0. None for one that was not asked. Empty if the store was not asked, or gave no answer.
        """
        return self.verdict.uses if self.verdict is not None else ()

    @property
    def deferrals(self) -> int:
        """How often the job has been denied by now, this time included."""
        return self.history.deferrals

    @property
    def waited(self) -> float:
        """Seconds since its first denial, by the store's clock. 0.0 if there was none, and while the store is away."""
        return self.history.seconds(self.verdict.now_us) if self.verdict is not None else 0.0

    @property
    def slot(self) -> float:
        """Seconds until the slot that a denial gave: `decision.delay` is that, as far as the framework carries it."""
        verdict = self.verdict
        return (verdict.due_us - verdict.now_us) / 1_000_000 if verdict is not None else 0.0

    @property
    def took(self) -> float | None:
        """Seconds that the store took to answer, or not to. None if it was not asked."""
        if self.began is None:
            return None
        if self.verdict is not None and not any(
            use is not None and limit.scope != "process"
            for limit, use in zip(self.limits, self.verdict.uses, strict=True)
        ):
            return None
        return self.ended - self.began


@dataclass(frozen=True, slots=True)
class Deferred:
    """
    A job was denied and goes back to its framework.

    Attributes:
        deferrals: How often this job has been denied by now, this time included. To come back before
            its slot, and to be sent away for the rest, is not counted again.
        waited: Seconds since its first denial, by the store's clock.
    """

    job: Job
    decision: Decision
    deferrals: int
    waited: float


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
    A limit that is only observed would have denied; the job runs.

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

    Return a store for the URLs whose scheme is yours, None for all others. The first store wins;
    later plugins are asked first. What is not a store is a `ConfigurationError`.
    """


@hookspec
def throttlekit_decided(event: Decided) -> None:
    """
    Called after each decision of `acquire`, allowed or denied, once for each call.

    In the caller's own thread: be quick, every job waits for it. An exception is swallowed, and logged every 30
    seconds at most; the other plugins are called all the same. It cannot be a wrapper. `peek` decides nothing.
    """


@hookspec
def throttlekit_deferred(event: Deferred) -> None:
    """
    Called after each denial of a job, before the job is handed back to its framework.

    In the worker's own thread: be quick. An exception is swallowed, and logged every 30 seconds at
    most; the other plugins are called all the same. It cannot be a wrapper.
    """


@hookspec
def throttlekit_slot_lost(event: SlotLost) -> None:
    """
    Called once when the store says that others have all the slots of a limit of which a job here runs on, or when
    it has not answered for as long as the job's lease lasts.

    In the thread that renews leases: be quick. An exception is swallowed, and logged every 30 seconds at
    most; the other plugins are called all the same. It cannot be a wrapper.
    """


@hookspec
def throttlekit_store_failed(event: StoreFailed) -> None:
    """
    Called after each decision that was made without the store, because that gave no usable answer.

    In the caller's own thread: be quick. It observes: what is decided is the limits' `on_store_failure`. An exception
    is swallowed, and logged every 30 seconds at most; the other plugins are called all the same. It cannot be a
    wrapper.
    """


@hookspec
def throttlekit_shadow_denied(event: ShadowDenied) -> None:
    """
    Called after each decision in which a limit that is only observed would have denied.

    In the caller's own thread, and before the job runs: be quick. An exception is swallowed, and logged every 30
    seconds at most; the other plugins are called all the same. It cannot be a wrapper.
    """
