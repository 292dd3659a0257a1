"""A call of `acquire` or `peek` while the fleet was told something about limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from throttlekit._asked import Asked, asked_of, decision_from
from throttlekit._core.acquire import Caller, Reason, Verdict
from throttlekit._core.decision import Decision
from throttlekit._core.job import Job
from throttlekit._core.limits import Limit
from throttlekit._delivery import Delivery
from throttlekit._fleet.observing import observe
from throttlekit._fleet.rules import Rule
from throttlekit._fleet.steering import Paused
from throttlekit._waited import Waited
from throttlekit.errors import CostExceedsLimit
from throttlekit.stores._base import Request

if TYPE_CHECKING:
    from throttlekit._deciding import Deciding

__all__ = ["acquire_steered", "peek_steered"]


def acquire_steered(
    deciding: Deciding,
    limits: Sequence[Limit],
    job: Job | None,
    key: str | int | None,
    cost: int | None,
    delivery: Delivery,
) -> Decision:
    """As `Limiter.acquire`, on *limits* as they count now: with another rate, paused, observed."""

    def ask(enforced: Sequence[Limit]) -> Decision:
        return deciding.ask(enforced, job, key, cost, delivery)

    def alone(asked: Asked) -> Decision:
        verdict = deciding.decide(Request([asked.claim], Caller.GUEST), [asked])
        decision = decision_from(verdict, [asked])
        deciding.fleet.decided(decision, asked.claim.bucket, verdict, Waited(), None)
        return decision

    call = _Call(deciding, limits, job, key, cost, delivery)
    found = call.decided(ask, alone, lambda denial: deciding.telling.observed(denial, job))
    if isinstance(found, Paused):
        return _held_back(call, found)
    decision, asked = found
    if not asked:
        deciding.telling.decided_unasked(decision, limits, job, Waited(), 0)
    return decision


def peek_steered(
    deciding: Deciding,
    limits: Sequence[Limit],
    job: Job | None,
    key: str | int | None,
    cost: int | None,
    delivery: Delivery,
) -> Decision:
    """As `Limiter.peek`, on *limits* as they count now."""

    def ask(enforced: Sequence[Limit]) -> Decision:
        return deciding.look(enforced, job, key, cost, delivery)

    def alone(asked: Asked) -> Decision:
        return decision_from(deciding.decide(Request([asked.claim], Caller.PEEK), [asked]), [asked])

    call = _Call(deciding, limits, job, key, cost, delivery)
    found = call.decided(ask, alone, lambda denial: None)
    if isinstance(found, Paused):
        asked, rule = call.held_by(found)
        return deciding.fleet.steering.held_back(asked, rule, Waited())[0]
    return replace(found[0], charged=())


@dataclass(frozen=True, slots=True)
class _Call:
    deciding: Deciding
    limits: Sequence[Limit]
    job: Job | None
    key: str | int | None
    cost: int | None
    delivery: Delivery

    def decided(
        self,
        ask: Callable[[Sequence[Limit]], Decision],
        alone: Callable[[Asked], Decision],
        tell: Callable[[Decision], None],
    ) -> tuple[Decision, bool] | Paused:
        """
        The decision, and whether *ask* was asked for it; or what holds the call back.

        Args:
            ask: Asks of the limits that are enforced.
            alone: Asks of one that is observed.
            tell: Told what such a one would have denied.
        """
        steering = self.deciding.fleet.steering
        steered = steering.steer(self.limits, self.job, self.key)
        if steered.paused is not None:
            return steered.paused
        try:
            observed, dear = self._observed(steered.observed)
            found = ask(steered.limits) if steered.limits else None
        except CostExceedsLimit as error:
            return steering.too_dear(error, self.limits, self.job)
        if found is not None and not found.allowed:
            return found, True

        def of_one(asked: Asked) -> Decision:
            if asked.limit.name in dear:
                return steering.held_back(asked, dear[asked.limit.name], Waited())[0]
            return alone(asked)

        return observe(observed, found, of_one, tell), found is not None

    def held_by(self, paused: Paused) -> tuple[Asked, Rule]:
        """What is asked of the limit that holds the call back, and the rule by which it does."""
        try:
            (asked,) = self._asked(paused.limit)
        except CostExceedsLimit as error:
            paused = self.deciding.fleet.steering.too_dear(error, self.limits, self.job)
            (asked,) = self._asked(paused.limit)
        return asked, paused.rule

    def _observed(self, observed: Sequence[Limit]) -> tuple[list[Asked], dict[str, Rule]]:
        """What is asked of each that is *observed*; by its name, the rate that was set and never admits the cost."""
        asked: list[Asked] = []
        dear: dict[str, Rule] = {}
        for limit in observed:
            try:
                asked += self._asked(limit)
            except CostExceedsLimit as error:
                held = self.deciding.fleet.steering.too_dear(error, self.limits, self.job)
                asked += self._asked(held.limit)
                dear[limit.name] = held.rule
        return asked, dear

    def _asked(self, limit: Limit) -> list[Asked]:
        return asked_of([limit], self.job, self.key, self.cost, self.delivery.lateness)


def _held_back(call: _Call, paused: Paused) -> Decision:
    deciding, job = call.deciding, call.job
    asked, rule = call.held_by(paused)
    before = Waited.read(job.waited if job is not None else None)
    decision, waited, now_us = deciding.fleet.steering.held_back(asked, rule, before)
    back_us = now_us + round(decision.delay * 1_000_000)
    verdict = Verdict(Reason.PAUSED, 0, now_us, back_us, back_us, (None,))
    # This denial is counted in already, or is none more.
    known = replace(waited, deferrals=waited.deferrals - 1)
    deciding.fleet.decided(decision, asked.claim.bucket, verdict, known, job)
    if job is not None:
        decision = deciding.deferred(decision, verdict, job, waited, call.delivery)
    deciding.telling.decided_unasked(decision, [asked.limit], job, waited, now_us)
    return decision
