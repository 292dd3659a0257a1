"""After a 429: pause the limits, and give the job a position ahead of jobs that have not run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from throttlekit._core.algorithms.concurrency import Concurrency
from throttlekit._core.decision import Decision
from throttlekit._core.limit.base import Limit
from throttlekit._engine.call import Call, end_waiting
from throttlekit._engine.claims import Claim
from throttlekit._engine.rate_limited import RateLimited
from throttlekit._engine.running import current
from throttlekit._util.log_limiter import Every
from throttlekit._wiring import wiring_of
from throttlekit.adapter.options import name_of
from throttlekit.adapter.outcome import Run
from throttlekit.errors import StoreUnavailable
from throttlekit.hookspecs import RateLimitReceived
from throttlekit.limiter import Limiter

__all__ = ["deny_after_429", "pause", "wait_again"]

_log = logging.getLogger("throttlekit")
_unknown_limit = Every()

_MOMENT = 0.1
"""The shortest delay, in seconds, of a job that got a 429, even if the response has a shorter one."""


def deny_after_429(limiter: Limiter, run: Run, error: RateLimited, *, release: Callable[[], None]) -> Decision:
    """
    Pause the limits that *error*, which the body of the job of *run* raised, names or implies. Deny the job.

    Args:
        release: Releases the slots that the body holds. It is called once the pause is stored, because a waiting job
            would otherwise take a slot and call the partner.

    Returns:
        A denial like one of `Limiter.acquire`: the job runs again after the pause, ahead of jobs that have not run. The
        denial is final if the job has waited for too long.

    Raises:
        ConfigurationError: As for `Limiter.acquire`.
    """
    stored = pause(limiter, run, error)
    release()
    return wait_again(limiter, run, error.retry_after, stored=stored)


def pause(limiter: Limiter, run: Run, error: RateLimited) -> bool:
    """
    Pause the limits that *error*, which the body of the job of *run* raised, names or implies. Return whether the pause
    is stored. If it is not, other processes do not pause.

    Raises:
        ConfigurationError: As for `Limiter.acquire`.
    """
    claims = limiter.claims(Call(run.limits, run.job))
    named = _claims_named(claims, error.limit)
    if error.limit is not None and not named and _unknown_limit.due():
        _log.warning(
            "RateLimited names limit %r, which job %s does not have: other limits of the job are paused.",
            name_of(error.limit),
            run.job.id,
        )
    meant = named or _claims_named(claims, run.on_429) or _rates(claims)
    slots = [] if named else [each for each in claims if isinstance(each.limit, Concurrency) and each not in meant]
    try:
        limiter.refuse(meant, round(error.retry_after * 1_000_000), _granted_us(), slots)
    except StoreUnavailable:
        return False
    for claim in meant:
        received = RateLimitReceived(run.job, claim.limit, error.retry_after, claim.key)
        limiter.events.rate_limited.emit(received)
        if limiter.fleet is not None:
            limiter.fleet.count_429(claim.limit)
    return True


def wait_again(limiter: Limiter, run: Run, retry_after: float, *, stored: bool) -> Decision:
    """
    Let the job of *run*, whose body raised `RateLimited`, wait again. Its limits are paused already.

    Args:
        stored: Whether the pause is stored, as `pause` returned it. If it is not, other processes do not pause. This
            job still waits for *retry_after*.

    Returns:
        A denial.

    Raises:
        ConfigurationError: As for `Limiter.acquire`.
    """
    delivery = replace(run.delivery, again=True)
    waits, history = delivery.waits, wiring_of(limiter).pipeline.history
    call = Call(run.limits, run.job, delivery=delivery)
    decision = limiter.acquire(*run.limits, job=run.job, delivery=delivery)
    limiter.cancel(decision)  # it was requested only for the job's position: a grant returns its units
    if decision.final:
        return decision
    delay = _MOMENT if stored else max(retry_after, decision.delay)
    if waits is None and not decision.allowed:
        return replace(decision, delay=max(delay, decision.delay) if stored else min(delivery.longest, delay))
    if not (decision.allowed or decision.reason == "store unavailable"):
        return decision
    # No waitlist has the job. A grant that is denied here counts like any other denial.
    waited = history.of(run.job.id) if waits is None else waits.waker.waited_of(call.id)
    if decision.allowed:
        waited = waited._replace(denials=waited.denials + 1)
        decision = replace(decision, allowed=False, charged=(), reason="paused", retry_after=delay)
    decision = replace(decision, delay=delay, deferrals=waited.denials)
    if delivery.is_over(waited):
        if waits is not None:
            waits.waker.leave(call.id, [each.claim for each in limiter.claims(call)])
        return end_waiting(decision)
    if waits is None:
        history.note(run.job.id, waited, again=True)
        return replace(decision, delay=min(delivery.longest, delay))
    ends_in_us = delivery.ends_in_us(waited.for_us)
    waits.waker.hold(call.id, waits.item, round(delay * 1_000_000), waited, ends_in_us=ends_in_us)
    return decision


def _granted_us() -> dict[str, int]:
    """Return the times when the current job was charged, by bucket."""
    decision = current().decision
    return {} if decision is None else {each.bucket: each.at_us for each in decision.charged}


def _claims_named(claims: Sequence[Claim], what: Limit | str | None) -> list[Claim]:
    return [] if what is None else [claim for claim in claims if claim.limit.name == name_of(what)]


def _rates(claims: Sequence[Claim]) -> list[Claim]:
    return [claim for claim in claims if not isinstance(claim.limit, Concurrency)] or list(claims)
