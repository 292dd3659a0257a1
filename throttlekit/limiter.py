"""The methods of a limiter: acquire, release, hold, wait, peek, settle, cancel, pause, apply_response, reset …"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from throttlekit._core.decision import Charged, Decision
from throttlekit._core.durations import seconds_in, seconds_within
from throttlekit._core.job import Job
from throttlekit._core.limit.base import Limit
from throttlekit._core.spelling import checks_spelling
from throttlekit._engine.apply_response import apply_response, limits_by_unit
from throttlekit._engine.call import PLAIN_DELIVERY, Call, Delivery
from throttlekit._engine.hold import Hold, limited_by
from throttlekit._engine.plugins import DEFAULT_STORE
from throttlekit._engine.rate_limited import LONGEST_PAUSE
from throttlekit._engine.running import check_held, slowing_of
from throttlekit._engine.up_to import UpTo
from throttlekit._util.threads import in_running_loop, warn_in_loop
from throttlekit._wiring import NO_CLIENT, Wired
from throttlekit.errors import ConfigurationError, StoreUnavailable
from throttlekit.stores.base import Store

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Limiter"]

_F = TypeVar("_F", bound=Callable[..., object])


class Limiter(Wired):
    """
    Decides calls under any number of limits, and keeps their counts in a store. Create one per process, at import. The
    limiter connects at its first call. This object itself counts limits of scope "process", and the process's own share
    during an outage of the store. `AsyncLimiter(limiter)` uses the same counts.

    Most programs use an adapter, which calls the limiter. In code outside a job, use `hold` or the decorator `limited`,
    which wait until the limits admit the caller. Use `acquire` if the caller itself handles a denial, and `peek` to
    look without charging.

    Threads can share a limiter, also across a fork. It cannot be pickled. `with Limiter(…)` closes it at the end.

    Args:
        store: A URL (memory://, redis://, rediss://, unix://, valkey://, redis+cluster://, redis+sentinel://), or a
            store object. Default: the URL in the environment variable THROTTLEKIT_URL, otherwise memory://, whose
            limits apply to this object only.
        client: In place of a store: a `redis.Redis` or `redis.RedisCluster`, whose server and connection options are
            used. The client itself sends nothing: the limiter opens its own connections, with short time-outs and
            without retries.
        plugins: Objects with hooks of `throttlekit.hookspecs`, in addition to the installed plugins.
        stores: Separate stores for groups of limits, such as {"llm-*": "redis://…"}. The first pattern that matches a
            limit's name applies. Use the same value in every process; otherwise a limit is counted in two stores.

    Raises:
        ConfigurationError: No installed plugin knows the URL, the store is not a store, or a plugin is not a plugin
            or has a hook that does not exist.
        ImportError: The store needs a package that is not installed; the message names the extra.

    Attributes:
        events, threads, fleet: For adapters: the plugins' events, the threads that call the store for coroutines, and
            the rules and reports of the fleet.
    """

    @checks_spelling
    def __init__(
        self,
        store: str | Store = DEFAULT_STORE,
        *,
        client: object = NO_CLIENT,
        plugins: Sequence[object] = (),
        stores: Mapping[str, str | Store] | None = None,
    ) -> None:
        super().__init__(store, client, plugins, stores)
        self._warned = False

    def acquire(
        self,
        *limits: Limit,
        job: Job | None = None,
        key: str | int | None = None,
        cost: int | None = None,
        delivery: Delivery = PLAIN_DELIVERY,
    ) -> Decision:
        """
        Decide whether a job may run now under all of *limits*, and charge all of them or none, in one round trip.
        Limits of scope "process" are checked first, without a round trip.

        If a *job* with an id is denied, it gets a position on the limits' waitlists: call `acquire` again after
        `decision.delay`, with the same `job.id`. A caller without such a job gets no position, and `decision.delay`
        spreads these callers over time. They are granted only while no job waits, so rarely during a backlog.

        Args:
            key: The key to count under, for limits that have one, in place of the job's.
            cost: The units to charge to every limit, in place of the limits' own. With 0, nothing is charged.
            delivery: The way in which the job's framework redelivers it, for adapters.

        Raises:
            ConfigurationError: No limit was given, one was given twice or with two definitions, a key or cost could
                not be computed, or a key was given and no limit has one. Retrying cannot help.
            CostExceedsLimit: The cost is more than the limit can ever admit.

        If the store does not answer, no error is raised: the `on_store_failure` of each limit decides. By default
        the job is denied, keeps its position, and `decision.delay` is about a second.

        In a thread with a running event loop, this call blocks the loop until the store answers. A limiter issues a
        RuntimeWarning at its first such call, also of `acquire_many` or `peek`. Use `AsyncLimiter` instead.
        """
        if delivery is PLAIN_DELIVERY and not self._warned:
            self._check_loop("acquire")
        return self._wiring.decider.acquire(Call(limits, job, key, cost, delivery))

    def acquire_many(
        self, limit: Limit, most: int, *, job: Job | None = None, key: str | int | None = None
    ) -> Decision:
        """
        Take as many units of *limit* as are free now, up to *most*. If none is free, return a denial. The number of
        units is `decision.cost`.

        As with `acquire` without a job, the caller gets no position, and waiting jobs get their units first. The call
        makes two round trips. If other callers take units at the same time, or the limit is slowed down, it makes up to
        two more, and may get fewer units than are free.

        Args:
            most: The largest number of units, at least 1. It is reduced to what the limit can admit at once.
            job, key: As for `acquire`, but the job is not put on a waitlist.

        Raises:
            ConfigurationError: As for `acquire`; or *limit* grants slots, or has the scope "queue" or "job".
        """
        self._check_loop("acquire_many")
        return UpTo(self._resolver, self.in_force, limit, most, job, key).take(self.peek, self.acquire)

    def peek(
        self, *limits: Limit, job: Job | None = None, key: str | int | None = None, cost: int | None = None
    ) -> Decision:
        """
        Return the decision that `acquire` would make, and change nothing. A waiting job is decided by its position.

        Raises:
            StoreUnavailable: The store did not answer.
        """
        self._check_loop("peek")
        return self._wiring.decider.acquire(Call(limits, job, key, cost, peek=True))

    def settle(self, decision: Decision, actual: int, *, limit: Limit | None = None) -> Decision:
        """
        Correct a cost that is only known after the job has run. If *actual* is more than *decision* charged, charge the
        difference. If it is less, refund the difference.

        The charge may exceed the remaining units. Then no job is admitted until the bucket has refilled, or the window
        has ended. Only units that still count are refunded: a bucket never exceeds its burst, units of a window that
        has ended are not refunded, and a `SlidingLog` with a debt above its amount refunds nothing.

        Args:
            decision: The decision that `acquire` returned. Settle it once; to correct again, settle the new decision.
            actual: The total units that the job used.
            limit: The limit of *decision* to correct. Default: its only limit, or those whose cost is a callable.

        Returns:
            *decision*, with *actual* in `charged`, and as its `cost` if its binding limit was corrected.

        Raises:
            ConfigurationError: The decision was not allowed, *actual* is not a number of units, the limit is not one of
                the decision's, or it is not clear which is meant.
            StoreUnavailable: The store did not answer. The charge may have been corrected. Settling *decision* again
                could refund twice.
        """
        settled = self._wiring.stores.settle(decision, actual, limit)
        if self.fleet is not None:
            self.fleet.count_settled(decision, settled)
        self.events.emit_settled(decision, settled, actual)
        return settled

    def cancel(self, decision: Decision) -> None:
        """
        Refund the units and release the slots of *decision*, because the job will not run. Does nothing for a denial.

        If the store does not answer, units stay charged, which is stricter, and slots are released later, as with
        `release`. As with `settle`, only units that still count are refunded.
        """
        self.release_all(decision.leases, ran=False)
        for each in decision.charged:
            if not each.holder:
                try:
                    self._wiring.stores.settle(decision, 0, each.limit)
                except StoreUnavailable:  # the other limits may be in a store that answers
                    continue

    def release(self, decision: Decision) -> None:
        """
        Release the slots that *decision* holds, except slots of workflows. Does nothing if it holds none.

        If the store does not answer, a thread of this process releases the slots within two seconds after the store
        answers again. If the process ends before that, the slots are free when their leases end.
        """
        self.release_all(decision.leases, ran=True)

    def done(
        self, limit: Limit, held_by: str | int | None = None, *, job: Job | None = None, key: str | int | None = None
    ) -> None:
        """
        Release the slot of *limit* that a workflow holds (`held_by=`), because the workflow has no more jobs. Does
        nothing if it holds none. In the workflow's last job, call `throttlekit.current().done(limit)` instead.

        Args:
            held_by: The workflow. Default: that of *job*.
            job, key: The job or key that the slot is counted under, as for `acquire`. Without a job, all tiers.

        Raises:
            ConfigurationError: As for `acquire`; or *limit* has no `held_by=`.

        If the store does not answer, the slot is released later, as with `release`.
        """
        check_held(limit)
        holder, claims = limit.holder_of(job, held_by), self._each_tier(limit, job, key)
        held = [Charged(each.limit, each.claim.bucket, 1, 0, holder=holder) for each in claims]
        self.release_all(held, ran=False, done=True)

    def hold(
        self,
        *limits: Limit,
        job: Job | None = None,
        key: str | int | None = None,
        cost: int | None = None,
        timeout: float | timedelta | None = None,
    ) -> Hold:
        """
        Hold *limits* for code outside a job: `with limiter.hold(slots): …`, or `async with`. The caller waits among the
        jobs until all limits admit it. Leases are renewed during the block, and slots are released at its end.

        Args:
            job, key, cost: As for `acquire`.
            timeout: The most seconds to wait. Default: no time-out, even while the store does not answer.

        Returns:
            A context manager. The value of `with … as` is like `throttlekit.current()`: it has the decision, and shows
            whether a lease was lost.

        Raises:
            ConfigurationError, CostExceedsLimit: As for `acquire`. A plain `with` also raises ConfigurationError in a
                thread with a running event loop: write `async with`.
            WaitedTooLong: Raised by `with`, after *timeout*, or at once if the `queue=` of a limit is full.
        """
        call = Call(limits, job, key, cost)
        self._registry.check(call)
        return Hold(self, call, seconds_in("timeout", timeout))

    def wait(
        self,
        *limits: Limit,
        job: Job | None = None,
        key: str | int | None = None,
        cost: int | None = None,
        timeout: float | timedelta | None = None,
    ) -> Decision:
        """
        Wait, in code outside a job, among the jobs until all of *limits* admit the caller, and charge them. Nothing has
        to be released afterwards. Use `hold` for slots.

        Args:
            job, key, cost: As for `acquire`.
            timeout: As for `hold`.

        Raises:
            ConfigurationError: As for `acquire`; or a limit is a `Concurrency` limit, or an event loop runs in this
                thread: use `AsyncLimiter.wait` there.
            CostExceedsLimit: As for `acquire`.
            WaitedTooLong: As for `hold`.
        """
        waiting = self.hold(*limits, job=job, key=key, cost=cost, timeout=timeout)
        waiting.refuse_slots()
        waiting.refuse_in_loop("write `await limiter.wait(…)` with an AsyncLimiter")
        return waiting.wait_for_grant()

    def limited(self, *limits: Limit, timeout: float | timedelta | None = None) -> Callable[[_F], _F]:
        """
        Decorate a function or a coroutine function: each call waits for *limits*, with keys, costs and tiers from the
        call's arguments. Arguments and errors are those of `hold`.
        """
        self._registry.check(Call(limits))
        return limited_by(partial(Hold, self), limits, seconds_in("timeout", timeout))

    def pause(
        self,
        limit: Limit,
        duration: float | timedelta,
        *,
        job: Job | None = None,
        key: str | int | None = None,
        refused: bool = False,
    ) -> None:
        """
        Pause *limit* for *duration* in the whole fleet. Jobs that arrive during the pause start after it, in order.

        A longer pause that is in force remains. Counts stay, as with `Control.pause`: the limit refills during the
        pause.

        Args:
            duration: Seconds, or a timedelta.
            job, key: The job or key whose count is paused, as for `acquire`. Without a job, all tiers are paused.
            refused: Whether the partner has answered 429 to code outside a job. Then the limit has no units left when
                the pause ends, so that no burst follows, and a limit with `adapt=` is slowed down. In a job, raise
                `RateLimited` instead.

        Raises:
            ConfigurationError: As for `acquire`; or *duration* is not a number of seconds from 0 to 366 days.
            StoreUnavailable: The store did not answer. It is not known whether the limit is paused.
        """
        duration_us = round(seconds_within("duration", duration, 0, LONGEST_PAUSE) * 1_000_000)
        claims = self._each_tier(limit, job, key)
        if refused:
            self.refuse(claims, duration_us)
        else:
            self.pause_claims(claims, duration_us)

    def resume(self, limit: Limit, *, job: Job | None = None, key: str | int | None = None) -> None:
        """
        End a pause now. After a pause for a 429, the limit has no units left, as at the regular end of that pause.

        Raises:
            ConfigurationError: As for `acquire`.
            StoreUnavailable: The store did not answer.
        """
        self.pause_claims(self._each_tier(limit, job, key), None)

    def report_overload(self, limit: Limit, *, job: Job | None = None, key: str | int | None = None) -> None:
        """
        Report that the partner is overloaded, for example after a time-out, slow responses or a failed health check.
        The rate or the slots of *limit* are reduced according to its `adapt=`. In a job, use
        `current().report_overload()`, which considers when the job was admitted.

        Raises:
            ConfigurationError: As for `acquire`; or *limit* has no `adapt=`.
            StoreUnavailable: The store did not answer. It is not known whether the rate was reduced.
        """
        self.slow_down([slowing_of(each) for each in self._each_tier(limit, job, key)])

    def apply_response(
        self,
        response: Any,
        limit: Limit | None = None,
        *,
        tokens: Limit | None = None,
        input_tokens: Limit | None = None,
        output_tokens: Limit | None = None,
        job: Job | None = None,
        key: str | int | None = None,
    ) -> None:
        """
        Apply the rate-limit headers of a *response* to limits in the whole fleet, from code outside a job. In a job's
        body, use `throttlekit.current().apply_response`.

        A response can only slow a limit down. Until the reset in its headers, the limit admits the remaining units that
        the response reports, evenly paced, and never more than *limit* itself admits. After the reset, the response has
        no effect. A 429 or 503 with Retry-After admits no unit until that time. docs/how-to-headers.md lists the
        headers that are read.

        No response raises an error, not even a 429: raise `RateLimited.from_response` for that. If the store does not
        answer, the response is not applied, and a log line reports that.

        Args:
            response: A response of requests, httpx, aiohttp or urllib, any object with `.headers`, or the headers.
            limit: The limit that counts requests.
            tokens, input_tokens, output_tokens: The limits that count the tokens of language models.
            job, key: As for `acquire`.

        Raises:
            ConfigurationError: As for `acquire`; or no limit was named, or one without a rate.
        """
        named = limits_by_unit(limit, tokens, input_tokens, output_tokens)
        if not named:
            raise ConfigurationError(
                "name the limit that the response speaks of: limiter.apply_response(response, partner)"
            )
        no_keys = all(each.key is None for each in named.values())  # then a key is an error
        keys = {unit: key if no_keys or each.key is not None else None for unit, each in named.items()}
        apply_response(
            self.slow_down, response, {unit: self._each_tier(each, job, keys[unit]) for unit, each in named.items()}
        )

    def reset(self, *limits: Limit, job: Job | None = None, key: str | int | None = None) -> None:
        """
        Delete the counts of *limits*: buckets are full, and waitlists are empty. Waiting jobs make new requests.

        Raises:
            ConfigurationError: As for `acquire`.
            StoreUnavailable: The store did not answer.
        """
        call = Call(limits, job, key, 0)
        self._registry.check(call)
        for each in self.claims(call):
            with self._wiring.pipeline.prefetcher.without([each.claim.bucket]):
                self._wiring.stores.of(each.limit).reset([each.claim.bucket])

    def clear_waitlist(self, limit: Limit, *, job: Job | None = None, key: str | int | None = None) -> None:
        """
        Empty the waitlist of *limit* after its queue was purged. Counts stay. Other arguments and errors are those of
        `pause`.
        """
        for each in self._each_tier(limit, job, key):
            self._wiring.stores.of(each.limit).clear_waitlists([each.claim.bucket])

    def declare(self, *limits: Limit) -> None:
        """
        Register *limits*. Adapters call this when limits are declared, so that mistakes are reported at once.

        Raises:
            ConfigurationError: One of *limits* is not a limit, or its name has another definition.
        """
        for limit in limits:
            self._registry.add(limit)

    def close(self) -> None:
        """
        Close the connections, drop prefetched units, and end the threads. The next call opens them again. Slots that
        are not released yet are retried once; otherwise they are free when their leases end. Leases of bodies that
        still run are renewed until the bodies end.
        """
        self._wiring.stores.returns.close()
        if self.fleet is not None:
            self.fleet.close()
        self._wiring.pipeline.prefetcher.close()
        self._close_waker()
        self._wiring.stores.shared.close()
        self.threads.close()

    def _check_loop(self, verb: str) -> None:
        if not self._warned and in_running_loop() and not self.in_memory:
            self._warned = True
            warn_in_loop(verb)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
