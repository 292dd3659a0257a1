"""Run a job's body: hold its slots while it runs, and put the job back if the body raises `RateLimited`."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import os
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rq.timeouts import BaseTimeoutException

from throttlekit import RateLimited
from throttlekit.adapter import (
    Deferred,
    Dropped,
    Failed,
    Outcome,
    Run,
    Waited,
    decision_from_receipt,
    receipt,
    running,
)
from throttlekit_rq._admission import BY_RQ_SCHEDULER, BY_WORKER, Check, Grant, log_once
from throttlekit_rq._holding import GRACE_S
from throttlekit_rq._host import UNAVAILABLE, Denied, end_with
from throttlekit_rq._options import describe, options_of
from throttlekit_rq._received_429 import Received429
from throttlekit_rq._waiting import deny, promoted_by, shown_of
from throttlekit_rq._wire import ADMITTED, Record

__all__ = ["GRANT", "UNTHROTTLED", "Body", "read_admission", "running_body", "within", "wrap_call", "write_admission"]

GRANT = "_throttlekit_grant"
"""The attribute of an admitted job object that holds its `Grant`, or None if the job names no limit."""


@dataclass(slots=True)
class Body:
    """
    One call of a job's function.

    Attributes:
        denied: After a 429: the value to return in place of the function's result, so that RQ puts the job back.
    """

    denied: Denied | None = None


UNTHROTTLED: AbstractContextManager[Body] = nullcontext(Body())
"""The context of a call without limits: the function runs unchanged."""


def wrap_call(
    function: Callable[..., Any], start: Callable[[], AbstractContextManager[Body] | Denied]
) -> Callable[..., Any]:
    """Wrap a plain or async *function*, so that each call runs in the context of *start*, unless that is a denial."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            if isinstance(context := start(), Denied):
                return context
            with context as body:
                return await function(*args, **kwargs)
            return body.denied

        return run_async

    @functools.wraps(function)
    def run_plain(*args: Any, **kwargs: Any) -> Any:
        context = start()
        if context is UNTHROTTLED:
            return function(*args, **kwargs)
        return context if isinstance(context, Denied) else within(context, function, *args, **kwargs)

    return run_plain


def within(context: AbstractContextManager[Body], function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a plain *function* in *context*, and run a coroutine that it returns, before the slots are released."""
    with context as body:
        returned = function(*args, **kwargs)
        return asyncio.run(returned) if inspect.iscoroutine(returned) else returned
    return body.denied


@contextmanager
def running_body(job: Any, grant: Grant, *, is_last: bool = True) -> Generator[Body, None, None]:
    """
    Run the body of *job* in this context, which holds the slots of *grant*. If the body raises `RateLimited`, put the
    job back.

    Args:
        is_last: Whether the process may end after this job, so that reports to the store must be sent now.
    """
    setattr(job, GRANT, grant)
    body, run, limiter = Body(), grant.run, grant.check.limiter
    try:
        with nullcontext() if run.decision is None else running(limiter, run.decision, run.job):
            try:
                yield body
            except RateLimited as error:
                body.denied = _put_back_after_429(job, grant, error)
                raise
        grant.ended = True
    except Exception as error:
        grant.ended = not isinstance(error, BaseTimeoutException)
        grant.release()  # the timeout may have interrupted the release
        if body.denied is None or not isinstance(error, RateLimited):
            raise
    finally:
        if is_last:
            limiter.flush()  # sends settled costs and received responses


def _put_back_after_429(job: Any, grant: Grant, error: RateLimited) -> Denied | None:
    """Pause the limits that *error* names, and put *job* back. Return None if it must not wait, and fails."""
    check, run, throttling = grant.check, grant.run, grant.check.throttling
    if not run.limits:
        return None
    check.record = Record(job.enqueue_at_front, check.record.expires_ms)
    with log_once(job.connection):
        stored = throttling.pause(run, error, release=grant.release)
        if isinstance(stored, Failed):
            return end_with(job, check.refuse(stored))
        waited = throttling.waited_of(job.id)
        waited = waited._replace(denials=waited.denials + 1)
        over = throttling.over(run, waited)
        if over is not None:
            return _end(check, over)
        if grant.received is None:
            return _wait_again(check, error.retry_after, stored=stored)
    delay = min(run.delivery.longest, error.retry_after)
    decision = run.decision and replace(run.decision, waited=waited.for_us / 1_000_000, deferrals=waited.denials)
    shown = shown_of(Deferred(delay, decision))
    denied = end_with(job, partial(deny, job, check.record, delay + GRACE_S, shown=shown))
    grant.received.put(0.0 if stored else error.retry_after)  # the worker holds the job afterwards
    return denied


def _wait_again(check: Check, retry_after: float, *, stored: bool) -> Denied | None:
    """Let the job of a stock worker wait again, until RQ's scheduler or a throttled worker enqueues it."""
    job, scheduler, ours = check.rq_job, False, False
    with suppress(*UNAVAILABLE):  # otherwise the job is put at the end of its queue, and is denied there
        scheduler, ours = promoted_by(job.connection, job.origin)
    check.by = BY_WORKER if ours and not scheduler else BY_RQ_SCHEDULER
    outcome = check.throttling.wait_again(job, None, retry_after, stored=stored)
    if not isinstance(outcome, Deferred):
        return _end(check, outcome)
    delay = outcome.delay if scheduler or ours else None
    return end_with(job, partial(deny, job, check.record, delay, by_ticks=scheduler, shown=shown_of(outcome)))


def _end(check: Check, outcome: Outcome) -> Denied | None:
    """End a job that must not wait again. Return None if the error of its body ends it."""
    return end_with(check.rq_job, check.refuse(outcome)) if isinstance(outcome, (Failed, Dropped)) else None


def write_admission(job: Any) -> str:
    """Return the grant of *job* as text, for the process that is spawned for it. This process keeps the slots."""
    grant: Grant | None = getattr(job, GRANT)
    if grant is None or grant.run.decision is None:
        return json.dumps({"job": job.id, "limits": False})
    decision = grant.run.decision
    rates = tuple(each for each in decision.charged if not each.holder or each.stays)
    charged = receipt(replace(decision, charged=rates)) if rates else None
    received = None if grant.received is None else grant.received.into
    waited, expires = grant.check.throttling.waited_of(job.id), grant.check.record.expires_ms
    admission = {"limits": True, "charged": charged, "waited": waited, "expires": expires, "received": received}
    return json.dumps({"job": job.id, **admission})


def read_admission(job: Any) -> tuple[bool, Grant | None]:
    """Return whether *job* was admitted before this process began, and its grant, or None if it has no limit."""
    written: dict[str, Any] = json.loads(os.environ.get(ADMITTED, "{}"))
    if written.get("job") != job.id:
        return False, None
    declared = options_of(job) if written["limits"] else None
    if declared is None:
        return True, None
    charged, waited, expires_ms = written["charged"], written["waited"], written["expires"]
    check = Check(job, declared, BY_RQ_SCHEDULER, Record(job.enqueue_at_front, expires_ms))
    check.throttling.record_waited(job.id, Waited(*waited))
    run = Run(
        describe(job),
        declared.options.limits,
        decision_from_receipt(charged) if charged is not None else None,
        check.delivery(job, declared.options.max_wait),
        declared.options.on_429,
    )
    received = written.get("received")
    return True, Grant(check, run, None if received is None else Received429(received))
