"""`ThrottledQueue`, an RQ queue whose enqueue methods take limits, which the job carries."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from inspect import signature
from typing import Any

from rq.job import Job as RqJob
from rq.queue import EnqueueData, Queue

from throttlekit import ConfigurationError, Job, Limit, Limiter
from throttlekit.adapter import (
    MAX_WAIT,
    ON_429,
    THROTTLE,
    JobOptions,
    check_limiter,
    check_on_429,
    check_spelling,
    dump_limits,
    name_of,
    spelling_hint,
)
from throttlekit_rq._host import untyped
from throttlekit_rq._options import DECLARED, Declared
from throttlekit_rq._wire import RUN, Carried, Given

__all__ = ["ThrottledQueue"]


class _Call:
    """A function with the options of its job: RQ passes a function on to `create_job`, but not unknown options."""

    def __init__(self, function: Any, options: dict[str, Any]) -> None:
        self.function, self.options = function, options
        # RQ reads this attribute to reject functions of a script.
        self.__module__ = getattr(function, "__module__", None) or __name__


class _Described(Job):
    """The `Job` of a job that is being created. Its id is read as late as possible: the read makes RQ create one."""

    __slots__ = ("_job",)

    def of(self, job: Any) -> _Described:
        object.__setattr__(self, "_job", job)
        return self

    @property
    def id(self) -> str:
        return str(untyped(self)._job.id)

    @id.setter
    def id(self, value: str) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Ignore the id that the dataclass sets."""


class ThrottledQueue(Queue):
    """
    A queue whose enqueue methods accept `throttle=[…]`: limits that the job carries, and that every worker applies.

        queue = ThrottledQueue(connection=Redis())
        queue.enqueue(push, contact_id, throttle=[TokenBucket("partner", "10/s")])

    `enqueue`, `enqueue_call`, `enqueue_at`, `enqueue_in`, `prepare_data` and `create_job` accept

    * `throttle`: one or more limits, which replace the limits of the job's function. `[]` or None removes the
      function's limits. Keys and costs are computed in the enqueue call, which raises their errors.
    * `throttle_max_wait`: the longest total wait of the job, in seconds from its first denial.
    * `throttle_on_429`: the limit, or its name, that is paused when the job's body raises `throttlekit.RateLimited`
      without naming a limit. Default: the `on_429` of the job's function, otherwise all limits except concurrency
      limits.

    The job's id, function and description do not change. One exception: with a serializer that supports only plain
    data (JSON), `func_name` is `throttlekit_rq.run`.

    Args:
        limiter: A limiter that registers the names of limits, so that two definitions of one name raise an error at
            once. Workers decide with their own limiter.
        throttle: The limits for all jobs that this object enqueues, in addition to the jobs' own.
        on_429: The limit of *throttle* that a 429 pauses, if neither the enqueue call nor the function names one.

    Raises:
        ConfigurationError: A value can never work. The call that receives the value raises this error.
    """

    def __init__(
        self,
        name: str = "default",
        *args: Any,
        limiter: Limiter | None = None,
        throttle: Limit | Iterable[Limit] = (),
        on_429: Limit | str | None = None,
        **options: Any,
    ) -> None:
        if limiter is not None:
            check_limiter(limiter, 'limiter= takes a limiter: Limiter("redis://…")')
        _check_options(type(self), options)
        untyped(super()).__init__(name, *args, **options)
        self._limiter = limiter
        self._options = JobOptions.read(throttle, on_429=on_429, limiter=limiter)

    def enqueue(self, f: Any, *args: Any, **options: Any) -> RqJob:
        job: RqJob = untyped(super()).enqueue(_with_options(f, options), *args, **options)
        return job

    def enqueue_call(self, func: Any, *args: Any, **options: Any) -> RqJob:
        job: RqJob = untyped(super()).enqueue_call(_with_options(func, options), *args, **options)
        return job

    def enqueue_at(self, datetime: Any, f: Any, *args: Any, **options: Any) -> RqJob:  # enqueue_in calls it
        job: RqJob = untyped(super()).enqueue_at(datetime, _with_options(f, options), *args, **options)
        return job

    @staticmethod
    def prepare_data(func: Any, *args: Any, **options: Any) -> EnqueueData:
        data: EnqueueData = untyped(Queue).prepare_data(_with_options(func, options), *args, **options)
        return data

    def create_job(self, func: Any, *args: Any, **options: Any) -> RqJob:
        call = _with_options(func, options)
        function, given = (call.function, call.options) if isinstance(call, _Call) else (call, {})
        job: Any = untyped(super()).create_job(function, *args, **options)
        if given or self._options.limits:
            try:
                self._give(job, function, given)
            except ConfigurationError as error:
                raise ConfigurationError(f"job for {job.func_name!r}: {error}") from None
        return job  # type: ignore[no-any-return]

    def _give(self, job: Any, function: Any, given: dict[str, Any]) -> None:
        """Store the queue's limits, and the options *given* in the enqueue call, in *job*."""
        own = JobOptions.read(given.get(THROTTLE), max_wait=given.get(MAX_WAIT), limiter=self._limiter)
        limits = own.limits if THROTTLE in given else None
        described = _Described(
            name=job.func_name,
            queue=self.name,
            args=tuple(job.args),
            kwargs=job.kwargs,
            function=None if isinstance(function, str) else function,
        ).of(job)
        text = Given(
            None if limits is None else dump_limits(limits, described),
            dump_limits(self._options.limits, described),
            own.max_wait,
            self._on_429(function, limits, given.get(ON_429)),
        ).write()
        if _carries(untyped(self.serializer)):
            job._instance = Carried(text, job.instance)
        else:
            job._args = [text, job.func_name, list(job.args), job.kwargs]
            job._func_name, job._kwargs = RUN, {}

    def _on_429(self, function: Any, own: tuple[Limit, ...] | None, on_429: Any) -> str | None:
        """Return the name of the limit that a 429 pauses, or None if the function names it. *own*: the job's limits."""
        declared: Declared | None = getattr(function, DECLARED, None)
        if on_429 is None:
            return self._options.on_429 if declared is None or declared.options.on_429 is None else None
        if own is None and declared is not None:
            own = declared.options.limits
        if own is not None or not isinstance(function, str):  # otherwise the limits are known only where the job runs
            check_on_429(on_429, [*(own or ()), *self._options.limits])
        return name_of(on_429)


