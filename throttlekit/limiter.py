"""The verbs: acquire, release, hold, peek, settle, pause, resume, reset."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from throttlekit._core.decision import Decision
from throttlekit._core.durations import finite_seconds, seconds_in
from throttlekit._core.job import Job
from throttlekit._core.limit.base import Limit
from throttlekit._engine.breaker import CircuitBreaker
from throttlekit._engine.claims import Claim, resolve_claims
from throttlekit._engine.delivery import Delivery
from throttlekit._engine.events import EventDispatcher
from throttlekit._engine.hold import Hold, limited_by
from throttlekit._engine.leases import Leases
from throttlekit._engine.pipeline import PLAIN_DELIVERY, Pipeline
from throttlekit._engine.plugins import plugin_manager, store_from, store_of
from throttlekit._engine.rate_limited import LONGEST_PAUSE
from throttlekit._engine.settle import settle
from throttlekit._util.log_limiter import Every
from throttlekit.errors import StoreUnavailable
from throttlekit.fleet.fleet import Fleet
from throttlekit.stores.base import Store
from throttlekit.stores.memory import MemoryStore

__all__ = ["NO_CLIENT", "Limiter"]

_log = logging.getLogger("throttlekit")
_F = TypeVar("_F", bound=Callable[..., object])
_MEMORY = "memory://"
NO_CLIENT = object()


class Limiter:
    """
    Asks one store about any number of limits. Make one per process, at import; it connects on first use.

    Safe to share between threads, and to make before a fork.

    Args:
        store: A URL (memory://, redis://, rediss://, unix://, valkey://, redis+cluster://, redis+sentinel://), or a
            store of your own. Default: memory://, whose limits hold in this process only.
        client: In place of a store: a `redis.Redis` or `redis.RedisCluster` that says where the server is, and how it
            is reached. It is not used itself: the limiter's connections have time-outs of their own, and no retries.
        plugins: Objects with hooks of `throttlekit.hookspecs`, besides the installed ones.

    Raises:
        ConfigurationError: No installed plugin knows the URL, the store is none, or a plugin is none or
            has a hook that does not exist.
        ImportError: The store needs a package that is not there; the message names the extra.
    """

    def __init__(
        self, store: str | Store = _MEMORY, *, client: object = NO_CLIENT, plugins: Sequence[object] = ()
    ) -> None:
        hooks = plugin_manager(plugins)
        shared = CircuitBreaker(
            store_from(store, hooks) if client is NO_CLIENT else store_of(client, also=store is not _MEMORY)
        )
        self._fleet = Fleet(shared, self)
        self._telling = EventDispatcher(hooks)
        self.deciding = Pipeline(shared, MemoryStore(), self._fleet, self._telling)
        self._declared = self.deciding.declared
        self._leases = Leases(shared, self.deciding.in_process)
        self._release_failure = Every()

    @property
    def in_memory(self) -> bool:
        """Whether limits hold in this process only."""
        return self.deciding.shared.in_memory

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
        Limits of scope "process" are asked first, and without any.

        With a *job*, a denial gives it a place in the binding limit's waiting line: come back after
        `decision.delay` with `decision.waited` as `job.waited`. Without one, nobody waits for the
        caller: nothing is kept, and `decision.delay` spreads such callers out. They pass when no job
        waits, so under a lasting backlog of jobs hardly at all.

        Args:
            key: The key to count under, for limits that have one, in place of the job's.
            cost: The units to charge to every limit, in place of the limits' own. 0 only looks.
            delivery: What the job's framework can do; for adapters.

        Raises:
            ConfigurationError: No limit was given, one was given twice or with two definitions, a key
                or cost could not be worked out, or a key was given and no limit has one. A permanent
                fault: asking again will not help.
            CostExceedsLimit: The cost could never pass.

        A store that does not answer is no error: each limit's `on_store_failure` says what happens. By default
        the job is denied, keeps its place, and is asked to come back in about a second.
        """
        return self.deciding.acquire(limits, job, key, cost, delivery)

    def peek(
        self, *limits: Limit, job: Job | None = None, key: str | int | None = None, cost: int | None = None
    ) -> Decision:
        """
        Tell what `acquire` would answer now, and change nothing. Takes and raises the same; a job that
        carries a place is answered as its holder.

        Raises:
            StoreUnavailable: The store did not answer.
        """
        return self.deciding.peek(limits, job, key, cost)

    def settle(self, decision: Decision, *, actual: int, limit: Limit | None = None) -> Decision:
        """
        Correct a cost that is only known afterwards: charge what *actual* is more than what was charged when
        *decision* was allowed, or give back what it is less.

        May charge more than the limit has: then nobody passes until a bucket has made up for it, or a window is
        over. Never gives back more than still counts: a bucket is never fuller than its burst, what a window
        that is over took stays taken, and a `SlidingLog` that is owed more than it holds gives nothing back.

        Args:
            decision: What `acquire` returned. Settle it once; to correct again, settle what this returns.
            actual: The units that the job took in the end.
            limit: Which of the decision's limits. Default: its only one, else those whose cost is a callable.

        Returns:
            *decision*, as if *actual* had been its cost.

        Raises:
            ConfigurationError: The decision was not allowed, *actual* is no number of units, the limit is none of
                the decision's, or it is not clear which is meant.
            StoreUnavailable: The store did not answer. It may have been corrected, or not: to settle *decision*
                again may give back twice.
        """
        return settle(decision, actual, limit, shared=self.deciding.shared, in_process=self.deciding.in_process)

    def release(self, decision: Decision) -> None:
        """
        Give back the slots that *decision* holds of concurrency limits. Does nothing if it holds none, or no more.

        If the store does not answer, they come free when their leases end.
        """
        try:
            self._leases.release(decision)
        except StoreUnavailable as error:
            if self._release_failure.due():
                _log.warning("%s. Slots that could not be given back come free when their leases end.", error)

    def keep(self, decision: Decision, on_lost: Callable[[], None]) -> None:
        """
        For adapters: renew the slots that *decision* holds until they are released.

        Args:
            on_lost: Called, in another thread, if one is lost; see the hook `throttlekit_slot_lost`.
        """

        def lost(limit: Limit) -> None:
            on_lost()
            self._telling.lost(decision, limit)

        self._leases.keep(decision, lost)

    def until_due(self, limits: Sequence[Limit], ticket: Mapping[str, Any] | None) -> float | None:
        """
        For adapters: seconds until the slot of a job that carries *waited*, without asking the store. Before that the
        store would only say "early": the job can be held until then.

        Returns:
            None if the store has to be asked: see `StoreClock.until_due`, and while anything is steered.
        """
        return None if self._fleet.has_overrides() else self.deciding.store_clock.until_due(limits, ticket)

    def hand_over(self, decision: Decision, pid: int) -> Decision:
        """
        For adapters: renew them no more here, for the body's own process, *pid*, does by now.

        Returns:
            What is to be released here when the body has ended: slots that were renewed here, for that may have been
            after its end; and those that are counted in this process alone, which are renewed here until then.
        """
        return self._leases.hand_over(decision, pid)

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
            What `with … as` gives is as `throttlekit.current()`: it has the decision, and tells if a lease is lost.

        Raises:
            ConfigurationError, CostExceedsLimit: As for `acquire`.
            WaitedTooLong: On entering, after *timeout*; or at once, if the queue of a `LeakyBucket` is full.
        """
        self._declared.check(limits, job, key)
        return Hold(self, limits, job, key, cost, seconds_in("timeout", timeout))

    def limited(self, *limits: Limit, timeout: float | timedelta | None = None) -> Callable[[_F], _F]:
        """
        As a decorator: each call of the function is held to *limits*, with keys, costs and tiers from its own
        arguments. For functions and for coroutine functions; takes and raises the same as `hold`.
        """
        self._declared.check(limits, None, None)
        return limited_by(self, limits, seconds_in("timeout", timeout))

    def pause(
        self, limit: Limit, seconds: float | timedelta, *, job: Job | None = None, key: str | int | None = None
    ) -> None:
        """
        Let nobody pass *limit* for so long, in the whole fleet: of the key that is given, if it has one. A pause that
        lasts longer already stays. Afterwards the limit begins empty, and fills at its rate.

        Jobs whose slots come meanwhile are deferred to behind the pause, in their order.

        Args:
            job, key: What is paused, as for `acquire`. Of a limit with tiers, all if there is no job.

        Raises:
            ConfigurationError: As for `acquire`; *seconds* is no number of seconds from 0 to 366 days.
            StoreUnavailable: The store did not answer. It may be paused, or not.
        """
        for_us = round(finite_seconds("seconds", seconds, LONGEST_PAUSE) * 1_000_000)
        self.pause_asked(self._each_tier(limit, job, key), for_us)

    def resume(self, limit: Limit, *, job: Job | None = None, key: str | int | None = None) -> None:
        """
        End a pause now. The limit begins empty, as after any pause.

        Raises:
            ConfigurationError: As for `acquire`.
            StoreUnavailable: The store did not answer.
        """
        self.pause_asked(self._each_tier(limit, job, key), None)

    def reset(self, *limits: Limit, job: Job | None = None, key: str | int | None = None) -> None:
        """
        Forget what was counted under *limits*: full buckets, empty lines. Jobs that wait come back when
        they were told to.

        Raises:
            ConfigurationError: As for `acquire`.
            StoreUnavailable: The store did not answer.
        """
        self._declared.check(limits, job, key)
        for each in resolve_claims(self.in_force(limits, job), job, key, 0, 0.0):
            store = self.deciding.in_process if each.in_process else self.deciding.shared
            with self.deciding.prefetcher.without([each.claim.bucket]):
                store.reset([each.claim.bucket, each.claim.line])

    def declare(self, *limits: Limit) -> None:
        """
        Make *limits* known. Adapters call this where limits are declared, so that mistakes show at once.

        Raises:
            ConfigurationError: One is not a limit, or its name is already used with another definition.
        """
        for limit in limits:
            self._declared.add(limit)

    def close(self) -> None:
        """Let go of the store, of units taken ahead, and of the fleet. The limiter may be used again afterwards."""
        self._fleet.close()
        self.deciding.prefetcher.close()
        self.deciding.shared.close()

    def in_force(self, limits: Sequence[Limit], job: Job | None) -> Sequence[Limit]:
        """For `pause` and its kin: *limits* at the rates that they have now."""
        return self._fleet.overrides.in_force(limits, job) if self._fleet.has_overrides() else limits

    def _each_tier(self, limit: Limit, job: Job | None, key: str | int | None) -> list[Claim]:
        self._declared.check([limit], job, key)
        tiers = list(limit.tiers.values()) if limit.tiers is not None and job is None else [limit]
        return [each for tier in tiers for each in resolve_claims(self.in_force([tier], job), job, key, 0, 0.0)]

    def pause_asked(self, asked: Sequence[Claim], for_us: int | None) -> None:
        """For `pause` and its kin: see `Store.pause`."""
        with self.deciding.prefetcher.without(each.claim.bucket for each in asked):
            here = [each.claim for each in asked if each.in_process]
            if here:  # first what always answers
                self.deciding.in_process.pause(here, for_us)
            shared = [each.claim for each in asked if not each.in_process]
            if shared:
                self.deciding.shared.pause(shared, for_us)
