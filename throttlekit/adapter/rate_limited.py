"""After a 429: pause the limits, and give the job a position ahead of jobs that have not run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from throttlekit._core.algorithms.concurrency import Concurrency
from throttlekit._core.decision import Decision
from throttlekit._core.job import Job
from throttlekit._core.limit.base import Limit
from throttlekit._engine.call import Call, Delivery, Waiting
from throttlekit._engine.claims import Claim
from throttlekit._engine.rate_limited import RateLimited
from throttlekit._engine.running import current
from throttlekit._wiring import wiring_of
from throttlekit.adapter.options import name_of
from throttlekit.errors import StoreUnavailable
from throttlekit.limiter import Limiter

__all__ = ["deny_after_429", "pause", "wait_again"]

_MOMENT = 0.1
"""The shortest delay, in seconds, of a job that got a 429, even if the response has a shorter one."""


def deny_after_429(
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
    Pause the limits that *error*, which the body of *job* raised, names or implies. Deny the job.

    Args:
        job: The job that was admitted.
        release: Releases the slots that the body holds. It is called once the pause is stored, because a waiting job
            would otherwise take a slot and call the partner.
        on_429: The limit that is paused if the error names none, as the job's options set it.

    Returns:
        A denial like one of `Limiter.acquire`: the job runs again after the pause, ahead of jobs that have not run. The
        denial is final if the job has waited for too long.

    Raises:
        ConfigurationError: As for `Limiter.acquire`.
    """
    stored = pause(limiter, error, limits, job=job, on_429=on_429)
    release()
    return wait_again(limiter, limits, error.retry_after, job=job, delivery=delivery, stored=stored)


def pause(
    limiter: Limiter, error: RateLimited, limits: Sequence[Limit], *, job: Job, on_429: Limit | str | None = None
) -> bool:
    """
    Pause the limits that *error*, which the body of *job* raised, names or implies. Return whether the pause is stored.
    If it is not, other processes do not pause.

    Raises:
        ConfigurationError: As for `Limiter.acquire`.
    """
    claims = limiter.claims(Call(limits, job))
    named = _claims_named(claims, error.limit)
    meant = named or _claims_named(claims, on_429) or _rates(claims)
    slots = [] if named else [each for each in claims if isinstance(each.limit, Concurrency) and each not in meant]
    try:
        limiter.refuse(meant, round(error.retry_after * 1_000_000), _granted_us(), slots)
    except StoreUnavailable:
        return False
    for claim in meant:
        limiter.events.emit_rate_limited(job, claim.limit, error.retry_after, claim.key)
        if limiter.fleet is not None:
            limiter.fleet.count_429(claim.limit)
    return True


def wait_again(
    limiter: Limiter, limits: Sequence[Limit], retry_after: float, *, job: Job, delivery: Delivery, stored: bool
) -> Decision:
    """
    Let a job, whose body raised `RateLimited`, wait again, as *delivery* says. Its limits are paused already.

    Args:
        stored: Whether the pause is stored, as `pause` returned it.

    Returns:
        A denial.

    Raises:
        ConfigurationError: As for `Limiter.acquire`.
    """
    delivery = replace(delivery, again=True)
    decision = limiter.acquire(*limits, job=job, delivery=delivery)
    limiter.cancel(decision)  # it was requested only for the job's position: a grant returns its units
    if decision.final:
        return decision
    if delivery.waits is not None:
        call = Call(limits, job, delivery=delivery)
        return _hold(limiter, call, delivery.waits, decision, retry_after, stored=stored)
    denied = _defer_briefly(limiter, decision, job, delivery)
    if denied.final:
        return denied
    if stored:
        return replace(denied, delay=max(denied.delay, _MOMENT))
    # The pause is not stored, so other processes do not pause. This job still waits for the time of the response.
    return replace(denied, delay=min(delivery.longest, max(retry_after, decision.delay)))


def _hold(
    limiter: Limiter, call: Call, waits: Waiting, decision: Decision, retry_after: float, *, stored: bool
) -> Decision:
    """
    Deny a job that was granted, or for which the store did not answer: no waitlist has it, so it is held here, for a
    moment, or for at least *retry_after* if the pause is not *stored*. Return other denials unchanged.
    """
    if not (decision.allowed or decision.reason == "store unavailable"):
        return decision
    delay = _MOMENT if stored else max(retry_after, decision.delay)
    waited = waits.waker.waited_of(call.id)
    denials = waited.denials + (1 if decision.allowed else 0)  # a grant that is denied here counts
    if call.delivery.is_over(waited.for_us / 1_000_000, denials):
        waits.waker.leave(call.id, [each.claim for each in limiter.claims(call)])
        return replace(decision, allowed=False, charged=(), delay=0.0, reason="waited too long", deferrals=denials)
    how, ends_in_us = waited._replace(denials=denials), call.delivery.ends_in_us(waited.for_us)
    waits.waker.hold(call.id, waits.item, round(delay * 1_000_000), how, ends_in_us=ends_in_us)
    if decision.allowed:
        decision = replace(decision, allowed=False, charged=(), reason="paused", retry_after=delay)
    return replace(decision, delay=delay, deferrals=denials)


def _granted_us() -> dict[str, int]:
    """Return the times when the current job was charged, by bucket."""
    decision = current().decision
    return {} if decision is None else {each.bucket: each.at_us for each in decision.charged}


def _claims_named(claims: Sequence[Claim], what: Limit | str | None) -> list[Claim]:
    return [] if what is None else [claim for claim in claims if claim.limit.name == name_of(what)]


def _rates(claims: Sequence[Claim]) -> list[Claim]:
    return [claim for claim in claims if not isinstance(claim.limit, Concurrency)] or list(claims)


def _defer_briefly(limiter: Limiter, decision: Decision, job: Job, delivery: Delivery) -> Decision:
    """Turn a grant into a denial with a short wait. It counts like any other denial."""
    if not decision.allowed:
        return decision
    history = wiring_of(limiter).pipeline.history
    waited = history.of(job.id)
    waited = waited._replace(denials=waited.denials + 1)
    history.note(job.id, waited, again=True)
    decision = replace(decision, allowed=False, charged=(), deferrals=waited.denials)
    if delivery.is_over(waited.for_us / 1_000_000, waited.denials):
        return replace(decision, delay=0.0, reason="waited too long")
    return replace(decision, reason="paused", delay=_MOMENT, retry_after=_MOMENT)
