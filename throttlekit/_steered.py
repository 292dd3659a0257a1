# pyright: reportPrivateUsage=false
"""A call of `acquire` or `peek` while the fleet was told something about limits: a part of limiter.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from throttlekit._asked import Asked, asked_of, decision_from
from throttlekit._core.acquire import Caller, Reason, Verdict
from throttlekit._core.decision import Decision
from throttlekit._core.job import Job
from throttlekit._core.limits import Limit
from throttlekit._decided import decided_of
from throttlekit._delivery import Delivery
from throttlekit._fleet.observing import observe
from throttlekit._fleet.steering import Paused
from throttlekit._waited import Waited
from throttlekit._wiring import call_each
from throttlekit.errors import CostExceedsLimit
from throttlekit.hookspecs import Observed
from throttlekit.stores._base import Request

if TYPE_CHECKING:
    from throttlekit.limiter import Limiter

__all__ = ["acquire_steered", "peek_steered"]


def acquire_steered(
    limiter: Limiter,
    limits: Sequence[Limit],
    job: Job | None,
    key: str | int | None,
    cost: int | None,
    delivery: Delivery,
) -> Decision:
    """As `Limiter.acquire`, on *limits* as they count now: with another rate, paused, observed."""

    def alone(asked: Asked) -> Decision:
        verdict = limiter._decide(Request([asked.claim], Caller.GUEST), [asked])
        decision = decision_from(verdict, [asked])
        limiter._fleet.decided(decision, asked.claim.bucket, verdict, Waited(), None)
        return decision

    def tell(denial: Decision) -> None:
        call_each(limiter._hooks.hook.throttlekit_observed, Observed(denial, job), limiter._plugin_failure)

    steering = limiter._fleet.steering
    steered = steering.steer(limits, job, key)
    paused = steered.paused
    try:
        if paused is None:
            observed = asked_of(steered.observed, job, key, cost, delivery.lateness)
            found = limiter._acquire(steered.limits, job, key, cost, delivery) if steered.limits else None
            denied = found is not None and not found.allowed
            return found if found is not None and denied else observe(observed, found, alone, tell)
        return _held_back(limiter, paused, job, key, cost, delivery)
    except CostExceedsLimit as error:
        return _held_back(limiter, steering.too_dear(error, limits, job), job, key, cost, delivery)


def peek_steered(
    limiter: Limiter,
    limits: Sequence[Limit],
    job: Job | None,
    key: str | int | None,
    cost: int | None,
    delivery: Delivery,
) -> Decision:
    """As `Limiter.peek`, on *limits* as they count now."""

    def alone(asked: Asked) -> Decision:
        return decision_from(limiter._decide(Request([asked.claim], Caller.PEEK), [asked]), [asked])

    steering = limiter._fleet.steering
    steered = steering.steer(limits, job, key)
    paused = steered.paused
    if paused is None:
        try:
            observed = asked_of(steered.observed, job, key, cost, delivery.lateness)
            found = limiter._peek(steered.limits, job, key, cost, delivery) if steered.limits else None
            denied = found is not None and not found.allowed
            decision = found if found is not None and denied else observe(observed, found, alone, lambda denial: None)
            return replace(decision, charged=())
        except CostExceedsLimit as error:
            paused = steering.too_dear(error, limits, job)
    (asked,) = asked_of([paused.limit], job, key, cost, delivery.lateness)
    return steering.held_back(asked, paused.rule, Waited())[0]


def _held_back(
    limiter: Limiter, paused: Paused, job: Job | None, key: str | int | None, cost: int | None, delivery: Delivery
) -> Decision:
    (asked,) = asked_of([paused.limit], job, key, cost, delivery.lateness)
    before = Waited.read(job.waited if job is not None else None)
    decision, waited, now_us = limiter._fleet.steering.held_back(asked, paused.rule, before)
    back_us = now_us + round(decision.delay * 1_000_000)
    verdict = Verdict(Reason.PAUSED, 0, now_us, back_us, back_us, (None,))
    limiter._fleet.decided(decision, asked.claim.bucket, verdict, waited, job)
    if job is not None:
        decision = limiter._deferred(decision, verdict, job, waited, delivery)
    if limiter._decided:
        event = decided_of(decision, verdict, [asked], job, waited, 0.0)
        call_each(limiter._decided, event, limiter._plugin_failure)
    return decision
