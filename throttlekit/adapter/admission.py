"""Check the limits of a job, and turn every decision and every error into an outcome."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from throttlekit._core.answer import Caller, Requester, Waited
from throttlekit._core.decision import Decision
from throttlekit._core.job import Job
from throttlekit._core.limit.base import Limit
from throttlekit._engine.call import Call, Delivery, Waiting
from throttlekit._engine.rate_limited import RateLimited
from throttlekit._engine.running import NOTHING, RUNNING
from throttlekit._unlimited import adapter_is_in_use
from throttlekit._wiring import wiring_of
from throttlekit.adapter.body import end
from throttlekit.adapter.options import JobOptions, WaitRules
from throttlekit.adapter.outcome import Deferred, Dropped, Failed, Outcome, Run
from throttlekit.adapter.rate_limited import deny_after_429, pause, wait_again
from throttlekit.errors import ConfigurationError, WaitedTooLong
from throttlekit.limiter import Limiter

if TYPE_CHECKING:
    from throttlekit.aio import AsyncLimiter

__all__ = ["Host", "Throttling"]

_PANIC_DELAY = 1.0
"""The delay of a job, in seconds, if an error prevented a decision."""

_M = TypeVar("_M", contravariant=True)


class Host(Protocol[_M]):
    """An adapter's access to its framework's messages. If a method raises, the job is not lost: it waits or fails."""

    def options(self, message: _M) -> JobOptions:
        """
        Return the limits and options of *message*.

        Raises:
            ConfigurationError: The message carries options that cannot be read.
        """
        ...

    def job(self, message: _M) -> Job:
        """Return the job of *message*, for the limits."""
        ...

    def delivery(self, message: _M, max_wait: float | None) -> Delivery:
        """Return how the framework redelivers *message*. *max_wait* is the job's longest wait in seconds, or None."""
        ...


