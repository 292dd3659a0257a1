"""Plugins are told what happened: each on its own, none able to hurt a job, and nothing made for nobody."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import pluggy

from throttlekit._asked import Asked
from throttlekit._core.acquire import Verdict
from throttlekit._core.decision import Decision
from throttlekit._core.job import Job
from throttlekit._core.limits import Limit
from throttlekit._core.sharing import OnStoreFailure
from throttlekit._seldom import Seldom
from throttlekit._waited import Waited
from throttlekit.errors import StoreUnavailable
from throttlekit.hookspecs import Decided, Deferred, Observed, SlotLost, StoreFailed

__all__ = ["Telling"]

_log = logging.getLogger("throttlekit")


class Telling:
    """
    What a limiter tells its plugins.

    Attributes:
        decisions: Whether a plugin wants to hear of each decision.
    """

    def __init__(self, hooks: pluggy.PluginManager) -> None:
        self._hook = hooks.hook
        self.decisions = bool(self._hook.throttlekit_decided.get_hookimpls())
        self._failed = Seldom()

    def decided(
        self,
        decision: Decision,
        answer: Verdict | StoreUnavailable,
        asked: Sequence[Asked],
        job: Job | None,
        waited: Waited,
        began: float,
    ) -> None:
        """
        Tell of *decision*.

        Args:
            answer: What came of the last question: of those that were waited out in place only the last is told.
            waited: The job's, this denial included.
            began: When it was asked, by `time.perf_counter`.
        """
        took: float | None = time.perf_counter() - began
        limits = tuple([each.limit for each in asked])
        if isinstance(answer, StoreUnavailable):
            took = took if answer.asked else None
            self._each(
                self._hook.throttlekit_decided,
                Decided(decision, limits, (), job, waited.deferrals, 0.0, 0.0, took),
            )
            return
        uses, now_us = answer.uses, answer.now_us
        for limit, use in zip(limits, uses, strict=True):
            if use is not None and limit.scope != "process":
                break
        else:
            took = None
        since = waited.seconds(now_us) if waited.since_us else 0.0
        slot = (answer.slot_us - now_us) / 1_000_000
        self._each(
            self._hook.throttlekit_decided, Decided(decision, limits, uses, job, waited.deferrals, since, slot, took)
        )

    def decided_unasked(
        self, decision: Decision, limits: Sequence[Limit], job: Job | None, waited: Waited, now_us: int
    ) -> None:
        """Tell of a *decision* on *limits* for which the store was not asked."""
        if self.decisions:
            limits = tuple([limit.for_job(job) for limit in limits])
            event = Decided(decision, limits, (), job, waited.deferrals, waited.seconds(now_us), decision.delay, None)
            self._each(self._hook.throttlekit_decided, event)

    def deferred(self, job: Job, decision: Decision, deferrals: int, waited: float) -> None:
        self._each(self._hook.throttlekit_deferred, Deferred(job, decision, deferrals, waited))

    def observed(self, denial: Decision, job: Job | None) -> None:
        self._each(self._hook.throttlekit_observed, Observed(denial, job))

    def lost(self, decision: Decision, limit: Limit) -> None:
        self._each(self._hook.throttlekit_lease_lost, SlotLost(decision, limit))

    def store_failed(
        self,
        error: StoreUnavailable,
        asked: Sequence[Asked],
        outcome: OnStoreFailure,
        decision: Decision,
        job: Job | None,
    ) -> None:
        limits = tuple([each.limit for each in asked if not each.in_process])
        fault = type(error.__cause__ or error).__name__
        self._each(self._hook.throttlekit_store_failed, StoreFailed(fault, limits, outcome, decision, job))

    def _each(self, hook: pluggy.HookCaller, event: object) -> None:
        """Call each plugin's *hook* on its own: one that fails keeps nothing from the others."""
        for each in reversed(hook.get_hookimpls()):
            try:
                each.function(event) if each.argnames else each.function()
            except Exception:
                if self._failed.due():
                    _log.exception("A plugin failed in %s; everything goes on all the same.", hook.name)
