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

    def alone(asked: Asked) -> Decision:
        if asked.limit.name in dear:
            return steering.held_back(asked, dear[asked.limit.name], Waited())[0]
        verdict = deciding.decide(Request([asked.claim], Caller.GUEST), [asked])
        decision = decision_from(verdict, [asked])
        deciding.fleet.decided(decision, asked.claim.bucket, verdict, Waited(), None)
        return decision

    def tell(denial: Decision) -> None:
        deciding.telling.observed(denial, job)

    steering = deciding.fleet.steering
    steered = steering.steer(limits, job, key)
    paused = steered.paused
    try:
        if paused is None:
            observed, dear = _observed(deciding, steered.observed, limits, job, key, cost, delivery)
            found = deciding.ask(steered.limits, job, key, cost, delivery) if steered.limits else None
            if found is not None and not found.allowed:
                return found
            decision = observe(observed, found, alone, tell)
            if found is None:
                deciding.telling.decided_unasked(decision, limits, job, Waited(), 0)
            return decision
        return _held_back(deciding, paused, job, key, cost, delivery)
    except CostExceedsLimit as error:
        return _held_back(deciding, steering.too_dear(error, limits, job), job, key, cost, delivery)


def peek_steered(
    deciding: Deciding,
    limits: Sequence[Limit],
    job: Job | None,
    key: str | int | None,
    cost: int | None,
    delivery: Delivery,
) -> Decision:
    """As `Limiter.peek`, on *limits* as they count now."""

    def alone(asked: Asked) -> Decision:
        if asked.limit.name in dear:
            return steering.held_back(asked, dear[asked.limit.name], Waited())[0]
        return decision_from(deciding.decide(Request([asked.claim], Caller.PEEK), [asked]), [asked])

    steering = deciding.fleet.steering
    steered = steering.steer(limits, job, key)
    paused = steered.paused
    try:
        if paused is None:
            observed, dear = _observed(deciding, steered.observed, limits, job, key, cost, delivery)
            found = deciding.look(steered.limits, job, key, cost, delivery) if steered.limits else None
            denied = found is not None and not found.allowed
            decision = found if found is not None and denied else observe(observed, found, alone, lambda denial: None)
            return replace(decision, charged=())
        (asked,) = asked_of([paused.limit], job, key, cost, delivery.lateness)
    except CostExceedsLimit as error:
        paused = steering.too_dear(error, limits, job)
        (asked,) = asked_of([paused.limit], job, key, cost, delivery.lateness)
    return steering.held_back(asked, paused.rule, Waited())[0]


def _observed(
    deciding: Deciding,
    observed: Sequence[Limit],
    limits: Sequence[Limit],
    job: Job | None,
    key: str | int | None,
    cost: int | None,
    delivery: Delivery,
) -> tuple[list[Asked], dict[str, Rule]]:
    """What is asked of each that is *observed*; and, by its name, the rate that was set and never admits the cost."""
    asked: list[Asked] = []
    dear: dict[str, Rule] = {}
    for limit in observed:
        try:
            asked += asked_of([limit], job, key, cost, delivery.lateness)
        except CostExceedsLimit as error:
            held = deciding.fleet.steering.too_dear(error, limits, job)
            asked += asked_of([held.limit], job, key, cost, delivery.lateness)
            dear[limit.name] = held.rule
    return asked, dear


def _held_back(
    deciding: Deciding, paused: Paused, job: Job | None, key: str | int | None, cost: int | None, delivery: Delivery
) -> Decision:
    (asked,) = asked_of([paused.limit], job, key, cost, delivery.lateness)
    before = Waited.read(job.waited if job is not None else None)
    decision, waited, now_us = deciding.fleet.steering.held_back(asked, paused.rule, before)
    back_us = now_us + round(decision.delay * 1_000_000)
    verdict = Verdict(Reason.PAUSED, 0, now_us, back_us, back_us, (None,))
    # This denial is counted in already, or is none more.
    known = replace(waited, deferrals=waited.deferrals - 1)
    deciding.fleet.decided(decision, asked.claim.bucket, verdict, known, job)
    if job is not None:
        decision = deciding.deferred(decision, verdict, job, waited, delivery)
    deciding.telling.decided_unasked(decision, [asked.limit], job, waited, now_us)
    return decision
