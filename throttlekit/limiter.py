"""The verbs: acquire, release, hold, wait, peek, settle, cancel, pause, resume, reset, clear_line."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from throttlekit._core.decision import Decision
from throttlekit._core.durations import finite_seconds
from throttlekit._core.job import Job
from throttlekit._core.limit.base import Limit
from throttlekit._engine.attempt import Decider, Layer
from throttlekit._engine.breaker import CircuitBreaker
from throttlekit._engine.call import Call
from throttlekit._engine.claims import Claim, ClaimResolver
from throttlekit._engine.delivery import PLAIN_DELIVERY, Delivery
from throttlekit._engine.events import EventDispatcher
from throttlekit._engine.hold import Hold
from throttlekit._engine.leases import Leases
from throttlekit._engine.pipeline import Pipeline
from throttlekit._engine.plugins import DEFAULT_STORE, plugin_manager, store_from, store_of
from throttlekit._engine.prefetch import PrefetchedCalls, Prefetcher
from throttlekit._engine.rate_limited import LONGEST_PAUSE
from throttlekit._engine.registry import LimitRegistry
from throttlekit._engine.store_access import StoreAccess
from throttlekit._engine.stores import InProcessLayer, SharedLayer, Stores
from throttlekit._engine.threads import Threads, in_running_loop, warn_in_loop
from throttlekit._engine.waits import Waits
from throttlekit._util.log_limiter import Every
from throttlekit.errors import StoreUnavailable
from throttlekit.stores.base import Store
from throttlekit.stores.memory import MemoryStore

if TYPE_CHECKING:
    from typing_extensions import Self

    from throttlekit.fleet.fleet import Fleet

__all__ = ["NO_CLIENT", "Limiter"]

_log = logging.getLogger("throttlekit")
NO_CLIENT = object()


class Limiter(Waits):
    """
    Decides calls under any number of limits, which one store counts. Make one per process, at import; it connects on
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

    Raises:
        ConfigurationError: No installed plugin knows the URL, the store is not a store, or a plugin is not a plugin
            or has a hook that does not exist.
        ImportError: The store needs a package that is not installed; the message names the extra.

    Attributes:
        events, threads, fleet: For adapters: the plugins' events, where coroutines wait for the store, what is counted.
        decider, pipeline, prefetched, prefetcher, stores: Of throttlekit alone: the parts that decide; they may change.
    """

    _without: ClassVar[frozenset[str]] = frozenset()
    """The wings that a limiter of this class works without: "fleet", "prefetch", "breaker"."""

    def __init__(
        self, store: str | Store = DEFAULT_STORE, *, client: object = NO_CLIENT, plugins: Sequence[object] = ()
    ) -> None:
        hooks = plugin_manager(plugins)
        made = store_from(store, hooks) if client is NO_CLIENT else store_of(client, also=store is not DEFAULT_STORE)
        guarded = StoreAccess(made) if "breaker" in self._without else CircuitBreaker(made)
        self.events = EventDispatcher(hooks)
        self.stores = Stores(guarded, MemoryStore())
        self._leases = Leases(self.stores)
        self._registry = LimitRegistry()
        self._resolver = ClaimResolver(self._registry, self.events if self.events.configures_claims else None)
        self._release_failure = Every()
        self._warned = False
        self.threads = Threads()
        self._stack()

    def _stack(self) -> None:
        """Stack the layers, the lowest first. Each wing can be left out; the others work without it."""
        layer: Layer = SharedLayer(self.stores)
        self.prefetcher = None if "prefetch" in self._without else Prefetcher(layer)
        layer = InProcessLayer(self.stores, self.prefetcher or layer)
        self.fleet: Fleet | None = None
        if self.stores.shared.shared and "fleet" not in self._without:
            from throttlekit.fleet.fleet import Fleet  # costly to import, and of no use to a limiter in memory

            self.fleet = Fleet(self.stores.shared, self)
            self._resolver.weight_of = self.fleet.overrides.weight_of
        count = None if self.fleet is None else self.fleet.count
        self.pipeline = Pipeline(self.stores, layer, self._resolver, self.events, count)
        self.decider: Decider = self.pipeline
        self.prefetched: PrefetchedCalls | None = None
        if self.prefetcher is not None:
            self.decider = self.prefetched = PrefetchedCalls(self.prefetcher, self.events, self.pipeline)
        if self.fleet is not None:
            self.fleet.passed = None if self.prefetcher is None else self.prefetcher.passed
            from throttlekit.fleet.override_layer import OverrideLayer

            self.decider = OverrideLayer(self.fleet, self.pipeline, self.decider)

    @property
    def in_memory(self) -> bool:
        """Whether limits hold in this process only."""
        return self.stores.shared.in_memory

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

        With a *job*, a denial gives it a place in the binding limit's waiting line: come back after `decision.delay`
        with `decision.ticket` as `job.ticket`. Without one, the caller has no place in the line: nothing is kept, and
        `decision.delay` spreads such callers out. They pass when no job waits, so under a backlog hardly at all.

        Args:
            key: The key to count under, for limits that have one, in place of the job's.
            cost: The units to charge to every limit, in place of the limits' own. 0 only looks.
            delivery: What the job's framework can do; for adapters.

        Raises:
            ConfigurationError: No limit was given, one was given twice or with two definitions, a key or cost could
                not be worked out, or a key was given and no limit has one. A permanent fault: asking again is no help.
            CostExceedsLimit: The cost could never pass.

        A store that does not answer is no error: each limit's `on_store_failure` says what happens. By default
        the job is denied, keeps its place, and is asked to come back in about a second.

        In a thread with a running event loop the loop stands still meanwhile, and a RuntimeWarning says so, once. Use
        an `AsyncLimiter` there.
        """
        if delivery is PLAIN_DELIVERY and not self._warned and in_running_loop() and not self.in_memory:
            self._warned = True
            warn_in_loop()
        return self.decider.acquire(Call(limits, job, key, cost, delivery))

    def peek(
        self, *limits: Limit, job: Job | None = None, key: str | int | None = None, cost: int | None = None
    ) -> Decision:
        """
        Return what `acquire` would, and change nothing. A job that carries a place is answered as its holder.

        Raises:
            StoreUnavailable: The store did not answer.
        """
        return self.decider.acquire(Call(limits, job, key, cost, peek=True))

    def settle(self, decision: Decision, actual: int, *, limit: Limit | None = None) -> Decision:
        """
        Correct a cost that is only known afterwards: charge what *actual* is more than what was charged when
        *decision* was allowed, or give back what it is less.

        May charge more than the limit has: then no job passes until a bucket has made up for it, or a window is
        over. Never gives back more than still counts: a bucket is never fuller than its burst, what a window
        that is over took stays taken, and a `SlidingLog` that is owed more than it holds gives nothing back.

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
        settled = self.stores.settle(decision, actual, limit)
        if self.fleet is not None:
            self.fleet.count_settled(decision, settled)
        self.events.settled(decision, settled, actual)
        return settled

    def cancel(self, decision: Decision) -> None:
        """
        Give back everything that *decision* took, units and slots: the job will not run. Does nothing with a denial.

        If the store does not answer, units stay charged, and slots are given back as `release` says: stricter, never
        looser. What `settle` says of units that no longer count holds here too.
        """
        self.release(decision)
        for each in decision.charged:
            if not each.holder:
                try:
                    self.stores.settle(decision, 0, each.limit)
                except StoreUnavailable:
                    return

    def release(self, decision: Decision) -> None:
        """
        Give back the slots that *decision* holds of concurrency limits. Does nothing if it holds none, or no more.

        If the store does not answer, they are given back within two seconds after it answers again, by a thread of this
        process. If the process ends before, they come free when their leases end.
        """
        try:
            self._leases.release(decision)
        except StoreUnavailable as error:
            if self._release_failure.due():
                _log.warning(
                    "%s. Slots that could not be given back are given back once it answers; if this process ends "
                    "before, they come free when their leases end.", error,
                )  # fmt: skip

    def keep(self, decision: Decision, on_lost: Callable[[], None]) -> None:
        """
        For adapters: renew the slots that *decision* holds until they are released.

        Args:
            on_lost: Called, in another thread, if one is lost; see the hook `throttlekit_slot_lost`.
        """

        def lost(limit: Limit) -> None:
            on_lost()
            self.events.slot_lost(decision, limit)

        self._leases.keep(decision, lost)

    def until_due(self, limits: Sequence[Limit], ticket: Mapping[str, Any] | None) -> float | None:
        """
        For adapters: seconds until a job that carries *ticket* is due, without asking the store. Before that the
        store would only answer "early": the job can be held until then.

        Returns:
            None if only the store knows: see `StoreClock.until_due`; also while any override is in force.
        """
        return None if self._has_overrides() else self.pipeline.store_clock.until_due(limits, ticket)

    def hand_over(self, decision: Decision, pid: int) -> Decision:
        """
        For adapters: stop renewing the leases of *decision* here; process *pid*, which runs the body, renews them now.

        Returns:
            What to release here when the body has ended: slots whose last renewal was here, for that may have come
            after the body's end; and slots that only this process counts, which it renews until then.
        """
        return self._leases.hand_over(decision, pid)

    def pause(
        self, limit: Limit, for_: float | timedelta, *, job: Job | None = None, key: str | int | None = None
    ) -> None:
        """
        Let no job pass *limit* for so long, in the whole fleet: of the key that is given, if it has one. A pause that
        lasts longer already stays. What is counted stays, as with `Control.pause`: the limit fills meanwhile.

        Jobs whose slots come meanwhile are deferred to behind the pause, in their order.

        Args:
            for_: Seconds, or a timedelta.
            job, key: What is paused, as for `acquire`. Of a limit with tiers, all if there is no job.

        Raises:
            ConfigurationError: As for `acquire`; *for_* is not a number of seconds from 0 to 366 days.
            StoreUnavailable: The store did not answer. It may be paused, or not.
        """
        for_us = round(finite_seconds("for_", for_, LONGEST_PAUSE) * 1_000_000)
        self.pause_claims(self._each_tier(limit, job, key), for_us)

    def resume(self, limit: Limit, *, job: Job | None = None, key: str | int | None = None) -> None:
        """
        End a pause now, also one after a 429: then the limit begins empty, as it would have later.

        Raises:
            ConfigurationError: As for `acquire`.
            StoreUnavailable: The store did not answer.
        """
        self.pause_claims(self._each_tier(limit, job, key), None)

    def reset(self, *limits: Limit, job: Job | None = None, key: str | int | None = None) -> None:
        """
        Forget what was counted under *limits*: full buckets, empty lines. Jobs that wait come back when due.

        Raises:
            ConfigurationError: As for `acquire`.
            StoreUnavailable: The store did not answer.
        """
        call = Call(limits, job, key, 0)
        self._registry.check(call)
        for each in self.claims(call):
            with self._nothing_prefetched([each]):
                self.stores.of(each.limit).reset(each.claim.names)

    def clear_line(self, limit: Limit, *, job: Job | None = None, key: str | int | None = None) -> None:
        """Empty the waiting line of *limit*, for after a purge: what was counted stays. Else as `pause`."""
        for each in self._each_tier(limit, job, key):
            self.stores.of(each.limit).clear_lines([each.claim.names[1]])

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
        self.stores.returns.close()
        if self.fleet is not None:
            self.fleet.close()
        if self.prefetcher is not None:
            self.prefetcher.close()
        self.stores.shared.close()
        self.threads.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be pickled or copied: make one in each process")

    def flush(self) -> None:
        """
        For adapters whose processes end without notice: report now to the fleet what was decided here.

        One round trip in a process younger than two seconds; none in an older one, which reports by itself.
        """
        if self.fleet is not None:
            self.fleet.flush()

    def claims(self, call: Call) -> list[Claim]:
        """For adapters: the claims of *call*, at the rates that its limits have now."""
        return self._resolver.resolve(call.on(self.in_force(call.limits, call.job)), remember=False)

    def in_force(self, limits: Sequence[Limit], job: Job | None) -> Sequence[Limit]:
        """For adapters: *limits* at the rates that they have now."""
        fleet = self.fleet
        return limits if fleet is None or not fleet.has_overrides() else fleet.overrides.in_force(limits, job)

    def pause_claims(self, claims: Sequence[Claim], for_us: int | None, *, emptied: bool = False) -> None:
        """
        For adapters: pause each of *claims* for so long, or end its pause; see `Store.pause`.

        Raises:
            StoreUnavailable: The store did not answer. Limits of scope "process" are paused all the same.
        """
        with self._nothing_prefetched(claims):
            for store, part in self.stores.each(claims):
                store.pause([each.claim for each in part], for_us, emptied=emptied)

    def _hold(self, call: Call, timeout: float) -> Hold:
        return Hold(self, call, timeout)

    def _check(self, call: Call) -> None:
        self._registry.check(call)

    def _each_tier(self, limit: Limit, job: Job | None, key: str | int | None) -> list[Claim]:
        call = Call([limit], job, key, 0)
        self._registry.check(call)
        tiers = list(limit.tiers.values()) if limit.tiers is not None and job is None else [limit]
        return [each for tier in tiers for each in self.claims(call.on([tier]))]

    def _has_overrides(self) -> bool:
        return self.fleet is not None and self.fleet.has_overrides()

    def _nothing_prefetched(self, claims: Sequence[Claim]) -> AbstractContextManager[None]:
        """Drop the units at hand of *claims*, before and after."""
        if self.prefetcher is None:
            return nullcontext()
        return self.prefetcher.without([each.claim.bucket for each in claims])
