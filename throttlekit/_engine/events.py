"""Plugins are told what happened: each on its own, none able to hurt a job, and nothing made for nobody."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

import pluggy

from throttlekit._core.acquire import Reason, Verdict
from throttlekit._core.decision import Decision
from throttlekit._core.job import Job
from throttlekit._core.limit.base import Limit
from throttlekit._core.limit.local_share import OnStoreFailure
from throttlekit._engine.claims import Claim
from throttlekit._engine.ticket import Ticket
from throttlekit._util.log_limiter import Every
from throttlekit.errors import StoreUnavailable
from throttlekit.hookspecs import Decided, Deferred, ShadowDenied, SlotLost, StoreFailed

__all__ = ["EventDispatcher"]

_log = logging.getLogger("throttlekit")
_new: Callable[..., Decided] = tuple.__new__  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


class EventDispatcher:
    """
    What a limiter tells its plugins.

    Attributes:
        decisions: Whether a plugin wants to hear of each decision.
    """

    def __init__(self, hooks: pluggy.PluginManager) -> None:
        hook = hooks.hook
        self._decided = _Hook(hook.throttlekit_decided)
        self._deferred, self._observed = _Hook(hook.throttlekit_deferred), _Hook(hook.throttlekit_shadow_denied)
        self._lost, self._store_failed = _Hook(hook.throttlekit_slot_lost), _Hook(hook.throttlekit_store_failed)
        self.decisions = bool(self._decided.functions)

    def decided(
        self,
        decision: Decision,
        answer: Verdict | StoreUnavailable,
        asked: Sequence[Claim],
        job: Job | None,
        ticket: Ticket,
        began: float,
    ) -> None:
        """
        Tell of *decision*.

        Args:
            answer: What came of the last question: of those that were waited out in place only the last is told.
            waited: The job's, this denial included.
            began: When it was asked, by `time.perf_counter`.
        """
        ended = time.perf_counter()
        asked_at: float | None = began
        verdict: Verdict | StoreUnavailable | None = answer
        limits = (asked[0].limit,) if len(asked) == 1 else tuple([each.limit for each in asked])
        if isinstance(answer, StoreUnavailable):  # not kept: its traceback holds much
            asked_at, verdict = began if answer.called else None, None
        event = _new(Decided, (job, decision, limits, verdict, ticket, asked_at, ended))
        self._decided.tell(event)

    def decided_unasked(
        self, decision: Decision, limits: Sequence[Limit], job: Job | None, ticket: Ticket, now_us: int
    ) -> None:
        """Tell of a *decision* on *limits* for which the store was not asked."""
        if self.decisions:
            reason = Reason.ALLOWED if decision.allowed else Reason.PAUSED
            due_us = now_us + round(decision.delay * 1_000_000)
            verdict = Verdict(reason, 0, now_us, due_us, due_us, ())
            told = tuple([limit.for_job(job) for limit in limits])
            self._decided.tell(Decided(job, decision, told, verdict, ticket, None, time.perf_counter()))

    def deferred(self, job: Job, decision: Decision, deferrals: int, ticket: float) -> None:
        self._deferred.tell(Deferred(job, decision, deferrals, ticket))

    def observed(self, denial: Decision, job: Job | None) -> None:
        self._observed.tell(ShadowDenied(denial, job))

    def lost(self, decision: Decision, limit: Limit) -> None:
        self._lost.tell(SlotLost(decision, limit))

    def store_failed(
        self,
        error: StoreUnavailable,
        asked: Sequence[Claim],
        outcome: OnStoreFailure,
        decision: Decision,
        job: Job | None,
    ) -> None:
        limits = tuple([each.limit for each in asked if not each.in_process])
        fault = type(error.__cause__ or error).__name__
        self._store_failed.tell(StoreFailed(fault, limits, outcome, decision, job))


class _Hook:
    """
    One hook of those who listen: found once, for the plugins of a limiter never change.

    Attributes:
        functions: What they are called with: the event, nothing else.
    """

    __slots__ = ("_failed", "_name", "functions")

    def __init__(self, hook: pluggy.HookCaller) -> None:
        self._name, self._failed = hook.name, Every()
        self.functions = [_taking_one(each) for each in reversed(hook.get_hookimpls())]

    def tell(self, event: object) -> None:
        """Call each plugin's on its own: one that fails keeps nothing from the others."""
        for function in self.functions:
            try:
                function(event)
            except Exception:
                if self._failed.due():
                    _log.exception("A plugin failed in %s; everything goes on all the same.", self._name)


def _taking_one(hook: pluggy.HookImpl) -> Callable[[object], object]:
    """pluggy lets an implementation leave out the arguments that it does not need."""
    function: Callable[..., object] = hook.function
    return function if hook.argnames else lambda event: function()
