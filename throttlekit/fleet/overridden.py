"""A call of `acquire` or `peek` while the fleet was told something about limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from throttlekit._core.acquire import Caller, Reason, Verdict
from throttlekit._core.decision import Decision
from throttlekit._core.job import Job
from throttlekit._core.limit.base import Limit
from throttlekit._engine.claims import Claim, decision_from, resolve_claims
from throttlekit._engine.delivery import Delivery
from throttlekit._engine.ticket import Ticket
from throttlekit.errors import CostExceedsLimit
from throttlekit.fleet.overrides import Paused
from throttlekit.fleet.rules import Rule
from throttlekit.fleet.shadow import observe
from throttlekit.stores.base import Request

if TYPE_CHECKING:
    from throttlekit._engine.pipeline import Pipeline

__all__ = ["acquire_overridden", "peek_overridden"]


def acquire_overridden(
    deciding: Pipeline,
    limits: Sequence[Limit],
    job: Job | None,
    key: str | int | None,
    cost: int | None,
    delivery: Delivery,
) -> Decision:
    """As `Limiter.acquire`, on *limits* as they count now: with another rate, paused, observed."""

    def ask(enforced: Sequence[Limit]) -> Decision:
        return deciding.ask(enforced, job, key, cost, delivery)

    def alone(asked: Claim) -> Decision:
        verdict = deciding.decide(Request([asked.claim], Caller.GUEST), [asked])
        decision = decision_from(verdict, [asked])
        deciding.fleet.decided(decision, asked.claim.bucket, verdict, Ticket(), None)
        return decision

    call = _Call(deciding, limits, job, key, cost, delivery)
    found = call.decided(ask, alone, lambda denial: deciding.events.observed(denial, job))
    if isinstance(found, Paused):
        return _held_back(call, found)
    decision, asked = found
    if not asked:
        deciding.events.decided_unasked(decision, limits, job, Ticket(), 0)
    return decision


def peek_overridden(
    deciding: Pipeline,
    limits: Sequence[Limit],
    job: Job | None,
    key: str | int | None,
    cost: int | None,
    delivery: Delivery,
) -> Decision:
    """As `Limiter.peek`, on *limits* as they count now."""

    def ask(enforced: Sequence[Limit]) -> Decision:
        return deciding.look(enforced, job, key, cost, delivery)

    def alone(asked: Claim) -> Decision:
        return decision_from(deciding.decide(Request([asked.claim], Caller.PEEK), [asked]), [asked])

    call = _Call(deciding, limits, job, key, cost, delivery)
    found = call.decided(ask, alone, lambda denial: None)
    if isinstance(found, Paused):
        asked, rule = call.limited_by(found)
        return deciding.fleet.overrides.held_back(asked, rule, Ticket())[0]
    return replace(found[0], charged=())


@dataclass(frozen=True, slots=True)
class _Call:
    deciding: Pipeline
    limits: Sequence[Limit]
    job: Job | None
    key: str | int | None
    cost: int | None
    delivery: Delivery

    def decided(
        self,
        ask: Callable[[Sequence[Limit]], Decision],
        alone: Callable[[Claim], Decision],
        tell: Callable[[Decision], None],
    ) -> tuple[Decision, bool] | Paused:
        """
        The decision, and whether *ask* was asked for it; or what holds the call back.

        Args:
            ask: Asks of the limits that are enforced.
            alone: Asks of one that is observed.
            tell: Told what such a one would have denied.
        """
        overrides = self.deciding.fleet.overrides
        overridden = overrides.apply(self.limits, self.job, self.key)
        if overridden.paused is not None:
            return overridden.paused
        try:
            observed, dear = self._observed(overridden.observed)
            found = ask(overridden.limits) if overridden.limits else None
        except CostExceedsLimit as error:
            return overrides.too_dear(error, self.limits, self.job)
        if found is not None and not found.allowed:
            return found, True

        def of_one(asked: Claim) -> Decision:
            if asked.limit.name in dear:
                return overrides.held_back(asked, dear[asked.limit.name], Ticket())[0]
            return alone(asked)

        return observe(observed, found, of_one, tell), found is not None

    def limited_by(self, paused: Paused) -> tuple[Claim, Rule]:
        """What is asked of the limit that holds the call back, and the rule by which it does."""
        try:
            (asked,) = self._asked(paused.limit)
        except CostExceedsLimit as error:
            paused = self.deciding.fleet.overrides.too_dear(error, self.limits, self.job)
            (asked,) = self._asked(paused.limit)
        return asked, paused.rule

    def _observed(self, observed: Sequence[Limit]) -> tuple[list[Claim], dict[str, Rule]]:
        """What is asked of each that is *observed*; by its name, the rate that was set and never admits the cost."""
        asked: list[Claim] = []
        dear: dict[str, Rule] = {}
        for limit in observed:
            try:
                asked += self._asked(limit)
            except CostExceedsLimit as error:
                held = self.deciding.fleet.overrides.too_dear(error, self.limits, self.job)
                asked += self._asked(held.limit)
                dear[limit.name] = held.rule
        return asked, dear

    def _asked(self, limit: Limit) -> list[Claim]:
        return resolve_claims([limit], self.job, self.key, self.cost, self.delivery.lateness)


def _held_back(call: _Call, paused: Paused) -> Decision:
    deciding, job = call.deciding, call.job
    asked, rule = call.limited_by(paused)
    before = Ticket.read(job.ticket if job is not None else None)
    decision, ticket, now_us = deciding.fleet.overrides.held_back(asked, rule, before)
    back_us = now_us + round(decision.delay * 1_000_000)
    verdict = Verdict(Reason.PAUSED, 0, now_us, back_us, back_us, (None,))
    # This denial is counted in already, or is none more.
    known = replace(ticket, deferrals=ticket.deferrals - 1)
    deciding.fleet.decided(decision, asked.claim.bucket, verdict, known, job)
    if job is not None:
        decision = deciding.deferred(decision, verdict, job, ticket, call.delivery)
    deciding.events.decided_unasked(decision, [asked.limit], job, ticket, now_us)
    return decision
