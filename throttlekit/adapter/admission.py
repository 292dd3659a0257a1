"""Ask for a job, and turn every answer and every error into an outcome."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import cached_property, partial
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from throttlekit._core.decision import Decision
from throttlekit._core.job import Job
from throttlekit._core.limit.base import Limit
from throttlekit._engine.call import Call
from throttlekit._engine.delivery import Delivery
from throttlekit._engine.rate_limited import RateLimited
from throttlekit._engine.running import NOTHING, RUNNING
from throttlekit._engine.ticket import Ticket, lane_of, limit_ref
from throttlekit._wiring import wiring_of
from throttlekit.adapter.body import end
from throttlekit.adapter.options import JobOptions, WaitRules
from throttlekit.adapter.outcome import Deferred, Dropped, Failed, Outcome, Run
from throttlekit.adapter.rate_limited import limited
from throttlekit.errors import ConfigurationError, StoreUnavailable, WaitedTooLong
from throttlekit.limiter import Limiter
from throttlekit.stores.base import Wait

if TYPE_CHECKING:
    from throttlekit.aio import AsyncLimiter

__all__ = ["AT_ONCE", "Host", "Throttling", "WhenDue"]

_PANIC_DELAY = 1.0
"""Seconds after which a job comes back that an error kept from being decided on."""

_LOOKS_AHEAD = 3.0
"""Seconds: of so long a look at a line wakes jobs, and a little more."""

_BLOCKS_FROM = 1.0
"""Seconds: the shortest pause that blocks a job. A pause without an end has a delay of at least that."""

_MANY = 64
"""Jobs that one slot may run in that time."""

_M = TypeVar("_M", contravariant=True)


class Host(Protocol[_M]):
    """What an adapter knows of its framework's messages. Whatever these methods raise harms no job."""

    def options(self, message: _M) -> JobOptions:
        """
        What *message* is held to.

        Raises:
            ConfigurationError: It carries options that cannot be read.
        """
        ...

    def job(self, message: _M) -> Job:
        """*message* as limits see it, with the ticket that it carries."""
        ...

    def delivery(self, message: _M, max_wait: float | None) -> Delivery:
        """How the framework would deliver *message* later; *max_wait* is the job's own, in seconds, if it has one."""
        ...


class WhenDue(NamedTuple):
    """
    When a waiting job is due, by the present state of the line in which it is parked.

    Attributes:
        seconds: Until it is due; 0 if it is due now.
        slot: Whether it waits for a slot: then it is a guess.
        overdue: Whether it should have been due before now.
        wakes: Whether to wake it at once, before its turn, as its delay says nothing about the jobs behind it. It no
            longer has the limit of its line, or another of its limits denies it for longer than a look at the line
            reaches ahead. Its next request gives it a position in the line of a limit that it has.
        blocked_by: Identifies the limits that would deny it although its turn has come: one is paused, or its store
            does not answer. It is not woken while they do. "": nothing blocks it.
        blocked_for: For how many seconds, as far as that is known.
        blocker: The name of the limit that blocks it, for display.
        most: How many jobs can become due in front of it, at most, in the time of a look at the line.
        sooner: By how many seconds `seconds` is less than if all that stand before it come: a guess that they do not.
    """

    seconds: float
    slot: bool = False
    overdue: bool = False
    wakes: bool = False
    blocked_by: str = ""
    blocked_for: float = 0.0
    blocker: str = ""
    most: int = sys.maxsize
    sooner: float = 0.0


AT_ONCE = WhenDue(0.0, wakes=True)
"""For a job that waits in no line: it no longer has a limit, or its next request ends it."""


class _Parked(NamedTuple):
    """
    A parked job and its limits, for `Throttling.due_all`.

    Attributes:
        run: The job, with all of its limits.
        own: The limit in whose line it is parked. Empty: the job no longer has that limit.
        others: Its other limits. Empty if `own` is.
    """

    run: Run
    own: tuple[Limit, ...]
    others: tuple[Limit, ...]

    @classmethod
    def of(cls, run: Run) -> _Parked:
        ref = Ticket.read(run.job.ticket).limit_ref
        own = tuple([limit for limit in run.limits if limit_ref(limit.for_job(run.job)) == ref])
        return cls(run, own, tuple([limit for limit in run.limits if own and limit not in own]))

    def peek_of(self, limits: Sequence[Limit]) -> Call:
        return Call(limits, self.run.job, peek=True)

    def due(self, decision: Decision | Exception) -> WhenDue | Exception:
        """Return when it is due, by the *decision* of the limit in whose line it is parked."""
        if isinstance(decision, Exception):
            return decision if isinstance(decision, StoreUnavailable) else AT_ONCE  # its next request raises the error
        limit = decision.limit
        coming = (
            limit.amount * _LOOKS_AHEAD * 1_000_000 / limit.period_us if limit.period_us else _MANY * limit.capacity
        )
        return WhenDue(
            decision.delay,
            slot=not limit.period_us,
            overdue=not decision.allowed and decision.reason != "early",
            wakes=not self.own and not decision.allowed,
            most=limit.capacity + math.ceil(coming),
            sooner=max(0.0, decision.retry_after - decision.delay),
        )

    def add_others(self, due: WhenDue, decision: Decision | Exception) -> WhenDue:
        """Return *due*, changed by the *decision* of its other limits."""
        if isinstance(decision, StoreUnavailable):
            denies = any(limit.on_store_failure == "closed" for limit in self.run.limits)
            return due._replace(blocked_for=decision.retry_after, blocker=self.others[0].name) if denies else due
        if isinstance(decision, Exception):
            return AT_ONCE
        # A job that has a position in the line of a paused limit is denied as "early", one that has none as "paused".
        if decision.reason == "paused" and decision.delay >= _BLOCKS_FROM:
            return due._replace(blocked_for=decision.delay, blocker=decision.limit.name)
        return due if decision.allowed or decision.delay < _LOOKS_AHEAD else due._replace(wakes=True)


