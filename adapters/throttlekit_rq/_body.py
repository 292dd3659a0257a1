"""What is around a job's body: its slots are kept while it runs, and a 429 that it hears of puts the job back."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import math
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from rq.job import JobStatus, Retry
from rq.timeouts import BaseTimeoutException

from throttlekit import Decision, Limiter, RateLimited
from throttlekit._engine.running import decision_of, lanes, receipt, running
from throttlekit.adapter.rate_limited import limited
from throttlekit_rq._admission import BY_RQ_SCHEDULER, BY_WORKER, delivery_of, limiter_of, told_once, too_long
from throttlekit_rq._deferral import Record, Return, admit, deny_in, promoters, wake
from throttlekit_rq._options import Terms, describe, terms_of
from throttlekit_rq._settings import settings

__all__ = [
    "ADMITTED", "GRANT", "Denied", "Grant", "admission", "admitted_elsewhere", "ending_with", "granted", "held", "over",
    "put_back",
]  # fmt: skip

GRANT = "_throttlekit_grant"
"""The attribute of a job object that says that its limits have been charged: its `Grant`; None: it names none."""

ADMITTED = "THROTTLEKIT_ADMITTED"
"""The environment variable that says so to a process that is spawned for a job."""


@dataclass(slots=True)
class Grant:
    """
    That a job may run, and how it was asked for.

    Attributes:
        decision: None where another process holds all that it charged.
        waited: What the job had carried when it asked.
        expires_ms: When its ttl ends; None: it has none, or was never denied.
        ended: Whether its body has run in this process, and given back what it held.
    """

    limiter: Limiter
    terms: Terms
    decision: Decision | None
    ticket: Mapping[str, Any] | None
    expires_ms: int | None
    ended: bool = False

    @property
    def lanes(self) -> tuple[str, ...]:
        """Of those that may come when it has ended."""
        return lanes(self.decision) if self.decision is not None else ()

    def keep(self) -> None:
        """Renew its slots from here until `give_back`, for a process that is not one of ours."""
        if self.decision is not None:
            self.limiter.keep(self.decision, lambda: None)

    def give_back(self) -> None:
        """Free its slots, unless that is done. Others' slots it cannot free."""
        if self.decision is not None and not self.ended:
            self.limiter.release(self.decision)
            self.ended = True


class Denied(Retry):
    """
    What a denied job returns. The worker then has the job object itself put the job back, inside the
    transaction with which it ends the job's execution: both happen, or neither.
    """

    def __init__(self) -> None:
        self.max = math.inf  # type: ignore[assignment]  # never used up
        self.intervals = [0]  # RQ before 2.8 asks the job only if this is 0
        self.enqueue_at_front = False


def granted(
    job: Any, terms: Terms, record: Record | None, decision: Decision, ticket: Mapping[str, Any] | None
) -> Grant:
    """That *decision* lets *job* run, which had *waited* so when it asked: what denials left on it is undone."""
    expires_ms = record.expires_ms if record is not None else None
    grant = Grant(limiter_of(job, terms), terms, decision, ticket, expires_ms)
    try:
        admit(job, record)
    except BaseException:
        grant.give_back()
        raise
    return grant


def held(job: Any, grant: Grant, function: Callable[..., Any]) -> Callable[..., Any]:
    """
    *function*, which runs the body of *job*: with what *grant* holds, which is free again when it has ended.
    If it raises `RateLimited`, the job is denied.
    """
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def held_async(*args: Any, **kwargs: Any) -> Any:
            setattr(job, GRANT, grant)
            with _running(job, grant):
                try:
                    return await function(*args, **kwargs)
                except RateLimited as error:
                    return _limited(job, grant, error)

        return held_async

    @functools.wraps(function)
    def held_plain(*args: Any, **kwargs: Any) -> Any:
        setattr(job, GRANT, grant)
        with _running(job, grant):
            try:
                result = function(*args, **kwargs)
                # A plain function may return what is still to run. RQ would run it after us.
                return asyncio.run(result) if inspect.iscoroutine(result) else result
            except RateLimited as error:
                return _limited(job, grant, error)

    return held_plain


