"""What a job is held to: limits given when it was enqueued, those of its function, and those of its queue."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rq.utils import import_attribute

from throttlekit import ConfigurationError, Job, Limit, Limiter
from throttlekit._core.durations import seconds_in
from throttlekit.adapter.options import load_limits

__all__ = ["RUN", "THROTTLE", "Carried", "Given", "OfFunction", "Terms", "describe", "name_of", "terms_of"]

THROTTLE = "__throttle__"
"""The attribute of a decorated function that holds its `OfFunction`."""

RUN = "throttlekit_rq.run"
"""The function that a job is enqueued for where its serializer can carry no `Carried`."""

_VERSION = 1
_REMEMBERED = 256


@dataclass(frozen=True, slots=True)
class OfFunction:
    """What `throttled` was told of a function."""

    limits: tuple[Limit, ...]
    limiter: Limiter | None
    on_429: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """
    What one job is held to.

    Attributes:
        limiter: None: the one of this process.
        max_wait: Seconds; None: what this process was configured with.
        on_429: The limit that a 429 pauses, by its name; None: all but those of concurrency.
    """

    limits: tuple[Limit, ...]
    limiter: Limiter | None = None
    max_wait: float | None = None
    on_429: str | None = None


@dataclass(frozen=True, slots=True)
class Given:
    """
    What travels in a job by value: plain JSON, nothing that runs, nothing secret.

    Attributes:
        limits: The job's own limits, dumped; None: those of its function.
        of_queue: Its queue's, besides.
        max_wait: Seconds; None: none of its own.
        on_429: The limit that a 429 pauses, by its name; None: what its function says.
    """

    limits: list[dict[str, Any]] | None
    of_queue: list[dict[str, Any]]
    max_wait: float | None = None
    on_429: str | None = None

    def write(self) -> str:
        data = {"v": _VERSION, "limits": self.limits, "queue": self.of_queue, "max_wait": self.max_wait}
        return json.dumps(data if self.on_429 is None else {**data, "on_429": self.on_429})

    @classmethod
    def read(cls, text: str) -> Given:
        """
        Read what `write` wrote.

        Raises:
            ConfigurationError: It did not write this.
        """
        try:
            data = json.loads(text)
            if data["v"] != _VERSION:
                raise ValueError(f"version {data['v']!r}")
            return cls(data["limits"], data["queue"], data["max_wait"], data.get("on_429"))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(
                f"the limits in the job are not ones that this throttlekit can read ({error!r}): "
                "was it enqueued by a newer release? Update the workers first"
            ) from None


class Carried:
    """
    Stands in a job's data where RQ keeps the object of a method, so that any worker comes to us for the function.

    RQ asks it for the attribute that the job's `func_name` names: `func_name` and description stay the
    user's own. It is pickled as this class's name and two plain values. Do not move or rename it: jobs
    that wait in Redis name it.
    """

    def __init__(self, text: str, instance: Any = None) -> None:
        self._throttlekit = text, instance

    def __reduce__(self) -> tuple[object, tuple[str, Any]]:
        return Carried, self._throttlekit

    def __getattr__(self, name: str) -> Any:
        if name == "_throttlekit" or (name.startswith("_") and self._throttlekit[1] is None):
            raise AttributeError(name)  # asked by pickle, copy, a debugger; RQ asks for a module's or a method's name
        from throttlekit_rq._in_worker_process import carried_call

        return carried_call(_function(name, self._throttlekit[1]))


def _function(name: str, instance: Any) -> Callable[..., Any]:
    """What RQ would call for the func_name *name*; raises what RQ would."""
    found: Callable[..., Any] = import_attribute(name) if instance is None else getattr(instance, name)
    return found


def terms_of(job: Any, of_queue: Iterable[Limit] = ()) -> Terms | None:
    """
    What *job* is held to, besides the limits *of_queue* that a worker keeps for its queue; None: nothing.

    Raises:
        ConfigurationError: What it carries cannot be read.
        Exception: What RQ raises for a function that cannot be imported.
    """
    function, text = _function_and_text(job)
    of_function: OfFunction | None = getattr(function, THROTTLE, None)
    own: Iterable[Limit] = of_function.limits if of_function is not None else ()
    on_429 = of_function.on_429 if of_function is not None else None
    max_wait: float | None = None
    if text is not None:
        given, own_given, of_queue_given = _carried(text)
        own = own if own_given is None else own_given
        on_429 = on_429 if given.on_429 is None else given.on_429
        of_queue = [*of_queue_given, *of_queue]
        max_wait = None if given.max_wait is None else seconds_in("throttle_max_wait", given.max_wait)
    # Of two limits with one name the job's own holds: the same name is the same budget.
    limits = {limit.name: limit for limit in (*of_queue, *own)}
    if not limits:
        return None
    limiter = of_function.limiter if of_function is not None else None
    return Terms(limits=tuple(limits.values()), limiter=limiter, max_wait=max_wait, on_429=on_429)


@lru_cache(_REMEMBERED)
def _carried(text: str) -> tuple[Given, tuple[Limit, ...] | None, tuple[Limit, ...]]:
    """What a job carries, its own limits made, and its queue's: once for all jobs that carry the same."""
    given = Given.read(text)
    own = None if given.limits is None else load_limits(given.limits)
    return given, own, load_limits(given.of_queue)


def name_of(on_429: Limit | str | None) -> str | None:
    """The option `on_429` as it is kept."""
    return on_429.name if isinstance(on_429, Limit) else on_429


def describe(job: Any, ticket: Mapping[str, Any] | None) -> Job:
    """*job* as limits see it. The arguments are those that its function gets."""
    name, args, kwargs = job.func_name, job.args, job.kwargs
    if name == RUN:
        _, name, args, kwargs = args
    function, _ = _function_and_text(job)
    return Job(
        id=job.id, name=name, queue=job.origin, args=tuple(args), kwargs=kwargs, function=function, ticket=ticket
    )


def _function_and_text(job: Any) -> tuple[Callable[..., Any], str | None]:
    """The function of *job*, and what it carries by value."""
    if isinstance(job.instance, Carried):
        text, instance = job.instance.__reduce__()[1]
        return _function(job.func_name, instance), text
    if job.func_name == RUN:
        return import_attribute(job.args[1]), job.args[0]
    return job.func, None