class Throttling(Generic[_M]):
    """
    Admits an adapter's jobs.

    Args:
        limiter: Decides.
        host: Reads the framework's messages.
        rules: How long jobs may wait.
        log: The adapter's logger.
        noun: What the framework calls a job, in log lines: "Message", "Task", "Job".
    """

    def __init__(
        self, limiter: Limiter, host: Host[_M], *, rules: WaitRules, log: logging.Logger, noun: str = "Job"
    ) -> None:
        self.limiter = limiter
        self.rules = rules
        self._host = host
        self._log, self._noun = log, noun
        self._warned = False

    def warn_in_memory(self) -> None:
        """Log a warning, once, if the limiter counts in memory. For a worker that starts, where it rarely is meant."""
        if self.limiter.in_memory and not self._warned:
            self._warned = True
            self._log.warning(
                "This worker's limits are kept in memory: each process has the whole of every limit for itself. Name "
                'a store: Limiter("redis://…"), or the environment variable THROTTLEKIT_URL.'
            )

    def admit(self, message: _M) -> Outcome:
        """
        Ask for *message*: one round trip, or none if it names no limit.

        Never raises: an error of the configuration is `Failed`, any other error is logged and defers the job for a
        second. Only `Run` has charged anything.
        """
        asked = self._asked(message)
        if not isinstance(asked, Run) or not asked.limits:
            return asked
        try:
            decision = self.limiter.acquire(*asked.limits, job=asked.job, delivery=asked.delivery)
        except Exception as error:
            return self._undecided(asked.job, error)
        return self._outcome(decision, asked)

    async def admit_async(self, message: _M) -> Outcome:
        """As `admit`, in an event loop, which never waits for the store. If it is cancelled, it has taken nothing."""
        asked = self._asked(message)
        if not isinstance(asked, Run) or not asked.limits:
            return asked
        try:
            decision = await self._in_loop.acquire(*asked.limits, job=asked.job, delivery=asked.delivery)
        except Exception as error:
            return self._undecided(asked.job, error)
        return self._outcome(decision, asked)

    def leave(self, message: _M) -> None:
        """
        Take the job of *message* out of the lines in which it stands, as it ends without running: the next one gets
        its turn at once, and not once its units have lain there for a while. Never raises. Without a place, no round
        trip.
        """
        try:
            job = self._host.job(message)
            ticket = Ticket.read(job.ticket)
            if not ticket.places:
                return
            claims = self.limiter.claims(Call(self.limits(self._host.options(message), job), job))
            places = ticket.places_in([each.limit for each in claims])
            waits = [
                Wait(claim.claim, place)
                for claim, place in zip(claims, places, strict=True)
                if place is not None and not claim.in_process
            ]
            if waits:
                wiring_of(self.limiter).stores.shared.leave(waits)
        except Exception as error:
            self._log.debug("The place of a %s that ended stays for a moment: %r", self._noun.lower(), error)

    def due(self, message: _M) -> WhenDue:
        """
        Return the same as `due_all`, for one message.

        Raises:
            StoreUnavailable: The store did not answer.
        """
        (due,) = self.due_all([message])
        if isinstance(due, Exception):
            raise due
        return due

    def due_all(self, messages: Sequence[_M]) -> list[WhenDue | Exception]:
        """
        Return when the jobs of *messages*, which all wait, are due. Nothing changes: they keep their positions, and no
        unit is charged. It takes two round trips for any number of messages. If the store of the limit in whose line a
        job is parked does not answer, the error is returned instead.
        """
        found: dict[int, WhenDue | Exception] = {}
        parked: dict[int, _Parked] = {}
        for number, message in enumerate(messages):
            asked = self._asked(message)
            if isinstance(asked, Run) and asked.limits:
                parked[number] = _Parked.of(asked)
            else:  # it has no limit, or its next request ends it or reports an error
                found[number] = AT_ONCE
        peeks = [each.peek_of(each.own or each.run.limits) for each in parked.values()]
        soon: dict[int, _Parked] = {}
        for (number, each), decision in zip(parked.items(), self.limiter.peek_all(peeks), strict=True):
            found[number] = due = each.due(decision)
            if each.others and due is not AT_ONCE and isinstance(due, WhenDue) and due.seconds < _LOOKS_AHEAD:
                soon[number] = each
        peeks = [each.peek_of(each.others) for each in soon.values()]
        for (number, each), decision in zip(soon.items(), self.limiter.peek_all(peeks), strict=True):
            due = found[number]
            if isinstance(due, WhenDue):
                found[number] = self._identify_blockers(each, each.add_others(due, decision))
        return [found[number] for number in range(len(messages))]

    def _identify_blockers(self, parked: _Parked, due: WhenDue) -> WhenDue:
        """Return *due*, with `blocked_by` if a limit blocks it: one text for all jobs with these limits and keys."""
        if not due.blocker:
            return due
        try:
            claims = self.limiter.claims(parked.peek_of(parked.others))
        except ConfigurationError:
            return AT_ONCE
        return due._replace(blocked_by=lane_of(" ".join([each.claim.bucket for each in claims])))

    def concerns(self, options: JobOptions) -> bool:
        """Whether jobs with these *options* are to be admitted: they have limits, or a plugin may add some."""
        return bool(options.limits) or self.limiter.events.configures_limits

    def limits(self, options: JobOptions, job: Job) -> tuple[Limit, ...]:
        """The limits of a job with these *options*, and those that plugins add to it."""
        if not self.limiter.events.configures_limits:
            return options.limits
        own = {limit.name for limit in options.limits}
        return (*options.limits, *(limit for limit in self.limiter.events.limits(job) if limit.name not in own))

    def rate_limited(self, run: Run, error: RateLimited, *, release: Callable[[], None]) -> Outcome:
        """
        The body of the job that *run* let run raised *error*: downstream asks for a pause.

        Pauses the limits that *error* means, in the whole fleet, and puts the job in front of those that have not
        run. Never raises.

        Args:
            release: Gives back the slots that the body holds. Called once the pause is stored: before that, a waiting
                job would take the slot and call downstream.

        Returns:
            `Deferred` nearly always. `Run` means that the job may wait no longer and runs no second time, or that it
            has no limit: *error* ends it like any other error of its body.
        """
        job, delivery = run.job, run.delivery
        if not run.limits:
            return run
        try:
            decision = limited(
                self.limiter, error, run.limits, job=job, delivery=delivery, release=release, on_429=run.on_429
            )
        except ConfigurationError as fault:
            return Failed(fault)
        except Exception:
            self._log.exception("The 429 of %s %s could not be recorded; it is deferred.", self._noun.lower(), job.id)
            return Deferred(min(delivery.longest, max(_PANIC_DELAY, error.retry_after)), job.ticket, None)
        return self._outcome(decision, run)

    async def rate_limited_async(self, run: Run, error: RateLimited) -> Outcome:
        """As `rate_limited`, for the body that runs in an event loop: `end` releases its slots."""
        context = copy_context()
        pause = partial(self.rate_limited, run, error, release=partial(end, error))
        outcome = await self.limiter.threads.carry_through(lambda: context.run(pause))
        RUNNING.set(context.get(RUNNING, NOTHING))
        return outcome

    @cached_property
    def _in_loop(self) -> AsyncLimiter:
        from throttlekit.aio import AsyncLimiter  # imports asyncio, which a worker without a loop does not need

        return AsyncLimiter(self.limiter)

    def _asked(self, message: _M) -> Outcome:
        """What *message* is to be asked for; `Run` without limits if nothing is."""
        job = _UNKNOWN
        try:
            options = self._host.options(message)
            if not self.concerns(options):
                return _UNTHROTTLED
            job = self._host.job(message)
            limits = self.limits(options, job)
            if not limits:
                return _UNTHROTTLED
            return Run(job, limits, None, self._host.delivery(message, options.max_wait), options.on_429)
        except Exception as error:
            return self._undecided(job, error)

    def _undecided(self, job: Job, error: Exception) -> Outcome:
        if isinstance(error, ConfigurationError):
            return Failed(error)
        self._log.error("%s %s could not be decided on; it is deferred.", self._noun, job.id, exc_info=error)
        return Deferred(_PANIC_DELAY, job.ticket, None)

    def _outcome(self, decision: Decision, asked: Run) -> Outcome:
        if decision.allowed or (decision.final and self.rules.when_over == "run"):
            return Run(asked.job, asked.limits, decision, asked.delivery, asked.on_429)
        if not decision.final:
            return Deferred(decision.delay, decision.ticket, decision)
        if self.rules.when_over == "drop":
            return Dropped(_refusal(decision))
        return Failed(WaitedTooLong(_refusal(decision), limit=decision.limit.name, reason=decision.reason), decision)


_UNKNOWN = Job(id="(unknown)")
_UNTHROTTLED = Run(Job(), (), None, Delivery())


def _refusal(decision: Decision) -> str:
    if decision.reason == "queue full":
        return f"limit {decision.limit.name!r} refused this job: as many wait already as its queue takes"
    return f"limit {decision.limit.name!r} denied this job past its max_wait or max_deferrals"
