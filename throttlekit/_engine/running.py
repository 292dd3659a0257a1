"""`current()`: in a body, the decision of its job, the correction of its cost, and reports of responses."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Protocol

from throttlekit._core.decision import Charged, Decision, settled_of
from throttlekit._core.job import Job
from throttlekit._core.latency import Drop
from throttlekit._core.limit.adapt import SlotAdapt
from throttlekit._core.limit.base import Limit
from throttlekit._core.limit.template import safe_repr
from throttlekit._engine.apply_response import apply_response, claims_of, limits_by_unit
from throttlekit._engine.claims import Claim, under
from throttlekit._engine.events import EventDispatcher
from throttlekit._engine.rate_limited import RateLimited
from throttlekit._util.fork_safety import renew_lock_after_fork
from throttlekit._util.log_limiter import Every
from throttlekit.errors import ConfigurationError, LeaseLost, StoreUnavailable
from throttlekit.hookspecs import Outcome
from throttlekit.stores.base import Slowing

__all__ = ["NOTHING", "RUNNING", "Holder", "Running", "check_held", "current", "falling", "falling_of"]

_log = logging.getLogger("throttlekit")
_settle_failed, _slow_failed = Every(), Every()


class Holder(Protocol):
    """What a running body needs of a limiter."""

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
    What `throttlekit.current()` gives to a body.

    Attributes:
        decision: The decision that let the job run; None outside a throttled job.
        lost: Whether another job has this one's slot of a concurrency limit by now, or may have: its lease could not be
            renewed in time. The body runs on; it can leave undone what one job too many must not do.
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
        if self._read is not None:  # few bodies read it, and that takes longer than all else here
            with self._lock:
                if self._read is not None:
                    self._decision, self._read = self._read(), None
        return self._decision

    @property
    def _lock(self) -> threading.RLock:
        renew_lock_after_fork(self, "_settling", threading.RLock)  # here: few bodies use it, and that costs more
        return self._settling

    def check(self) -> None:
        """
        For a body that would rather end than be one too many: call it before what matters.

        Raises:
            LeaseLost: The job has lost its slot; see `lost`. To the framework it is an error like any other.
        """
        if self.lost:
            raise LeaseLost("this job's slot of a concurrency limit is lost: its lease could not be renewed in time")

    def begin(self) -> None:
        """For adapters: the body begins. Its leases are renewed until `end`."""
        if self._read is None:  # a decision that is read later holds no leases
            self.keep()
        if self._limiter is not None and self._limiter.events.bodies:
            self._started_at = time.monotonic()
            if self._job is not None and (decision := self._decision_for_events()) is not None:
                self._limiter.events.emit_started(self._job, decision)

    def end(self, error: BaseException | None = None) -> None:
        """For adapters: the body has ended, with *error* if it raised one."""
        self.release()
        limiter, job = self._limiter, self._job
        if limiter is None or job is None or not limiter.events.bodies:
            return
        if (decision := self._decision_for_events()) is not None:
            limiter.events.emit_finished(job, decision, _outcome(error), time.monotonic() - self._started_at)

    def _decision_for_events(self) -> Decision | None:
        """The decision; None too if its receipt cannot be read: a plugin that listens must not end the body by that."""
        try:
            return self.decision
        except ConfigurationError:
            return None

    def keep(self) -> None:
        """For adapters: renew the decision's leases until `release`."""
        if self._limiter is not None and self.decision is not None and self.decision.leases:
            self._pid = os.getpid()
            self._limiter.keep(self.decision, self._lose)

    def release(self) -> None:
        """For adapters: release the decision's leases. Does nothing in a forked child."""
        if self._pid and self._pid == os.getpid() and self._limiter is not None and self.decision is not None:
            self._limiter.release(self.decision)

    def _lose(self) -> None:
        self.lost = True

    def settle(self, actual: int, *, limit: Limit | None = None) -> None:
        """
        Say what the job took in the end: `Limiter.settle`, for the decision that let it run. May be said again
        as more becomes known: *actual* is always the whole.

        Outside a throttled job, and for one that runs uncharged, nothing is done: a body can be called by
        tests and by hand. If the store does not answer, the job goes on, and stays charged as it was: what it was to
        give back is not given back later, for it may have been.

        Raises:
            ConfigurationError: As for `Limiter.settle`.
        """
        if isinstance(actual, bool) or not isinstance(actual, int) or actual < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"settle takes the units that the job took, a whole number, not {safe_repr(actual)}"
            )
        with self._lock:
            self._settle(actual, limit)

    def done(self, limit: Limit) -> None:
        """
        Give back the slot of *limit* that this job's workflow holds (`held_by=`), now: for its last job, once nothing
        more is done that the slot is for. Call it in a `finally`, if no retry of the job is to find the slot held.

        Outside a throttled job nothing is done. If the store does not answer, the slot is given back as
        `Limiter.release` says.

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
        elif self._job is not None:  # it runs uncharged
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
        Apply what the partner's *response* says of its limits, as `Limiter.apply_response` does, to the limits and keys
        that this job was charged under. Outside a throttled job, and for one that runs uncharged, nothing is done.

        Args:
            response: As for `Limiter.apply_response`.
            limit: Which of the job's limits counts downstream's requests. Default: its only one, besides those named
                here and those of concurrency, unless its cost is a callable.
            tokens, input_tokens, output_tokens: Which of them count tokens.

        Raises:
            ConfigurationError: A limit is not one of the job's, has no rate, or it is not clear which is meant.
        """
        if self._limiter is not None and self.decision is not None and self.decision.charged:
            named = limits_by_unit(limit, tokens, input_tokens, output_tokens)
            apply_response(self._limiter, response, claims_of(self.decision, named))

    def report_overload(self, limit: Limit | str | None = None) -> None:
        """
        Report that the service downstream is overloaded, for example after a time-out. The limits of the job with
        `adapt=` reduce their rates or slots, unless they were reduced since the job was admitted. `RateLimited` does
        this by itself.

        Outside a throttled job nothing is done, and neither if the store does not answer.

        Args:
            limit: One of the job's limits, or its name. Default: each that has `adapt=`.

        Raises:
            ConfigurationError: *limit* is not a limit of the job, or has no `adapt=`.
        """
        if self._limiter is None or self.decision is None:
            return
        try:
            self._limiter.slow_down(falling_of(self.decision, limit))
        except StoreUnavailable as error:
            if _slow_failed.due():
                _log.warning("%s. The overload of the partner could not be stored.", error)

    def _settle(self, actual: int, limit: Limit | None) -> None:
        if self._limiter is None or self.decision is None or not self.decision.charged:
            return
        try:
            self._decision = self._limiter.settle(self.decision, actual=actual, limit=limit)
        except StoreUnavailable as error:
            # It may have been given back all the same: to be sure, it is not given back again.
            meant = settled_of(self.decision, limit)
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
        ConfigurationError: They do not.
    """
    if not isinstance(limit, Limit) or limit.held_by is None:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(
            f"{safe_repr(limit)} has no held_by=: each of its slots is given back when the body that holds it has ended"
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
    """The job that runs in this thread or task. Outside of one, its `decision` is None and `settle` does nothing."""
    return RUNNING.get()


def falling(claim: Claim, granted_us: int | None = None) -> tuple[Limit, Slowing]:
    """
    The fall of a limit, for the key of *claim*.

    Args:
        granted_us: When the refused job was admitted; None: not known, and the fall counts in any case.

    Raises:
        ConfigurationError: It has no `adapt=`.
    """
    limit = claim.limit
    if limit.adapt is None:
        raise ConfigurationError(f"limit {limit.name!r} has no adapt=, so it never falls")
    if isinstance(limit.adapt, SlotAdapt):
        return limit, Slowing(claim.claim, Drop(granted_us))
    return limit, Slowing(claim.claim, limit.adapt.refusal(limit.amount, limit.period_us, granted_us))


def falling_of(decision: Decision, limit: Limit | str | None) -> list[tuple[Limit, Slowing]]:
    """
    The falls that a job means which *decision* let run.

    Args:
        limit: The one that is meant, or its name. None: each of its limits that has `adapt=`.

    Raises:
        ConfigurationError: *limit* is not one that the decision charged, or has no `adapt=`.
    """
    name = limit.name if isinstance(limit, Limit) else limit
    charged = [each for each in decision.charged if each.bucket and name in (None, each.limit.name)]
    if name is not None and not charged and decision.charged:
        names = ", ".join(repr(each.limit.name) for each in decision.charged)
        raise ConfigurationError(f"limit {name!r} is not one that the decision charged; it charged {names}")
    return [falling(under(each), each.at_us) for each in charged if name is not None or each.limit.adapt is not None]
