"""The verbs of a limiter that wait in line where they stand: hold, wait, limited."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeVar

from throttlekit._core.algorithms.concurrency import Concurrency
from throttlekit._core.decision import Decision
from throttlekit._core.durations import seconds_in
from throttlekit._core.job import Job
from throttlekit._core.limit.base import Limit
from throttlekit._engine.call import Call
from throttlekit._engine.hold import Hold, limited_by
from throttlekit.errors import ConfigurationError

__all__ = ["Waits"]

_F = TypeVar("_F", bound=Callable[..., object])


class Waits:
    """The part of `Limiter` for code outside a job."""

    def _hold(self, call: Call, timeout: float) -> Hold:
        raise NotImplementedError

    def _check(self, call: Call) -> None:
        raise NotImplementedError

    def hold(
        self,
        *limits: Limit,
        job: Job | None = None,
        key: str | int | None = None,
        cost: int | None = None,
        timeout: float | timedelta | None = None,
    ) -> Hold:
        """
        For code outside a job: `with limiter.hold(slots): …`, or `async with`. Waits in line with the jobs until all
        of *limits* let it pass, and gives their slots back at the end; leases are renewed meanwhile.

        Args:
            job, key, cost: As for `acquire`.
            timeout: Seconds to wait at most. Default: as long as it takes, a store that is away included.

        Returns:
            What `with … as` gives is as `throttlekit.current()`: it has the decision, and says whether a lease is lost.

        Raises:
            ConfigurationError, CostExceedsLimit: As for `acquire`. Also on entering a plain `with` where an event loop
                runs: write `async with`.
            WaitedTooLong: On entering, after *timeout*; or at once, if the queue of a `LeakyBucket` is full.
        """
        call = Call(limits, job, key, cost)
        self._check(call)
        return self._hold(call, seconds_in("timeout", timeout))

    def wait(
        self,
        *limits: Limit,
        job: Job | None = None,
        key: str | int | None = None,
        cost: int | None = None,
        timeout: float | timedelta | None = None,
    ) -> Decision:
        """
        For code outside a job, and for rates: wait in line with the jobs until all of *limits* let the caller pass, and
        charge them. There is nothing to give back at the end; for slots use `hold`.

        Args:
            job, key, cost: As for `acquire`.
            timeout: As for `hold`.

        Raises:
            ConfigurationError: As for `acquire`; or a limit is a `Concurrency` limit, or an event loop runs in this
                thread: there use `AsyncLimiter.wait`.
            CostExceedsLimit: As for `acquire`.
            WaitedTooLong: As for `hold`.
        """
        waiting = self.waiting(limits, job, key, cost, timeout)
        waiting.refuse_in_loop("write `await limiter.wait(…)` with an AsyncLimiter")
        return waiting.pass_line()

    def waiting(
        self,
        limits: Sequence[Limit],
        job: Job | None,
        key: str | int | None,
        cost: int | None,
        timeout: float | timedelta | None,
    ) -> Hold:
        """For `wait`, here and in `AsyncLimiter`: the hold to enter."""
        for limit in limits:
            if isinstance(limit, Concurrency):
                raise ConfigurationError(
                    f"limit {limit.name!r} gives slots, which have to be given back: use `hold` for it, not `wait`"
                )
        return self.hold(*limits, job=job, key=key, cost=cost, timeout=timeout)

    def limited(self, *limits: Limit, timeout: float | timedelta | None = None) -> Callable[[_F], _F]:
        """
        As a decorator: each call of the function is held to *limits*, with keys, costs and tiers from its own
        arguments. For functions and for coroutine functions; takes and raises the same as `hold`.
        """
        self._check(Call(limits))
        return limited_by(self._hold, limits, seconds_in("timeout", timeout))
