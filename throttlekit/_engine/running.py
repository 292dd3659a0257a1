"""The job that runs here: what a body may ask and say about its own limits."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from throttlekit._core.decision import Charged, Decision, settled_of
from throttlekit._core.limit.base import Limit
from throttlekit._core.limit.template import safe_repr
from throttlekit._core.serialize import load, plain
from throttlekit._core.storage_keys import is_bucket_of
from throttlekit._engine.ticket import lane_of
from throttlekit._util.fork_safety import renew_lock_after_fork
from throttlekit._util.log_limiter import Every
from throttlekit.errors import ConfigurationError, LeaseLost, StoreUnavailable

if TYPE_CHECKING:
    from throttlekit.limiter import Limiter

__all__ = [
    "Running", "begin", "begin_from_receipt", "current", "decision_of", "end", "lanes", "receipt", "resume", "running",
]  # fmt: skip

_log = logging.getLogger("throttlekit")
_settle_failed = Every()


class Running:
    """
    What `throttlekit.current()` gives to a body.

    Attributes:
        decision: The decision that let the job run; None outside a throttled job.
        lost: Whether another has the job's slot of a concurrency limit by now, or may have: its lease could not be
            renewed in time. The body runs on; what must not be done by one too many it can leave.
    """

    __slots__ = ("__weakref__", "_decision", "_limiter", "_pid", "_read", "_settling", "lost")

    def __init__(
        self,
        limiter: Limiter | None = None,
        decision: Decision | None = None,
        *,
        read: Callable[[], Decision] | None = None,
    ) -> None:
        self._limiter = limiter
        self._settling = threading.RLock()
        renew_lock_after_fork(self, "_settling", threading.RLock)
        self._decision, self._read = decision, read
        self.lost = False
        self._pid = 0

    @property
    def decision(self) -> Decision | None:
        if self._read is not None:  # few bodies ask, and to read it takes longer than all else here
            with self._settling:
                if self._read is not None:
                    self._decision, self._read = self._read(), None
        return self._decision

    def check(self) -> None:
        """
        For a body that would rather end than be one too many: call it before what matters.

        Raises:
            LeaseLost: The job has lost its slot; see `lost`. To the framework it is an error like any other.
        """
        if self.lost:
            raise LeaseLost("this job's slot of a concurrency limit is lost: its lease could not be renewed in time")

    def keep(self) -> None:
        """For adapters: renew the decision's leases until `release`."""
        if self._limiter is not None and self.decision is not None and self.decision.leases:
            self._pid = os.getpid()
            self._limiter.keep(self.decision, self._lose)

    def release(self) -> None:
        """For adapters: what the decision holds is free for the next. A fork of that process frees none."""
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
        with self._settling:
            self._settle(actual, limit)

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
                _log.warning("%s. What a job took could not be settled: it stays charged as it was.", error)


_NOTHING = Running()
_running: ContextVar[Running] = ContextVar("throttlekit_running", default=_NOTHING)


def current() -> Running:
    """The job that runs in this thread or task. Outside of one, its `decision` is None and `settle` does nothing."""
    return _running.get()


def begin(limiter: Limiter, decision: Decision) -> None:
    """For adapters: the body that *decision* let run begins in this thread. Its leases are renewed from now on."""
    running = Running(limiter, decision)
    _running.set(running)
    running.keep()


def begin_from_receipt(limiter: Limiter, told: Mapping[str, Any]) -> None:
    """
    For adapters: as `begin`, of a decision that another process made, by its `receipt`.

    Raises:
        ConfigurationError: It holds slots, and is not what `receipt` writes. Another is read when somebody asks for it.
    """
    if any(each.get("holder") for each in told["charged"]):
        begin(limiter, decision_of(told))
    else:
        _running.set(Running(limiter, read=partial(decision_of, told)))


def end() -> None:
    """For adapters: it has ended. What it held is free for the next."""
    try:
        current().release()  # first: an interrupt in between must not leave a lease that is renewed for ever
    finally:
        _running.set(_NOTHING)


def resume(running: Running) -> None:
    """For adapters: one that ran within *running* has ended."""
    _running.set(running)


@contextmanager
def running(limiter: Limiter, decision: Decision) -> Generator[None, None, None]:
    """For adapters that call the body themselves. Within a job that runs already, that one stays the current."""
    inner = Running(limiter, decision)
    token = _running.set(inner) if current().decision is None else None
    inner.keep()
    try:
        yield
    finally:
        if token is not None:
            _running.set(_NOTHING)
        inner.release()


def lanes(decision: Decision) -> tuple[str, ...]:
    """For adapters: whom to wake first when *decision*'s job has ended: those that wait with `waited["lane"]`."""
    return tuple(lane_of(each.bucket) for each in decision.leases)


def receipt(decision: Decision) -> dict[str, Any]:
    """For adapters whose bodies run in another process: what `settle` needs of *decision*, as plain data."""
    charged = [
        {
            "limit": plain(each.limit, "", 0),
            "bucket": each.bucket,
            "cost": each.cost,
            "at": each.at_us,
            "measured": each.measured,
            **({"holder": each.holder} if each.holder else {}),
        }
        for each in decision.charged
    ]
    return {"charged": charged}


def decision_of(receipt: Mapping[str, Any]) -> Decision:
    """
    The decision that *receipt* is of, as far as `settle` needs it.

    Raises:
        ConfigurationError: It is not what `receipt` writes.
    """
    try:
        charged = tuple(_charged(each) for each in receipt["charged"])
        first = charged[0]
        return Decision(
            allowed=True, limit=first.limit, key="", cost=first.cost, remaining=0, retry_after=0.0, delay=0.0,
            reset_after=0.0, reason="allowed", charged=charged,
        )  # fmt: skip
    except (KeyError, TypeError, IndexError) as error:
        raise ConfigurationError(f"a job's receipt is not one that throttlekit wrote: {safe_repr(error)}") from None


def _charged(data: Mapping[str, Any]) -> Charged:
    limit, bucket, cost, at_us = load(data["limit"]), data["bucket"], data["cost"], data["at"]
    if not isinstance(bucket, str) or (bucket and not is_bucket_of(bucket, limit.fingerprint)):
        raise TypeError("bucket")
    if type(cost) is not int or type(at_us) is not int or min(cost, at_us) < 0:
        raise TypeError("cost, at")
    holder = data.get("holder", "")
    if not isinstance(holder, str):
        raise TypeError("holder")
    return Charged(limit, bucket, cost, at_us, bool(data["measured"]), holder)
