"""The methods of a limiter: acquire, release, hold, wait, peek, settle, cancel, pause, apply_response, reset …"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from throttlekit._core.decision import Charged, Decision
from throttlekit._core.durations import finite_seconds, seconds_in
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
    Decides calls under any number of limits, which a store counts. Make one per process, at import; it connects on
    first use. Limits of scope "process", and a process's own share while the store is away, are counted by this object:
    `AsyncLimiter(limiter)` shares them.

    Most callers use an adapter, which calls this for them. In code outside a job use `hold`, or the decorator
    `limited`: they wait until the limits let the caller pass. Use `acquire` where the caller itself decides what to
    do with a denial, and `peek` to look without charging.

    Safe to share between threads, and to make before a fork. It cannot be pickled. `with Limiter(…)` closes it after.

    Args:
        store: A URL (memory://, redis://, rediss://, unix://, valkey://, redis+cluster://, redis+sentinel://), or a
            store of your own. Default: the URL in the environment variable THROTTLEKIT_URL, else memory://, whose
            limits hold in this object only.
        client: In place of a store: a `redis.Redis` or `redis.RedisCluster` that says where the server is, and how it
            is reached. It is not used itself: the limiter's connections have time-outs of their own, and no retries.
        plugins: Objects with hooks of `throttlekit.hookspecs`, besides the installed ones.
        stores: Stores of groups of limits, {"llm-*": "redis://…"}, by the first pattern that matches the name. The same
            in every process of the fleet, or a limit is counted twice.

    Raises:
        ConfigurationError: No installed plugin knows the URL, the store is not a store, or a plugin is not a plugin
            or has a hook that does not exist.
        ImportError: The store needs a package that is not installed; the message names the extra.

    Attributes:
        events, threads, fleet: For adapters: the plugins' events, where coroutines wait for the store, what is counted.
    """

    @checks_spelling
    def __init__(
        self, store: str | Store = DEFAULT_STORE, *, client: object = NO_CLIENT, plugins: Sequence[object] = (),
        stores: Mapping[str, str | Store] | None = None,
    ) -> None:  # fmt: skip
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
        Ask whether a job may run now under all of *limits*, and charge all of them or none: one round trip.
        Limits of scope "process" are checked first, without a round trip.

        With a *job* that has an id, a denial gives it a position on the limits' waitlists: call `acquire` again after
        `decision.delay`, with the same `job.id`. A caller without one has no position, and `decision.delay` spreads
        such callers over time. They pass only while no job waits, so during a backlog they hardly pass at all.

        Args:
            key: The key to count under, for limits that have one, in place of the job's.
            cost: The units to charge to every limit, in place of the limits' own. 0 only looks.
            delivery: What the job's framework can do; for adapters.

        Raises:
            ConfigurationError: No limit was given, one was given twice or with two definitions, a key or cost could
                not be computed, or a key was given and no limit has one. Another call cannot help.
            CostExceedsLimit: The cost is more than the limit can ever admit.

        A store that does not answer is no error: each limit's `on_store_failure` says what happens. By default
        the job is denied, keeps its position, and `decision.delay` is about a second.

        In a thread whose event loop runs, this blocks the loop until the store answers. The first such call of a
        limiter, also of `acquire_many` or `peek`, raises a RuntimeWarning: use `AsyncLimiter`.
        """
        if delivery is PLAIN_DELIVERY and not self._warned:
            self._check_loop("acquire")
        return self._wiring.decider.acquire(Call(limits, job, key, cost, delivery))

    def acquire_many(
        self, limit: Limit, most: int, *, job: Job | None = None, key: str | int | None = None
    ) -> Decision:
        """
        Take as many units of *limit* as are free now, up to *most*: at least 1, as `decision.cost` says; or a denial.
        Like `acquire` without a job, it gives no position, and takes only units that waiting jobs leave. It makes two
        round trips. If others take units meanwhile, or the limit is slowed down, it makes up to two more, and may get
        fewer units than are free.

        Args:
            most: At least 1. If more than the limit can admit at once, that amount counts.
            job, key: As for `acquire`, but the job is not put on a waitlist.

        Raises:
            ConfigurationError: As for `acquire`; or *limit* gives slots, or has the scope "queue" or "job".
        """
        self._check_loop("acquire_many")
        return UpTo(self._resolver, self.in_force, limit, most, job, key).take(self.peek, self.acquire)

    def peek(
        self, *limits: Limit, job: Job | None = None, key: str | int | None = None, cost: int | None = None
    ) -> Decision:
        """
        Return the decision that `acquire` would make, and change nothing. For a waiting job, its position counts.

        Raises:
            StoreUnavailable: The store did not answer.
        """
        self._check_loop("peek")
        return self._wiring.decider.acquire(Call(limits, job, key, cost, peek=True))

    def settle(self, decision: Decision, actual: int, *, limit: Limit | None = None) -> Decision:
        """
        Correct a cost that is only known after the job has run. If *actual* is more than what was charged when
        *decision* was allowed, charge the difference. If it is less, return the difference.

        It may charge more than the limit has left: then no job passes until the bucket has made up for it, or the
        window is over. It returns only units that still count: a bucket is never fuller than its burst, units of a
        window that is over are not returned, and a `SlidingLog` with a debt above its amount returns nothing.

        Args:
            decision: What `acquire` returned. Settle it once; to correct again, settle what this returns.
            actual: The units that the job took in the end.
            limit: Which of the decision's limits. Default: its only one, else those whose cost is a callable.

        Returns:
            *decision*, as if *actual* had been its cost.

        Raises:
            ConfigurationError: The decision was not allowed, *actual* is not a number of units, the limit is not one of
                the decision's, or it is not clear which is meant.
            StoreUnavailable: The store did not answer. It may have been corrected, or not: to settle *decision*
                again may give back twice.
        """
        settled = self._wiring.stores.settle(decision, actual, limit)
        if self.fleet is not None:
            self.fleet.count_settled(decision, settled)
        self.events.emit_settled(decision, settled, actual)
        return settled

    def cancel(self, decision: Decision) -> None:
        """
        Give back everything that *decision* took, units and slots: the job will not run. Does nothing with a denial.

        If the store does not answer, units stay charged, and slots are given back as `release` says: stricter, never
        looser. What `settle` says of units that no longer count holds here too.
        """
        self.give_back(decision, ran=False)
        for each in decision.charged:
            if not each.holder:
                try:
                    self._wiring.stores.settle(decision, 0, each.limit)
                except StoreUnavailable:
                    return

    def release(self, decision: Decision) -> None:
        """
        Give back the slots that *decision* holds, but for those of workflows. Does nothing if there are none.

        If the store does not answer, they are given back within two seconds after it answers again, by a thread of this
        process. If the process ends before, they come free when their leases end.
        """
        self.give_back(decision, ran=True)

    def done(
        self, limit: Limit, held_by: str | int | None = None, *, job: Job | None = None, key: str | int | None = None
    ) -> None:
        """
        Give back the slot that a workflow holds of *limit*, which has `held_by=`: no job of it is to come. Does nothing
        if it holds none. In its last job call `throttlekit.current().done(limit)`.

        Args:
            held_by: The workflow. Default: that of *job*.
            job, key: What it is counted under, as for `acquire`. Of a limit with tiers, all if there is no job.

        Raises:
            ConfigurationError: As for `acquire`; *limit* has no `held_by=`.

        If the store does not answer, the slot is given back as `release` says.
        """
        check_held(limit)
        holder, claims = limit.holder_of(job, held_by), self._each_tier(limit, job, key)
        held = [Charged(each.limit, each.claim.bucket, 1, 0, holder=holder) for each in claims]
        self.release_all(held, ran=False, done=True)

    def hold(
        self, *limits: Limit, job: Job | None = None, key: str | int | None = None, cost: int | None = None,
        timeout: float | timedelta | None = None,
    ) -> Hold:  # fmt: skip
        """
        For code outside a job: `with limiter.hold(slots): …`, or `async with`. Waits with the jobs until all
        of *limits* let it pass, and gives their slots back at the end; leases are renewed meanwhile.

        Args:
            job, key, cost: As for `acquire`.
            timeout: Seconds to wait at most. Default: as long as it takes, a store that is away included.

        Returns:
            What `with … as` gives is as `throttlekit.current()`: it has the decision, and says whether a lease is lost.

        Raises:
            ConfigurationError, CostExceedsLimit: As for `acquire`. Also on entering a plain `with` where an event loop
                runs: write `async with`.
            WaitedTooLong: On entering, after *timeout*; or at once, if the `queue=` of a limit is full.
        """
        call = Call(limits, job, key, cost)
        self._registry.check(call)
        return Hold(self, call, seconds_in("timeout", timeout))

    def wait(
        self, *limits: Limit, job: Job | None = None, key: str | int | None = None, cost: int | None = None,
        timeout: float | timedelta | None = None,
    ) -> Decision:  # fmt: skip
        """
        For code outside a job, and for rates: wait with the jobs until all of *limits* let the caller pass, and
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
        waiting = self.hold(*limits, job=job, key=key, cost=cost, timeout=timeout)
        waiting.refuse_slots()
        waiting.refuse_in_loop("write `await limiter.wait(…)` with an AsyncLimiter")
        return waiting.wait_for_grant()

    def limited(self, *limits: Limit, timeout: float | timedelta | None = None) -> Callable[[_F], _F]:
        """
        As a decorator: each call of the function is held to *limits*, with keys, costs and tiers from its own
        arguments. For functions and for coroutine functions; takes and raises the same as `hold`.
        """
        self._registry.check(Call(limits))
        return limited_by(partial(Hold, self), limits, seconds_in("timeout", timeout))

    def pause(
        self, limit: Limit, duration: float | timedelta, *, job: Job | None = None, key: str | int | None = None,
        refused: bool = False,
    ) -> None:  # fmt: skip
        """
        Let no job pass *limit* for so long, in the whole fleet: of the key that is given, if it has one. A pause that
        lasts longer already stays. What is counted stays, as with `Control.pause`: the limit fills meanwhile. Jobs that
        come meanwhile are deferred to behind the pause, in their order.

        Args:
            duration: Seconds, or a timedelta.
            job, key: What is paused, as for `acquire`. Of a limit with tiers, all if there is no job.
            refused: Downstream has answered 429, outside of a job: afterwards the limit begins empty, so that no burst
                follows, and one with `adapt=` is slower. In a job, raise `RateLimited`.

        Raises:
            ConfigurationError: As for `acquire`; *duration* is not a number of seconds from 0 to 366 days.
            StoreUnavailable: The store did not answer. It may be paused, or not.
        """
        duration_us = round(finite_seconds("duration", duration, LONGEST_PAUSE) * 1_000_000)
        claims = self._each_tier(limit, job, key)
        if refused:
            self.refuse(claims, duration_us)
        else:
            self.pause_claims(claims, duration_us)

    def resume(self, limit: Limit, *, job: Job | None = None, key: str | int | None = None) -> None:
        """
        End a pause now, also one after a 429: then the limit begins empty, as it would have later.

        Raises:
            ConfigurationError: As for `acquire`.
            StoreUnavailable: The store did not answer.
        """
        self.pause_claims(self._each_tier(limit, job, key), None)

    def report_overload(self, limit: Limit, *, job: Job | None = None, key: str | int | None = None) -> None:
        """
        Report that the partner is overloaded, by a sign of your own: a time-out, latency, a health check. The rate of
        *limit* falls, or its slots in use, as its `adapt=` says. In a job, use `current().report_overload()`, which
        knows when the job was admitted.

        Raises:
            ConfigurationError: As for `acquire`; *limit* has no `adapt=`.
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
        For code outside a job: apply the rate-limit headers of a *response* to limits, in the whole fleet. In a job's
        body use `throttlekit.current().apply_response`.

        A response can only make a limit slower. Until the reset in its headers, the units that it reports as remaining
        pass, evenly paced, and never more than *limit* itself admits. After the reset it has no effect. A 429 or 503
        with Retry-After lets no unit pass until then. docs/how-to-headers.md lists the headers that are read.

        No response raises an error, not even one with the status 429: raise `RateLimited.from_response` for that. If
        the store does not answer, the response is not applied, and that is logged.

        Args:
            response: Of requests, httpx, aiohttp, urllib, whatever has `.headers`; or headers themselves.
            limit: The limit that counts requests.
            tokens, input_tokens, output_tokens: The limits that count the tokens of language models.
            job, key: As for `acquire`.

        Raises:
            ConfigurationError: No limit was named, or one that has no rate; else as for `acquire`.
        """
        named = limits_by_unit(limit, tokens, input_tokens, output_tokens)
        if not named:
            raise ConfigurationError(
                "name the limit that the response speaks of: limiter.apply_response(response, partner)"
            )
        apply_response(self, response, {unit: self._each_tier(each, job, key) for unit, each in named.items()})

    def reset(self, *limits: Limit, job: Job | None = None, key: str | int | None = None) -> None:
        """
        Forget what was counted under *limits*: full buckets, empty waitlists. Waiting jobs make new requests.

        Raises:
            ConfigurationError: As for `acquire`.
            StoreUnavailable: The store did not answer.
        """
        call = Call(limits, job, key, 0)
        self._registry.check(call)
        for each in self.claims(call):
            with self._nothing_prefetched([each.claim.bucket]):
                self._wiring.stores.of(each.limit).reset([each.claim.bucket])

    def clear_line(self, limit: Limit, *, job: Job | None = None, key: str | int | None = None) -> None:
        """Empty the waitlist of *limit*, for after a purge: what was counted stays. Else as `pause`."""
        for each in self._each_tier(limit, job, key):
            self._wiring.stores.of(each.limit).clear_waitlists([each.claim.bucket])

    def declare(self, *limits: Limit) -> None:
        """
        Make *limits* known. Adapters call this where limits are declared, so that mistakes show at once.

        Raises:
            ConfigurationError: One is not a limit, or its name is already used with another definition.
        """
        for limit in limits:
            self._registry.add(limit)

    def close(self) -> None:
        """
        Close the connections, drop prefetched units, end the threads. The next use opens it again. Slots that could
        not be given back yet are tried once more, and are else left to their leases.
        """
        self._wiring.stores.returns.close()
        if self.fleet is not None:
            self.fleet.close()
        if self._wiring.prefetcher is not None:
            self._wiring.prefetcher.close()
        self._close_waker()
        self._wiring.stores.shared.close()
        self.threads.close()

    def _check_loop(self, verb: str) -> None:
        if not self._warned and in_running_loop() and not self.in_memory:
            self._warned = True
            warn_in_loop(verb)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
