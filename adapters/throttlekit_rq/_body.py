"""Run a job's body: hold its slots while it runs, and put the job back if the body raises `RateLimited`."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import os
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from rq.timeouts import BaseTimeoutException

from throttlekit import RateLimited
from throttlekit.adapter import Deferred, Failed, Run, Waited, decision_from_receipt, flush, receipt, running
from throttlekit_rq._admission import (
    BY_RQ_SCHEDULER,
    BY_WORKER,
    Grant,
    conclude,
    limiter_of,
    log_once,
    throttling_of,
)
from throttlekit_rq._holding import GRACE_S
from throttlekit_rq._host import Denied, end_with
from throttlekit_rq._options import describe, options_of
from throttlekit_rq._received_429 import Received429
from throttlekit_rq._settings import settings
from throttlekit_rq._waiting import promoted_by, read_expiry, shown_of
from throttlekit_rq._wire import ADMITTED, Record

__all__ = ["GRANT", "UNTHROTTLED", "Body", "read_admission", "running_body", "within", "wrap_call", "write_admission"]

GRANT = "_throttlekit_grant"
"""The attribute of an admitted job object that holds its `Grant`, or None if the job names no limit."""


@dataclass(slots=True)
class Body:
    """
    One call of a job's function.

    Attributes:
        denied: The value to return in place of the function's result, so that RQ puts the job back. If None, the
            function runs.
        complete: Whether to run a coroutine that a plain function returns. Otherwise RQ runs it, after this context.
    """

    denied: Denied | None = None
    complete: bool = True

    def result(self, returned: Any) -> Any:
        return asyncio.run(returned) if self.complete and inspect.iscoroutine(returned) else returned


UNTHROTTLED: AbstractContextManager[Body] = nullcontext(Body(complete=False))
"""The context of a call without limits: the function runs unchanged."""


def wrap_call(function: Callable[..., Any], start: Callable[[], AbstractContextManager[Body]]) -> Callable[..., Any]:
    """Wrap a plain or async *function*, so that each call runs in the context of *start*, unless it is denied."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            with start() as body:
                if body.denied is None:
                    return await function(*args, **kwargs)
            return body.denied

        return run_async

    @functools.wraps(function)
    def run_plain(*args: Any, **kwargs: Any) -> Any:
        return within(start, function, *args, **kwargs)

    return run_plain


def within(
    start: Callable[[], AbstractContextManager[Body]], function: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Any:
    """Call a plain *function* in the context that *start* returns, unless it is denied."""
    with start() as body:
        if body.denied is None:
            return body.result(function(*args, **kwargs))
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
    body = Body()
    try:
        with _slots(grant):
            try:
                yield body
            except RateLimited as error:
                body.denied = _rate_limited(job, grant, error)
                raise
    except RateLimited:
        if body.denied is None:
            raise
    finally:
        if is_last:
            flush(grant.throttling.limiter)  # sends settled costs and received responses


@contextmanager
def _slots(grant: Grant) -> Generator[None, None, None]:
    run = grant.run
    held = nullcontext() if run.decision is None else running(grant.throttling.limiter, run.decision, run.job)
    try:
        with held:
            yield
    except BaseTimeoutException:
        # The timeout may have interrupted the release of the slots.
        grant.release()
        raise
    except Exception:
        grant.ended = True
        raise
    grant.ended = True


def _rate_limited(job: Any, grant: Grant, error: RateLimited) -> Denied | None:
    """Pause the limits that *error* names, and put *job* back. Return None if it must not wait longer: it fails."""
    run, throttling = grant.run, grant.throttling
    record = Record(job.enqueue_at_front, grant.expires_ms)
    if grant.received is not None:
        return _return_to_worker(job, grant, grant.received, record, error)
    record, lives = read_expiry(job, record)
    scheduler, ours = promoted_by(job.connection, job.origin)
    by = BY_WORKER if ours and not scheduler else BY_RQ_SCHEDULER
    run = replace(run, delivery=settings().rules.delivery(by, run.delivery.max_wait, expires_in=lives))
    waited = throttling.waited_of(job.id)
    with log_once(job.connection):
        outcome = throttling.rate_limited(run, error, release=grant.release)
    if isinstance(outcome, Run):
        return None
    shown = None
    if isinstance(outcome, Deferred):
        shown = shown_of(job, outcome, waited._replace(denials=waited.denials + 1))
    at_end = not (scheduler or ours)
    return end_with(job, conclude(job, record, outcome, by_ticks=scheduler, at_end=at_end, shown=shown))


def _return_to_worker(
    job: Any, grant: Grant, received: Received429, record: Record, error: RateLimited
) -> Denied | None:
    """Put *job* back as `_rate_limited` does, and report it to its worker, which holds the job afterwards."""
    run, throttling = grant.run, grant.throttling
    with log_once(job.connection):
        stored = throttling.pause(run, error, release=grant.release)
    record, _ = read_expiry(job, record)  # after the pause, which applies even if RQ's Redis does not answer
    if isinstance(stored, Failed):
        return end_with(job, conclude(job, record, stored))
    waited = throttling.waited_of(job.id)
    waited = waited._replace(denials=waited.denials + 1)
    over = throttling.over(run, waited)
    if over is not None:
        return None if isinstance(over, Run) else end_with(job, conclude(job, record, over))
    delay = min(run.delivery.longest, error.retry_after)
    held = Deferred(delay + GRACE_S, None)
    shown = shown_of(job, Deferred(delay, run.decision), waited)
    denied = end_with(job, conclude(job, record, held, shown=shown))
    received.put(0.0 if stored else error.retry_after)
    return denied


def write_admission(job: Any) -> str:
    """Return the grant of *job* as text, for the process that is spawned for it. This process keeps the slots."""
    grant: Grant | None = getattr(job, GRANT)
    if grant is None or grant.run.decision is None:
        return json.dumps({"job": job.id, "limits": False})
    decision = grant.run.decision
    rates = tuple(each for each in decision.charged if not each.holder or each.stays)
    charged = receipt(replace(decision, charged=rates)) if rates else None
    received = None if grant.received is None else grant.received.into
    waited, expires = grant.throttling.waited_of(job.id), grant.expires_ms
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
    throttling = throttling_of(limiter_of(job, declared), declared, BY_RQ_SCHEDULER)
    throttling.record_waited(job.id, Waited(*waited))
    run = Run(
        describe(job),
        declared.options.limits,
        decision_from_receipt(charged) if charged is not None else None,
        settings().rules.delivery(BY_RQ_SCHEDULER, declared.options.max_wait),
        declared.options.on_429,
    )
    received = written.get("received")
    return True, Grant(throttling, run, expires_ms, None if received is None else Received429(received))
