"""Check limits in the process that runs the job. Jobs of stock RQ workers are limited in this way."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from throttlekit import ConfigurationError, Limiter
from throttlekit.adapter import Deferred, Waiting, show_log
from throttlekit_rq._admission import (
    BY_RQ_SCHEDULER,
    BY_WORKER,
    Check,
    Grant,
    log_once,
)
from throttlekit_rq._body import GRANT, UNTHROTTLED, Body, read_admission, running_body, wrap_call
from throttlekit_rq._holding import plan_return
from throttlekit_rq._host import Denied, current_job, end_with
from throttlekit_rq._options import options_of
from throttlekit_rq._promoter import Promoter
from throttlekit_rq._settings import settings
from throttlekit_rq._waiting import (
    deny,
    is_first_to_log,
    promoted_by,
    shown_of,
)
from throttlekit_rq._waker import Announcement, read_announcement, relay_to, send_note
from throttlekit_rq._wire import LATE_IMPORT, import_function, register_wrapper

__all__ = ["call_of", "carried_call", "run"]

_LONGEST_OF_NEW, _LONGEST_OF_RETURNING = 0.05, 1.25
"""
The longest time in seconds for which a job sleeps in its worker although a scheduler could enqueue it again: of a new
job, and of a job that a scheduler has already enqueued again.
"""

_LONGEST_IN_PLACE = 10.0
_BRAKE = 1.0
_WARN_EVERY = 600
_IMPORTED_BY = os.getpid()
_log = logging.getLogger("throttlekit.rq")


def call_of(wrapper: Callable[..., Any], function: Callable[..., Any]) -> AbstractContextManager[Body] | Denied:
    """
    Return the context for a call of *function*, which *wrapper* decorates, or a denial.

    Raises:
        ConfigurationError: Another decorator is above *wrapper*.
    """
    job = current_job()
    if job is None:
        return UNTHROTTLED
    admitted = _if_admitted(job)
    if admitted is not None:
        return admitted
    body = job.func
    if getattr(body, "__func__", body) is wrapper:
        return _context_with_check(job)
    if _is_within(body, wrapper, job.func_name, function):
        raise ConfigurationError(
            f"{job.func_name}: another decorator is above @throttled, and would return a denial as the job's result: "
            "write @throttled above it"
        )
    return UNTHROTTLED  # called by the body of another job


def carried_call(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that RQ calls for a job that carries limits: the job's own *function*, with the check."""
    job = current_job()
    return function if job is None else wrap_call(function, lambda: _if_admitted(job) or _context_with_check(job))


register_wrapper(carried_call)


