"""A call of `acquire` or `peek` while the fleet was told something about limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from throttlekit._asked import Asked, asked_of
from throttlekit._core.acquire import Reason, Verdict
from throttlekit._core.decision import Decision
from throttlekit._core.job import Job
from throttlekit._core.limits import Limit
from throttlekit._delivery import Delivery
from throttlekit._fleet.observing import observe
from throttlekit._fleet.steering import Steering
from throttlekit._telling import Telling
from throttlekit._waited import Waited
from throttlekit.errors import CostExceedsLimit

if TYPE_CHECKING:
    from typing import Protocol

    class _Ask(Protocol):
        """Decides on limits as they are."""

        def __call__(
            self, limits: Sequence[Limit], job: Job | None, key: str | int | None, cost: int | None, delivery: Delivery
        ) -> Decision: ...


__all__ = ["decide_steered"]


def decide_steered(
    steering: Steering,
    limits: Sequence[Limit],
    job: Job | None,
    key: str | int | None,
    cost: int | None,
    delivery: Delivery,
    *,
    ask: _Ask,
    ask_alone: Callable[[Asked], Decision],
    defer: Callable[[Decision, Verdict, Job, Waited, Delivery], Decision] | None,
    tell: Telling | None,
    count: Callable[[Decision, str, Verdict, Waited, Job | None], None] | None,
) -> Decision:
    """
    Decide on *limits* as they count now: with another rate, paused, observed.

    Args:
        ask: Decides on limits as they are.
        ask_alone: Asks the store about one of them, for somebody who keeps no place.
        defer: Makes a denial of a job what its adapter is told; None: it is only looked.
        tell: Told of what *ask* does not tell; None: it is only looked.
        count: Told of the denial of a pause, and the bucket that it is of; None: it is only looked.

    Raises:
        ConfigurationError, CostExceedsLimit: As for `Limiter.acquire`.
    """
    steered = steering.steer(limits, job, key)
    paused = steered.paused
    if paused is None:
        try:
            observed = asked_of(steered.observed, job, key, cost, delivery.lateness)
            found = ask(steered.limits, job, key, cost, delivery) if steered.limits else None
            if found is not None and not found.allowed:
                return found
            decision = observe(observed, found, ask_alone, lambda denial: tell.observed(denial, job) if tell else None)
            if found is None and tell:
                tell.decided_unasked(decision, limits, job, Waited(), 0)
            return decision
        except CostExceedsLimit as error:
            paused = steering.too_dear(error, limits, job, key)
    waited = Waited.read(job.waited if job is not None else None)
    decision, waited, now_us = steering.held_back(paused, job, cost, waited)
    back_us = now_us + round(decision.delay * 1_000_000)
    verdict = Verdict(Reason.PAUSED, 0, now_us, back_us, back_us, ())
    if count is not None:
        (asked,) = asked_of([paused.limit], job, key, cost, delivery.lateness)
        count(decision, asked.claim.bucket, verdict, waited, job)
    if job is not None and defer is not None:
        decision = defer(decision, verdict, job, waited, delivery)
    if tell:
        tell.decided_unasked(decision, limits, job, waited, now_us)
    return decision