_OF_DJANGO_RQ = {"autocommit", "commit_mode"}


def _check_options(made: type, options: Iterable[str]) -> None:
    """
    Check that *made* or one of its base classes has each of *options*: RQ's `Queue` ignores unknown options.

    Raises:
        ConfigurationError: Neither *made* nor a base class of it has one of *options*.
    """
    bases = made.__mro__[made.__mro__.index(ThrottledQueue) :]
    if bases[1] is not Queue:
        return  # a class between ThrottledQueue and Queue may have more options
    known = {"async", *signature(untyped(Queue).__init__).parameters, *signature(ThrottledQueue.__init__).parameters}
    if name := max(_OF_DJANGO_RQ.intersection(options), default=None):
        raise ConfigurationError(
            f"ThrottledQueue has no option {name!r}, which is django-rq's: jobs would be enqueued before the database "
            "transaction commits. Name a class of both in QUEUE_CLASS: "
            "class ThrottledDjangoQueue(DjangoRQ, ThrottledQueue)"
        )
    for name in options:
        if name not in known:
            meant = ": did you mean 'on_429'?" if name == ON_429 else spelling_hint(name, known)
            raise ConfigurationError(f"a queue has no option {name!r}{meant}")


def _with_options(function: Any, keywords: dict[str, Any]) -> Any:
    """Return *function* with its throttle options, which are removed from *keywords*, if there are any."""
    if not isinstance(function, _Call):  # the options of a `_Call` were removed before
        check_spelling("a job", keywords, function)
    options = {name: keywords.pop(name) for name in (THROTTLE, MAX_WAIT, ON_429) if name in keywords}
    given = {name: value for name, value in options.items() if name == THROTTLE or value is not None}
    return _Call(function, given) if given else function


@cache
def _carries(serializer: Any) -> bool:
    """Return whether *serializer* can dump and load a `Carried`."""
    try:
        loaded = serializer.loads(serializer.dumps(("function", Carried("{}"), (), {})))
    except Exception:
        return False
    return isinstance(loaded[1], Carried)
