"""A job that asks for itself, in the process that runs it: so a stock worker keeps limits that it knows nothing of."""

from __future__ import annotations

import functools
import inspect
import logging
import time
from collections.abc import Callable
from typing import Any

from rq.job import get_current_job
from rq.utils import import_attribute

from throttlekit import ConfigurationError
from throttlekit.fleet.fleet import last_word
from throttlekit_rq._admission import BY_RQ_SCHEDULER, Patience, ask, limiter_of, told_once
from throttlekit_rq._body import GRANT, Denied, Grant, admitted_elsewhere, granted, held, over, put_back
from throttlekit_rq._deferral import Return, admit, first_to_tell, look, promote, promoters, read_record
from throttlekit_rq._options import Terms, terms_of

__all__ = ["carried_call", "run", "throttled_call"]

_LONGEST_IN_PLACE = 10.0
_BRAKE = 1.0
_log = logging.getLogger("throttlekit.rq")


def throttled_call(wrapper: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """What to call in place of *function*, which *wrapper* decorates: itself, or something that asks first."""
    job: Any = get_current_job()
    if job is None or job.worker_name == "sync":
        return function
    admitted = _if_admitted(job, function)
    if admitted is not None:
        return admitted
    body = job.func
    if getattr(body, "__func__", body) is not wrapper:
        if _within(body, wrapper, job.func_name, function):
            raise ConfigurationError(
                f"{job.func_name}: another decorator stands over @throttled, and would take a denial for the job's "
                "result: write @throttled above it"
            )
        return function  # called by the body of some other job
    return _asking(job, terms_of(job), function)


def carried_call(function: Callable[..., Any]) -> Callable[..., Any]:
    """What RQ calls for a job that carries limits, and whose function is *function*."""
    job: Any = get_current_job()
    if job is None or job.worker_name == "sync":
        return function
    return _if_admitted(job, function) or _asking(job, terms_of(job), function)


def run(text: str, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """
    Run a job that carries limits, where its serializer cannot carry more than plain data. Jobs name this
    function; it is not for you to call.
    """
    return carried_call(import_attribute(name))(*args, **kwargs)


def _if_admitted(job: Any, function: Callable[..., Any]) -> Callable[..., Any] | None:
    """What to call in place of *function* if its job was asked for before; None: it was not."""
    if hasattr(job, GRANT):
        return function
    admitted, grant = admitted_elsewhere(job)
    if not admitted:
        return None
    return function if grant is None else held(job, grant, function)


def _within(running: Any, wrapper: Any, name: str, function: Any) -> bool:
    while running is not None and running is not wrapper:
        running = getattr(running, "__wrapped__", None)
    return running is wrapper or name == f"{function.__module__}.{function.__qualname__}"


def _asking(job: Any, terms: Terms | None, function: Callable[..., Any]) -> Callable[..., Any]:
    if terms is None:
        setattr(job, GRANT, None)
        return function
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def asked_async(*args: Any, **kwargs: Any) -> Any:
            try:
                grant = _ask_in_place(job, terms)
                if isinstance(grant, Denied):
                    return grant
                return await held(job, grant, function)(*args, **kwargs)
            finally:
                last_word(limiter_of(job, terms))

        return asked_async

    @functools.wraps(function)
    def asked(*args: Any, **kwargs: Any) -> Any:
        try:
            grant = _ask_in_place(job, terms)
            if isinstance(grant, Denied):
                return grant
            return held(job, grant, function)(*args, **kwargs)
        finally:
            last_word(limiter_of(job, terms))

    return asked


def _ask_in_place(job: Any, terms: Terms) -> Grant | Denied:
    record = read_record(job)
    ticket = record.ticket if record is not None else None
    if record is not None and record.expired(job):
        return put_back(job, record, Return(ticket, 0.0))
    patience, left = Patience(job), _LONGEST_IN_PLACE
    while True:
        with told_once(job.connection):
            decision = ask(job, terms, ticket, BY_RQ_SCHEDULER, patience)
        if decision.allowed:
            return granted(job, terms, record, decision, ticket)
        if decision.final:
            admit(job, record)  # whoever requeues it later has it begin anew
            return over(job, decision) or granted(job, terms, None, decision, ticket)
        ticket = decision.ticket
        scheduler, ours = promoters(job)
        if scheduler or ours:
            return put_back(job, record, Return(ticket, decision.delay, by_ticks=scheduler))
        _tell_of_no_promoter(job)
        _promote_due(job)
        if decision.delay > min(left, patience.left):
            time.sleep(min(_BRAKE, left, patience.left))
            return put_back(job, record, Return(ticket, None))
        time.sleep(decision.delay)
        left -= decision.delay
        patience.left -= decision.delay


def _promote_due(job: Any) -> None:
    (seen,) = look(job.connection, [job.origin])
    if seen.due:
        promote(job.connection, job.origin, seen.due)


def _tell_of_no_promoter(job: Any) -> None:
    if first_to_tell(job.connection, f"no-promoter:{job.origin}", 600):
        _log.warning(
            "Nobody takes delayed jobs out of queue %r: what a limit denies waits in its worker for up to %.0f s at a "
            "time, and loses its place in the queue. Start one worker with --with-scheduler, or workers with "
            "--worker-class throttlekit_rq.ThrottledWorker.",
            job.origin, _LONGEST_IN_PLACE,
        )  # fmt: skip
