"""
A limit on how many jobs run at once: a set of holders, each with its own expiry.

Rule 1: a holder is a member of a set, not a number in a count. So no holder can release a slot twice, or release the
slot of another holder. The holder's name contains its number of slots, so that every process of the fleet releases,
renews and counts the same number.
Rule 2: a holder that does not renew its lease in time is removed. So the slots of a killed worker become free.
Rule 3: no clock shows when a slot becomes free. The retry times of waiting jobs are estimated from the mean hold, or
from the time since the last grant, if that is longer.
Rule 4: a workflow is one holder. Its first job takes the slot. While the workflow holds the slot, its other jobs pass
without a slot of their own. A job of the workflow renews the lease when it begins, while it runs and when it ends. Only
a lease of 0 releases the slot. Only a grant takes a slot: a renewal that arrives after the workflow has ended does not.

Example: 2 slots with a lease of 30 s. At 0 s jobs a and b take them, and c waits. The worker of a is killed; b renews
its lease every 10 s. At 30 s the lease of a ends, and c gets its slot.

lua/throttlekit_lua/concurrency.lua, latency.lua and renew.lua mirror this file. Change all, or the parity tests fail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from throttlekit._core.algorithm import STALE_US, Algorithm, Use
from throttlekit._core.durations import seconds_within
from throttlekit._core.job import Job
from throttlekit._core.latency import REMEMBERED_US, Gauge, apply_drop, measure_hold, slots_of
from throttlekit._core.limit.adapt import ByLatency
from throttlekit._core.limit.base import Limit
from throttlekit._core.limit.options import LimitOptions
from throttlekit._core.limit.rule import LimitRule, OfRule
from throttlekit._core.limit.template import Key
from throttlekit._core.number import is_whole
from throttlekit._core.storage_keys import is_workflow, slots_of_holder, with_slots
from throttlekit.errors import ConfigurationError

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["AdaptiveConcurrencyAlgorithm", "Concurrency", "ConcurrencyAlgorithm", "Holders"]

_FIRST_HOLD_US = 100_000
"""The assumed length of a hold, until the first one has ended."""
_MEAN_PART = 4  # each hold counts for a quarter, so a mean that is ten times too long is right after about ten holds
_SHORTEST_PACE_US = 1_000
_KEPT_US = 1
"""A renewed lease of a workflow is longer by this time. So its end shows that a job has passed since the grant."""
_LARGEST_AMOUNT = 1_000_000
_LEASE_S, _LEASE_OF_WORKFLOW_S = 30.0, 3600.0


class Holders(NamedTuple):
    """The state. Times are in µs; 0 means never."""

    leases: tuple[tuple[str, int], ...] = ()
    """Each holder, and the end of its lease; sorted by the end, then by the holder."""
    mean_us: int = 0
    """The mean length of a hold; 0 if it is not known."""
    granted_us: int = 0
    """The time at which a holder was last admitted."""
    longest_us: int = 0
    """The length of the longest lease. Lengths may differ while a new definition is deployed."""
    gauge: Gauge | None = None
    """The measurements of a limit with `adapt`; see latency.py."""


@dataclass(frozen=True, slots=True)
class ConcurrencyAlgorithm(Algorithm):
    """
    A request of *size* slots for *holder*, which must renew the slots within *lease_us*.

    Attributes:
        holder: The name from `with_slots` if it takes several slots, or from `workflow_name` if it is a workflow.
        lease_us: The length of the lease; 0 to release the slot of the workflow *holder*.
    """

    size: int
    amount: int
    lease_us: int
    holder: str = ""

    code: ClassVar[str] = "c"
    estimates: ClassVar[bool] = True

    def of_one(self) -> ConcurrencyAlgorithm:
        return replace(self, size=1, holder="")

    @property
    def params(self) -> tuple[int | str, int | str, int | str]:
        return self.amount, self.lease_us, self.holder

    @property
    def mark(self) -> int:
        return 1_000_000_000 // self.amount

    @property
    def stays(self) -> bool:
        """Whether the holder keeps its slot after a job's body has ended."""
        return is_workflow(self.holder) and self.lease_us > 0

    def holds(self, state: Holders | None, now_us: int) -> bool:
        return self.stays and state is not None and self.holder in dict(_live_leases(state, now_us))

    def slots(self, state: Holders | None) -> int:
        """Return the number of slots that may be held now."""
        return self.amount

    def sanitize(self, state: Holders | None, now_us: int) -> Holders | None:
        """
        Correct times that a wrong clock wrote: a lease ends at most one lease from now, and no slot was granted after
        now.
        """
        if state is None:
            return None
        most_us = now_us + max(self.lease_us, state.longest_us)
        last_us = state.leases[-1][1] if state.leases else 0
        if last_us <= most_us + STALE_US and state.granted_us <= now_us + STALE_US:
            return state
        return state._replace(
            leases=_sort_leases((holder, min(until_us, most_us)) for holder, until_us in state.leases),
            granted_us=min(state.granted_us, now_us),
        )

    def there(self, state: Holders | None, now_us: int) -> int:
        return max(0, self.slots(state) - self.use(state, now_us).units)

    def ready_us(self, state: Holders | None, now_us: int, ahead: int = 0) -> int:
        """
        If too few slots are free, estimate the time: in each `pace_us`, as many slots become free as the request takes.
        """
        over = ahead + self.size - self.there(state, now_us)
        if self.size == 0 or over <= 0 or self.holds(state, now_us):
            return now_us
        return now_us - (-over * self.pace_us(state, now_us) // self.size)

    def admit(self, state: Holders | None, now_us: int, begins_us: int | None = None) -> Holders | None:
        if self.size == 0:
            return state
        if state is not None and self.holds(state, now_us):
            return self._with(state, now_us, _KEPT_US)
        return self._with(state or Holders(), now_us)._replace(granted_us=now_us)

    def settle(self, state: Holders | None, now_us: int, granted_us: int, by: int) -> Holders | None:
        """
        Return the slot at once, because another limit denied the request. The hold is not measured. The slot of a
        workflow is returned only if the grant at *granted_us* took it and no other job of the workflow has passed.
        """
        if state is None or by >= 0 or self.holder not in dict(state.leases):
            return state
        if self.stays and (self.holder, granted_us + self.lease_us) not in state.leases:
            return state
        return self._without(state)

    def release(self, state: Holders | None, now_us: int, granted_us: int) -> Holders | None:
        """Return the state after *holder* has released its slot of *granted_us*, or *state* if the holder has none."""
        if state is None or self.holder not in dict(_live_leases(state, now_us)):
            return state
        if self.stays:
            return self._with(state, now_us, _KEPT_US)
        held_us = max(1, now_us - granted_us)
        mean_us = ((_MEAN_PART - 1) * state.mean_us + held_us) // _MEAN_PART if state.mean_us else held_us
        return self._without(state)._replace(mean_us=mean_us)

    def renew(self, state: Holders | None, now_us: int) -> tuple[Holders | None, bool]:
        """
        Renew the lease of *holder*, or take free slots for it again if it has lost its slots. A workflow gets no new
        slot, because it may have ended. Return the state, and whether the holder has its slots now.
        """
        living = _live_leases(state, now_us) if state else ()
        fits = not self.stays and _count_slots(living) + slots_of_holder(self.holder) <= self.slots(state)
        if self.holder in dict(living) or fits:
            return self._with(state or Holders(), now_us, _KEPT_US if self.stays else 0), True
        return state, False

    def use(self, state: Holders | None, now_us: int) -> Use:
        living = _live_leases(state, now_us) if state else ()
        return Use(_count_slots(living), living[-1][1] if living else now_us)

    def pace_us(self, state: Holders | None, now_us: int) -> int:
        """
        Return the time in which as many slots become free as this request takes: its slots × the mean hold / all slots.

        If the time since the last grant is longer than the mean hold, it is used instead, because every holder has held
        its slot for at least that time. Until the first hold has ended, its length is assumed to be twice that time.
        """
        state = state or Holders()
        age_us = now_us - state.granted_us if state.granted_us else 0
        hold_us = max(state.mean_us, age_us) if state.mean_us else max(_FIRST_HOLD_US, 2 * age_us)
        return max(_SHORTEST_PACE_US, self.size * hold_us // self.slots(state))

    def _with(self, state: Holders, now_us: int, longer_us: int = 0) -> Holders:
        others = (lease for lease in _live_leases(state, now_us) if lease[0] != self.holder)
        leases = _sort_leases((*others, (self.holder, now_us + self.lease_us + longer_us)))
        return state._replace(leases=leases, longest_us=max(self.lease_us, state.longest_us))

    def _without(self, state: Holders) -> Holders:
        return state._replace(leases=tuple(lease for lease in state.leases if lease[0] != self.holder))


@dataclass(frozen=True, slots=True)
class AdaptiveConcurrencyAlgorithm(ConcurrencyAlgorithm):
    """
    A request of slots whose number adapts to how long jobs hold them, from *floor* to *amount*: see latency.py. The
    measured times are stored with the holders, and the request that releases a slot updates them. *timeout_us* is 0 if
    there is no time-out.
    """

    floor: int = 1
    timeout_us: int = 0

    code: ClassVar[str] = "a"
    remembered_us: ClassVar[int] = REMEMBERED_US

    @property
    def params(self) -> tuple[int | str, int | str, int | str]:
        return self.amount, self.lease_us, f"{self.floor} {self.timeout_us} {self.holder}"

    def slots(self, state: Holders | None) -> int:
        return slots_of(state.gauge if state else None, self.floor, self.amount)

    def admit(self, state: Holders | None, now_us: int, begins_us: int | None = None) -> Holders | None:
        """Admit the request. A lease that has ended since the last reduction counts as a failed job."""
        ended = [until_us for _, until_us in state.leases if until_us <= now_us] if state and self.size else []
        if state and ended:
            state = self.apply_drop(state, now_us, max(ended) - self.lease_us)
        return ConcurrencyAlgorithm.admit(self, state, now_us)

    def release(self, state: Holders | None, now_us: int, granted_us: int) -> Holders | None:
        after = ConcurrencyAlgorithm.release(self, state, now_us, granted_us)
        if after is None or after is state:
            return after
        held_us, used = now_us - granted_us, self.use(state, now_us).units
        if self.timeout_us and held_us >= self.timeout_us:
            return self.apply_drop(after, now_us, granted_us)
        if held_us <= 0:  # the clock has stepped back, so the length of the hold is not known
            return after
        return after._replace(gauge=measure_hold(after.gauge, held_us, used, self.floor, self.amount, now_us))

    def apply_drop(self, state: Holders | None, now_us: int, granted_us: int | None) -> Holders | None:
        """Return the state after a job that was granted at *granted_us* has failed, or *state* if nothing changes."""
        if state is None:
            return None
        gauge = apply_drop(state.gauge, granted_us, self.floor, self.amount, now_us)
        return state if gauge is state.gauge else state._replace(gauge=gauge)


@dataclass(frozen=True, slots=True, kw_only=True)
class _SlotRule(LimitRule):
    """A number of slots, and the length of their leases."""

    lease: float
    lease_us: int

    options = ("lease", "queue")

    @classmethod
    def parse(cls, rate: Any) -> tuple[int, int]:
        if not is_whole(rate, 1, _LARGEST_AMOUNT):
            raise ConfigurationError(f"the amount must be a whole number from 1 to {_LARGEST_AMOUNT}, not {rate!r}")
        return rate, 0

    @classmethod
    def rate_from(cls, amount: int, period_us: int) -> Any:
        return amount if period_us == 0 else None

    @classmethod
    def work_out(
        cls, rate: Any, amount: int, period_us: int, varying_us: int | None, lease: Any = None
    ) -> Mapping[str, Any]:
        seconds = seconds_within("the lease", lease, 1, 86_400)
        return {"capacity": amount, "lease": float(seconds), "lease_us": round(seconds * 1_000_000)}

    @property
    def counts_by(self) -> tuple[object, ...]:
        return ()


class Concurrency(Limit):
    """
    A number of jobs at once, without a rate.

    Guarantee: at most `amount` slots are held at any time, by the store's clock. A job holds one slot, or as many as
    its *cost*, from its grant until its body has ended. Its worker renews the lease three times per length of a lease.
    If a worker is killed, its slots are free when the lease ends. If a job cannot renew for a whole lease (its process
    is frozen, or the store is unavailable), another job may get the slot while the first one still runs.
    `throttlekit.current().lost` and the hook `throttlekit_slot_lost` report that. Until the first job ends, one job
    more than the amount runs.

    When to choose it: the partner accepts only a certain number of callers at once: a database with 8 connections, a
    service with 4 workers, a model that handles two requests at a time. In the store, a key needs about 600 bytes, and
    each additional holder needs 40 to 75 bytes.

    Args:
        name, key, scope, tier, default_tier, on_store_failure, processes: As for every limit; see `Limit`.
        amount: The number of slots: a whole number of at least 1. Or one for each tier, with *tier*. Or a callable that
            takes the job and returns the amount.
        lease: The time without a renewal after which a holder loses its slots: seconds, or a timedelta, from 1 second
            to a day. A job may run for much longer. With a short lease, the slots of a killed worker are soon free
            again. With a long lease, slots survive a longer outage of the store. Default: 30, or an hour with
            *held_by*.
        held_by: The workflow whose jobs hold one slot together, written like *key*: "{workflow_id}". The first job
            takes the slot, and the others pass at once. The workflow keeps it until `throttlekit.current().done(limit)`
            or `Limiter.done`, or until none of its jobs has begun, run or ended for a whole *lease*. It cannot be used
            with *cost*, *adapt*, scope "process", or on_store_failure "local". It is not part of the definition.
        adapt: A `ByLatency`, which adapts the number of slots to the partner's load, from its floor to the amount.
        cost: The number of slots that a job holds, for example for its memory on a GPU: a whole number of at least 0
            (for a job that needs no slot), or a callable that takes the job. Default: 1. A cost that a caller passes to
            `acquire` for all limits applies to this limit only if *cost* is more than 1 or a callable; otherwise it
            counts as 1. With *adapt*, the cost must be 1 or 0.

    Raises:
        ConfigurationError: A value can never work. The constructor raises it.
        CostExceedsLimit: The cost is more than the amount.

    Waiting jobs are woken in their order when slots become free. If the first job needs several slots, free slots are
    kept for it. The delay of a denied job is an estimate: the recent mean hold / amount for each slot ahead of it. All
    definitions with one name share one set of holders: if the amount changes, jobs that hold a slot still count.
    """

    __slots__ = ()

    algorithm = "concurrency"
    rule_type = _SlotRule

    lease = OfRule[float](common=True)
    lease_us = OfRule[int]()

    def __init__(
        self,
        name: str,
        amount: int | Mapping[str, int] | Callable[[Job], int],
        *,
        lease: float | timedelta | Mapping[str, float | timedelta] | None = None,
        held_by: Key = None,
        **options: Unpack[LimitOptions],
    ) -> None:
        amounts: Any = amount
        default, own = _LEASE_S if held_by is None else _LEASE_OF_WORKFLOW_S, dict[str, Any](lease=lease)
        if isinstance(lease, Mapping):
            each_own: Mapping[str, Any] = lease
            own["lease"] = {tier: default if each is None else each for tier, each in each_own.items()}
        elif lease is None:
            own["lease"] = default
        super().__init__(name, amounts, held_by=held_by, _own=own, **options)

    @property
    def definition(self) -> object:
        if self.tiers is not None or self.varying_us is not None:
            return super().definition
        return self.fingerprint, self.amount, self.lease

    def bind(self, cost: int, around_us: int = 0, holder: str = "") -> ConcurrencyAlgorithm:
        rule, adapt = self.rule, self.adapt
        if isinstance(adapt, ByLatency):
            floor = min(adapt.floor, rule.amount)
            return AdaptiveConcurrencyAlgorithm(cost, rule.amount, rule.lease_us, holder, floor, adapt.timeout_us)
        return ConcurrencyAlgorithm(cost, rule.amount, rule.lease_us, with_slots(holder, cost))

    def given_cost(self, cost: int) -> int:
        if isinstance(self.cost, int) and self.cost <= 1:
            return min(1, self.check_units(cost))
        return self.check_cost(cost)

    def _remedy(self, cost: int) -> str:
        return f"raise the amount to at least {cost}"


def _live_leases(state: Holders, now_us: int) -> tuple[tuple[str, int], ...]:
    return tuple(lease for lease in state.leases if lease[1] > now_us)


def _count_slots(leases: tuple[tuple[str, int], ...]) -> int:
    return sum(slots_of_holder(holder) for holder, _ in leases)


def _sort_leases(leases: Any) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(leases, key=lambda lease: (lease[1], lease[0])))
