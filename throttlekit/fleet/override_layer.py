"""The top layer: applies the rules of live control to the limits of a call."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from throttlekit._core.algorithms.concurrency import Concurrency
from throttlekit._core.answer import NOT_WAITED, Answer, Caller, Reason, Requester, Waited
from throttlekit._core.decision import Charged, Decision
from throttlekit._core.limit.base import Limit
from throttlekit._engine.call import Call
from throttlekit._engine.claims import Attempt, Claim, decision_from
from throttlekit._engine.pipeline import Pipeline
from throttlekit.errors import CostExceedsLimit, StoreUnavailable
from throttlekit.fleet.fleet import Fleet
from throttlekit.fleet.overrides import Paused
from throttlekit.fleet.rules import Rule
from throttlekit.hookspecs import ShadowDenied
from throttlekit.stores.base import Request

__all__ = ["OverrideLayer"]


class OverrideLayer:
    """
    Decides calls with the rules in force, which change a limit's rate, pause it, or set shadow mode.

    While no rule is in force, it passes every call to *pipeline*, which also decides each limit in shadow mode
    separately, and defers jobs of a paused limit.
    """

    def __init__(self, fleet: Fleet, pipeline: Pipeline) -> None:
        self._fleet, self._pipeline = fleet, pipeline

    def acquire(self, call: Call) -> Decision:
        if not self._fleet.has_overrides():
            return self._pipeline.acquire(call)
        overrides, resolver = self._fleet.overrides, self._pipeline.resolver
        resolver.registry.check(call)
        overridden = overrides.apply(call, resolver)
        if overridden.paused is not None:
            return self._hold_back(call, overridden.paused)
        try:
            shadowed, too_dear = self._shadow_claims(call, overridden.shadow)
            found = self._pipeline.acquire(call._replace(limits=overridden.limits)) if overridden.limits else None
        except CostExceedsLimit as error:
            return self._hold_back(call, overrides.too_dear(error, call))
        if found is not None and not (found.allowed and shadowed):
            return found
        decisions = [] if found is None else [found]
        decisions += [self._decide_in_shadow(call, each, too_dear.get(each.limit.name)) for each in shadowed]
        if call.peek:
            return replace(decisions[0], charged=())
        decision = replace(decisions[0], charged=tuple(each for one in decisions for each in one.charged))
        if call.delivery.waits is not None:  # the job may have waited for a limit now in shadow mode
            call.delivery.waits.waker.leave_lists(call.id, [each.claim for each in shadowed])
        if found is None:
            self._pipeline.events.emit_decided_locally(decision, call.limits, call.job)
        return decision

    def _decide_in_shadow(self, call: Call, claim: Claim, too_dear: Rule | None) -> Decision:
        """
        Return a grant for the limit of *claim*, which is in shadow mode: it decides and counts, but denies no job. A
        denial that it would have caused is an event. While the store is unavailable, the grant charges nothing.

        Args:
            too_dear: The rule whose rate can never admit the cost, or None.
        """
        if too_dear is not None:
            one = self._fleet.overrides.deny_during_pause(claim, too_dear, NOT_WAITED)
        else:
            try:
                one = self._decide_alone(call, claim)
            except StoreUnavailable:
                one = Decision(
                    allowed=True,
                    limit=claim.limit,
                    key=claim.key,
                    cost=claim.cost,
                    reason="store unavailable",
                )
        if not one.allowed:
            if not call.peek:
                self._pipeline.events.shadow_denied.emit(ShadowDenied(one, call.job))
            one = replace(one, allowed=True, retry_after=0.0, delay=0.0, reason="allowed")
        if one.charged or isinstance(claim.limit, Concurrency):  # slots cannot be settled
            return one
        nothing = Charged(claim.limit, "", claim.cost, time.time_ns() // 1000, callable(claim.limit.cost))
        return replace(one, charged=(nothing,))  # so that `settle` finds the limit

    def _decide_alone(self, call: Call, claim: Claim) -> Decision:
        """Decide one limit in shadow mode, for a caller that keeps no position."""
        caller = Caller.PEEK if call.peek else Caller.WITHOUT_JOB
        request = Request([claim.claim], Requester(caller))
        answer = self._pipeline.decide(Attempt(call, [claim], request))
        decision = decision_from(answer, [claim])
        if not call.peek:
            self._fleet.count(decision, [claim], answer, NOT_WAITED, None)
        return decision

    def _shadow_claims(self, call: Call, limits: Sequence[Limit]) -> tuple[list[Claim], dict[str, Rule]]:
        """
        Return the claims of *limits*, which are in shadow mode, and, by the limit's name, the rate rules that can never
        admit the call's cost.
        """
        claims: list[Claim] = []
        too_dear: dict[str, Rule] = {}
        for limit in limits:
            try:
                claims += self._claims(call, limit)
            except CostExceedsLimit as error:
                held = self._fleet.overrides.too_dear(error, call)
                claims += self._claims(call, held.limit)
                too_dear[limit.name] = held.rule
        return claims, too_dear

    def _hold_back(self, call: Call, paused: Paused) -> Decision:
        """Return the denial of a call that a rule pauses. Defer its job."""
        fleet, job = self._fleet, call.waiting
        try:
            (claim,) = self._claims(call, paused.limit)
        except CostExceedsLimit as error:
            paused = fleet.overrides.too_dear(error, call)
            (claim,) = self._claims(call, paused.limit)
        known, waits, found = NOT_WAITED, call.delivery.waits, None
        if waits is not None:
            known = waits.waker.waited_of(call.id)
        elif call.job is not None:
            found = self._pipeline.where(call, self._in_force(call, call.cost))
            known = NOT_WAITED if found is None else Waited(found.for_us, 1, found.claim)
        waited = known._replace(denials=max(1, known.denials))
        of_job = known._replace(denials=0) if job is None else waited  # a caller without a job has no deferrals
        decision = fleet.overrides.deny_during_pause(claim, paused.rule, of_job)
        if found is not None and paused.rule.what == "pause":  # its units may be free only after the pause
            decision = replace(decision, delay=max(decision.delay, found.in_us / 1_000_000))
        if call.peek:
            return decision
        now_us = fleet.follower.now_us()
        back_us = now_us + round(decision.delay * 1_000_000)
        answer = Answer(Reason.PAUSED, 0, now_us, back_us, (None,))
        fleet.count(decision, [claim], answer, waited, job)
        if waits is not None or job is not None:
            stops = claim.claim.bucket if paused.rule.what == "pause" else ""
            units = [each.claim for each in self._in_force(call, 1)]
            decision = self._pipeline.defer(call, decision, waited, claims=units, stops=stops)
        self._pipeline.events.emit_decided_locally(decision, [claim.limit], call.job)
        return decision

    def _in_force(self, call: Call, cost: int | None) -> list[Claim]:
        """Return the claims of *call* at the current rates; of one unit each if its cost exceeds one of its limits."""
        limits = self._fleet.overrides.in_force(call.limits, call.real_job)
        try:
            return self._pipeline.resolver.resolve(call._replace(limits=limits, cost=cost), remember=False)
        except CostExceedsLimit:
            return self._in_force(call, 1)

    def _claims(self, call: Call, limit: Limit) -> list[Claim]:
        return self._pipeline.resolver.resolve(call._replace(limits=[limit]), remember=False)