class Throttling(Generic[_M]):
    """
    Admits an adapter's jobs.

    Args:
        limiter: The limiter that decides.
        host: The adapter's object that reads the framework's messages.
        rules: The rules for the wait of jobs.
        log: The adapter's logger.
        noun: The framework's word for a job, for log lines: "Message", "Task", "Job".
    """

    def __init__(
        self, limiter: Limiter, host: Host[_M], *, rules: WaitRules, log: logging.Logger, noun: str = "Job"
    ) -> None:
        self.limiter = limiter
        self.rules = rules
        self._host = host
        self._log, self._noun = log, noun
        self._warned = False
        adapter_is_in_use()

    def warn_in_memory(self) -> None:
        """Log a warning once if the limiter counts in memory, which is rarely intended. Call it as a worker starts."""
        if self.limiter.in_memory and not self._warned:
            self._warned = True
            self._log.warning(
                "This worker's limits are kept in memory: each process counts alone, up to the full limit. Name "
                'a store: Limiter("redis://…"), or the environment variable THROTTLEKIT_URL.'
            )

    def admit(self, message: _M, waits: Waiting | None = None) -> Outcome:
        """
        Request the units of *message*: one round trip, or none if it names no limit.

        Args:
            waits: The waker that keeps the message if it is denied (`Deferred`). If None, the framework redelivers it
                after the delay.

        This never raises an error: a configuration error returns `Failed`, and any other error is logged and defers the
        job for a second. Only after `Run` is anything charged."""
        run = self._limits_to_request(message, waits)
        if not isinstance(run, Run) or not run.limits:
            return run
        try:
            decision = self.limiter.acquire(*run.limits, job=run.job, delivery=run.delivery)
        except Exception as error:
            return self._outcome_of_error(run.job, error, waits)
        return self._outcome(decision, run)

    async def admit_async(self, message: _M, waits: Waiting | None = None) -> Outcome:
        """Like `admit`, in an event loop, which the store never blocks. If it is cancelled, nothing stays charged."""
        run = self._limits_to_request(message, waits)
        if not isinstance(run, Run) or not run.limits:
            return run
        try:
            decision = await self._in_loop.acquire(*run.limits, job=run.job, delivery=run.delivery)
        except Exception as error:
            return self._outcome_of_error(run.job, error, waits)
        return self._outcome(decision, run)

    def leave(self, message: _M, waits: Waiting | None = None) -> None:
        """
        Remove the job of *message*, which ends without running, from its waitlists, so that the next job gets its turn
        before the entry expires. This takes one round trip, and never raises an error.

        Args:
            waits: The waker that keeps the message, if one does.
        """
        try:
            job = self._host.job(message)
            call = Call(self.limits(self._host.options(message), job), job, delivery=Delivery(waits=waits))
            wiring_of(self.limiter).pipeline.leave(call, [each.claim for each in self.limiter.claims(call)])
        except Exception as error:
            self._log.debug("The position of a %s that ended is removed later: %r", self._noun.lower(), error)

    def return_position(self, run: Run) -> None:
        """
        Let the job of *run*, which was refunded because its body does not begin, continue the wait before its grant. If
        it had waited, it gets a position ahead of jobs that have not run. Its framework delivers it again. This takes
        one round trip, and never raises an error.
        """
        waited = self.waited_of(run.job.id)
        if not waited.denials:
            return
        try:
            requester = Requester(Caller.AGAIN, run.job.id, run.delivery.owner, waited=waited)
            wiring_of(self.limiter).stores.reserve(self.limiter.claims(Call(run.limits, run.job)), requester)
        except Exception as error:
            self._log.debug("%s %s, which did not begin, has lost its position: %r", self._noun, run.job.id, error)

    def waited_of(self, id: str) -> Waited:
        """Return how long a job waited that runs in this process, or in its parent before a fork, with its run."""
        return wiring_of(self.limiter).pipeline.history.of(id)

    def record_waited(self, id: str, waited: Waited) -> None:
        """Record how a job waited whose waker is in another process, for `waited_of` and for a 429 of its body."""
        wiring_of(self.limiter).pipeline.history.note(id, waited)

    def concerns(self, options: JobOptions) -> bool:
        """Whether jobs with these *options* need admission: they have limits, or a plugin may add some."""
        return bool(options.limits) or self.limiter.events.configures_limits

    def limits(self, options: JobOptions, job: Job) -> tuple[Limit, ...]:
        """Return the limits of a job with these *options*, and those that plugins add to it."""
        if not self.limiter.events.configures_limits:
            return options.limits
        own = {limit.name for limit in options.limits}
        return (*options.limits, *(limit for limit in self.limiter.events.limits(job) if limit.name not in own))

    def rate_limited(self, run: Run, error: RateLimited, *, release: Callable[[], None]) -> Outcome:
        """
        Handle *error*, which the body of the job of *run* raised because the partner requires a pause.

        Pause the limits that *error* names or implies, in the whole fleet, and put the job ahead of jobs that have not
        run. This never raises an error.

        Args:
            release: Releases the slots that the body holds. It is called once the pause is stored, because a waiting
                job would otherwise take the slot and call the partner.

        Returns:
            Nearly always `Deferred`. After `Run`, *error* ends the job like any other error of its body, because the
            job has waited for too long or has no limit.
        """
        job, delivery = run.job, run.delivery
        if not run.limits:
            return run
        try:
            decision = deny_after_429(self.limiter, run, error, release=release)
        except ConfigurationError as fault:
            return Failed(fault)
        except Exception:
            self._log.exception("The 429 of %s %s could not be recorded; it is deferred.", self._noun.lower(), job.id)
            return _defer(min(delivery.longest, max(_PANIC_DELAY, error.retry_after)), job, delivery.waits)
        return self._outcome(decision, run)

    def pause(self, run: Run, error: RateLimited, *, release: Callable[[], None]) -> bool | Failed:
        """
        Pause the limits that *error* names or implies, and release the slots. This is the first half of `rate_limited`,
        for a body outside the process of its job's waker. The waker's process then calls `wait_again`.

        Returns:
            Whether the pause is stored; `Failed` after a configuration error.
        """
        try:
            return pause(self.limiter, run, error)
        except ConfigurationError as fault:
            return Failed(fault)
        except Exception:
            self._log.exception("The 429 of %s %s could not be recorded.", self._noun.lower(), run.job.id)
            return False
        finally:
            release()

    def over(self, run: Run, waited: Waited) -> Outcome | None:
        """
        Return the outcome of a job that has *waited* for too long to wait again after a 429, or None if it may wait.
        The process that runs the body calls this.
        """
        if not run.limits or not run.delivery.is_over(waited):
            return None
        limit = run.limits[0] if run.decision is None else run.decision.limit
        refusal = Decision(
            allowed=False,
            limit=limit,
            key="",
            cost=0,
            reason="waited too long",
            waited=waited.for_us / 1_000_000,
            deferrals=waited.denials,
        )
        return self._outcome(refusal, run)

    def wait_again(self, message: _M, waits: Waiting | None, retry_after: float, *, stored: bool) -> Outcome:
        """
        Let the job of *message*, whose body has ended, wait again. This is the second half of `rate_limited`.

        Args:
            retry_after: The value of the body's error, in seconds.
            stored: The value that `pause` returned.
        """
        run = self._limits_to_request(message, waits)
        if not isinstance(run, Run) or not run.limits:
            return run
        try:
            decision = wait_again(self.limiter, run, retry_after, stored=stored)
        except Exception as error:
            return self._outcome_of_error(run.job, error, waits)
        return self._outcome(decision, run)

    async def rate_limited_async(self, run: Run, error: RateLimited) -> Outcome:
        """Like `rate_limited`, for a body that runs in an event loop. `end` releases its slots."""
        context = copy_context()
        pause = partial(self.rate_limited, run, error, release=partial(end, error))
        outcome = await self.limiter.threads.run_to_end(lambda: context.run(pause))
        RUNNING.set(context.get(RUNNING, NOTHING))
        return outcome

    @cached_property
    def _in_loop(self) -> AsyncLimiter:
        from throttlekit.aio import AsyncLimiter  # imports asyncio, which a worker without a loop does not need

        return AsyncLimiter(self.limiter)

    def _limits_to_request(self, message: _M, waits: Waiting | None) -> Outcome:
        """Return a `Run` with the limits to request for *message*, if it has any, or the outcome of an error."""
        job = _UNKNOWN
        try:
            options, configures = self._host.options(message), self.limiter.events.configures_limits
            if not options.limits and not configures:
                return _UNTHROTTLED
            job = self._host.job(message)
            limits = self.limits(options, job) if configures else options.limits
            if not limits:
                return _UNTHROTTLED
            delivery = self._host.delivery(message, options.max_wait)
            delivery = delivery if waits is None else replace(delivery, waits=waits)
            return Run(job, limits, None, delivery, options.on_429)
        except Exception as error:
            return self._outcome_of_error(job, error, waits)

    def _outcome_of_error(self, job: Job, error: Exception, waits: Waiting | None) -> Outcome:
        if isinstance(error, ConfigurationError):
            if waits is not None:
                waits.waker.done(waits.id or job.id)  # a woken job makes no request, so its wake belongs to no job
            return Failed(error)
        self._log.error("%s %s could not be decided on; it is deferred.", self._noun, job.id, exc_info=error)
        return _defer(_PANIC_DELAY, job, waits)

    def _outcome(self, decision: Decision, run: Run) -> Outcome:
        if not decision.allowed and not decision.final:
            return Deferred(decision.delay, decision)
        if decision.allowed or self.rules.on_waited_too_long == "run":
            return Run(run.job, run.limits, decision, run.delivery, run.on_429)
        if self.rules.on_waited_too_long == "drop":
            return Dropped(_refusal(decision))
        return Failed(WaitedTooLong(_refusal(decision), limit=decision.limit.name, reason=decision.reason), decision)


_UNKNOWN = Job(id="(unknown)")
_UNTHROTTLED = Run(Job(), (), None, Delivery())


def _defer(delay: float, job: Job, waits: Waiting | None) -> Deferred:
    """Let a job wait whose request an error has prevented."""
    if waits is not None:
        waits.waker.hold(waits.id or job.id, waits.item, round(delay * 1_000_000))
    return Deferred(delay, None)


def _refusal(decision: Decision) -> str:
    if decision.reason == "queue full":
        return f"limit {decision.limit.name!r} rejected this job: its queue is full"
    return f"limit {decision.limit.name!r} denied this job past its max_wait or max_deferrals"