def run(text: str, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """
    Run a job that carries limits, if its serializer supports only plain data. RQ calls this function by the name that
    such jobs contain; programs must not call it.
    """
    return carried_call(import_function(name))(*args, **kwargs)


def _if_admitted(job: Any) -> AbstractContextManager[Body] | None:
    """Return the context for the function of *job*, or None if the job was not admitted before."""
    if hasattr(job, GRANT):
        return UNTHROTTLED
    admitted, grant = read_admission(job)
    if not admitted:
        return None
    return UNTHROTTLED if grant is None else running_body(job, grant)


def _is_within(running: Any, wrapper: Any, name: str, function: Any) -> bool:
    while running is not None and running is not wrapper:
        running = getattr(running, "__wrapped__", None)
    return running is wrapper or name == f"{function.__module__}.{function.__qualname__}"


def _context_with_check(job: Any) -> AbstractContextManager[Body] | Denied:
    """Check the limits of *job*. Return the context for its function, or a denial."""
    declared = options_of(job)
    if declared is None:
        setattr(job, GRANT, None)
        return UNTHROTTLED
    show_log("rq.worker")
    _note_late_import(job)
    check = Check.of(job, declared, BY_RQ_SCHEDULER)
    answer: Grant | Denied | None = None
    try:
        answer = _admit_in_place(check)
        return running_body(job, answer) if isinstance(answer, Grant) else answer
    finally:
        if not isinstance(answer, Grant):  # otherwise the context reports after the body
            check.limiter.flush()


def _admit_in_place(check: Check) -> Grant | Denied:
    """Check the limits of a job, sleeping for short delays. A denied job is put back or cancelled when it ends."""
    job, record, waiting = check.rq_job, check.record, None
    if check.lives < 0:
        return end_with(job, partial(deny, job, record, 0.0))
    was_returned, left = record.is_denied, _LONGEST_IN_PLACE
    patience = job.timeout / 4 if job.timeout and job.timeout > 0 else math.inf  # RQ counts sleeps against the timeout
    waker = _find_waker(job, check.limiter)
    relay = None if waker is None else relay_to(waker, job, check.limiter)
    if relay is not None:
        check.by, waiting = BY_WORKER, Waiting(relay, None, job.id)
    while True:
        with log_once(job.connection):
            outcome = check.admit(waiting)
        if isinstance(outcome, Grant):
            return outcome
        if not isinstance(outcome, Deferred):
            return end_with(job, check.refuse(outcome))
        put_back = partial(deny, job, record, shown=shown_of(outcome))
        if waker is not None and relay is not None and relay.kept is not None:
            delay, grace, ends_in_us = plan_return(check, outcome)
            send = partial(send_note, waker, job.origin, relay.kept, grace=grace, ends_in_us=ends_in_us)
            return end_with(job, partial(put_back, delay), send)
        wait = outcome.delay
        if not _is_worth_waiting(outcome, was_returned) or wait > min(patience, check.lives):
            scheduler, ours = promoted_by(job.connection, job.origin)
            if scheduler or ours:
                return end_with(job, partial(put_back, wait, by_ticks=scheduler))
            _warn_of_no_promoter(job)
            Promoter(job.connection).promote_due([job.origin], 0.0)
            if wait > min(left, patience, check.lives):  # after its ttl it must not run
                time.sleep(min(_BRAKE, left, patience))
                return end_with(job, partial(put_back, None))
            was_returned = True
            left -= wait
        time.sleep(wait)
        patience -= wait


def _note_late_import(job: Any) -> None:
    """Log, once for the fleet, if this process was forked for *job* and had to import throttlekit."""
    is_made_for_job = os.environ.get("RQ_JOB_ID") == job.id
    if (
        is_made_for_job
        and os.getpid() == _IMPORTED_BY
        and is_first_to_log(job.connection, f"{LATE_IMPORT}{job.origin}", _WARN_EVERY)
    ):
        _log.info(
            "Workers of queue %r import throttlekit for each job, which takes about 0.1 s of CPU. Start them with "
            "--worker-class throttlekit_rq.ThrottledWorker, or with -c and a module that imports throttlekit_rq and "
            "your tasks.",
            job.origin,
        )


def _find_waker(job: Any, limiter: Limiter) -> Announcement | None:
    """Return the announcement of the waker of the queue of *job*, or None without one that uses *limiter*'s store."""
    waker = read_announcement(job.connection, job.origin)
    if waker is None or limiter.counts_at(waker.store):
        return waker
    if is_first_to_log(job.connection, f"other-store:{job.origin}", _WARN_EVERY):
        _log.warning(
            "The waker of queue %r (`throttlekit wake`) listens at the store %s, and the workers use %s: denied jobs "
            "return after an estimated delay. Start the waker with --url and the store of the workers.",
            job.origin,
            waker.store or "(none)",
            limiter.store_address or "(none)",
        )
    return None


def _is_worth_waiting(denied: Deferred, was_returned: bool) -> bool:
    """Return whether the job sleeps for its delay in its worker, because the scheduler would enqueue it too late."""
    if denied.decision is None or denied.decision.reason == "store unavailable":
        return False
    longest = _LONGEST_OF_RETURNING if was_returned else _LONGEST_OF_NEW
    return denied.delay <= min(longest, settings().max_inline_wait)


def _warn_of_no_promoter(job: Any) -> None:
    if is_first_to_log(job.connection, f"no-promoter:{job.origin}", _WARN_EVERY):
        _log.warning(
            "No process enqueues the scheduled jobs of queue %r: a job that a limit denies waits in its worker for up "
            "to %.0f s at a time, and loses its position in the queue. Start one worker with --with-scheduler, or "
            "workers with --worker-class throttlekit_rq.ThrottledWorker.",
            job.origin,
            _LONGEST_IN_PLACE,
        )
