"""The parts of a limiter, and the methods that adapters call. `throttlekit/limiter.py` has the public methods."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from throttlekit._core.decision import Charged, Decision
from throttlekit._core.job import Job
from throttlekit._core.limit.base import Limit
from throttlekit._engine.call import Call
from throttlekit._engine.claims import Claim, ClaimResolver
from throttlekit._engine.events import EventDispatcher
from throttlekit._engine.leases import Leases
from throttlekit._engine.pipeline import Pipeline
from throttlekit._engine.plugins import DEFAULT_STORE, plugin_manager, store_from, with_groups
from throttlekit._engine.registry import LimitRegistry
from throttlekit._engine.relay import Relay
from throttlekit._engine.room import AHEAD_US
from throttlekit._engine.running import slowing_of
from throttlekit._engine.stores import Stores
from throttlekit._engine.waker import Waker
from throttlekit._util.log_limiter import Every
from throttlekit._util.threads import Threads
from throttlekit.errors import ConfigurationError, StoreUnavailable
from throttlekit.hookspecs import SlotLost
from throttlekit.stores.base import Slowing, Store, is_same_address
from throttlekit.stores.breaker import CircuitBreaker
from throttlekit.stores.memory import MemoryStore

if TYPE_CHECKING:
    from throttlekit.fleet.fleet import Fleet
    from throttlekit.fleet.override_layer import OverrideLayer

__all__ = ["NO_CLIENT", "Wired", "Wiring", "wiring_of"]

NO_CLIENT = object()
_T = TypeVar("_T")
_MANY = 100_000
_log = logging.getLogger("throttlekit")
_NOT_KNOWN: Mapping[str, int] = {}


@dataclass(slots=True, eq=False)
class Wiring:
    """
    The parts of a limiter that decide, for throttlekit's own modules: see `wiring_of`.

    Attributes:
        stores: The stores that hold the counts: the store of the fleet, and the memory of this process.
        pipeline: The layer that decides a call with the store.
        decider: The layer that decides every call: the pipeline, or the layer of live control above it.
    """

    stores: Stores
    pipeline: Pipeline
    decider: Pipeline | OverrideLayer


def _call(_: str, wake: Callable[[], object]) -> object:
    return wake()


class Wired:
    """The base of `Limiter`: its layers, stacked, and the methods that adapters call."""

    def __init__(
        self,
        store: str | Store,
        client: object,
        plugins: Sequence[object],
        stores: Mapping[str, str | Store] | None = None,
    ) -> None:
        self._plugins = plugins
        hooks = plugin_manager(plugins)
        if client is NO_CLIENT:
            made = store_from(store, hooks)
        elif store is DEFAULT_STORE:
            from throttlekit.stores.from_client import store_of_client  # few limiters need it

            made = store_of_client(client)
        else:
            raise ConfigurationError("a limiter uses one store: give a URL or client=, not both")
        made = with_groups(made, stores, hooks)
        counted = Stores(CircuitBreaker(made), MemoryStore.beside(made))
        self.events = EventDispatcher(hooks)
        self.threads = Threads()
        self.fleet: Fleet | None = None
        self._waker: Waker[Callable[[], object]] | None = None
        self._leases = Leases(counted)
        self._release_failed = Every()
        self._registry = LimitRegistry()
        self._resolver = ClaimResolver(self._registry, self.events if self.events.configures_claims else None)
        self._wiring = self._stack(counted)

    def _stack(self, stores: Stores) -> Wiring:
        """Stack the layers. Only a limiter with a shared store has the layer of live control."""
        pipeline = Pipeline(stores, self._resolver, self.events)
        if not stores.shared.shared:
            return Wiring(stores, pipeline, pipeline)
        from throttlekit.fleet.fleet import Fleet  # costly to import, and a limiter in memory does not need it
        from throttlekit.fleet.override_layer import OverrideLayer

        self.fleet = fleet = Fleet(stores.shared, self, pipeline.prefetcher.take_grants)
        self._resolver.weight_of, pipeline.count = fleet.overrides.weight_of, fleet.count
        return Wiring(stores, pipeline, OverrideLayer(fleet, pipeline))

    @property
    def waker(self) -> Waker[Callable[[], object]]:
        """
        For adapters of code without jobs: the waker of the callers in this process that wait in place, each in its own
        thread or task.
        """
        if self._waker is None:
            self._waker = self.make_waker(lambda: _MANY, _call, give_back=lambda wake: wake())
        return self._waker

    def make_waker(
        self,
        free: Callable[[], int],
        start: Callable[[str, _T], object],
        *,
        give_back: Callable[[_T], object] = lambda _: None,
        ahead_us: int = AHEAD_US,
        roams: bool = False,
        relays: bool = False,
    ) -> Waker[_T]:
        """For adapters: make the waker, which holds and wakes waiting jobs; see `throttlekit.adapter.Waker`."""
        stores = self._wiring.stores
        waker = Waker(stores, free, start, give_back=give_back, ahead_us=ahead_us, roams=roams, relays=relays)
        if self.fleet is not None:
            self.fleet.follower.add_listener(waker.on_limits_changed)
        return waker

    def make_relay(self, owner: str, free: int, send: Callable[[dict[str, Any]], None]) -> Relay:
        """For adapters: make the relay of a job that another process wakes; see `throttlekit.adapter.Relay`."""
        return Relay(self._wiring.stores, owner, free, send)

    @property
    def store_address(self) -> str:
        """For adapters: host:port/database of the shared store, without user and password; "" if not one server."""
        return self._wiring.stores.shared.address

    def counts_at(self, address: str) -> bool:
        """For adapters: whether another limiter, whose `store_address` is *address*, uses the same store."""
        return is_same_address(address, self.store_address)

    def _close_waker(self) -> None:
        """Let the waiting callers send their requests again."""
        waker, self._waker = self._waker, None
        for wake in [] if waker is None else waker.close():
            wake()

    @property
    def in_memory(self) -> bool:
        """Whether limits apply to this process only."""
        return self._wiring.stores.shared.in_memory

    def keep(self, decision: Decision, on_lost: Callable[[], None]) -> None:
        """
        For adapters: renew the slots that *decision* holds until they are released.

        Args:
            on_lost: Called in another thread if a slot is lost; see the hook `throttlekit_slot_lost`.
        """

        def lost(limit: Limit) -> None:
            on_lost()
            self.events.slot_lost.emit(SlotLost(decision, limit))

        self._leases.keep(decision, lost)

    def hand_over(self, decision: Decision, pid: int) -> Decision:
        """
        For adapters: stop renewing the leases of *decision* here, because process *pid*, which runs the body, renews
        them now.

        Returns:
            The decision with the slots to release here when the body has ended: slots whose last renewal was here,
            because it may follow the body's end, and slots that only this process counts, which it still renews.
        """
        return self._leases.hand_over(decision, pid)

    def flush(self) -> None:
        """
        For adapters whose processes end without notice: report the decisions of this process to the fleet now.

        This takes one round trip if there is something to report, and the process is younger than two seconds or has
        run one job. An older process reports in the background. If the store does not answer, the report is dropped.
        """
        if self.fleet is not None:
            self.fleet.flush()

    def claims(self, call: Call) -> list[Claim]:
        """
        For adapters: return the claims of *call*, at the current rates of its limits, of one unit each: a rule may have
        lowered a limit below the cost of a job that runs or waits. With a cost of 0, the claims are of no unit.
        """
        call = call._replace(limits=self.in_force(call.limits, call.real_job), cost=0 if call.cost == 0 else 1)
        return self._resolver.resolve(call, remember=False)

    def release_all(self, held: Sequence[Charged], *, ran: bool, done: bool = False) -> None:
        """
        For adapters: release the slots *held*. If *ran*, the time for which they were held counts for the mean hold. If
        *done*, also release the slots of workflows. An error of the store is logged.
        """
        try:
            self._leases.release(held, ran=ran, done=done)
        except StoreUnavailable as error:
            if self._release_failed.due():
                _log.warning(
                    "%s. Slots that could not be given back are given back once it answers; if this process ends "
                    "before, they come free when their leases end.",
                    error,
                )

    def in_force(self, limits: Sequence[Limit], job: Job | None) -> Sequence[Limit]:
        """For adapters: return *limits* at their current rates."""
        fleet = self.fleet
        return limits if fleet is None or not fleet.has_overrides() else fleet.overrides.in_force(limits, job)

    def pause_claims(self, claims: Sequence[Claim], for_us: int | None, *, emptied: bool = False) -> None:
        """
        For adapters: pause each of *claims* for *for_us*, or end its pause; see `Store.pause`.

        Raises:
            StoreUnavailable: The store did not answer. Limits of scope "process" are paused nevertheless.
        """
        with self._wiring.pipeline.prefetcher.without([each.claim.bucket for each in claims]):
            for store, part in self._wiring.stores.split(claims, lambda each: each.in_process):
                store.pause([each.claim for each in part], for_us, emptied=emptied)

    def refuse(
        self,
        claims: Sequence[Claim],
        for_us: int,
        granted_us: Mapping[str, int] = _NOT_KNOWN,
        falls_too: Sequence[Claim] = (),
    ) -> None:
        """
        For adapters: handle a 429 of the partner. Pause each of *claims* for *for_us*; then it has no units left. Slow
        down the limits with `adapt=`.

        Args:
            granted_us: The times when the refused job was admitted, by bucket, as far as they are known.
            falls_too: Claims that are not paused. Those with `adapt=` are slowed down.

        Raises:
            StoreUnavailable: As for `pause_claims`.
        """
        self.pause_claims(claims, for_us, emptied=True)
        those = [*claims, *falls_too]
        falls = [slowing_of(each, granted_us.get(each.claim.bucket)) for each in those if each.limit.adapt]
        if falls:
            self.slow_down(falls)

    def slow_down(self, slowings: Sequence[tuple[Limit, Slowing]]) -> None:
        """
        For adapters: slow limits down for a while; see `Store.slow`.

        Raises:
            StoreUnavailable: The store did not answer.
        """
        with self._wiring.pipeline.prefetcher.without([each.bucket for _, each in slowings]):
            self._wiring.stores.slow(slowings)

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be pickled or copied: make one in each process")

    def _each_tier(self, limit: Limit, job: Job | None, key: str | int | None) -> list[Claim]:
        call = Call([limit], job, key, 0)
        self._registry.check(call)
        tiers = list(limit.tiers.values()) if limit.tiers is not None and job is None else [limit]
        return [each for tier in tiers for each in self.claims(call._replace(limits=[tier]))]


def wiring_of(limiter: Wired) -> Wiring:
    """Return the wiring of *limiter*, for modules of throttlekit. No public attribute has it, because it may change."""
    return limiter._wiring  # pyright: ignore[reportPrivateUsage]
