"""`current()`: read the decision of the running job, correct its cost, and apply responses, in the job's body."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Protocol

from throttlekit._core.decision import Charged, Decision, charges_to_settle
from throttlekit._core.job import Job
from throttlekit._core.latency import Drop
from throttlekit._core.limit.adapt import ByLatency
from throttlekit._core.limit.base import Limit
from throttlekit._core.limit.template import safe_repr
from throttlekit._engine.apply_response import apply_response, claims_of, limits_by_unit
from throttlekit._engine.claims import Claim, under
from throttlekit._engine.events import EventDispatcher
from throttlekit._engine.rate_limited import RateLimited
from throttlekit._util.fork_safety import renew_lock_after_fork
from throttlekit._util.log_limiter import Every
from throttlekit.errors import ConfigurationError, LeaseLost, StoreUnavailable
from throttlekit.hookspecs import Finished, Outcome, Started
from throttlekit.stores.base import Slowing

__all__ = ["NOTHING", "RUNNING", "Holder", "Running", "check_held", "current", "slowing_of", "slowings_of"]

_log = logging.getLogger("throttlekit")
_settle_failed, _slow_failed = Every(), Every()


class Holder(Protocol):
    """The methods of a limiter that a running body calls."""

    @property
    def events(self) -> EventDispatcher: ...

    def slow_down(self, slowings: Sequence[tuple[Limit, Slowing]]) -> None: ...

    def settle(self, decision: Decision, *, actual: int, limit: Limit | None = None) -> Decision: ...

    def release(self, decision: Decision) -> None: ...

    def keep(self, decision: Decision, on_lost: Callable[[], None]) -> None: ...

    def release_all(self, held: Sequence[Charged], *, ran: bool, done: bool = False) -> None: ...

    def done(self, limit: Limit, *, job: Job | None) -> None: ...


class Running:
    """
    The running job, which `throttlekit.current()` returns in its body.

    Attributes:
        decision: The decision that admitted the job; None outside a throttled job.
        lost: Whether another job may have this job's slot of a concurrency limit, because the lease was not renewed in
            time. The body continues, and can skip steps that one job too many must not do.
    """

    __slots__ = ("__weakref__", "_decision", "_job", "_limiter", "_pid", "_read", "_settling", "_started_at", "lost")

    def __init__(
        self,
        limiter: Holder | None = None,
        decision: Decision | None = None,
        *,
        job: Job | None = None,
        read: Callable[[], Decision] | None = None,
    ) -> None:
        self._limiter, self._job = limiter, job
        self._started_at = 0.0
        self._settling = threading.RLock()
        self._decision, self._read = decision, read
        self.lost = False
        self._pid = 0

    @property
    def decision(self) -> Decision | None:
        if self._read is not None:  # read on demand: few bodies need the decision, and reading it is slow
            with self._lock:
                if self._read is not None:
                    self._decision, self._read = self._read(), None
        return self._decision

    @property
    def _lock(self) -> threading.RLock:
        renew_lock_after_fork(self, "_settling", threading.RLock)  # on demand: few bodies use it, and this is slow
        return self._settling

    def check(self) -> None:
        """
        Raise an error if the job has lost its slot. Call it before a step that one job too many must not do.

        Raises:
            LeaseLost: The job has lost its slot; see `lost`. The framework handles this error like any other.
        """
        if self.lost:
            raise LeaseLost("this job's slot of a concurrency limit is lost: its lease could not be renewed in time")

    def begin(self, *, starts: bool = True) -> None:
        """For adapters: renew the leases until `end`. If the body *starts* now, emit that event."""
        if self._read is None:  # a decision that is read later holds no leases
            self.keep()
        if starts:
            self.start()

    def start(self) -> None:
        """For adapters: record that the body starts now. Emit the event, once."""
        if self._limiter is not None and self._limiter.events.bodies and not self._started_at:
            self._started_at = time.monotonic()
            if self._job is not None and (decision := self._decision_for_events()) is not None:
                self._limiter.events.started.emit(Started(self._job, decision))

    def end(self, error: BaseException | None = None) -> None:
        """For adapters: record that the body has ended, with *error* if it raised one."""
        self.release()
        limiter, job = self._limiter, self._job
        if limiter is None or job is None or not limiter.events.bodies:
            return
        self.start()  # if an error ended the job before its body, or the body was not called
        if (decision := self._decision_for_events()) is not None:
            seconds = time.monotonic() - self._started_at
            limiter.events.finished.emit(Finished(job, decision, _outcome(error), seconds))

    def _decision_for_events(self) -> Decision | None:
        """Return the decision, or None if its receipt cannot be read, because events must not fail the body."""
        try:
            return self.decision
        except ConfigurationError:
            return None

    def keep(self) -> None:
        """For adapters: renew the decision's leases until `release`."""
        if self._limiter is not None and self.decision is not None and self.decision.leases:
            self._pid = os.getpid()
            try:
                self._limiter.keep(self.decision, self._lose)
            except RuntimeError:  # no thread can start to renew the leases, so the body must not run
                self.release()
                self._pid = 0
                raise

    def release(self) -> None:
        """For adapters: release the decision's leases. Does nothing in a forked child."""
        if self._pid and self._pid == os.getpid() and self._limiter is not None and self.decision is not None:
            self._limiter.release(self.decision)

    def _lose(self) -> None:
        self.lost = True

    def settle(self, actual: int, *, limit: Limit | None = None) -> None:
        """
        Correct the cost of the job, as `Limiter.settle` does for its decision. *actual* is the total, also if this is
        called several times.

        Does nothing outside a throttled job, or if the job runs uncharged, so that tests can call a body directly. If
        the store does not answer, the job continues, and its charge stays. Units are then not refunded later, because
        the store may have refunded them already.

        Raises:
            ConfigurationError: As for `Limiter.settle`.
        """
        if isinstance(actual, bool) or not isinstance(actual, int) or actual < 0:
            raise ConfigurationError(
                f"settle takes the units that the job used, a whole number, not {safe_repr(actual)}"
            )
        with self._lock:
            self._settle(actual, limit)

    def done(self, limit: Limit) -> None:
        """
        Release the slot of *limit* that this job's workflow holds (`held_by=`). Call this in the last job of the
        workflow, when the slot is no longer needed; in a `finally`, if a retry must not find the slot held.

        Does nothing outside a throttled job. If the store does not answer, the slot is released later, as with
        `Limiter.release`.

        Raises:
            ConfigurationError: *limit* has no `held_by=`.
        """
        check_held(limit)
        if self._limiter is None or self.decision is None:
            return
        with self._lock:
            mine = [each for each in self.decision.leases if each.stays and each.limit.name == limit.name]
            others = tuple([each for each in self.decision.charged if each not in mine])
            self._decision = replace(self.decision, charged=others)
        if mine:
            self._limiter.release_all(mine, ran=True, done=True)
        elif self._job is not None:  # the job runs uncharged
            self._limiter.done(limit, job=self._job)

    def apply_response(
        self,
        response: Any,
        limit: Limit | None = None,
        *,
        tokens: Limit | None = None,
        input_tokens: Limit | None = None,
        output_tokens: Limit | None = None,
    ) -> None:
        """
        Apply the rate-limit headers of the partner's *response*, as `Limiter.apply_response` does, to the limits and
        keys that this job was charged under. Does nothing outside a throttled job, or if it runs uncharged.

        Args:
            response: As for `Limiter.apply_response`.
            limit: The limit of the job that counts requests to the partner. Default: the job's only limit, apart from
                concurrency limits and limits that count tokens, unless its cost is a callable.
            tokens, input_tokens, output_tokens: The limits of the job that count tokens.

        Raises:
            ConfigurationError: A limit is not one of the job's, has no rate, or it is not clear which is meant.
        """
        if self._limiter is not None and self.decision is not None and self.decision.charged:
            named = limits_by_unit(limit, tokens, input_tokens, output_tokens)
            apply_response(self._limiter.slow_down, response, claims_of(self.decision, named))

    def report_overload(self, limit: Limit | str | None = None) -> None:
        """
        Report that the partner is overloaded, for example after a time-out. The limits of the job with `adapt=` reduce
        their rates or slots, unless they were reduced since the job was admitted. After `RateLimited` this is not
        needed.

        Does nothing outside a throttled job, or if the store does not answer.

        Args:
            limit: One of the job's limits, or its name. Default: all limits of the job with `adapt=`.

        Raises:
            ConfigurationError: *limit* is not a limit of the job, or has no `adapt=`.
        """
        if self._limiter is None or self.decision is None:
            return
        try:
            self._limiter.slow_down(slowings_of(self.decision, limit))
        except StoreUnavailable as error:
            if _slow_failed.due():
                _log.warning("%s. The overload of the partner could not be stored.", error)

    def _settle(self, actual: int, limit: Limit | None) -> None:
        if self._limiter is None or self.decision is None or not self.decision.charged:
            return
        try:
            self._decision = self._limiter.settle(self.decision, actual=actual, limit=limit)
        except StoreUnavailable as error:
            # The store may have refunded the units without an answer, so they must not be refunded again.
            meant = charges_to_settle(self.decision, limit)
            charged = [
                each._replace(cost=min(each.cost, actual)) if each in meant else each for each in self.decision.charged
            ]
            self._decision = replace(self.decision, charged=tuple(charged))
            if _settle_failed.due():
                _log.warning("%s. The cost of a job could not be settled: its first charge stays.", error)


