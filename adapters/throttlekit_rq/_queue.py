"""A queue whose jobs may bring limits with them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from rq.job import Job as RqJob
from rq.queue import EnqueueData, Queue

from throttlekit import ConfigurationError, Job, Limit, Limiter
from throttlekit._core.durations import seconds_in
from throttlekit.adapter.options import dump_limits, limits_in
from throttlekit.adapter.rate_limited import check_on_429
from throttlekit_rq._options import RUN, THROTTLE, Carried, Given, OfFunction, name_of

__all__ = ["ThrottledQueue"]

_NOT_GIVEN: Any = object()


class _Named:
    """A function on its way through RQ's enqueue calls, and what was given with it."""

    def __init__(self, function: Any, throttle: Any, max_wait: Any, on_429: Any) -> None:
        self.function = function
        self.throttle = throttle
        self.max_wait = max_wait
        self.on_429 = on_429
        # RQ looks at this to refuse functions of a script.
        self.__module__ = getattr(function, "__module__", None) or __name__


class ThrottledQueue(Queue):
    """
    A queue whose enqueue calls take `throttle=[…]`: limits that travel in the job, for any worker to keep.

    `enqueue`, `enqueue_call`, `enqueue_at`, `enqueue_in`, `prepare_data` and `create_job` take

    * `throttle`: a limit or several, in place of those of the job's function; `[]` or None frees the job
      from them. Keys and costs are worked out here, so it is here that they fail.
    * `throttle_max_wait`: how long the job may wait in all, in seconds, from its first denial.
    * `on_429`: which of the job's limits is paused, or its name, when its body raises
      `throttlekit.RateLimited` and does not say. Default: what its function says, else all but those of concurrency.

    The job's id, function, description and everything else stay as they would be. With a serializer that
    holds plain data only (JSON), `func_name` is `throttlekit_rq.run`; the description is still the user's.

    Args:
        limiter: Makes limits known, so that a name with two definitions shows at once. It does not
            travel: workers have their own.
        throttle: Limits for everything that is enqueued here, besides the jobs' own.
        on_429: Which of them a 429 pauses, where neither the enqueue call nor the function says.

    Raises:
        ConfigurationError: A value can never work, where it is given.
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
        if limiter is not None and not isinstance(limiter, Limiter):
            raise ConfigurationError(f'limiter= takes a limiter: Limiter("redis://…"), not {limiter!r}')
        _rq(super()).__init__(name, *args, **options)
        self._limiter = limiter
        self._throttle = limits_in(throttle)
        self._declare(self._throttle)
        check_on_429(on_429, self._throttle)
        self._on_429 = name_of(on_429)

    def enqueue(
        self,
        f: Any,
        *args: Any,
        throttle: Any = _NOT_GIVEN,
        throttle_max_wait: Any = None,
        on_429: Any = None,
        **kwargs: Any,
    ) -> RqJob:
        job: RqJob = _rq(super()).enqueue(_named(f, throttle, throttle_max_wait, on_429), *args, **kwargs)
        return job

    def enqueue_call(
        self,
        func: Any,
        *args: Any,
        throttle: Any = _NOT_GIVEN,
        throttle_max_wait: Any = None,
        on_429: Any = None,
        **options: Any,
    ) -> RqJob:
        job: RqJob = _rq(super()).enqueue_call(_named(func, throttle, throttle_max_wait, on_429), *args, **options)
        return job

    def enqueue_at(
        self,
        datetime: Any,
        f: Any,
        *args: Any,
        throttle: Any = _NOT_GIVEN,
        throttle_max_wait: Any = None,
        on_429: Any = None,
        **kwargs: Any,
    ) -> RqJob:
        job: RqJob = _rq(super()).enqueue_at(datetime, _named(f, throttle, throttle_max_wait, on_429), *args, **kwargs)
        return job

    def enqueue_in(
        self,
        time_delta: timedelta,
        func: Any,
        *args: Any,
        throttle: Any = _NOT_GIVEN,
        throttle_max_wait: Any = None,
        on_429: Any = None,
        **kwargs: Any,
    ) -> RqJob:
        job: RqJob = _rq(super()).enqueue_in(
            time_delta, _named(func, throttle, throttle_max_wait, on_429), *args, **kwargs
        )
        return job

    @staticmethod
    def prepare_data(
        func: Any,
        *args: Any,
        throttle: Any = _NOT_GIVEN,
        throttle_max_wait: Any = None,
        on_429: Any = None,
        **options: Any,
    ) -> EnqueueData:
        data: EnqueueData = _rq(Queue).prepare_data(_named(func, throttle, throttle_max_wait, on_429), *args, **options)
        return data

    def create_job(
        self,
        func: Any,
        *args: Any,
        throttle: Any = _NOT_GIVEN,
        throttle_max_wait: Any = None,
        on_429: Any = None,
        **options: Any,
    ) -> RqJob:
        named = _named(func, throttle, throttle_max_wait, on_429)
        job: Any = _rq(super()).create_job(named.function, *args, **options)
        given = named.throttle is not _NOT_GIVEN or named.max_wait is not None or named.on_429 is not None
        if given or self._throttle:
            try:
                self._give(job, named)
            except ConfigurationError as error:
                raise ConfigurationError(f"job for {job.func_name!r}: {error}") from None
        return job  # type: ignore[no-any-return]

    def _give(self, job: Any, named: _Named) -> None:
        own = None if named.throttle is _NOT_GIVEN else limits_in(named.throttle)
        self._declare(own or ())
        function = None if isinstance(named.function, str) else named.function
        told = Job(
            id=job.id, name=job.func_name, queue=self.name, args=tuple(job.args), kwargs=job.kwargs, function=function
        )
        given = Given(
            None if own is None else dump_limits(own, told),
            dump_limits(self._throttle, told),
            None if named.max_wait is None else seconds_in("throttle_max_wait", named.max_wait),
            self._pauses(named, own),
        )
        if _carries(self.serializer):
            job._instance = Carried(given.write(), job.instance)
        else:
            job._args = [given.write(), job.func_name, list(job.args), job.kwargs]
            job._func_name, job._kwargs = RUN, {}

    def _pauses(self, named: _Named, own: tuple[Limit, ...] | None) -> str | None:
        """What a 429 pauses: None leaves it to the function."""
        of_function: OfFunction | None = getattr(named.function, THROTTLE, None)
        if named.on_429 is None:
            return self._on_429 if of_function is None or of_function.on_429 is None else None
        if own is None and of_function is not None:
            own = of_function.limits
        if own is not None or not isinstance(named.function, str):  # else its limits are known where it runs
            check_on_429(named.on_429, [*(own or ()), *self._throttle])
        return name_of(named.on_429)

    def _declare(self, limits: Iterable[Limit]) -> None:
        if self._limiter is not None:
            self._limiter.declare(*limits)


def _rq(host: Any) -> Any:
    """RQ's own annotations leave type parameters open, which strict checkers will not have."""
    return host


def _named(function: Any, throttle: Any, max_wait: Any, on_429: Any) -> _Named:
    return function if isinstance(function, _Named) else _Named(function, throttle, max_wait, on_429)


_carriers: dict[Any, bool] = {}


def _carries(serializer: Any) -> bool:
    """Whether *serializer* brings a `Carried` back as what it was."""
    if serializer not in _carriers:
        try:
            loaded = serializer.loads(serializer.dumps(("function", Carried("{}"), (), {})))
            _carriers[serializer] = isinstance(loaded[1], Carried)
        except Exception:
            _carriers[serializer] = False
    return _carriers[serializer]