@contextmanager
def _running(job: Any, grant: Grant) -> Generator[None, None, None]:
    if grant.decision is None:
        yield
        return
    try:
        with running(grant.limiter, grant.decision):
            yield
    except BaseTimeoutException:
        # The alarm may have rung while the slots were being given back, or before that could begin.
        grant.give_back()
        raise
    except Exception:
        _ended(job, grant)
        raise
    _ended(job, grant)


def _ended(job: Any, grant: Grant) -> None:
    grant.ended = True
    with suppress(Exception):  # the body has ended well or not; whoever is not woken comes when it is due
        for lane in grant.lanes:
            wake(job.connection, job.origin, lane)


def _limited(job: Any, grant: Grant, error: RateLimited) -> Denied:
    """The body of *job* heard a 429: what it means is paused, and the job goes back to behind the pause."""
    scheduler, ours = promoters(job)
    with told_once(job.connection):
        decision = limited(
            grant.limiter,
            error,
            grant.terms.limits,
            job=describe(job, grant.ticket),
            delivery=delivery_of(job, grant.terms, BY_WORKER if ours and not scheduler else BY_RQ_SCHEDULER),
            release=grant.give_back,
            on_429=grant.terms.on_429,
        )
    if decision.final:
        ended = over(job, decision)
        if ended is None:
            raise error  # it has just run: to run it once more, uncharged, is no way out
        return ended
    record = Record(grant.ticket, job.enqueue_at_front, grant.expires_ms)
    delay = decision.delay if scheduler or ours else None
    return put_back(job, record, Return(decision.ticket, delay, by_ticks=scheduler))


def over(job: Any, decision: Decision) -> Denied | None:
    """
    What becomes of *job*, which *decision* refused, and whose record is undone; None: it runs, uncharged.

    Raises:
        WaitedTooLong: That is what was configured.
    """
    when_over = settings().rules.when_over
    if when_over == "fail":
        raise too_long(job, decision)
    if when_over == "run":
        return None

    def cancel(pipeline: Any) -> None:
        job.cancel(pipeline=pipeline)
        pipeline.hincrby(f"rq:worker:{job.worker_name}", "failed_job_count", -1)  # the worker has just added it

    return ending_with(job, cancel)


def put_back(job: Any, record: Record | None, back: Return) -> Denied:
    """Have *job*, which has begun, put back when its execution ends."""

    def deny(pipeline: Any) -> None:
        deny_in(pipeline, job, record, back)
        job._status = JobStatus.SCHEDULED

    return ending_with(job, deny)


def ending_with(job: Any, act: Callable[[Any], None]) -> Denied:
    """Have the worker's own transaction, in which it would handle a returned Retry, do *act* in place of that."""

    def _handle_retry_result(queue: Any = None, pipeline: Any = None, *args: Any, **kwargs: Any) -> int:
        act(pipeline)
        return 1  # RQ 3 takes this for the interval

    job._handle_retry_result = _handle_retry_result
    return Denied()


def admission(job: Any) -> str:
    """What tells a process that is spawned for *job* that it was admitted. Its slots stay with us."""
    grant: Grant | None = getattr(job, GRANT)
    if grant is None or grant.decision is None:
        return json.dumps({"job": job.id, "limits": False})
    rates = tuple(each for each in grant.decision.charged if not each.holder)
    charged = receipt(replace(grant.decision, charged=rates)) if rates else None
    told = {"limits": True, "charged": charged, "waited": grant.ticket, "expires": grant.expires_ms}
    return json.dumps({"job": job.id, **told})


def admitted_elsewhere(job: Any) -> tuple[bool, Grant | None]:
    """Whether *job* was admitted before this process began, and how; None: it names no limit that is known here."""
    told: dict[str, Any] = json.loads(os.environ.get(ADMITTED, "{}"))
    if told.get("job") != job.id:
        return False, None
    terms = terms_of(job) if told["limits"] else None
    if terms is None:
        return True, None
    charged, ticket, expires_ms = told["charged"], told["waited"], told["expires"]
    decision = decision_of(charged) if charged is not None else None
    return True, Grant(limiter_of(job, terms), terms, decision, ticket, expires_ms)