def check_held(limit: Limit) -> None:
    """
    Make sure that workflows hold the slots of *limit*.

    Raises:
        ConfigurationError: Workflows do not hold the slots of *limit*.
    """
    if not isinstance(limit, Limit) or limit.held_by is None:
        raise ConfigurationError(
            f"{safe_repr(limit)} has no held_by=: each of its slots is released when the body that holds it has ended"
        )


def _outcome(error: BaseException | None) -> Outcome:
    if error is None:
        return "succeeded"
    if isinstance(error, RateLimited):
        return "rate limited"
    return "failed" if isinstance(error, Exception) else "interrupted"


NOTHING = Running()
RUNNING: ContextVar[Running] = ContextVar("throttlekit_running", default=NOTHING)


def current() -> Running:
    """Return the job that runs in this thread or task. Outside a job, `decision` is None and `settle` does nothing."""
    return RUNNING.get()


def slowing_of(claim: Claim, granted_us: int | None = None) -> tuple[Limit, Slowing]:
    """
    Return the slow-down of a limit after a 429, for the key of *claim*.

    Args:
        granted_us: The time when the job that got the 429 was admitted. If None, the slow-down counts in any case.

    Raises:
        ConfigurationError: The limit has no `adapt=`.
    """
    limit = claim.limit
    if limit.adapt is None:
        raise ConfigurationError(f"limit {limit.name!r} has no adapt=, so it cannot be slowed down")
    if isinstance(limit.adapt, ByLatency):
        return limit, Slowing(claim.claim, Drop(granted_us))
    return limit, Slowing(claim.claim, limit.adapt.refusal(limit.amount, limit.period_us, granted_us))


def slowings_of(decision: Decision, limit: Limit | str | None) -> list[tuple[Limit, Slowing]]:
    """
    Return the slow-downs after a 429 or an overload of the job that *decision* admitted.

    Args:
        limit: The limit to slow down, or its name. If None, all limits of the job with `adapt=` are slowed down.

    Raises:
        ConfigurationError: *limit* is not one that the decision charged, or has no `adapt=`.
    """
    name = limit.name if isinstance(limit, Limit) else limit
    charged = [each for each in decision.charged if each.bucket and name in (None, each.limit.name)]
    if name is not None and not charged and decision.charged:
        names = ", ".join(repr(each.limit.name) for each in decision.charged)
        raise ConfigurationError(f"limit {name!r} is not one that the decision charged; it charged {names}")
    return [slowing_of(under(each), each.at_us) for each in charged if name is not None or each.limit.adapt is not None]
