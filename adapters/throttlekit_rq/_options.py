"""Collect the limits of a job: from the enqueue call, from its function, and from its queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from throttlekit import ConfigurationError, Job, Limit, Limiter
from throttlekit.adapter import MAX_WAIT, JobOptions, load_limits, seconds_in
from throttlekit_rq._settings import settings
from throttlekit_rq._wire import RUN, Carried, Given, import_function

__all__ = ["DECLARED", "Declared", "describe", "options_of"]

DECLARED = "__throttle__"
"""The attribute of a decorated function that holds its `Declared`."""

_CACHED_TEXTS = 256


@dataclass(frozen=True, slots=True)
class Declared:
    """
    The limits of a function or a job.

    Attributes:
        limiter: The limiter that decides. If None, the limiter of this process decides.
    """

    options: JobOptions
    limiter: Limiter | None = None


_NOTHING = Declared(JobOptions())


def options_of(job: Any, of_queue: Iterable[Limit] = ()) -> Declared | None:
    """
    Return the limits of *job*, including the limits *of_queue* of its worker, or None if it has no limit.

    If several limits have the same name, the function's limit is used; otherwise the worker's limit for the queue;
    otherwise the limit that the job carries. So a program that can only enqueue jobs cannot replace a limit.

    Raises:
        ConfigurationError: The job carries options that cannot be read, or `configure(own_limits=False)` refuses them.
        Exception: The error that RQ raises for a function that cannot be imported.
    """
    function, text = _function_and_text(job)
    declared: Declared = getattr(function, DECLARED, _NOTHING)
    own: Iterable[Limit] = declared.options.limits
    on_429, max_wait = declared.options.on_429, None
    carried: Iterable[Limit] = ()
    if text is not None:
        if not settings().own_limits:
            raise ConfigurationError(
                "the job carries its own limits, but configure(own_limits=False) allows only those of functions and of "
                "configure(queues=…)"
            )
        given, own_given, of_queue_given = _read(text)
        carried = of_queue_given if own_given is None else (*of_queue_given, *own_given)
        own = own if own_given is None else ()
        on_429 = on_429 if given.on_429 is None else given.on_429
        max_wait = None if given.max_wait is None else seconds_in(MAX_WAIT, given.max_wait)
    # If several limits have the same name, the last one is used: limits with one name share one count.
    limits = {limit.name: limit for limit in (*carried, *of_queue, *own)}
    if not limits:
        return None
    return Declared(JobOptions(limits=tuple(limits.values()), on_429=on_429, max_wait=max_wait), declared.limiter)


@lru_cache(_CACHED_TEXTS)
def _read(text: str) -> tuple[Given, tuple[Limit, ...] | None, tuple[Limit, ...]]:
    """Load the options in *text*, the job's own limits, and those of its queue, once for all jobs with this text."""
    given = Given.read(text)
    own = None if given.limits is None else load_limits(given.limits)
    return given, own, load_limits(given.of_queue)


def describe(job: Any) -> Job:
    """Return the `Job` that limits read, with the arguments of the job's function."""
    name, args, kwargs = job.func_name, job.args, job.kwargs
    if name == RUN:
        _, name, args, kwargs = args
    function, _ = _function_and_text(job)
    return Job(id=job.id, name=name, queue=job.origin, args=tuple(args), kwargs=kwargs, function=function)


def _function_and_text(job: Any) -> tuple[Callable[..., Any], str | None]:
    """Return the function of *job*, and the text of its `Given`, or None if the job carries no options."""
    if isinstance(job.instance, Carried):
        text, instance = job.instance.__reduce__()[1]
        return import_function(job.func_name, instance), text
    if job.func_name == RUN:
        return import_function(job.args[1]), job.args[0]
    return job.func, None
