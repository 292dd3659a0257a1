"""A body heard a 429: pause the limits that it means, and give the job a place in front behind the pause."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from throttlekit._core.algorithms.concurrency import Concurrency
from throttlekit._core.decision import Decision
from throttlekit._core.job import Job
from throttlekit._core.limit.base import Limit
from throttlekit._engine.call import Call
from throttlekit._engine.claims import Claim
from throttlekit._engine.delivery import Delivery
from throttlekit._engine.rate_limited import RateLimited
from throttlekit._engine.running import current
from throttlekit._engine.ticket import Ticket
from throttlekit.adapter.options import name_of
from throttlekit.errors import StoreUnavailable
from throttlekit.limiter import Limiter

__all__ = ["limited"]

_MOMENT = 0.1
"""Seconds after which a job that heard a 429 calls again at the earliest, whatever downstream said."""


def limited(
    limiter: Limiter,
    error: RateLimited,
    limits: Sequence[Limit],
    *,
    job: Job,
    delivery: Delivery,
    release: Callable[[], None],
    on_429: Limit | str | None = None,
) -> Decision:
    """
    Pause what *error* means, which the body of *job* raised, and deny the job.

    Args:
        job: The job, with the ticket that it carried when it was admitted.
        release: Releases the slots that the body holds. Called once the pause is stored: before that, a waiting job
            would take a slot, and call downstream.
        on_429: The limit that is paused if the error names none: the job's own setting.

    Returns:
        A denial as of `Limiter.acquire`: the job comes back behind the pause, in front of those that have not run.
        Final, if the job has waited for too long.

    Raises:
        ConfigurationError: As for `Limiter.acquire`.
    """
    delivery = replace(delivery, inline=None, again=True)
    claims = limiter.claims(Call(limits, job, delivery=delivery))
    named = _meant(claims, error.limit)
    meant = named or _meant(claims, on_429) or _rates(claims)
    slots = [] if named else [each for each in claims if isinstance(each.limit, Concurrency) and each not in meant]
    try:
        limiter.refuse(meant, round(error.retry_after * 1_000_000), _granted_us(), slots)
        stored = True
    except StoreUnavailable:
        stored = False  # no other process learns of the pause
    if stored:
        for claim in meant:
            limiter.events.rate_limited(job, claim.limit, error.retry_after, claim.key)
            if limiter.fleet is not None:
                limiter.fleet.count_429(claim.limit)
    release()
    decision = limiter.acquire(*limits, job=job, delivery=delivery)
    limiter.cancel(decision)
    denied = _denied(decision, job, meant[0].limit, delivery)
    if denied.final:
        return denied
    if stored:
        return replace(denied, delay=max(denied.delay, _MOMENT))
    # The job itself waits for as long as downstream said.
    return replace(denied, delay=min(delivery.longest, max(error.retry_after, decision.delay)))


def _granted_us() -> dict[str, int]:
    """When the job that runs here was admitted, by bucket."""
    decision = current().decision
    return {} if decision is None else {each.bucket: each.at_us for each in decision.charged}


def _meant(claims: Sequence[Claim], what: Limit | str | None) -> list[Claim]:
    return [] if what is None else [claim for claim in claims if claim.limit.name == name_of(what)]


def _rates(claims: Sequence[Claim]) -> list[Claim]:
    return [claim for claim in claims if not isinstance(claim.limit, Concurrency)] or list(claims)


def _denied(decision: Decision, job: Job, limit: Limit, delivery: Delivery) -> Decision:
    """As a denial what was let pass: it waits for a moment, and that counts as any denial does."""
    if not decision.allowed:
        return decision
    now_us = decision.charged[0].at_us if decision.charged else time.time_ns() // 1000  # the store may be away
    ticket = Ticket.read(job.ticket).denied(limit, now_us, now_us)
    if ticket.seconds(now_us) >= delivery.max_wait or ticket.deferrals > delivery.max_deferrals:
        return replace(decision, allowed=False, charged=(), delay=0.0, reason="waited too long", ticket=None)
    return replace(
        decision, allowed=False, charged=(), reason="paused", delay=_MOMENT, retry_after=_MOMENT, ticket=ticket.write()
    )
